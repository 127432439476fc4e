"""Where the parts of a model are: decoder, layers, attention, feed-forwards, norm, head, image token and encoder.

They are found by transformers' own accessors (`get_decoder()`, `get_image_features`, `config.image_token_id`), so that
no family needs code of its own. No weight is read.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from airvlm.models.families import FAMILIES, MAX_CROP_BATCH, REFUSED, VIEW_SIDE, Family, Layout

__all__ = ["FAMILIES", "Family", "ModelParts", "UnsupportedModel", "check_processor"]

Encode = Callable[[Mapping[str, Tensor]], list[Tensor]]
Pixels = Callable[[Any, Sequence[Image.Image]], Mapping[str, Tensor]]

# Key under which `pixels` tells `encode` how many feature entries (tiles) each image has
TILES = "tiles"

BY_HAND = (
    "Pass the parts by hand: ModelParts(family=..., model=model, decoder=..., layers=decoder.layers, "
    "ffns=[layer.mlp for layer in decoder.layers], norm=decoder.norm, head=model.lm_head, "
    "image_token_id=..., hidden_size=..., encode=function from the processor's image inputs to one (N, d) "
    "tensor per image), and give it as method(model, processor, parts=...)."
)


class UnsupportedModel(ValueError):
    """The parts of a model were not found; the message says what to pass by hand."""


def processor_pixels(
    processor: Any, images: Sequence[Image.Image], family: Family | None = None
) -> Mapping[str, Tensor]:
    """The image inputs of a model, made by the image processor of `processor`, with one view per image."""
    image_processor = getattr(processor, "image_processor", processor)
    if image_processor is None:
        raise ValueError("crops need the model's processor: pass processor=AutoProcessor.from_pretrained(...)")
    nested, one_view = (family.nested, dict(family.one_view)) if family else (False, {})
    given: Any = [[image] for image in images] if nested else list(images)
    inputs = dict(image_processor(images=given, return_tensors="pt", **one_view))
    if family and family.tiles_key in inputs:
        inputs[TILES] = torch.as_tensor(inputs.pop(family.tiles_key)).flatten()
    return inputs


@dataclass(frozen=True)
class ModelParts:
    """The parts of one model that methods read and write. Every field may be given by hand."""

    family: str  # config.model_type
    model: nn.Module  # the top-level model, whose forward sees input_ids
    decoder: nn.Module  # the text decoder, whose forward sees inputs_embeds
    layers: Sequence[nn.Module]
    ffns: Sequence[nn.Module]  # the feed-forward of each layer: (B, L, d) -> (B, L, d)
    norm: nn.Module  # the decoder's final norm
    head: nn.Module  # hidden states -> logits
    image_token_id: int  # input_ids == image_token_id marks the visual tokens
    hidden_size: int  # d
    encode: Encode  # the image inputs that `pixels` makes -> one (N, d) tensor per image
    pixels: Pixels = processor_pixels  # (processor, images) -> image inputs for `encode`
    plain_pixels: bool = False  # pixel_values is (images, 3, H, W), so that crops may be cut from it
    layout: Layout = "tiles"  # how pixel_values holds several images
    views_per_crop: int | None = 1  # most views that the encoder reads of a crop; None: as many as its size gives
    max_crop_batch: int = MAX_CROP_BATCH  # most views in one call of the encoder, which bounds its memory
    crop_size_step: int | None = None  # the encoder takes crops whose side is a multiple of it; None: one size only

    def count_views(self, sizes: Sequence[tuple[int, int]]) -> list[int]:
        """Views that each crop of these widths and heights counts as in a call of the encoder."""
        if self.views_per_crop is not None:
            return [self.views_per_crop] * len(sizes)
        return [max(1, math.ceil(W * H / VIEW_SIDE**2)) for W, H in sizes]

    @property
    def attentions(self) -> list[nn.Module]:
        """The self-attention module of each layer."""
        return [_part(layer, "self_attn", self.family) for layer in self.layers]

    @property
    def output_projections(self) -> list[nn.Module]:
        """The output projection of each layer's attention: (B, L, H * D) -> (B, L, d)."""
        return [_part(attention, "o_proj", self.family) for attention in self.attentions]

    def after_layer(self, layer: int) -> nn.Module:
        """The module that reads a layer's output: the next layer, or the final norm."""
        return self.layers[layer + 1] if layer + 1 < len(self.layers) else self.norm

    def num_heads(self, layer: int) -> int:
        """Attention heads of a layer."""
        attention: Any = self.attentions[layer]
        projection: Any = self.output_projections[layer]
        return int(projection.in_features) // int(attention.head_dim)

    @classmethod
    def of(cls, model: nn.Module) -> ModelParts:
        """Find the parts of a transformers model of a known family; raise UnsupportedModel otherwise."""
        model = _unwrap(model)
        config: Any = getattr(model, "config", None)
        model_type = str(getattr(config, "model_type", type(model).__name__))
        if model_type in REFUSED:
            raise UnsupportedModel(f"{model_type} is not supported: {REFUSED[model_type]}.")
        family = FAMILIES.get(model_type)
        if family is None:
            known = ", ".join(FAMILIES)
            raise UnsupportedModel(f"model type {model_type!r} is not among the known ones ({known}). {BY_HAND}")
        if family.parts is not None:
            own = family.parts(model)
            if not isinstance(own, cls):
                raise UnsupportedModel(
                    f"{model_type}: its family's `parts` returned {type(own).__name__}, not ModelParts"
                )
            return own
        decoder = _call(model, "get_decoder", model_type)
        layers = _part(decoder, "layers", model_type)
        ffns = [_part(layer, "mlp", model_type) for layer in layers]
        head = _call(model, "get_output_embeddings", model_type)
        if head is None:
            raise UnsupportedModel(
                f"{type(model).__name__} has no language-model head: load the model with "
                f"AutoModelForImageTextToText. {BY_HAND}"
            )
        image_token_id = getattr(config, "image_token_id", None)
        if image_token_id is None:
            raise UnsupportedModel(f"{model_type}: config.image_token_id is not set. {BY_HAND}")
        return cls(
            family=model_type,
            model=model,
            decoder=decoder,
            layers=layers,
            ffns=ffns,
            norm=_part(decoder, "norm", model_type),
            head=head,
            image_token_id=int(image_token_id),
            hidden_size=int(config.get_text_config().hidden_size),
            encode=partial(_encode, model),
            pixels=partial(processor_pixels, family=family),
            plain_pixels=family.plain_pixels,
            layout=family.layout,
            views_per_crop=family.views_per_crop,
            crop_size_step=1 if family.views_per_crop is None else _size_step(model),
        )


def check_processor(processor: Any, parts: ModelParts) -> None:
    """Raise ValueError if this is certainly not the model's processor: a tokenizer, or another family's.

    Args:
        processor: what was given as the processor; None and an image processor alone are accepted.
        parts: of the model.
    """
    kind = type(processor).__name__
    advice = "Pass the model's own: AutoProcessor.from_pretrained(...)"
    if isinstance(processor, PreTrainedTokenizerBase):
        raise ValueError(f"{kind} is a tokenizer, not the processor of {parts.family}. {advice}")
    token_id = getattr(processor, "image_token_id", None)
    if isinstance(token_id, int) and token_id != parts.image_token_id:
        raise ValueError(
            f"{kind} does not belong to this {parts.family}: its image token is {token_id}, the model's is "
            f"{parts.image_token_id}. {advice}"
        )
    # Equal token ids: it may still be the processor of a family that lays out pixels differently.
    # Both import transformers' model code
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    image_kind = type(getattr(processor, "image_processor", processor)).__name__
    takes = {
        f: FAMILIES[f].layout
        for f, names in IMAGE_PROCESSOR_MAPPING_NAMES.items()
        if f in FAMILIES.own and image_kind in names.values()
    }
    if takes and (parts.layout == "patches") != ("patches" in takes.values()):
        raise ValueError(f"{image_kind} prepares images for {', '.join(takes)}, not for {parts.family}. {advice}")
    layouts = {
        f: FAMILIES[f].layout for f, name in PROCESSOR_MAPPING_NAMES.items() if name == kind and f in FAMILIES.own
    }
    known = parts.family in PROCESSOR_MAPPING_NAMES and parts.family in FAMILIES.own
    if known and layouts and parts.family not in layouts and parts.layout not in layouts.values():
        raise ValueError(f"{kind} is the processor of {', '.join(layouts)}, not of {parts.family}. {advice}")


def _unwrap(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's and PEFT's wrappers: their `generate` calls it directly."""
    inner: Any = getattr(model, "_orig_mod", model)
    if hasattr(inner, "get_base_model"):
        inner = inner.get_base_model()
    return inner if isinstance(inner, nn.Module) else model


def _part(parent: nn.Module, name: str, model_type: str) -> Any:
    part = getattr(parent, name, None)
    if part is None:
        raise UnsupportedModel(f"{model_type}: {type(parent).__name__} has no `{name}`. {BY_HAND}")
    return part


def _call(model: nn.Module, name: str, model_type: str) -> Any:
    accessor = getattr(model, name, None)
    if accessor is None:
        raise UnsupportedModel(f"{model_type}: {type(model).__name__} has no `{name}()`. {BY_HAND}")
    return accessor()


def _size_step(model: Any) -> int | None:
    """What the tower says of the sizes that it takes (`size_step`); None if it takes one only."""
    base: Any = getattr(model, "base_model", model)
    return getattr(base.get_encoder(modality="image"), "size_step", None) if hasattr(base, "get_encoder") else None


@torch.no_grad()
def _encode(model: Any, image_inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """Image inputs -> visual tokens as the decoder reads them, (N_i, d) for each image i."""
    base: Any = getattr(model, "base_model", model)
    accepted = inspect.signature(base.get_image_features).parameters
    device, dtype = _device(base), model.dtype
    arguments = {
        name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
        for name, value in image_inputs.items()
        if name in accepted and isinstance(value, Tensor)
    }
    features = base.get_image_features(**arguments, return_dict=True).pooler_output
    # A tensor (n, T, d), or a sequence of (T_i, d): either way one entry after the other
    entries = [entry.reshape(-1, entry.shape[-1]) for entry in features]
    tiles = image_inputs.get(TILES)
    if tiles is None:
        return entries
    parts = iter(entries)
    return [torch.cat([next(parts) for _ in range(count)]) for count in tiles.tolist()]


def _device(base: Any) -> torch.device:
    """Where pixels go. Offloaded weights are on `meta` between calls; then the device that they run on counts."""
    encoder: nn.Module = base.get_encoder(modality="image") if hasattr(base, "get_encoder") else base
    for parameter in encoder.parameters():
        if parameter.device.type != "meta":
            return parameter.device
    for module in encoder.modules():
        place = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if place is not None:
            return torch.device(place)
    return torch.device("cpu")
