"""An image's visual tokens, kept: many questions about one image encode it once.

transformers encodes images before prefill and hands them on as `mm_encoder_outputs`; given there, they replace the
pixels. Where a model's features do not come as one entry an image, the inputs are returned as they are. This file
knows nothing of questions, crops or methods.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from airvlm.images.cache import ImageCache, weights_state
from airvlm.models.families import Layout

__all__ = ["VisionFeatures", "per_image"]


class VisionFeatures:
    """Visual tokens in place of pixels, for one model."""

    def __init__(self, model: nn.Module, cache: ImageCache, layout: Layout) -> None:
        self.model = model
        self.layout = layout
        self.cache = cache
        base: Any = getattr(model, "base_model", model)
        self._encode = getattr(base, "get_image_features", None)
        self._possible = (
            self._encode is not None and "mm_encoder_outputs" in inspect.signature(model.forward).parameters
        )

    def attach(self, inputs: dict[str, Any], images: Sequence[str], processor: int = 0) -> dict[str, Any]:
        """`inputs` with features in place of pixels. `images`: the content key of each image, in order.

        processor: the serial of the image processor that made the pixels.
        """
        if not (self._possible and self._encode and "pixel_values" in inputs):
            return inputs
        accepted = set(inspect.signature(self._encode).parameters) & set(inputs)
        pieces = per_image({name: inputs[name] for name in accepted}, len(images), self.layout)
        if pieces is None:
            return inputs
        state = weights_state(self.model)
        keys = [(image, processor, state) for image in images]
        found = {key: kept for key in keys if (kept := self.cache.get("features", key)) is not None}
        fresh = {key: piece for key, piece in zip(keys, pieces) if key not in found}
        if fresh:
            features = self._features(list(fresh.values()))
            if features is None:
                self._possible = False
                return inputs
            for key, value in zip(fresh, features):
                self.cache.put("features", key, value)
                found[key] = value
        entries = [found[key][0] for key in keys]
        stacked = found[keys[0]][1]
        output = BaseModelOutputWithPooling(pooler_output=torch.stack(entries) if stacked else entries)
        rest = {name: value for name, value in inputs.items() if name != "pixel_values"}
        return {**rest, "mm_encoder_outputs": {"image": output}}

    @torch.no_grad()
    def _features(self, pieces: list[dict[str, Tensor]]) -> list[tuple[Tensor, bool]] | None:
        """One entry an image, and whether the model gives them as one tensor; None for any other layout."""
        assert self._encode is not None
        together = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
        output = self._encode(**together, return_dict=True)
        features = output.pooler_output
        # deepstack features accompany the tokens layer by layer: they would have to be kept and split as well
        if getattr(output, "deepstack_features", None) is not None or len(features) != len(pieces):
            return None
        stacked = isinstance(features, Tensor)
        return [(one.clone(), stacked) for one in features]  # a view would keep the whole batch in memory


def per_image(image_inputs: dict[str, Tensor], images: int, layout: Layout) -> list[dict[str, Tensor]] | None:
    """The image inputs cut into images; None where the layout does not say which part is whose."""
    if layout == "patches":
        grid = image_inputs["image_grid_thw"]
        sizes = grid.prod(dim=1).tolist()  # patches of each image, which lie one after another
        if len(sizes) != images:
            return None
        pixels = image_inputs["pixel_values"].split(sizes)
        return [{"pixel_values": p, "image_grid_thw": g[None]} for p, g in zip(pixels, grid)]
    if any(not isinstance(v, Tensor) or v.shape[0] != images for v in image_inputs.values()):
        return None
    return [{name: value[i : i + 1] for name, value in image_inputs.items()} for i in range(images)]
