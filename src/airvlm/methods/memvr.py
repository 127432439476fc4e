"""MemVR: memory-space visual retracing (ICML 2025). The image is mixed into a feed-forward where a layer is unsure.

After each layer of a window the logit lens measures how unsure the model is of the next token. The first unsure layer
l makes layer l + 1 mix a = phi(x Z^T) Z into its feed-forward output, y = (1 - alpha) ffn + alpha |ffn|/|a| a, at most
once per pass and batch row. Z are the image's own tokens.

`faithful=True` computes what the published code does:

* |.| is one mean over the whole batch, so that batch rows and padding influence each other;
* there is one decision per pass from the batch's summed entropy, and without a cache one for all positions;
* every row is given the last image of the last row;
* Qwen and GLM read the lens without the final norm, use SiLU, and scale Z by mean |W_up| / mean |Z|;
* layers from 31 on keep a mixing ratio of 0, so that injection into the last layer does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from airvlm.methods.base import Method, option
from airvlm.methods.templates.memory_term import Activation, identity, literal_term, term
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention, norm_ratio, token_chunks
from airvlm.runtime.lens import EntropyLens, Trigger, highest_entropy

__all__ = ["PRESETS", "MemVR", "Preset", "preset"]


@dataclass(frozen=True)
class Preset:
    """What the published scripts use for one kind of model."""

    window: tuple[int, int]  # layers l with first < l < last may trigger
    depth: int  # decoder layers of the model it was chosen on
    alpha: float  # of the MME and MM-Vet scripts; CHAIR hard-codes the same for LLaVA
    phi: Literal["identity", "silu"]  # published activation
    normed: bool  # whether the published lens applies the final norm


# The scripts differ by benchmark: alpha is 0.29 (Qwen) and 0.26 (GLM, VizWiz too) for CHAIR; the demos use 0.1, and for
# GLM the window (5, 16). Published MemVR never acted on either model: its switch is off by default.
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
    paper: ClassVar[str | None] = "Look twice before you answer (ICML 2025, arXiv 2410.03577)"
    summary: ClassVar[str] = "where a middle layer is unsure, mixes the image's tokens into the next feed-forward"
    site: ClassVar[str] = "feed-forward"
    cost: ClassVar[str] = "1 pass with the head applied to some layers"

    alpha: float | None = option(
        None,
        "share of the image in the mix; none is the published value: 0.12, for Qwen and GLM 0.28; 0 is off",
        low=0,
        high=1,
        off=0,
        search=(0.05, 0.4),
    )
    threshold: float = option(
        0.75,
        "entropy of the ten likeliest tokens above which a layer is unsure, 0 to 1 (faithful: summed over the batch)",
        low=0,
        search=(0.3, 0.9),
    )
    layers: tuple[int, int] | None = option(
        None,
        "decoder layers that may be changed, where the one before is unsure: the first and the one after the last; "
        "none is (7, 17) of 32, for Qwen (11, 17) of 32, for GLM (11, 17) of 40, scaled to the decoder",
        span=True,
    )
    phi: Literal["identity", "silu"] | None = option(
        None, "activation; none is identity, or when faithful the published one"
    )
    faithful: bool = option(False, "compute what the published code does, flaws included")

    def start(self, context: Context) -> Intervention:
        return _PublishedCode(self, context) if self.faithful else _Retrace(self, context)

    def watched_layers(self, family: str, depth: int) -> range:
        """The layers whose output the lens reads in a decoder of `depth` layers; each acts on the next."""
        published = preset(family)
        first, last = published.window if self.layers is None else (self.layers[0] - 2, self.layers[1] - 1)
        if self.layers is None and not self.faithful:
            # Even a very shallow decoder has a layer to read.
            first = min(int(first * depth / published.depth), depth - 3)
            last = max(first + 2, round(last * depth / published.depth))
        layers = range(max(first + 1, 0), min(last, depth - 1))  # the last layer has no next one
        if not layers:
            raise ValueError(
                f"layers = {(first + 2, last + 1)}: the decoder has {depth} layers, and none of these has one before it"
            )
        return layers


class _Retrace(Intervention):
    method: MemVR
    acts_in_decode = True

    def __init__(self, method: MemVR, context: Context) -> None:
        super().__init__(method, context)
        self.published = preset(context.parts.family)
        self.alpha = self.published.alpha if method.alpha is None else method.alpha
        self.phi: Activation = silu if method.phi == "silu" else identity
        self.lens = EntropyLens(context.parts, Trigger(method.threshold))
        self.residual_layers = method.watched_layers(context.parts.family, len(context.parts.layers))
        self.ffn_layers = [layer + 1 for layer in self.residual_layers]
        self._memory: tuple[Tensor, Tensor] | None = None  # (B, S, d) and its mask (B, S)
        self._fires: Tensor | None = None  # (B, L)

    def on_call(self, call: GenerateCall) -> None:
        self.lens.start_call()

    def embeds(self, fp: ForwardPass, inputs_embeds: Tensor) -> None:
        self._fires = None
        if fp.visual is not None:
            self._memory = self.remember(inputs_embeds, fp.visual_on_cpu)
        elif fp.is_prefill:
            self._memory = None
        if self._memory is not None:
            self.lens.start_pass(fp, self._memory[1].any(-1))

    def residual(self, fp: ForwardPass, layer: int, h: Tensor) -> None:
        if self._memory is not None:
            self._fires = self.lens.read(fp, h)

    def ffn(self, fp: ForwardPass, layer: int, x: Tensor, y: Tensor) -> Tensor | None:
        fires, self._fires = self._fires, None
        if fires is None or self._memory is None:
            return None
        Z, mask = (t.to(y.device) for t in self._memory)
        fires = fires.to(y.device)
        new = torch.empty_like(y)
        ratio = y.new_empty(y.shape[:2], dtype=torch.float32)
        for at in self.chunks(y.shape[1]):
            new[:, at], ratio[:, at] = self.mix(layer, x[:, at], y[:, at], Z, mask, fires[:, at])
        self.stats.add(layer, fp.zero_padding(ratio), fp.batch_size)
        return new

    def chunks(self, length: int) -> list[slice]:
        """Token positions that are mixed together."""
        return token_chunks(length)

    def mix(self, layer: int, x: Tensor, y: Tensor, Z: Tensor, mask: Tensor, fires: Tensor) -> tuple[Tensor, Tensor]:
        """y (B, R, d) with the image mixed in where it fires (B, R), and how much that changed each token (B, R)."""
        a, size, length = self.retrace(layer, x, y, Z, mask)
        mixed = (1 - self.alpha) * y.float() + self.alpha * size / length.clamp_min(1e-30) * a
        new = torch.where(fires.unsqueeze(-1) & (length > 0), mixed.to(y.dtype), y)
        return new, norm_ratio(new, y)

    def remember(self, embeds: Tensor, visual: Tensor) -> tuple[Tensor, Tensor]:
        """Every batch row's visual tokens: (B, S, d) and which are real (B, S); `visual` (B, L) is on the CPU."""
        counts = visual.sum(-1)  # (B,)
        S = int(counts.max())
        order = visual.int().sort(dim=-1, descending=True, stable=True).indices[:, :S]  # visual positions first
        mask = torch.arange(S, device=visual.device) < counts.unsqueeze(-1)
        Z = embeds.gather(1, order.to(embeds.device).unsqueeze(-1).expand(-1, -1, embeds.shape[-1]))
        mask = mask.to(embeds.device)
        return Z.masked_fill(~mask.unsqueeze(-1), 0.0), mask

    def retrace(self, layer: int, x: Tensor, y: Tensor, Z: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """a (B, L, d) float32, and the mean magnitudes |ffn| and |a| of each token."""
        a = term(x, Z, self.phi, mask).float()
        return a, y.float().abs().mean(-1, keepdim=True), a.abs().mean(-1, keepdim=True)

    def inactive_reason(self, row: int | None) -> str:
        highest = highest_entropy(self.measured, row)
        return f"no layer's entropy exceeded {self.method.threshold:g}; the highest was {highest:.3g}"

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        return {"extra": {"highest_entropy": highest_entropy(self.measured, row)}}

    def measures(self) -> dict[str, Tensor]:
        return self.lens.measures()


# -- the published code

DEAD_LAYERS = 31  # the published code sets its ratio in range(31)


class _PublishedCode(_Retrace):
    def __init__(self, method: MemVR, context: Context) -> None:
        super().__init__(method, context)
        self.phi = silu if (method.phi or self.published.phi) == "silu" else identity
        trigger = Trigger(method.threshold, normed=self.published.normed, pooled=True)
        self.lens = EntropyLens(context.parts, trigger)

    def ffn(self, fp: ForwardPass, layer: int, x: Tensor, y: Tensor) -> Tensor | None:
        if layer >= DEAD_LAYERS:
            self._fires = None
            return None
        return super().ffn(fp, layer, x, y)

    def remember(self, embeds: Tensor, visual: Tensor) -> tuple[Tensor, Tensor]:
        """The last run of visual tokens of the last row that has any, for all rows alike."""
        row = int(visual.any(-1).nonzero()[-1])
        positions = visual[row].nonzero().flatten()
        breaks = (positions.diff() != 1).nonzero().flatten()
        start = int(breaks[-1]) + 1 if len(breaks) else 0
        Z = embeds[row, positions[start:].to(embeds.device)]  # (S, d)
        B = embeds.shape[0]
        return Z.expand(B, -1, -1), torch.ones(B, len(Z), dtype=torch.bool, device=embeds.device)

    def chunks(self, length: int) -> list[slice]:
        """All positions at once, in float32: the magnitudes are means over the whole batch."""
        return [slice(0, length)]

    def retrace(self, layer: int, x: Tensor, y: Tensor, Z: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """a (B, L, d) float32, and the mean magnitudes |ffn| and |a| of the whole batch."""
        a = literal_term(x, Z * self._scale(layer, Z, mask), self.phi, mask)
        return a, y.float().abs().mean(), a.abs().mean()

    def _scale(self, layer: int, Z: Tensor, mask: Tensor) -> Tensor:
        """mean |W_up| / mean |Z|. With phi = identity it cancels, and no weight is read."""
        if self.phi is identity:
            return Z.new_ones(())
        weight = _up_projection(self.context.parts.ffns[layer])
        real = mask.sum() * Z.shape[-1]
        return (weight.float().abs().mean() / (Z.float().abs().sum() / real)).to(Z)


def _up_projection(ffn: nn.Module) -> Tensor:
    """W_up of a feed-forward, which the published code reads to scale its memory."""
    for name in ("up_proj", "gate_up_proj", "dense_h_to_4h", "w1"):
        weight = getattr(getattr(ffn, name, None), "weight", None)
        if isinstance(weight, Tensor) and weight.is_floating_point() and not weight.is_meta:
            return weight.chunk(2)[1] if name == "gate_up_proj" else weight
    raise ValueError(
        f"{type(ffn).__name__} has no readable up projection, which faithful=True with phi='silu' scales by; "
        "use phi='identity', where the scale cancels, or faithful=False"
    )
