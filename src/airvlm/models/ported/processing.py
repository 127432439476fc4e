"""Images and prompts -> the inputs of Qwen-VL and GLM-4V, by transformers' conventions and with Pillow alone.

Asks a configuration how large an image is and how many visual tokens it becomes; knows nothing else of the models.
"""

# ruff: noqa: RUF012 - these are the class attributes that transformers reads

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

from airvlm.models.glm_4v import tokenizer as glm_tokenizer
from airvlm.models.glm_4v.model import Glm4VConfig
from airvlm.models.ported.official_tokenizer import OfficialTokenizer
from airvlm.models.qwen_vl import tokenizer as qwen_tokenizer
from airvlm.models.qwen_vl.model import QwenVLConfig

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


HUB_OPTIONS = ("revision", "cache_dir", "token", "local_files_only", "force_download", "subfolder")


def has_file(source: Any, name: str, **hub: Any) -> bool:
    """Whether a folder or a hub repository has a file of that name."""
    return (
        cached_file(
            source,
            name,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_connection_errors=False,
            **hub,
        )
        is not None
    )


class SquareImageProcessor(BaseImageProcessor):
    """RGB, squeezed to a square by Pillow's bicubic filter, scaled and normalised: the transform of both models."""

    model_input_names = ["pixel_values"]

    def __init__(
        self,
        size: int = 448,  # pixels a side
        image_mean: Sequence[float] = CLIP_MEAN,
        image_std: Sequence[float] = CLIP_STD,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.size = size
        self.image_mean = list(image_mean)
        self.image_std = list(image_std)

    def preprocess(self, images: Any, return_tensors: str | None = "pt", **kwargs: Any) -> BatchFeature:
        pixels = [self.pixels(image) for row in by_row(images) for image in row]
        # A stack, whatever tensor type was asked for: all images have one size.
        return BatchFeature({"pixel_values": torch.stack(pixels)}, tensor_type=return_tensors or "pt")

    def pixels(self, image: Any) -> torch.Tensor:
        """One image -> (3, size, size)."""
        if not isinstance(image, Image.Image):
            image = Image.fromarray(np.asarray(image))
        # Alpha is dropped, not composited, as in the originals.
        square = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BICUBIC)
        x = torch.from_numpy(np.array(square)).permute(2, 0, 1).float() / 255
        mean, std = (torch.tensor(v)[:, None, None] for v in (self.image_mean, self.image_std))
        return (x - mean) / std


class SquarePictureProcessor(SquareImageProcessor):
    """The former name, by which folders that were saved before ask for it; what they get has the new one."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return SquareImageProcessor(*args, **kwargs)


def by_row(images: Any) -> list[list[Any]]:
    """One image, a list of images, or a list of them for each row -> images of each row."""
    if images is None:
        return []
    if not isinstance(images, list | tuple):
        return [[images]]
    return [list(row) if isinstance(row, list | tuple) else [row] for row in images if row is not None]


class _Kwargs(ProcessingKwargs, total=False):  # type: ignore[call-arg]  # a TypedDict, of which mypy sees nothing
    _defaults = {"text_kwargs": {"padding": False, "return_mm_token_type_ids": False}}


class _SquareImages(ProcessorMixin):
    """What both processors share: as many placeholders as images, and as many ids a placeholder as visual tokens."""

    valid_processor_kwargs = _Kwargs
    config_class: ClassVar[type[PreTrainedConfig]]
    official_tokenizer: ClassVar[type[OfficialTokenizer]]
    image_token: str
    placeholder: str  # how an image's place is written in a prompt, for messages

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: str | None = None,
        image_rows: int = 256,  # visual tokens of an image
        **kwargs: Any,
    ) -> None:
        self.image_rows = image_rows
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        super().__init__(image_processor, tokenizer, chat_template=chat_template or tokenizer.chat_template)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        """A folder or hub name as saved by transformers, or official: there the configuration says it all."""
        hub = {name: kwargs[name] for name in HUB_OPTIONS if name in kwargs}
        if has_file(pretrained_model_name_or_path, "processor_config.json", **hub):
            return super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        config = cls.config_class.from_pretrained(pretrained_model_name_or_path, **hub)
        rows = config.image_rows
        tokenizer = cls.official_tokenizer.from_pretrained(pretrained_model_name_or_path, image_rows=rows, **hub)
        pixels = SquareImageProcessor(size=config.vision_config.image_size)
        return cls(image_processor=pixels, tokenizer=tokenizer, image_rows=rows)

    def replace_image_token(self, image_inputs: Any, image_idx: int, **kwargs: Any) -> str:
        return self.image_token * self.image_rows

    def canonical(self, text: str) -> str:
        """The prompt with exactly one `image_token` for each image."""
        raise NotImplementedError

    def prepare_inputs_layout(self, images: Any = None, text: Any = None, **kwargs: Any) -> tuple[Any, Any, None, None]:
        if images is not None:
            images = by_row(self.image_processor.fetch_images(images))
        if text is not None:
            text = [self.canonical(row) for row in ([text] if isinstance(text, str) else text)]
            self._check(text, images or [])
        flat = [image for row in images or [] for image in row]
        return flat or None, text, None, None

    def _check(self, text: list[str], images: list[list[Any]]) -> None:
        wanted = [row.count(self.image_token) for row in text]
        given = [len(row) for row in images]
        if sum(wanted) != sum(given):
            raise ValueError(
                f"The prompts have places for {sum(wanted)} images and {sum(given)} images were given. "
                f"Write {self.placeholder} once for each image, or let apply_chat_template do it."
            )
        nested = any(n != 1 for n in given) or len(given) == len(wanted)
        for row, (w, g) in enumerate(zip(wanted, given)) if nested and len(given) == len(wanted) else ():
            if w != g:
                raise ValueError(f"Row {row} has places for {w} images and {g} were given for it.")


class QwenVLProcessor(_SquareImages):
    """Prompts hold <img></img> for each image; a path between the two is not read, the given image counts."""

    config_class = QwenVLConfig
    official_tokenizer = qwen_tokenizer.QWenTokenizer
    image_token = qwen_tokenizer.IMG_PAD
    placeholder = "<img></img>"

    def canonical(self, text: str) -> str:
        one = f"{qwen_tokenizer.IMG}{qwen_tokenizer.IMG_PAD}{qwen_tokenizer.IMG_END}"
        return qwen_tokenizer.IMAGE.sub(one, text)


class Glm4VProcessor(_SquareImages):
    """Prompts hold <|begin_of_image|><|image|><|end_of_image|>, or the official form of it, at most once a row."""

    config_class = Glm4VConfig
    official_tokenizer = glm_tokenizer.ChatGLM4Tokenizer
    image_token = glm_tokenizer.IMAGE
    placeholder = f"{glm_tokenizer.BOI}{glm_tokenizer.IMAGE}{glm_tokenizer.EOI}"
    answer_start = "\n"  # what the model itself writes before an answer: the end of the role's line
    official = f"{glm_tokenizer.BOI}{glm_tokenizer.END}{glm_tokenizer.EOI}"

    def canonical(self, text: str) -> str:
        text = text.replace(self.official, self.placeholder)
        if text.count(self.image_token) > 1:
            raise ValueError("GLM-4V reads one image a prompt; ask about each image by itself.")
        return text

    def __call__(self, images: Any = None, text: Any = None, **kwargs: Any) -> BatchFeature:
        first = text if isinstance(text, str) or text is None else next(iter(text), "")
        if first is not None and first.startswith("".join(glm_tokenizer.PREFIX)):
            kwargs.setdefault("add_special_tokens", False)  # the template has written them
        return super().__call__(images=images, text=text, **kwargs)
