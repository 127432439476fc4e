"""VTI: visual and textual intervention (ICLR 2025): steering towards truthful captions and towards stable features.

Textual half: d_l is the mean difference of layer l's state at the end of truthful and of hallucinated captions. Every
state r of every decoder layer is turned towards it and keeps its length: unit(unit(r) + 0.1 strength unit(d_l)) |r|.

Visual half, off by default as in the published script: e_lk is the mean, over images, of the state of patch k in layer
l of the vision tower under many random masks minus that of the whole image. Feed-forward outputs of the tower are
turned towards it in the same way. It needs a tower of transformer layers with a fixed number of patches.

`faithful=True` computes what the published code does: the textual half turns feed-forward outputs, and directions are
the mean plus the first principal component, a vector of length 1, of the differences of all layers together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from airvlm.methods.artifacts import ArtifactError, ArtifactMethod, PairKind, Reads
from airvlm.methods.base import option
from airvlm.methods.templates.layers import layer_span
from airvlm.methods.templates.steering import Site, SteeringIntervention, SteeringMethod, steer_keeping_norm
from airvlm.models.parts import ModelParts
from airvlm.runtime.intervention import DISABLED, Context, ForwardPass, GenerateCall, Intervention, without_methods

__all__ = ["VTI", "mask_patches", "read_tower", "tower_layers"]

SCALE = 0.1  # of the strength, fixed in the published code
MASKS, MASKED = 50, 0.99  # masks per image, and the share of patches that each one hides


@dataclass(frozen=True)
class VTI(ArtifactMethod, SteeringMethod):
    """Latent-space steering towards truthful captions."""

    name: ClassVar[str] = "vti"
    paper: ClassVar[str | None] = "Reducing hallucinations via latent space steering (ICLR 2025, arXiv 2410.15778)"
    summary: ClassVar[str] = "turns all states towards the mean difference of truthful and hallucinated captions"
    site: ClassVar[str] = "hidden states"
    pairs: ClassVar[PairKind] = "swapped"
    reads: ClassVar[Reads] = "last"

    strength: float = option(0.9, "lambda; the states are turned by a tenth of it", low=0, off=0, search=(0.02, 3.0))
    visual_strength: float = option(
        0.0, "lambda of the visual half, in the vision tower; 0.9 in the README", low=0, off=0, search=(0.02, 3.0)
    )
    layers: tuple[int, int] | None = option(
        None, "decoder layers that are changed: the first and the one after the last; none is all", span=True
    )
    faithful: bool = option(False, "compute what the published code does, flaws included")

    @classmethod
    def fit(cls, differences: Mapping[int, Tensor]) -> dict[str, Tensor]:
        layers = sorted(differences)
        all_layers = torch.stack([differences[layer] for layer in layers], 1).double()  # (n, layers, d)
        mean = all_layers.mean(0)  # (layers, d)
        published = mean + _component(all_layers.flatten(1)).view_as(mean)
        found = {f"layer.{layer}": mean[i].float() for i, layer in enumerate(layers)}
        return found | {f"published.{layer}": published[i].float() for i, layer in enumerate(layers)}

    @classmethod
    def measure(cls, parts: ModelParts, prompts: Iterable[Mapping[str, Tensor]], seed: int) -> dict[str, Tensor]:
        if not tower_layers(parts):
            return {}
        draw = torch.Generator().manual_seed(seed)
        found = []
        for inputs in prompts:
            pixels = inputs["pixel_values"]
            view = pixels.reshape(-1, *pixels.shape[-3:])[:1]  # (1, C, H, W): of tiles the first
            masked = torch.cat([mask_patches(view, _patch_size(parts), draw) for _ in range(MASKS)])
            found.append((read_tower(parts, masked).mean(1) - read_tower(parts, view)[:, 0]).cpu())
        states = torch.stack(found).double()  # (n, layers + 1, K, d), of which the first are embeddings
        mean = states.mean(0)
        # The published code cuts the flattened layers into as many pieces as there are patches, one component each.
        pieces = states.flatten(1).unflatten(1, (states.shape[2], -1))  # (n, K, (layers + 1) * d)
        published = mean + torch.stack([_component(pieces[:, k]) for k in range(pieces.shape[1])]).view_as(mean)
        chosen = {"vision": mean[1:], "published_vision": published[1:]}
        return {f"{name}.{i}": v.float() for name, value in chosen.items() for i, v in enumerate(value)}

    @property
    def needs_images(self) -> bool:  # type: ignore[override]  # the textual half steers rows without an image too
        return self.strength == 0

    @property
    def needs_pixels(self) -> bool:  # type: ignore[override]  # the visual half acts while images are encoded
        return self.visual_strength > 0

    @property
    def writes(self) -> Site:  # type: ignore[override]  # an option decides
        return "ffn" if self.faithful else "residual"

    def span(self, depth: int) -> Sequence[int]:
        return range(depth) if self.layers is None else layer_span(self.layers, depth)

    def artifact_directions(self, context: Context) -> Mapping[int, Tensor]:
        return self.load_artifact(context.parts).layers("published" if self.faithful else "layer")

    def tower_directions(self, parts: ModelParts) -> dict[int, Tensor]:
        """The visual half's directions (K, d) per layer of the vision tower."""
        found = self.load_artifact(parts).layers("published_vision" if self.faithful else "vision")
        if not found or len(found) != len(tower_layers(parts)):
            raise ArtifactError(
                f"{self.name}: {self.artifact} has no directions for the vision tower of {parts.family}. The visual "
                "half needs a tower of transformer layers with a fixed number of patches: leave visual_strength out"
            )
        return found

    def start(self, context: Context) -> Intervention:
        return _Steer(self, context)

    def steer(self, y: Tensor, v: Tensor, layer: int, fp: ForwardPass) -> Tensor:
        return steer_keeping_norm(y, v, SCALE * self.strength)


class _Steer(SteeringIntervention):
    method: VTI

    def __init__(self, method: VTI, context: Context) -> None:
        super().__init__(method, context)
        if not method.strength:
            self.directions = {}
        self._tower = method.tower_directions(context.parts) if method.visual_strength else {}
        self._encoded = False  # the vision tower has run in this call

    def open(self, stack: ExitStack) -> None:
        super().open(stack)
        for i, layer in enumerate(tower_layers(self.context.parts) if self._tower else []):
            hook: Any = layer.mlp
            stack.callback(hook.register_forward_hook(lambda m, args, y, i=i: self._turn(i, y)).remove)

    def on_call(self, call: GenerateCall) -> None:
        super().on_call(call)
        self._encoded = False

    def _turn(self, layer: int, y: Tensor) -> Tensor | None:  # (views, K, d)
        if DISABLED.get():
            return None
        self._encoded = True
        v = self._tower[layer] = self._tower[layer].to(y.device)
        return steer_keeping_norm(y, v, SCALE * self.method.visual_strength)

    def embeds(self, fp: ForwardPass, inputs_embeds: Tensor) -> None:
        # with the textual half, every token counts anyway
        if self._encoded and not self.directions and fp.is_prefill and fp.visual is not None:
            self.stats.count(fp.visual.view(fp.batch_size, -1).sum(-1))

    def problem(self) -> str | None:
        shows = self.has_image_on_cpu is not None and bool(self.has_image_on_cpu.any())
        if self._tower and shows and not self._encoded:
            return "images were encoded beforehand, so the visual half could not act: pass pixels, or visual_strength=0"
        return None


def _component(x: Tensor) -> Tensor:
    """The first principal component (D,) of x (n, D), of length 1; its sign is arbitrary, and follows the mean."""
    mean = x.mean(0)
    gram = (x - mean) @ (x - mean).T  # (n, n): n is far smaller than D
    component = (x - mean).T @ torch.linalg.eigh(gram)[1][:, -1]
    component = component / component.norm().clamp_min(1e-30)
    return component * (1 if component @ mean >= 0 else -1)


# -- the vision tower


def tower_layers(parts: ModelParts) -> list[Any]:
    """The layers of a vision tower that sees a fixed number of patches at once; none for other towers."""
    base: Any = getattr(parts.model, "base_model", parts.model)
    if parts.layout == "patches" or not hasattr(base, "get_encoder"):
        return []
    modules = base.get_encoder(modality="image").modules()
    stacks: list[list[Any]] = [list(m) for m in modules if isinstance(m, nn.ModuleList)]
    return max((own for own in stacks if all(hasattr(layer, "mlp") for layer in own)), key=len, default=[])


def _patch_size(parts: ModelParts) -> int:
    config: Any = parts.model.config
    size = getattr(config, "vision_config", config).patch_size
    return int(size if isinstance(size, int) else size[0])


def mask_patches(view: Tensor, side: int, draw: torch.Generator) -> Tensor:
    """A view (1, C, H, W) with nearly all of its patches, chosen at random, set to its mean color."""
    rows, columns = view.shape[2] // side, view.shape[3] // side
    hidden = torch.zeros(rows * columns, dtype=torch.bool)
    hidden[torch.randperm(rows * columns, generator=draw)[: int(MASKED * rows * columns)]] = True
    hidden = hidden.view(rows, columns).repeat_interleave(side, 0).repeat_interleave(side, 1)
    rest = (0, view.shape[3] - hidden.shape[1], 0, view.shape[2] - hidden.shape[0])  # pixels beyond the last patch stay
    return torch.where(nn.functional.pad(hidden, rest).to(view.device), view.mean((2, 3), keepdim=True), view)


@torch.no_grad()
def read_tower(parts: ModelParts, pixels: Tensor) -> Tensor:
    """The input of the vision tower's first layer, and every layer's output: (layers + 1, views, K, d)."""
    states: list[Tensor] = []

    def keep(value: Any) -> None:
        states.append((value[0] if isinstance(value, tuple) else value).float())

    layers = tower_layers(parts)
    base: Any = getattr(parts.model, "base_model", parts.model)
    model: Any = parts.model
    with ExitStack() as stack:
        stack.enter_context(without_methods())
        first = layers[0].register_forward_pre_hook(
            lambda m, args, kwargs: keep(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
        stack.callback(first.remove)
        for layer in layers:
            stack.callback(layer.register_forward_hook(lambda m, args, out: keep(out)).remove)
        base.get_encoder(modality="image")(pixels.to(model.device, model.dtype))
    return torch.stack(states)
