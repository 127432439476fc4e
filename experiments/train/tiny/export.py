"""Writes the trained model as an ordinary transformers folder: fp16 safetensors, processor, chat template."""

from __future__ import annotations

from pathlib import Path

from transformers import LlavaForConditionalGeneration, LlavaProcessor


def export(model: LlavaForConditionalGeneration, processor: LlavaProcessor, folder: Path) -> None:
    model.half().save_pretrained(folder)
    processor.save_pretrained(folder)
    model.float()
