"""MemVR: look twice (ICML 2025). The image's own tokens are mixed into a feed-forward where the model is unsure.

After each layer of a window the logit lens asks how unsure the next token is; the first unsure layer l makes
layer l + 1 mix a = phi(x Z') Z into its feed-forward output, y = (1 - alpha) ffn + alpha |ffn|/|a| a, once a pass, for
each batch row by itself. What the published code computes instead (`faithful=True`) is memvr_faithful.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import silu

from airvlm.hooks.fields import setting
from airvlm.hooks.intervention import Call, Context, Intervention, Step, blocks, norm_ratio
from airvlm.hooks.logit_lens import EntropyLens, Trigger, highest_of
from airvlm.hooks.method import Method, Renamed
from airvlm.methods.air.reinforced import Activation, identity, term

__all__ = ["PRESETS", "MemVR", "Preset", "preset"]


@dataclass(frozen=True)
class Preset:
    """What the published scripts use for one kind of model."""

    window: tuple[int, int]  # layers l with first < l < last may trigger
    depth: int  # decoder layers of the model it was chosen on
    alpha: float  # of the MME and MM-Vet scripts; CHAIR hard-codes the same for LLaVA
    phi: Literal["identity", "silu"]  # published activation
    normed: bool  # whether the published lens applies the final norm


PRESETS = {
    "llava": Preset((5, 16), 32, 0.12, "identity", True),
    "qwen": Preset((9, 16), 32, 0.28, "silu", False),
    "glm": Preset((9, 16), 40, 0.28, "silu", False),
}


def preset(family: str) -> Preset:
    """The preset of a model type; families without a script of their own take LLaVA's."""
    name = next((kind for kind in ("qwen", "glm") if kind in family), "llava")
    return PRESETS[name]


@dataclass(frozen=True)
class MemVR(Method):
    """Memory-space visual retracing."""

    name: ClassVar[str] = "memvr"
    publication: ClassVar[str] = "Look twice before you answer (ICML 2025, arXiv 2410.03577)"
    mechanism: ClassVar[str] = (
        "where a middle layer is unsure, the next one's feed-forward is shown the image again"
    )
    forwards: ClassVar[str] = "1, and a head for each layer that is read"

    # The published window names layers l with first < l < last that read the entropy, and changes the layers l + 1.
    renamed: ClassVar[Mapping[str, Renamed]] = {
        "window": Renamed(
            "layers", lambda old: _layers(old), lambda new: None if new is None else _window(new)
        )
    }

    alpha: float | None = setting(
        None,
        "share of the image in the mix; none is the published value: 0.12, for Qwen and GLM 0.28; 0 is off",
        low=0,
        high=1,
        off=0,
        search=(0.05, 0.4),
    )
    threshold: float = setting(
        0.75,
        "entropy of the ten likeliest tokens above which a layer is unsure, 0 to 1 (faithful: summed over the batch)",
        low=0,
        search=(0.3, 0.9),
    )
    layers: tuple[int, int] | None = setting(
        None,
        "decoder layers that may be changed, where the one before is unsure: the first and the one after the last; "
        "none is (7, 17) of 32, for Qwen (11, 17) of 32, for GLM (11, 17) of 40, scaled to the decoder",
        span=True,
    )
    phi: Literal["identity", "silu"] | None = setting(
        None, "activation; none is identity, or when faithful the published one"
    )
    faithful: bool = setting(False, "compute what the published code does, flaws included")

    def start(self, context: Context) -> Intervention:
        if self.faithful:
            from airvlm.methods.memvr_faithful import Published  # knows this file

            return Published(self, context)
        return Retracing(self, context)

    def watched(self, family: str, depth: int) -> range:
        """The layers whose output the lens reads in a decoder of `depth` layers; each acts on the next."""
        published = preset(family)
        first, last = published.window if self.layers is None else _window(self.layers)
        if self.layers is None and not self.faithful:
            # Even a very shallow decoder has a layer to read.
            first = min(int(first * depth / published.depth), depth - 3)
            last = max(first + 2, round(last * depth / published.depth))
        layers = range(max(first + 1, 0), min(last, depth - 1))  # the last layer has no next one
        if not layers:
            raise ValueError(
                f"layers = {_layers((first, last))}: no layer of the decoder's {depth} lies in it and has one before"
            )
        return layers


def _layers(window: tuple[int, int] | None) -> tuple[int, int] | None:
    """The published window, exclusive at both ends and of layers that are read, as layers that are changed."""
    return None if window is None else (window[0] + 2, window[1] + 1)


def _window(layers: tuple[int, int]) -> tuple[int, int]:
    return layers[0] - 2, layers[1] - 1


class Retracing(Intervention):
    """One run of MemVR."""

    method: MemVR
    decodes = True

    def __init__(self, method: MemVR, context: Context) -> None:
        super().__init__(method, context)
        self.published = preset(context.anatomy.family)
        self.alpha = self.published.alpha if method.alpha is None else method.alpha
        self.phi: Activation = silu if method.phi == "silu" else identity
        self.lens = EntropyLens(context.anatomy, Trigger(method.threshold))
        self.watched = method.watched(context.anatomy.family, len(context.anatomy.layers))
        self.layers = [layer + 1 for layer in self.watched]
        self._memory: tuple[Tensor, Tensor] | None = None  # (B, S, d) and its mask (B, S)
        self._fires: Tensor | None = None  # (B, L)

    def on_call(self, call: Call) -> None:
        self.lens.start_call()

    def embeds(self, step: Step, inputs_embeds: Tensor) -> None:
        self._fires = None
        if step.visual is not None:
            self._memory = self.remembered(inputs_embeds, step.on_host())
        elif step.fresh:
            self._memory = None
        if self._memory is not None:
            self.lens.start_pass(step, self._memory[1].any(-1))

    def hidden(self, step: Step, layer: int, h: Tensor) -> None:
        if self._memory is not None:
            self._fires = self.lens.read(step, h)

    def ffn(self, step: Step, layer: int, x: Tensor, y: Tensor) -> Tensor | None:
        fires, self._fires = self._fires, None
        if fires is None or self._memory is None:
            return None
        Z, mask = (t.to(y.device) for t in self._memory)
        fires = fires.to(y.device)
        new = torch.empty_like(y)
        ratio = y.new_empty(y.shape[:2], dtype=torch.float32)
        for at in self.parts(y.shape[1]):
            new[:, at], ratio[:, at] = self.mixed(layer, x[:, at], y[:, at], Z, mask, fires[:, at])
        self.changes.add(layer, step.without_padding(ratio), step.rows)
        return new

    def parts(self, length: int) -> list[slice]:
        """Token positions that are mixed together."""
        return blocks(length)

    def mixed(
        self, layer: int, x: Tensor, y: Tensor, Z: Tensor, mask: Tensor, fires: Tensor
    ) -> tuple[Tensor, Tensor]:
        """y (B, R, d) with the image mixed in where it fires (B, R), and how much that changed each token (B, R)."""
        a, size, length = self.retraced(layer, x, y, Z, mask)
        mixed = (1 - self.alpha) * y.float() + self.alpha * size / length.clamp_min(1e-30) * a
        new = torch.where(fires.unsqueeze(-1) & (length > 0), mixed.to(y.dtype), y)
        return new, norm_ratio(new, y)

    def remembered(self, embeds: Tensor, visual: Tensor) -> tuple[Tensor, Tensor]:
        """Every batch row's visual tokens: (B, S, d) and which are real (B, S); `visual` (B, L) is on the CPU."""
        counts = visual.sum(-1)  # (B,)
        S = int(counts.max())
        order = (
            visual.int().sort(dim=-1, descending=True, stable=True).indices[:, :S]
        )  # visual positions first
        mask = torch.arange(S, device=visual.device) < counts.unsqueeze(-1)
        Z = embeds.gather(1, order.to(embeds.device).unsqueeze(-1).expand(-1, -1, embeds.shape[-1]))
        mask = mask.to(embeds.device)
        return Z.masked_fill(~mask.unsqueeze(-1), 0.0), mask

    def retraced(
        self, layer: int, x: Tensor, y: Tensor, Z: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """a (B, L, d) float32, and the mean magnitudes |ffn| and |a| of each token."""
        a = term(x, Z, self.phi, mask).float()
        return a, y.float().abs().mean(-1, keepdim=True), a.abs().mean(-1, keepdim=True)

    def reason(self, row: int | None) -> str:
        highest = highest_of(self.measured, row)
        return f"no layer's entropy passed {self.method.threshold:g}; the highest was {highest:.3g}"

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        return {"extra": {"highest_entropy": highest_of(self.measured, row)}}

    def measures(self) -> dict[str, Tensor]:
        return self.lens.measures()
