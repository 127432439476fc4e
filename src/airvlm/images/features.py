"""A picture's visual tokens, kept: many questions about one picture encode it once.

transformers encodes pictures before prefill and hands them on as `mm_encoder_outputs`; given there, they replace
the pixels. Where a model's features do not come as one entry a picture, the inputs are returned as they are.
This file knows nothing of questions, crops or methods.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from airvlm.images.cache import Kept

__all__ = ["VisionFeatures", "per_picture"]


class VisionFeatures:
    """Visual tokens of the latest pictures, bounded in bytes, for one model."""

    def __init__(self, model: nn.Module, limit: int = 256 * 2**20) -> None:
        self.model = model
        self.encoded = 0  # pictures that went through the vision tower
        self.kept: Kept[Tensor] = Kept(limit)
        base: Any = getattr(model, "base_model", model)
        self._encode = getattr(base, "get_image_features", None)
        self._possible = (
            self._encode is not None and "mm_encoder_outputs" in inspect.signature(model.forward).parameters
        )

    def attach(self, inputs: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
        """`inputs` with features in place of pixels. `keys`: one content key for each picture, in order."""
        if not (self._possible and self._encode and "pixel_values" in inputs):
            return inputs
        accepted = set(inspect.signature(self._encode).parameters) & set(inputs)
        pieces = per_picture({name: inputs[name] for name in accepted}, len(keys))
        if pieces is None:
            return inputs
        found = {key: self.kept[key] for key in keys if key in self.kept}
        fresh = {key: piece for key, piece in zip(keys, pieces) if key not in found}
        if fresh:
            features = self._features(list(fresh.values()))
            if features is None:
                self._possible = False
                return inputs
            found |= dict(zip(fresh, features))
        for key in keys:
            self.kept[key] = found[key]
        entries = [found[key] for key in keys]
        output = BaseModelOutputWithPooling(pooler_output=torch.stack(entries) if self._stacked else entries)
        rest = {name: value for name, value in inputs.items() if name != "pixel_values"}
        return {**rest, "mm_encoder_outputs": {"image": output}}

    @torch.no_grad()
    def _features(self, pieces: list[dict[str, Tensor]]) -> list[Tensor] | None:
        """One entry a picture, or None where the model's features are laid out otherwise."""
        assert self._encode is not None
        together = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
        output = self._encode(**together, return_dict=True)
        features = output.pooler_output
        # deepstack features accompany the tokens layer by layer: they would have to be kept and split as well
        if getattr(output, "deepstack_features", None) is not None or len(features) != len(pieces):
            return None
        self._stacked = isinstance(features, Tensor)
        self.encoded += len(pieces)
        return [one.clone() for one in features]  # a view would keep the whole batch in memory


def per_picture(image_inputs: dict[str, Tensor], pictures: int) -> list[dict[str, Tensor]] | None:
    """The image inputs cut into pictures; None where the layout does not say which part is whose."""
    grid = image_inputs.get("image_grid_thw")
    if grid is not None:
        sizes = grid.prod(dim=1).tolist()  # patches of each picture, which lie one after another
        if len(sizes) != pictures:
            return None
        pixels = image_inputs["pixel_values"].split(sizes)
        return [{"pixel_values": p, "image_grid_thw": g[None]} for p, g in zip(pixels, grid)]
    if any(not isinstance(v, Tensor) or v.shape[0] != pictures for v in image_inputs.values()):
        return None
    return [{name: value[i : i + 1] for name, value in image_inputs.items()} for i in range(pictures)]
