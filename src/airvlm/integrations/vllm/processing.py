"""vLLM's multimodal processors with crops: each image brings the pixels of its crops and its method.

The method is part of the multimodal cache's key, so that one image under two methods is two entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from PIL import Image
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.processing import InputProcessingContext

from airvlm import CropBlend
from airvlm.integrations.vllm.evidence import cut_crops
from airvlm.integrations.vllm.settings import resolve, to_tensor
from airvlm.models.families import FAMILIES

__all__ = ["KEY", "PREFIX", "CropProcessor", "SettingContext", "SettingInfo"]

KEY = "airvlm"  # in mm_processor_kwargs and hf_overrides
PREFIX = "airvlm_"  # of the fields that accompany an image


class SettingContext(InputProcessingContext):
    """The context of a processor that does not pass our own setting to transformers."""

    def get_merged_mm_kwargs(self, kwargs: Mapping[str, object], **options: Any) -> dict[str, Any]:
        merged: dict[str, Any] = super().get_merged_mm_kwargs(kwargs, **options)
        merged.pop(KEY, None)
        return merged


class SettingInfo:
    """Mixed into a model's own ProcessingInfo."""

    def __init__(self, ctx: Any) -> None:
        super().__init__(SettingContext(ctx.model_config, ctx.tokenizer))  # type: ignore[call-arg]


class CropProcessor:
    """Mixed into a model's own multimodal processor."""

    info: Any

    def _method(self, kwargs: Mapping[str, Any]) -> CropBlend | None:
        """The method of a request: its own setting, or the server's."""
        configured = self.info.ctx.get_mm_config().mm_processor_kwargs or {}
        server = configured.get(KEY, getattr(self.info.get_hf_config(), KEY, None))
        return resolve(server, kwargs.get(KEY))

    def _get_mm_hashes(self, inputs: Any) -> Any:
        method = self._method(inputs.hf_processor_mm_kwargs)
        resolved = {**inputs.hf_processor_mm_kwargs, KEY: str(None if method is None else method.to_json())}
        return super()._get_mm_hashes(replace(inputs, hf_processor_mm_kwargs=resolved))  # type: ignore[misc]

    def _call_hf_processor(self, hf_data: Mapping[str, Any], hf_kwargs: Mapping[str, Any]) -> Any:
        outputs = super()._call_hf_processor(hf_data, hf_kwargs)  # type: ignore[misc]
        method, images = self._method(hf_kwargs), hf_data.get("images")
        if method is None or not images:
            return outputs
        own: dict[str, list[Any]] = {}
        for image in images:
            rgb = _to_pillow(image)
            # one call per image: pixels that depended on its neighbors could not be cached
            fields = self._crop_fields(rgb, method, hf_kwargs)
            fields |= {"method": to_tensor(method), "size": torch.tensor(rgb.size)}
            for name, value in fields.items():
                own.setdefault(PREFIX + name, []).append(value)
        outputs.update(own)
        return outputs

    def _crop_fields(self, image: Image.Image, method: CropBlend, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        whole = self.info.get_hf_processor(**{k: v for k, v in kwargs.items() if k != KEY})
        family = FAMILIES[self.info.get_hf_config().model_type]
        if method.crop_size is not None and family.views_per_crop is not None:
            raise ValueError(f"airvlm: crop_size: the tower of {family.title} takes images of one size; leave it unset")
        crops = cut_crops(image, method, whole)
        if not crops:
            return {}
        options = dict(family.one_view)
        if self.info.ctx.get_mm_config().mm_device_do_normalize:
            options |= {"do_normalize": False, "do_rescale": False}  # the model itself does both
        inputs = dict(whole.image_processor(images=crops, return_tensors="pt", **options))
        dtype = self.info.ctx.model_config.dtype
        return {
            name: value.to(dtype) if value.is_floating_point() else value
            for name, value in inputs.items()
            if isinstance(value, torch.Tensor)
        }

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, Any]) -> Any:
        own = super()._get_mm_fields_config(hf_inputs, hf_processor_mm_kwargs)  # type: ignore[misc]
        ours = {
            # small tables are read on the CPU
            name: MultiModalFieldConfig.batched("image", keep_on_cpu=name != PREFIX + "pixel_values")
            for name in hf_inputs
            if name.startswith(PREFIX)
        }
        return {**own, **ours}


def _to_pillow(image: Any) -> Image.Image:
    image = getattr(image, "media", image)  # vLLM keeps an upload's bytes beside the image
    if not isinstance(image, Image.Image):
        raise ValueError(f"crop-blend crops images; a {type(image).__name__} cannot be cropped: send a Pillow image")
    return image.convert("RGB")
