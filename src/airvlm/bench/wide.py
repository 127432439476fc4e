"""A LLaVA of the 7B model's real widths with random weights and few layers: what speed depends on, without a download.

Its answers mean nothing. Knows nothing of methods or of timing.
"""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

__all__ = ["WideLlava"]

SIDE, PATCH = 336, 14
K = (SIDE // PATCH) ** 2  # 576 visual tokens
IMAGE = 32000
WORDS = 40  # text tokens of a short question with its template, five of them before the picture


class WideLlava:
    """Hidden size 4096, feed-forward 11008, 32 heads, 576 visual tokens; the tower 1024 wide."""

    def __init__(self, layers: int = 2, tower_layers: int = 2, scale: int = 1) -> None:
        """`scale` divides all widths, for tests of what measures it."""
        text = LlamaConfig(
            vocab_size=32064,
            hidden_size=4096 // scale,
            intermediate_size=11008 // scale,
            num_hidden_layers=layers,
            num_attention_heads=32,
            max_position_embeddings=4096,
        )
        tower = CLIPVisionConfig(
            hidden_size=1024 // scale,
            intermediate_size=4096 // scale,
            num_hidden_layers=tower_layers,
            num_attention_heads=16,
            image_size=SIDE,
            patch_size=PATCH,
        )
        torch.manual_seed(0)
        config = LlavaConfig(vision_config=tower, text_config=text, image_token_index=IMAGE)
        self.model: Any = LlavaForConditionalGeneration(config).eval().requires_grad_(False)
        square = {"height": SIDE, "width": SIDE}
        self.processor = CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=square)

    def inputs(self, picture: Image.Image) -> dict[str, Tensor]:
        """A question about one picture: 616 tokens."""
        words = torch.randint(5, 31000, (WORDS,), generator=torch.Generator().manual_seed(0))
        ids = torch.cat([words[:5], torch.full((K,), IMAGE), words[5:]])[None]
        pixels = self.processor([picture], return_tensors="pt")["pixel_values"]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}
