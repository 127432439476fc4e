"""vLLM's multimodal processors with crops: each image brings the pixels of its crops and the method it is given.

The method is part of the multimodal cache's key, so that one image under two methods is two entries. Knows nothing
of what the crops are used for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from PIL import Image
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.processing import InputProcessingContext

from airvlm import AIR
from airvlm.integrations.vllm.evidence import cut
from airvlm.integrations.vllm.settings import resolve, to_tensor
from airvlm.models.families import FAMILIES

__all__ = ["KEY", "PREFIX", "AirContext", "AirInfo", "AirProcessor"]

KEY = "airvlm"  # in mm_processor_kwargs and hf_overrides
PREFIX = "air_"  # of the fields that accompany an image


class AirContext(InputProcessingContext):
    """The context of a processor that never hands our own setting on to transformers."""

    def get_merged_mm_kwargs(self, kwargs: Mapping[str, object], **options: Any) -> dict[str, Any]:
        merged: dict[str, Any] = super().get_merged_mm_kwargs(kwargs, **options)
        merged.pop(KEY, None)
        return merged


class AirInfo:
    """Beside a model's own ProcessingInfo."""

    def __init__(self, ctx: Any) -> None:
        super().__init__(AirContext(ctx.model_config, ctx.tokenizer))  # type: ignore[call-arg]


class AirProcessor:
    """Beside a model's own multimodal processor."""

    info: Any

    def _air(self, kwargs: Mapping[str, Any]) -> AIR | None:
        """The method of a request: its own setting, else the server's."""
        configured = self.info.ctx.get_mm_config().mm_processor_kwargs or {}
        server = configured.get(KEY, getattr(self.info.get_hf_config(), KEY, None))
        return resolve(server, kwargs.get(KEY))

    def _get_mm_hashes(self, inputs: Any) -> Any:
        air = self._air(inputs.hf_processor_mm_kwargs)
        told = {**inputs.hf_processor_mm_kwargs, KEY: str(None if air is None else air.to_json())}
        return super()._get_mm_hashes(replace(inputs, hf_processor_mm_kwargs=told))  # type: ignore[misc]

    def _call_hf_processor(self, hf_data: Mapping[str, Any], hf_kwargs: Mapping[str, Any]) -> Any:
        outputs = super()._call_hf_processor(hf_data, hf_kwargs)  # type: ignore[misc]
        air, images = self._air(hf_kwargs), hf_data.get("images")
        if air is None or not images:
            return outputs
        own: dict[str, list[Any]] = {}
        for image in images:
            shown = _image(image)
            # one call for each image: pixels that depended on its neighbours could not be cached
            fields = self._crop_fields(shown, air, hf_kwargs)
            fields |= {"method": to_tensor(air), "size": torch.tensor(shown.size)}
            for name, value in fields.items():
                own.setdefault(PREFIX + name, []).append(value)
        outputs.update(own)
        return outputs

    def _crop_fields(self, image: Image.Image, air: AIR, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        whole = self.info.get_hf_processor(**{k: v for k, v in kwargs.items() if k != KEY})
        crops = cut(image, air, whole)
        if not crops:
            return {}
        family = FAMILIES[self.info.get_hf_config().model_type]
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
            # small tables are read on the host
            name: MultiModalFieldConfig.batched("image", keep_on_cpu=name != PREFIX + "pixel_values")
            for name in hf_inputs
            if name.startswith(PREFIX)
        }
        return {**own, **ours}


def _image(image: Any) -> Image.Image:
    image = getattr(image, "media", image)  # vLLM keeps an upload's bytes beside the image
    if not isinstance(image, Image.Image):
        raise ValueError(f"AIR crops images; a {type(image).__name__} cannot be cropped: send a PIL image")
    return image.convert("RGB")
