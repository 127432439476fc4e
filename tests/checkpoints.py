"""Small LLaVA checkpoints on disk, as a user would have them: processor, tokenizer, template and safetensors."""

from pathlib import Path
from typing import Any

from transformers import CLIPImageProcessor, LlavaProcessor

from airvlm.testing import small_models

TEMPLATE = (
    "{% for message in messages %}USER: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image> {% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endfor %} ASSISTANT:"
)


def save_llava(folder: Path, *, template: str | None = TEMPLATE, **model: Any) -> Path:
    """A random LLaVA with the processor that transformers ships for it."""
    llava, _ = small_models.build("llava", **model)
    # a saved generation config may not hold what only tests want
    llava.save_pretrained(folder)
    tokenizer = small_models.build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    pixels = CLIPImageProcessor(
        size={"shortest_edge": small_models.VIEW},
        crop_size={"height": small_models.VIEW, "width": small_models.VIEW},
    )
    processor = LlavaProcessor(
        pixels,
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template,
    )
    processor.save_pretrained(folder)
    return folder
