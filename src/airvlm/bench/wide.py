"""A LLaVA with the 7B model's widths, few layers and random weights: what speed depends on, without a download.

Its answers mean nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

__all__ = ["WideLlava", "wide_llava", "wide_processor", "wide_prompt"]

WIDTH, FFN, HEADS, VOCABULARY = 4096, 11008, 32, 32064
TOWER_WIDTH, TOWER_FFN, SIDE, PATCH = 1024, 4096, 336, 14
K = (SIDE // PATCH) ** 2  # 576 visual tokens
IMAGE = 32000
WORDS = 40  # text tokens of a short question with its template, five of them before the image


def wide_llava(layers: int, tower_layers: int = 1, scale: int = 1) -> Any:
    """The model in float32.

    Args:
        layers: of the decoder.
        tower_layers: of the vision tower.
        scale: divides all widths, for tests.
    """
    text = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH // scale,
        intermediate_size=FFN // scale,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        max_position_embeddings=4096,
    )
    tower = CLIPVisionConfig(
        hidden_size=TOWER_WIDTH // scale,
        intermediate_size=TOWER_FFN // scale,
        num_hidden_layers=tower_layers,
        num_attention_heads=16,
        image_size=SIDE,
        patch_size=PATCH,
    )
    torch.manual_seed(0)
    config = LlavaConfig(vision_config=tower, text_config=text, image_token_index=IMAGE)
    return LlavaForConditionalGeneration(config).eval().requires_grad_(False)


def wide_processor() -> Any:
    """The image processor."""
    return CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})


def wide_prompt() -> dict[str, Tensor]:
    """Token ids of a question about one image: 616 tokens."""
    words = torch.randint(5, 31000, (WORDS,), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([words[:5], torch.full((K,), IMAGE), words[5:]])[None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class WideLlava:
    """Hidden size 4096, feed-forward 11008, 32 heads, 576 visual tokens; the tower 1024 wide."""

    def __init__(
        self,
        layers: int = 2,
        tower_layers: int = 2,
        scale: int = 1,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model = wide_llava(layers, tower_layers, scale).to(device, dtype)
        self.processor = wide_processor()

    def inputs(self, image: Image.Image) -> dict[str, Tensor]:
        """A question about one image."""
        pixels = self.processor([image], return_tensors="pt")["pixel_values"].to(self.model.dtype)
        inputs = {**wide_prompt(), "pixel_values": pixels}
        return {name: value.to(self.model.device) for name, value in inputs.items()}
