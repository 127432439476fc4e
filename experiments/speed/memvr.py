"""MemVR's overhead at LLaVA-1.5-7B's widths: ours, and a straightforward version of the published one, over vanilla.

The published code reads every layer's hidden states at every position through the head and waits for the result each
time; ours reads the last position, inside the window, until a layer fired. Decoding is measured with all 32 layers
(weights shared by layers, see llava_widths.py). A prefill of 32 layers takes minutes on a CPU, so it is measured with
few layers, all but the last of them looked at, and carried to 32 by the arithmetic that is printed.

    python -m experiments.speed.memvr [--layers 32] [--prefill-layers 2] [--repeats 3] [--prefill-repeats 2]
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from airvlm import MemVR
from airvlm.methods.base import Method
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.models.parts import ModelParts
from experiments.speed import llava_widths as llava

TARGET = 1.05
WINDOW = (5, 16)  # of the 32 layers: ten look
OURS, SURE, PUBLISHED = "ours, fires at once", "ours, never fires", "published"


@contextmanager
def published(model: Any, window: tuple[int, int], alpha: float = 0.12) -> Iterator[None]:
    """The published procedure written plainly with hooks: the lens at all layers and positions, one wait for each."""
    parts = ModelParts.of(model)
    state: dict[str, Any] = {"Z": None, "armed": None, "fired": False}
    ids: dict[str, Tensor] = {}

    def top(module: Any, args: Any, kwargs: Any) -> None:
        ids["now"] = kwargs["input_ids"]
        state.update(armed=None, fired=False)

    def decoder(module: Any, args: Any, kwargs: Any) -> None:
        visual = ids["now"] == parts.image_token_id
        if visual.any():
            state["Z"] = kwargs["inputs_embeds"][visual]

    def layer(i: int, h: Any) -> None:
        h = h[0] if isinstance(h, tuple) else h
        top_ten = parts.head(parts.norm(h))[:, -1].topk(10).values.softmax(-1)
        u = -(top_ten * top_ten.log()).sum().item() / math.log(10)
        if u > 0.75 and not state["fired"] and window[0] < i < window[1] and i + 1 < len(parts.layers):
            state.update(armed=i + 1, fired=True)

    def ffn(i: int, module: Any, x: Tensor, y: Tensor) -> Tensor | None:
        if state["armed"] != i:
            return None
        Z = state["Z"]
        W1 = Z * (module.up_proj.weight.abs().mean() / Z.abs().mean())
        W2 = Z * (module.down_proj.weight.abs().mean() / Z.abs().mean())
        a = (x @ W1.T) @ W2
        mixed: Tensor = (1 - alpha) * y + alpha * (y.abs().mean() / a.abs().mean()) * a
        return mixed

    handles = [
        model.register_forward_pre_hook(top, with_kwargs=True),
        parts.decoder.register_forward_pre_hook(decoder, with_kwargs=True),
    ]
    for i, (each, mlp) in enumerate(zip(parts.layers, parts.ffns, strict=True)):
        handles.append(each.register_forward_hook(lambda m, a, out, i=i: layer(i, out)))
        handles.append(mlp.register_forward_hook(lambda m, a, out, i=i: ffn(i, m, a[0], out)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def blocks(model: Any, window: tuple[int, int]) -> dict[str, Callable[[], Any]]:
    """What opens each block."""
    plain: dict[str, Method] = {
        OURS: MemVR(threshold=0.0, layers=(window[0] + 2, window[1] + 1)),
        SURE: MemVR(threshold=1.0, layers=(window[0] + 2, window[1] + 1)),
    }
    opened: dict[str, Callable[[], Any]] = {name: lambda m=method: m(model) for name, method in plain.items()}
    return opened | {PUBLISHED: lambda: published(model, window)}


def decoding(model: Any, opened: Callable[[], Any] | None, features: dict[str, Any]) -> Callable[[], float]:
    """Seconds of one decode step after a prefill whose layers computed nothing."""
    prompt = llava.prompt()
    length = prompt["input_ids"].shape[1]
    token = {"input_ids": torch.tensor([[7]]), "attention_mask": torch.ones(1, length + 2, dtype=torch.long)}

    def step(cache: Any) -> float:
        def decode() -> None:
            model(**token, past_key_values=cache, use_cache=True)

        decode()
        return llava.seconds(decode)

    def job() -> float:
        cache = llava.filled_cache(model, length)
        if opened is None:
            return step(cache)
        with opened():
            with llava.without_arithmetic(model):
                model(**prompt, **features, logits_to_keep=1)
            return step(cache)

    return job


def prefilling(model: Any, opened: Callable[[], Any] | None, features: dict[str, Any]) -> Callable[[], float]:
    prompt = llava.prompt()

    def prefill() -> None:
        model(**prompt, **features, logits_to_keep=1)

    def job() -> float:
        if opened is None:
            return llava.seconds(prefill)
        with opened():
            return llava.seconds(prefill)

    return job


def carried(seconds: dict[str, float], layers: int) -> dict[str, float]:
    """Prefill over vanilla at 32 layers, from one of `layers` layers.

    vanilla at 32 = vanilla * 32 / layers. Ours adds what it added here, with ten looks instead of layers - 1 where it
    never fires; the published version looks at every layer, so its addition grows with them.
    """
    vanilla = seconds["vanilla"]
    whole = vanilla * llava.LAYERS / layers
    grows = {OURS: 1.0, SURE: (WINDOW[1] - WINDOW[0] - 1) / (layers - 1), PUBLISHED: llava.LAYERS / layers}
    return {name: 1 + (seconds[name] - vanilla) * factor / whole for name, factor in grows.items()}


@torch.no_grad()
def main() -> None:
    given = llava.arguments(__doc__ or "", layers=llava.LAYERS, prefill_layers=2, repeats=3, prefill_repeats=2)
    warnings.simplefilter("ignore", MethodInactiveWarning)  # one case is meant not to act
    image = llava.sample_image()
    result: dict[str, Any] = {}

    model = llava.build(given.layers)
    features = llava.encoded(model, image)
    window = WINDOW if given.layers == llava.LAYERS else (-1, given.layers)
    jobs = {"vanilla": decoding(model, None, features)}
    jobs |= {name: decoding(model, opened, features) for name, opened in blocks(model, window).items()}
    taken = llava.interleaved(jobs, given.repeats)
    over = llava.ratios(taken, "vanilla")
    head = ["method", "seconds", "over vanilla", "spread", "at most"]
    rows = [
        [
            name,
            f"{llava.median(taken[name]):.3f}",
            f"{llava.median(own):.3f}",
            llava.spread(own),
            _target(name),
        ]
        for name, own in over.items()
    ]
    llava.table(f"Decode step, {given.layers} layers, {given.repeats} interleaved turns", head, rows)
    result["decode"] = {
        "layers": given.layers,
        "over_vanilla": {n: llava.median(o) for n, o in over.items()},
        "turns": over,
    }

    del model, jobs
    model = llava.build(given.prefill_layers)
    features = llava.encoded(model, image)
    window = (-1, given.prefill_layers)
    jobs = {"vanilla": prefilling(model, None, features)}
    jobs |= {name: prefilling(model, opened, features) for name, opened in blocks(model, window).items()}
    taken = llava.interleaved(jobs, given.prefill_repeats)
    over = llava.ratios(taken, "vanilla")
    at_32 = carried({name: llava.median(own) for name, own in taken.items()}, given.prefill_layers)
    rows = [
        [
            name,
            f"{llava.median(taken[name]):.2f}",
            f"{llava.median(own):.3f}",
            f"{at_32.get(name, 1):.3f}",
            _target(name),
        ]
        for name, own in over.items()
    ]
    head = ["method", "seconds", "over vanilla", "at 32 layers", "at most"]
    llava.table(f"Prefill of 616 tokens, {given.prefill_layers} layers, carried to 32", head, rows)
    print((carried.__doc__ or "").split("\n\n")[1])
    lens = llava.HEAD_WEIGHTS / (llava.LAYER_WEIGHTS + llava.HEAD_WEIGHTS / llava.LAYERS)
    print(f"by FLOPs, the published lens adds {lens:.2f} of a prefill")
    result["prefill"] = {
        "layers": given.prefill_layers,
        "over_vanilla": {n: llava.median(o) for n, o in over.items()},
        "at_32_layers": at_32,
        "published_by_flops": 1 + lens,
    }
    llava.write("memvr", result)


def _target(name: str) -> str:
    return str(TARGET) if name == OURS else ""


if __name__ == "__main__":
    main()
