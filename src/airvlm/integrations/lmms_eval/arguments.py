"""A task's generation arguments as transformers' own: each is honoured, says nothing, or is refused by its name.

Knows nothing of lmms-eval's classes, nor of models.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Generation", "generation"]

MAX_NEW_TOKENS = 1024  # where a task sets no limit
LIMITS = ("max_new_tokens", "max_tokens", "max_gen_toks")  # tasks spell it in several ways
STOPS = ("until", "stop_sequences")
SAMPLING = ("temperature", "top_p", "top_k")  # greedy decoding has no use for them
PASSED = ("num_beams", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "min_new_tokens")
# With these values they ask for nothing: LLaVA's own code reads the first, we always skip special tokens
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "image_aspect_ratio": ("original", None),
    "skip_special_tokens": (True,),
    "use_cache": (True,),
    "num_return_sequences": (1,),
}


@dataclass(frozen=True)
class Generation:
    """How one group of requests is answered."""

    options: Mapping[str, Any]  # for transformers' generate
    until: tuple[str, ...] = ()  # an answer ends before the first of these
    seed: int | None = None

    def ended(self, text: str) -> str:
        """The text up to the first stop string."""
        ends = [at for stop in self.until if (at := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else text


@dataclass
class _Read:
    given: dict[str, Any]
    used: set[str] = field(default_factory=set)

    def first(self, names: Collection[str], default: Any = None) -> Any:
        self.used |= set(names)
        return next((self.given[name] for name in names if self.given.get(name) is not None), default)


def generation(given: Mapping[str, Any], ignore: Collection[str] = ()) -> Generation:
    """A task's `generation_kwargs`, read. `ignore`: names that the user said to leave out."""
    read = _Read({name: value for name, value in given.items() if name not in ignore})
    options: dict[str, Any] = {"max_new_tokens": int(read.first(LIMITS, MAX_NEW_TOKENS))}
    sampled = {name: value for name in SAMPLING if (value := read.first([name])) is not None}
    # tasks that sample may say so by a temperature alone
    samples = read.first(["do_sample"], bool(sampled.get("temperature")))
    if samples and sampled.get("temperature") != 0:
        options |= {"do_sample": True, **sampled}
    else:
        options["do_sample"] = False
    options |= {name: value for name in PASSED if (value := read.first([name])) is not None}
    stops = read.first(STOPS, ())
    until = tuple(stop for stop in ([stops] if isinstance(stops, str) else stops) if stop)
    seed = read.first(["seed"])
    for name, value in read.given.items():
        if name in read.used:
            continue
        if name not in NEUTRAL or value not in NEUTRAL[name]:
            raise ValueError(
                f"generation argument {name} = {value!r} is not honoured by airvlm; leave it out of the task, or say "
                f"that it may be ignored: --model_args ...,ignore={name}"
            )
    return Generation(options, until, None if seed is None else int(seed))
