"""vLLM's models with crop-blend before prefill: LLaVA-1.5, LLaVA-NeXT, Qwen2-VL, Qwen2.5-VL.

The crops go through the model's own encoder and projector, in the call that embeds their image. Nothing else changes,
so that prefix caching, continuous batching and CUDA graphs of the decoder keep working.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.logger import init_logger
from vllm.model_executor.models import llava, llava_next, qwen2_5_vl, qwen2_vl
from vllm.multimodal import MULTIMODAL_REGISTRY

from airvlm.integrations.vllm.evidence import blend_crops
from airvlm.integrations.vllm.processing import PREFIX, CropProcessor, SettingInfo
from airvlm.integrations.vllm.settings import from_tensor

__all__ = [
    "CropBlendLlavaForConditionalGeneration",
    "CropBlendLlavaNextForConditionalGeneration",
    "CropBlendQwen2VLForConditionalGeneration",
    "CropBlendQwen2_5_VLForConditionalGeneration",
]

logger = init_logger("vllm.airvlm")  # below vLLM's own, so that its handlers print it
CHUNK = 96  # crops in one encoder call


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
        embeddings = super().embed_multimodal(**kwargs)  # type: ignore[misc]
        if "method" not in ours:
            self.crop_blend_counts["off"] += len(embeddings)
            return embeddings
        methods = [from_tensor(data) for data in ours.pop("method")]
        sizes = [(int(w), int(h)) for w, h in ours.pop("size")]
        own = list(embeddings)
        new = blend_crops(own, list(self._crop_tokens(ours, len(own))), sizes, methods)
        self.crop_blend_counts["fired"] += sum(tokens is not None for tokens in new)
        self.crop_blend_counts["unchanged"] += sum(tokens is None for tokens in new)
        return [z if tokens is None else tokens for z, tokens in zip(own, new, strict=True)]

    def _crop_tokens(self, fields: dict[str, Any], images: int) -> Iterator[list[Tensor]]:
        """One (N, d) tensor per crop, in a list per image.

        Args:
            fields: the crops' image inputs, one entry per image.
            images: how many images there are.
        """
        if not fields:
            yield from ([] for _ in range(images))
            return
        counts = [len(self._per_crop(fields)[i]) for i in range(images)]
        for group in _group_images(counts):
            inputs = {name: self._join([value[i] for i in group]) for name, value in fields.items()}
            tokens = iter(super().embed_multimodal(**inputs))  # type: ignore[misc]
            for i in group:
                yield [next(tokens) for _ in range(counts[i])]

    def _per_crop(self, fields: dict[str, Any]) -> Any:
        """The field whose entries have one row per crop."""
        return fields.get("image_grid_thw", fields["pixel_values"])

    def _join(self, entries: list[Tensor]) -> Any:
        """One input of all crops; where they differ in shape, as any-res tiles do, a list of them."""
        if len({entry.shape[1:] for entry in entries}) == 1:
            return torch.cat(entries)
        return [crop for entry in entries for crop in entry]


def _group_images(counts: Sequence[int]) -> Iterator[list[int]]:
    """Images whose crops are encoded together."""
    group: list[int] = []
    for i, count in enumerate(counts):
        if group and sum(counts[j] for j in group) + count > CHUNK:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


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
