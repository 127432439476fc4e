"""The generation arguments of lmms-eval's tasks as options of `VLM.batch`: honored, ignored, or refused by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

__all__ = ["read_generation"]

MAX_NEW_TOKENS = 1024  # where a task sets no limit
LIMITS = ("max_new_tokens", "max_tokens", "max_gen_toks")  # tasks spell it in several ways
STOPS = ("until", "stop_sequences")
SAMPLING = ("temperature", "top_p", "top_k")  # without effect in greedy decoding
PASSED = ("num_beams", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "min_new_tokens", "seed")
# Without effect at these values: LLaVA's own code reads the first, and special tokens are always skipped
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "image_aspect_ratio": ("original", None),
    "skip_special_tokens": (True,),
    "use_cache": (True,),
    "num_return_sequences": (1,),
}


def read_generation(given: Mapping[str, Any], ignore: Collection[str] = ()) -> dict[str, Any]:
    """A task's `generation_kwargs` as options of `VLM.batch`.

    Args:
        given: as the task has them.
        ignore: names that the user chose to leave out.
    """
    given = {name: value for name, value in given.items() if name not in ignore}
    for name, value in given.items():
        if name in (*LIMITS, *STOPS, *SAMPLING, *PASSED, "do_sample"):
            continue
        if name not in NEUTRAL or value not in NEUTRAL[name]:
            raise ValueError(
                f"generation argument {name} = {value!r} is not supported by airvlm; remove it from the task, or "
                f"ignore it: --model_args ...,ignore={name}"
            )
    given = {name: value for name, value in given.items() if value is not None}
    limit = next((given[name] for name in LIMITS if name in given), MAX_NEW_TOKENS)
    options: dict[str, Any] = {"max_new_tokens": int(limit)}
    # tasks that sample may say so by a temperature alone
    samples = given.get("do_sample", bool(given.get("temperature"))) and given.get("temperature") != 0
    options["do_sample"] = bool(samples)
    if samples:
        options |= {name: given[name] for name in SAMPLING if name in given}
    options |= {name: given[name] for name in PASSED if name in given}
    stops = next((given[name] for name in STOPS if name in given), ())
    stops = [stop for stop in ([stops] if isinstance(stops, str) else stops) if stop]
    return options | ({"stop_strings": stops} if stops else {})
