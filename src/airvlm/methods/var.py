"""VAR: visual attention redistribution (ICLR 2025). Attention that sinks into tokens without content goes to the image.

A prompt token is a sink in a layer if, of the layer's input divided by its root mean square, one of the dimensions
`dims` exceeds `tau`. For text after the image, in heads with at least `min_image` of their attention on the image and
at most `rho` of that on visual sinks: the attention to all sinks is multiplied by `keep`, and what was removed is given
to the other visual tokens in proportion to their attention. Rows still sum to 1. All layers but the first two and the
last.

`dims` are the massive dimensions of the language model: known for LLaMA-2-7B and -13B. For others `airvlm calibrate`
finds them: the two that stand out most in the states of the first token, which is a sink in every prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from airvlm.methods.artifacts import ArtifactMethod, PairKind
from airvlm.methods.base import option
from airvlm.methods.templates.attention import AttentionIntervention
from airvlm.methods.templates.layers import layer_span
from airvlm.models.parts import ModelParts
from airvlm.runtime.attention import AttentionChange, fit_keys
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention
from airvlm.runtime.probe import run_probe

__all__ = ["VAR"]

# (hidden size, layers, tokens of the vocabulary at least and at most) of LLaMA-2 and Vicuna -> massive dimensions
MASSIVE = {(4096, 32, 32000, 32064): (1415, 2533), (5120, 40, 32000, 32064): (2100, 4743)}
MEASURED = 2  # dimensions that a measurement keeps, as many as were published


@dataclass(frozen=True)
class VAR(ArtifactMethod):
    """Visual attention redistribution."""

    name: ClassVar[str] = "var"
    paper: ClassVar[str | None] = (
        "See what you are told: visual attention sink in large multimodal models (ICLR 2025, arXiv 2503.03321)"
    )
    summary: ClassVar[str] = "gives the attention that sinks into tokens without content to the image"
    site: ClassVar[str] = "attention"
    data: ClassVar[str] = "massive dimensions: built in for LLaMA-2-7B and -13B, or an artifact of airvlm calibrate"
    pairs: ClassVar[PairKind | None] = None

    keep: float = option(0.6, "what stays of the attention to sinks; 1 is off", low=0, high=1, off=1, search=(0.1, 0.9))
    tau: float = option(20.0, "value of a massive dimension from which a token is a sink", low=0)
    rho: float = option(0.5, "largest share of visual sinks in the attention to the image", low=0, high=1)
    min_image: float = option(0.2, "smallest attention to the image of a head that is changed", low=0, high=1)
    dims: tuple[int, ...] | None = option(
        None, "massive dimensions; none is those of the artifact, or of a known language model", low=0
    )
    layers: tuple[int, int] | None = option(
        None, "decoder layers that are changed; none is all but the first two and the last", span=True
    )

    @classmethod
    def measure(cls, parts: ModelParts, prompts: Iterable[Mapping[str, Tensor]], seed: int) -> dict[str, Tensor]:
        layers = [layer - 1 for layer in default_span(len(parts.layers))]
        sizes = []
        for inputs in prompts:
            states = run_probe(parts, inputs, sites={"residual": layers}, all_positions=True).states
            sizes += [normalized_size(states["residual", layer][0, 0]).cpu() for layer in layers]  # of the first token
        size, dims = torch.stack(sizes).mean(0).topk(MEASURED)
        return {"dims": dims, "size": size}

    def start(self, context: Context) -> Intervention:
        return _Redistribute(self, context)


def default_span(depth: int) -> range:
    """All layers but the first two and the last."""
    return range(min(2, depth - 1), depth - 1)


def normalized_size(h: Tensor) -> Tensor:
    """|h| over its root mean square, per dimension (..., d)."""
    wide = h.float()
    return wide.abs() * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)


def find_dimensions(method: VAR, context: Context) -> list[int]:
    """The massive dimensions of the option or of a known language model; an error if there are none."""
    size, depth = context.parts.hidden_size, len(context.parts.layers)
    dims = method.dims
    if dims is None and method.artifact:
        dims = tuple(int(one) for one in method.load_artifact(context.parts).tensors["dims"])
    if dims is None:
        config: Any = getattr(context.parts.model, "config", None)
        text = None if config is None else config.get_text_config()
        vocabulary = int(getattr(text, "vocab_size", 0))
        for (known_size, known_depth, least, most), known in MASSIVE.items():
            llama = getattr(text, "model_type", "") == "llama" and least <= vocabulary <= most
            dims = known if llama and (size, depth) == (known_size, known_depth) else dims
    if not dims:
        raise ValueError(
            f"{method.name} does not know the massive dimensions of {context.parts.family}'s language model: give "
            f"dims=, or find them: airvlm calibrate {method.name} --data FOLDER, then {method.name}:artifact=FILE"
        )
    if max(dims) >= size:
        raise ValueError(f"dims = {dims}, but hidden states have {size} dimensions")
    return list(dims)


class _Redistribute(AttentionIntervention):
    method: VAR
    queries = "after_image"

    def __init__(self, method: VAR, context: Context) -> None:
        super().__init__(method, context)
        depth = len(context.parts.layers)
        self._dims = torch.tensor(find_dimensions(method, context))
        self.span = default_span(depth) if method.layers is None else layer_span(method.layers, depth)
        if 0 in self.span:
            raise ValueError(f"layers = {method.layers}: the first layer has no sinks; begin at 1")
        self.residual_layers = [layer - 1 for layer in self.span]  # a layer's input is the output of the one before
        self._sinks: dict[int, Tensor] = {}  # layer -> (B, prompt)
        self._largest: Tensor | None = None  # (batch_size,) of a visual token's massive dimensions

    def on_call(self, call: GenerateCall) -> None:
        super().on_call(call)
        self._sinks.clear()
        self._largest = None

    def residual(self, fp: ForwardPass, layer: int, h: Tensor) -> None:
        if fp.visual is None:
            return
        prompt = h[:, : fp.first_generated + 1] if fp.is_prefill else h
        self._dims = self._dims.to(h.device)
        size = normalized_size(prompt).index_select(-1, self._dims).amax(-1)  # (B, P)
        sinks = fp.zero_padding(nn.functional.pad(size > self.method.tau, (0, h.shape[1] - size.shape[1])))
        known = None if fp.is_prefill else self._sinks.get(layer + 1)
        self._sinks[layer + 1] = sinks if known is None else torch.cat([self._all_keys(known, h.shape[1]), sinks], 1)
        own = (size * fp.visual[:, : size.shape[1]]).amax(-1).view(fp.batch_size, -1).amax(-1)
        same = self._largest is not None and self._largest.shape == own.shape
        self._largest = torch.maximum(self._largest.to(own), own) if self._largest is not None and same else own

    def _all_keys(self, known: Tensor, new: int) -> Tensor:
        return nn.functional.pad(known, (0, self.total - new - known.shape[1]))

    def attention_of(self, layer: int) -> AttentionChange | None:
        sinks = self._sinks.get(layer)
        if sinks is None:
            return None
        assert self.visual_keys is not None
        method, visual_keys = self.method, self.visual_keys
        sinks = nn.functional.pad(sinks, (0, self.total - sinks.shape[1]))  # generated tokens are none

        def redistribute(p: Tensor) -> Tensor:  # (B, H, R, T)
            visual, sink = (
                fit_keys(keys, p.shape[-1], self.total).to(p.device)[:, None, None] for keys in (visual_keys, sinks)
            )
            image = p * visual
            mass = image.sum(-1, keepdim=True)
            share = (image * sink).sum(-1, keepdim=True) / (mass + 1e-6 * visual.sum(-1, keepdim=True))
            chosen = (share <= method.rho) & (mass >= method.min_image) & (visual & sink).any(-1, keepdim=True)
            free = image * ~sink
            budget = (1 - method.keep) * (p * sink).sum(-1, keepdim=True)
            moved = torch.where(sink, p * method.keep, p) + budget * free / free.sum(-1, keepdim=True).clamp_min(1e-30)
            self._count(chosen[..., 0].any(1))
            return torch.where(chosen, moved, p)

        return self.change(probabilities=redistribute)

    def _count(self, changed: Tensor) -> None:  # (B, R)
        assert self.has_image is not None and self.current is not None
        queries, first, _ = self.current
        if changed.shape[1] == queries.shape[1] - first:  # a long pass comes in chunks, which are not told apart
            changed = changed & queries[:, first:].to(changed.device)
        rows = changed.sum(-1).view(self.batch_size, -1).sum(-1)
        self.stats.count(rows * self.has_image.to(rows))

    def measures(self) -> dict[str, Tensor]:
        return {} if self._largest is None else {"largest": self._largest}

    def inactive_reason(self, row: int | None) -> str:
        largest = self.measured.get("largest", [])
        if not largest:
            return super().inactive_reason(row)
        most = max(largest) if row is None or row >= len(largest) else largest[row]
        if most <= self.method.tau:
            return f"no visual token is a sink: the largest value is {most:.2f}, and tau is {self.method.tau:g}"
        return "no head looks at the image enough, and at its sinks little enough"
