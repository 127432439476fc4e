"""Cost of MemVR at the widths of LLaVA-1.5-7B: ours, and a plain version of the published code, over vanilla.

The published code applies the head to every layer's hidden states at every position and waits for the result each time;
ours applies it to the last position, in MemVR's range of layers, until a layer acts. Decoding is measured with all 32
layers (which share weights). A prefill of 32 layers takes minutes on a CPU, so it is measured with few layers and
extrapolated by the arithmetic that is printed.

    python -m experiments.speed.memvr [--layers 32] [--prefill-layers 2] [--rounds 3] [--prefill-rounds 2]
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from airvlm import MemVR, MethodInactiveWarning, ModelParts
from airvlm.bench.wide import wide_prompt
from experiments.speed import llava_widths as llava
from experiments.speed import timing

WINDOW = (5, 16)  # of the 32 layers, both ends exclusive: ten apply the head
AT_ONCE, NEVER, PUBLISHED = "ours, acts at once", "ours, never acts", "published"

Open = Callable[[], Any]  # opens a context in which the method acts


@contextmanager
def published(model: Any, window: tuple[int, int], alpha: float = 0.12) -> Iterator[None]:
    """The published procedure with hooks: the head at all layers and positions, and a wait for each."""
    parts = ModelParts.of(model)
    state: dict[str, Any] = {"Z": None, "next": None, "acted": False}
    ids: dict[str, Tensor] = {}

    def on_model(module: Any, args: Any, kwargs: Any) -> None:
        ids["now"] = kwargs["input_ids"]
        state.update(next=None, acted=False)

    def on_decoder(module: Any, args: Any, kwargs: Any) -> None:
        visual = ids["now"] == parts.image_token_id
        if visual.any():
            state["Z"] = kwargs["inputs_embeds"][visual]

    def on_layer(i: int, h: Any) -> None:
        h = h[0] if isinstance(h, tuple) else h
        top_ten = parts.head(parts.norm(h))[:, -1].topk(10).values.softmax(-1)
        entropy = -(top_ten * top_ten.log()).sum().item() / math.log(10)
        if entropy > 0.75 and not state["acted"] and window[0] < i < window[1] and i + 1 < len(parts.layers):
            state.update(next=i + 1, acted=True)

    def on_ffn(i: int, module: Any, x: Tensor, y: Tensor) -> Tensor | None:
        if state["next"] != i:
            return None
        Z = state["Z"]
        W1 = Z * (module.up_proj.weight.abs().mean() / Z.abs().mean())
        W2 = Z * (module.down_proj.weight.abs().mean() / Z.abs().mean())
        a = (x @ W1.T) @ W2
        mixed: Tensor = (1 - alpha) * y + alpha * (y.abs().mean() / a.abs().mean()) * a
        return mixed

    handles = [
        model.register_forward_pre_hook(on_model, with_kwargs=True),
        parts.decoder.register_forward_pre_hook(on_decoder, with_kwargs=True),
    ]
    for i, (layer, ffn) in enumerate(zip(parts.layers, parts.ffns, strict=True)):
        handles.append(layer.register_forward_hook(lambda m, a, out, i=i: on_layer(i, out)))
        handles.append(ffn.register_forward_hook(lambda m, a, out, i=i: on_ffn(i, m, a[0], out)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def list_contexts(model: Any, window: tuple[int, int]) -> dict[str, Open | None]:
    """What is measured. Our range names the layers that are changed: those after the ones that are read."""
    layers = (window[0] + 2, window[1] + 1)
    at_once, never = (MemVR(threshold=threshold, layers=layers) for threshold in (0.0, 1.0))
    return {
        "vanilla": None,
        AT_ONCE: lambda: at_once(model),
        NEVER: lambda: never(model),
        PUBLISHED: lambda: published(model, window),
    }


def decode_job(model: Any, context: Open | None, features: dict[str, Any]) -> Callable[[], float]:
    """Seconds of one decode step, after a prefill whose layers computed nothing."""
    prompt = wide_prompt()
    length = prompt["input_ids"].shape[1]
    token = {"input_ids": torch.tensor([[7]]), "attention_mask": torch.ones(1, length + 2, dtype=torch.long)}

    def time_step(cache: Any) -> float:
        def decode() -> None:
            model(**token, past_key_values=cache, use_cache=True)

        decode()  # warm-up
        return timing.time_job(decode)

    def job() -> float:
        cache = llava.fill_cache(model, length)
        if context is None:
            return time_step(cache)
        with context():
            with llava.without_arithmetic(model):
                model(**prompt, **features, logits_to_keep=1)
            return time_step(cache)

    return job


def prefill_job(model: Any, context: Open | None, features: dict[str, Any]) -> Callable[[], float]:
    """Seconds of a prefill."""
    prompt = wide_prompt()

    def prefill() -> None:
        model(**prompt, **features, logits_to_keep=1)

    def job() -> float:
        if context is None:
            return timing.time_job(prefill)
        with context():
            return timing.time_job(prefill)

    return job


def extrapolate(seconds: dict[str, float], layers: int) -> dict[str, float]:
    """Ratio of a prefill to vanilla at 32 layers, from one of `layers` layers.

    vanilla at 32 = vanilla * 32 / layers. Ours adds what it added here, with ten applications of the head instead of
    layers - 1 where it never acts; the published code applies it at every layer, so that its addition grows with them.
    """
    vanilla = seconds["vanilla"]
    whole = vanilla * llava.LAYERS / layers
    growth = {AT_ONCE: 1.0, NEVER: (WINDOW[1] - WINDOW[0] - 1) / (layers - 1), PUBLISHED: llava.LAYERS / layers}
    return {name: 1 + (seconds[name] - vanilla) * factor / whole for name, factor in growth.items()}


@torch.no_grad()
def main() -> None:
    given = timing.parse_arguments(__doc__ or "", layers=llava.LAYERS, prefill_layers=2, rounds=3, prefill_rounds=2)
    warnings.simplefilter("ignore", MethodInactiveWarning)  # one case never acts
    image = llava.sample_image()

    model = llava.build(given.layers)
    features = llava.encode_image(model, image)
    window = WINDOW if given.layers == llava.LAYERS else (-1, given.layers)
    jobs = {name: decode_job(model, context, features) for name, context in list_contexts(model, window).items()}
    taken = timing.interleave(jobs, given.rounds)
    decode = timing.ratios(taken, "vanilla")
    rows = [[name, f"{timing.median(taken[name]):.3f}", timing.show(own)] for name, own in decode.items()]
    head = ["method", "seconds", "ratio to vanilla: median [range]"]
    timing.print_table(f"Decode step, {given.layers} layers, {given.rounds} rounds", head, rows)

    del model, jobs
    model = llava.build(given.prefill_layers)
    features = llava.encode_image(model, image)
    contexts = list_contexts(model, (-1, given.prefill_layers))
    jobs = {name: prefill_job(model, context, features) for name, context in contexts.items()}
    taken = timing.interleave(jobs, given.prefill_rounds)
    prefill = timing.ratios(taken, "vanilla")
    at_32 = extrapolate({name: timing.median(own) for name, own in taken.items()}, given.prefill_layers)
    rows = [
        [name, f"{timing.median(taken[name]):.2f}", timing.show(own), f"{at_32.get(name, 1):.3f}"]
        for name, own in prefill.items()
    ]
    title = f"Prefill of 616 tokens, {given.prefill_layers} layers, {given.prefill_rounds} rounds"
    timing.print_table(title, [*head, "at 32 layers"], rows)
    print((extrapolate.__doc__ or "").split("\n\n")[1])
    by_flops = 1 + llava.HEAD_WEIGHTS / (llava.LAYER_WEIGHTS + llava.HEAD_WEIGHTS / llava.LAYERS)
    print(f"by FLOPs, a prefill of the published code takes {by_flops:.2f} times vanilla's")
    timing.write_result(
        "memvr",
        {
            "decode": {"layers": given.layers, "ratios": decode},
            "prefill": {"layers": given.prefill_layers, "ratios": prefill, "at_32_layers": at_32},
            "published_prefill_by_flops": by_flops,
        },
    )


if __name__ == "__main__":
    main()
