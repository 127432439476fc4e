"""Images and prompts -> model inputs: what the processors of Qwen-VL and GLM-4V share, with Pillow alone."""

# ruff: noqa: RUF012 - transformers reads these class attributes

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from transformers import BatchFeature, PreTrainedConfig, ProcessorMixin
from transformers.image_processing_utils import BaseImageProcessor
from transformers.processing_utils import ProcessingKwargs
from transformers.utils.hub import cached_file

from airvlm.models.ported.tokenizer import OfficialTokenizer

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

# Options of `from_pretrained` that say where files come from
HUB_OPTIONS = ("revision", "cache_dir", "token", "local_files_only", "force_download", "subfolder")


class SquareImageProcessor(BaseImageProcessor):
    """RGB, resized to a square by Pillow's bicubic filter, scaled and normalized: the transform of both models."""

    model_input_names = ["pixel_values"]

    def __init__(
        self,
        size: int = 448,
        image_mean: Sequence[float] = CLIP_MEAN,
        image_std: Sequence[float] = CLIP_STD,
        **kwargs: Any,
    ) -> None:
        """`size` is the number of pixels per side."""
        super().__init__(**kwargs)
        self.size = size
        self.image_mean = list(image_mean)
        self.image_std = list(image_std)

    def preprocess(self, images: Any, return_tensors: str | None = "pt", **kwargs: Any) -> BatchFeature:
        pixels = [self.to_pixels(image) for row in group_by_row(images) for image in row]
        # All images have one size, so they are stacked whatever tensor type was asked for
        return BatchFeature({"pixel_values": torch.stack(pixels)}, tensor_type=return_tensors or "pt")

    def to_pixels(self, image: Any) -> torch.Tensor:
        """One image -> (3, size, size)."""
        if not isinstance(image, Image.Image):
            image = Image.fromarray(np.asarray(image))
        # Alpha is dropped, not composited, as in the originals
        square = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BICUBIC)
        x = torch.from_numpy(np.array(square)).permute(2, 0, 1).float() / 255
        mean, std = (torch.tensor(v)[:, None, None] for v in (self.image_mean, self.image_std))
        return (x - mean) / std


class _Kwargs(ProcessingKwargs, total=False):  # type: ignore[call-arg]  # mypy does not see that it is a TypedDict
    _defaults = {"text_kwargs": {"padding": False, "return_mm_token_type_ids": False}}


class SquareImageTextProcessor(ProcessorMixin):
    """Checks that prompts have one placeholder per image, and expands each to one id per visual token."""

    valid_processor_kwargs = _Kwargs
    config_class: ClassVar[type[PreTrainedConfig]]
    official_tokenizer: ClassVar[type[OfficialTokenizer]]
    image_token: str
    placeholder: str  # how the place of an image is written in a prompt, for messages

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: str | None = None,
        num_image_tokens: int = 256,
        **kwargs: Any,
    ) -> None:
        """`num_image_tokens` is the number of visual tokens per image."""
        self.num_image_tokens = num_image_tokens
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        super().__init__(image_processor, tokenizer, chat_template=chat_template or tokenizer.chat_template)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        """Load from a folder or hub name that transformers saved, or an official one, where config.json is enough."""
        hub = {name: kwargs[name] for name in HUB_OPTIONS if name in kwargs}
        if has_file(pretrained_model_name_or_path, "processor_config.json", **hub):
            return super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        config = cls.config_class.from_pretrained(pretrained_model_name_or_path, **hub)
        count = config.num_image_tokens
        tokenizer = cls.official_tokenizer.from_pretrained(pretrained_model_name_or_path, num_image_tokens=count, **hub)
        pixels = SquareImageProcessor(size=config.vision_config.image_size)
        return cls(image_processor=pixels, tokenizer=tokenizer, num_image_tokens=count)

    def replace_image_token(self, image_inputs: Any, image_idx: int, **kwargs: Any) -> str:
        return self.image_token * self.num_image_tokens

    def normalize_prompt(self, text: str) -> str:
        """The prompt with exactly one `image_token` per image."""
        raise NotImplementedError

    def prepare_inputs_layout(self, images: Any = None, text: Any = None, **kwargs: Any) -> tuple[Any, Any, None, None]:
        if images is not None:
            images = group_by_row(self.image_processor.fetch_images(images))
        if text is not None:
            text = [self.normalize_prompt(row) for row in ([text] if isinstance(text, str) else text)]
            self._check_counts(text, images or [])
        flat = [image for row in images or [] for image in row]
        return flat or None, text, None, None

    def _check_counts(self, text: list[str], images: list[list[Any]]) -> None:
        wanted = [row.count(self.image_token) for row in text]
        given = [len(row) for row in images]
        if sum(wanted) != sum(given):
            raise ValueError(
                f"The prompts have places for {sum(wanted)} images and {sum(given)} images were given. "
                f"Write {self.placeholder} once per image, or let apply_chat_template do it."
            )
        if len(given) != len(wanted):
            # A flat list of images: they fill the places in reading order
            return
        for row, (w, g) in enumerate(zip(wanted, given)):
            if w != g:
                raise ValueError(f"Row {row} has places for {w} images and {g} were given for it.")


def group_by_row(images: Any) -> list[list[Any]]:
    """One image, a list of images, or a list of them per row -> a list of images per row."""
    if images is None:
        return []
    if not isinstance(images, list | tuple):
        return [[images]]
    return [list(row) if isinstance(row, list | tuple) else [row] for row in images if row is not None]


def has_file(source: Any, name: str, **hub: Any) -> bool:
    """Whether a folder or a hub repository has a file of that name."""
    keep_quiet = {
        f"_raise_exceptions_for_{kind}": False for kind in ("missing_entries", "gated_repo", "connection_errors")
    }
    return cached_file(source, name, **keep_quiet, **hub) is not None
