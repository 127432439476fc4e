"""vLLM's models with crop-blend before prefill: LLaVA-1.5, LLaVA-NeXT, Qwen2-VL, Qwen2.5-VL.

The crops go through the model's own encoder and projector, in one call with their images. Nothing else changes, so
that prefix caching, continuous batching and CUDA graphs of the decoder keep working.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.logger import init_logger
from vllm.model_executor.models import llava, llava_next, qwen2_5_vl, qwen2_vl
from vllm.multimodal import MULTIMODAL_REGISTRY

from airvlm.integrations.vllm.evidence import blend_crops, group_images
from airvlm.integrations.vllm.processing import PREFIX, CropProcessor, SettingInfo
from airvlm.integrations.vllm.settings import from_tensor
from airvlm.models.families import MAX_CROP_BATCH

__all__ = [
    "CropBlendLlavaForConditionalGeneration",
    "CropBlendLlavaNextForConditionalGeneration",
    "CropBlendQwen2VLForConditionalGeneration",
    "CropBlendQwen2_5_VLForConditionalGeneration",
]

logger = init_logger("vllm.airvlm")  # below vLLM's own, so that its handlers print it


class _CropBlendModel:
    """Mixed into a vLLM model: embeds images with their crops."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        self.crop_blend_counts: Counter[str] = Counter()  # images embedded: fired, unchanged, off
        compilation, multimodal = vllm_config.compilation_config, vllm_config.model_config.multimodal_config
        if getattr(compilation, "cudagraph_mm_encoder", False):
            compilation.cudagraph_mm_encoder = False
            logger.warning("airvlm: encoder CUDA graphs are disabled; they would bypass crop-blend")
        if getattr(multimodal, "video_pruning_rate", None):
            raise ValueError("airvlm: video_pruning_rate changes the layout of the embeddings; leave it unset")

    def embed_multimodal(self, **kwargs: Any) -> Any:
        ours = {name.removeprefix(PREFIX): kwargs.pop(name) for name in list(kwargs) if name.startswith(PREFIX)}
        if "method" not in ours:
            embeddings = super().embed_multimodal(**kwargs)  # type: ignore[misc]
            self.crop_blend_counts["off"] += len(embeddings)
            return embeddings
        methods = [from_tensor(data) for data in ours.pop("method")]
        sizes = [(int(w), int(h)) for w, h in ours.pop("size")]
        own, crops = self._embed_with_crops(kwargs, ours, len(methods))
        new = blend_crops(own, crops, sizes, methods)
        self.crop_blend_counts["fired"] += sum(tokens is not None for tokens in new)
        self.crop_blend_counts["unchanged"] += sum(tokens is None for tokens in new)
        # a view would keep the whole batch in memory
        return [z.clone() if tokens is None else tokens for z, tokens in zip(own, new, strict=True)]

    def _embed_with_crops(
        self, images: dict[str, Any], crops: dict[str, Any], count: int
    ) -> tuple[list[Tensor], list[list[Tensor]]]:
        """The tokens (K, d) of each image, and those (N, d) of each of its crops, in as few calls as may be.

        Args:
            images: the image inputs.
            crops: the same inputs of the crops, one entry per image; empty without crops.
            count: how many images there are.
        """
        per_crop = crops.get("image_grid_thw", crops.get("pixel_values"))  # its entries have one row per crop
        counts = [0 if per_crop is None else len(per_crop[i]) for i in range(count)]
        joined = images.keys() == crops.keys()
        first, *others = group_images(counts, MAX_CROP_BATCH - count if joined else 0)
        inputs = images
        if joined and first:
            inputs = {name: _join(value, [crops[name][i] for i in first]) for name, value in images.items()}
        tokens = list(super().embed_multimodal(**inputs))  # type: ignore[misc]
        own, tokens = tokens[:count], tokens[count:]
        for group in others:
            inputs = {name: _join(value[group[0]], [value[i] for i in group[1:]]) for name, value in crops.items()}
            tokens += super().embed_multimodal(**inputs)  # type: ignore[misc]
        each = iter(tokens)
        return own, [[next(each) for _ in range(n)] for n in counts]


def _join(first: Any, others: Sequence[Tensor]) -> Any:
    """One input of several; a list where they differ in shape, as any-res tiles do."""
    if isinstance(first, Tensor) and all(other.shape[1:] == first.shape[1:] for other in others):
        return torch.cat([first, *(other.to(first) for other in others)])
    return [*first, *(row for other in others for row in other)]


def _variant(name: str, model: type, info: type, processor: type, dummy: type) -> type:
    """The model with crop-blend, registered with a processor that adds the crops."""
    own_info = type(f"CropBlend{info.__name__}", (SettingInfo, info), {})
    own_processor = type(f"CropBlend{processor.__name__}", (CropProcessor, processor), {})
    own = {"__module__": __name__, "__doc__": f"{model.__name__} with crop-blend."}
    variant = type(name, (_CropBlendModel, model), own)
    register = MULTIMODAL_REGISTRY.register_processor(own_processor, info=own_info, dummy_inputs=dummy)
    registered: type = register(variant)
    return registered


CropBlendLlavaForConditionalGeneration = _variant(
    "CropBlendLlavaForConditionalGeneration",
    llava.LlavaForConditionalGeneration,
    llava.LlavaProcessingInfo,
    llava.LlavaMultiModalProcessor,
    llava.LlavaDummyInputsBuilder,
)
CropBlendLlavaNextForConditionalGeneration = _variant(
    "CropBlendLlavaNextForConditionalGeneration",
    llava_next.LlavaNextForConditionalGeneration,
    llava_next.LlavaNextProcessingInfo,
    llava_next.LlavaNextMultiModalProcessor,
    llava.LlavaDummyInputsBuilder,
)
CropBlendQwen2VLForConditionalGeneration = _variant(
    "CropBlendQwen2VLForConditionalGeneration",
    qwen2_vl.Qwen2VLForConditionalGeneration,
    qwen2_vl.Qwen2VLProcessingInfo,
    qwen2_vl.Qwen2VLMultiModalProcessor,
    qwen2_vl.Qwen2VLDummyInputsBuilder,
)
CropBlendQwen2_5_VLForConditionalGeneration = _variant(
    "CropBlendQwen2_5_VLForConditionalGeneration",
    qwen2_5_vl.Qwen2_5_VLForConditionalGeneration,
    qwen2_5_vl.Qwen2_5_VLProcessingInfo,
    qwen2_5_vl.Qwen2_5_VLMultiModalProcessor,
    qwen2_5_vl.Qwen2_5_VLDummyInputsBuilder,
)
