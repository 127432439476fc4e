"""Small random vision-language models of every supported family, built from configs: nothing is downloaded.

    model, processor = build("llava")
    inputs = build_inputs(processor, sample_rows())  # a left-padded batch of unlike prompts

The weights are scaled so that logits depend on every token: an intervention changes what is generated. Only
transformers is used here, so that a method is tested against transformers and not against this package.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText, BatchFeature, PreTrainedTokenizerFast

from airvlm.testing.small_configs import (
    BOS,
    CONFIGS,
    END,
    EOS,
    IMAGE,
    IMAGE_PROCESSORS,
    LAYERS,
    PAD,
    START,
    TOKEN_TYPES,
    VIDEO,
    VIEW,
    WIDTH,
)

__all__ = [
    "END",
    "IMAGE",
    "LAYERS",
    "START",
    "VIEW",
    "WIDTH",
    "SmallProcessor",
    "add_family",
    "build",
    "build_inputs",
    "build_tokenizer",
    "current_device",
    "list_families",
    "sample_image",
    "sample_rows",
    "scale_weights",
    "shared_model",
    "use_device",
]

WORDS = """
<pad> <s> </s> <unk> <image> <video> <vision> </vision> USER: ASSISTANT: . , ? yes no is there a an the in of
and on this image picture please describe detail what color how many object left right dog cat fork table
chair car person bird boat red green blue black white two three four small large near far sits stands with to
it
""".split()

Row = tuple[str, Sequence[Image.Image]]  # a text, and one image for each <image> in it


def list_families() -> list[str]:
    """The families that `build` knows."""
    return list(CONFIGS)


def add_family(
    model_type: str,
    config: Mapping[str, Any],
    image_processor: Any,
    settings: Mapping[str, Any],
    *,
    token_types: str | None = None,
) -> None:
    """Teach `build` another family, whose model class transformers' Auto classes must know.

    Args:
        model_type: of its config.
        config: arguments of its config class; `text_config` holds those of the decoder. Token ids are those of
            `small_configs`: PAD, BOS, EOS, IMAGE, START and END.
        image_processor: the class of its image processor.
        settings: arguments of the image processor.
        token_types: name of the processor's output that is 1 at visual tokens, if the model needs one.
    """
    CONFIGS[model_type] = dict(config)
    IMAGE_PROCESSORS[model_type] = (image_processor, dict(settings))
    if token_types is not None:
        TOKEN_TYPES[model_type] = token_types


class SmallProcessor:
    """The family's own image processor beside a word tokenizer.

    Placeholders are counted by encoding the row's images, so that no family's counting rule is repeated here.
    """

    def __init__(self, family: str, model: nn.Module) -> None:
        image_processor, settings = IMAGE_PROCESSORS[family]
        if isinstance(image_processor, str):
            module, name = image_processor.split(".")
            image_processor = getattr(
                import_module(f"transformers.models.{module}.image_processing_pil_{module}"), name
            )
        self.family = family
        self.model: Any = model
        self.image_processor = image_processor(**settings)
        self.tokenizer = build_tokenizer()
        self.image_token, self.image_token_id = "<image>", IMAGE

    def image_inputs(self, by_row: Sequence[Sequence[Image.Image]]) -> dict[str, Any]:
        """What the image processor makes of the images of each row."""
        rows = [list(own) for own in by_row if own]
        if not rows:
            return {}
        nested = self.family in ("idefics3", "smolvlm")
        images = rows if nested else [image for row in rows for image in row]
        features = dict(self.image_processor(images=images, return_tensors="pt"))
        features.pop("num_patches", None)
        features.pop("num_crops", None)
        if "batch_num_images" in features:
            features["batch_num_images"] = torch.tensor([len(row) for row in rows])
        return features

    @torch.no_grad()
    def placeholders(self, images: Sequence[Image.Image]) -> int:
        """Visual tokens of one row."""
        if not images:
            return 0
        arguments = self.image_inputs([images])
        arguments = {k: v.to(self.model.dtype) if v.is_floating_point() else v for k, v in arguments.items()}
        features = self.model.base_model.get_image_features(**arguments, return_dict=True).pooler_output
        return sum(entry.numel() // WIDTH for entry in features)

    def __call__(self, images: Any = None, text: Any = None, add_special_tokens: bool = True, **_: Any) -> BatchFeature:
        texts = [text] if isinstance(text, str) else list(text)
        by_row = [[] for _ in texts] if images is None else [_as_list(row) for row in images]
        ids = [self._ids(row, own, [BOS] * add_special_tokens) for row, own in zip(texts, by_row, strict=True)]
        length = max(map(len, ids))
        input_ids = torch.tensor([[PAD] * (length - len(row)) + row for row in ids])
        attention_mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in ids])
        batch = {"input_ids": input_ids, "attention_mask": attention_mask, **self.image_inputs(by_row)}
        if self.family in TOKEN_TYPES:
            batch[TOKEN_TYPES[self.family]] = (input_ids == IMAGE).long()
        return BatchFeature(batch)

    def _ids(self, text: str, images: Sequence[Image.Image], first: list[int]) -> list[int]:
        """One text with each <image> spelled out as its image's placeholders; marks that it has are kept."""
        counts = [self.placeholders([image]) for image in images]
        if self.family == "llava_onevision" and len(images) > 1:  # several images per row are not tiled
            counts = [self.placeholders(images) // len(images)] * len(images)
        ids = list(first)
        spaced = text.replace("<image>", " <image> ")  # words are split at spaces
        tokens = self.tokenizer(spaced, add_special_tokens=False)["input_ids"]
        for i, token in enumerate(tokens):
            before, after = ([] if mark in tokens[i - 1 : i + 2] else [mark] for mark in (START, END))
            ids += [*before, *[IMAGE] * counts.pop(0), *after] if token == IMAGE else [token]
        if counts:
            raise ValueError(f"{len(counts)} images have no <image> in {text!r}")
        return ids

    def decode(self, ids: Any, **options: Any) -> Any:
        """Token ids -> text."""
        return self.tokenizer.decode(ids, **options)

    def batch_decode(self, ids: Any, **options: Any) -> Any:
        """Rows of token ids -> texts."""
        return self.tokenizer.batch_decode(ids, **options)


def _as_list(images: Any) -> list[Image.Image]:
    return [images] if isinstance(images, Image.Image) else list(images or ())


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer over WORDS, padding on the left."""
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, padding_side="left", **special)


def sample_image(seed: int, size: tuple[int, int] = (48, 40)) -> Image.Image:
    """Colored shapes on a noisy background: an image whose crops differ."""
    draw_from = random.Random(seed)
    noise = np.random.default_rng(seed).integers(0, 256, (size[1] // 8 + 1, size[0] // 8 + 1, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(4):
        x, y = draw_from.randrange(size[0]), draw_from.randrange(size[1])
        color = tuple(draw_from.randrange(256) for _ in range(3))
        draw.rectangle((x, y, x + draw_from.randrange(4, 20), y + draw_from.randrange(4, 20)), fill=color)
    return image


def build_inputs(processor: SmallProcessor, rows: Sequence[Row]) -> BatchFeature:
    """A left-padded batch; a row is its text and its images, one for each <image> of the text."""
    return processor(text=[text for text, _ in rows], images=[images for _, images in rows])


def sample_rows() -> list[Row]:
    """Unlike prompts: one image, none, two, and one of another shape."""
    return [
        ("USER: <image> is there a fork in the image ? ASSISTANT:", [sample_image(1)]),
        ("USER: how many . ASSISTANT:", []),
        ("USER: <image> <image> what is left and right ASSISTANT:", [sample_image(2), sample_image(3)]),
        ("USER: <image> please describe this image in detail . ASSISTANT:", [sample_image(4, (40, 64))]),
    ]


@torch.no_grad()
def scale_weights(model: nn.Module, seed: int) -> None:
    """Redraw every matrix at a gain where signals neither vanish nor explode, so that every input matters."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim < 2:
            if "norm" not in name and not name.endswith(("gamma", "lambda_1", "lambda_2")):
                weight.copy_(0.1 * noise)  # biases; norms keep the scale that their family starts from
        elif "embed_tokens" in name:
            weight.copy_(noise)
        else:
            fan_in = weight.shape[-1] if weight.ndim == 2 else weight[0].numel() if weight.ndim > 3 else weight.shape[1]
            gain = 4.0 if "lm_head" in name else 1.5
            weight.copy_(gain * noise / fan_in**0.5)


def build(family: str, *, dtype: torch.dtype = torch.float32, **text: Any) -> tuple[Any, SmallProcessor]:
    """A new model of a family in evaluation mode, and its processor.

    Args:
        family: one of `list_families()`.
        dtype: of the weights.
        text: fields of the text config to override.
    """
    if family not in CONFIGS:
        raise ValueError(f"no small model of {family!r} is known; add one by airvlm.testing.small_models.add_family")
    settings = CONFIGS[family] | {"text_config": CONFIGS[family]["text_config"] | text}
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, tie_word_embeddings=False, **settings)
    model = AutoModelForImageTextToText.from_config(config)
    scale_weights(model, zlib.crc32(family.encode()))
    with torch.no_grad():
        model.get_output_embeddings().weight[EOS] = 0.0  # other logits are larger: answers have their full length
    model.generation_config.update(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    model.generation_config.suppress_tokens = [IMAGE, VIDEO]  # trained models never say them
    model = model.to(dtype).eval()
    return model, SmallProcessor(family, model)


_DEVICE = ["cpu"]  # where shared models live


@contextmanager
def use_device(device: str) -> Iterator[None]:
    """Inside this block, shared models live on `device`."""
    _DEVICE.append(device)
    try:
        yield
    finally:
        _DEVICE.pop()


def current_device() -> str:
    """Where shared models live."""
    return _DEVICE[-1]


def shared_model(family: str, dtype: torch.dtype = torch.float32) -> tuple[Any, SmallProcessor]:
    """The only model of this family and dtype in the process, for tests that leave it as they found it."""
    return _build_once(family, dtype, current_device())


@cache
def _build_once(family: str, dtype: torch.dtype, device: str) -> tuple[Any, SmallProcessor]:
    model, processor = build(family, dtype=dtype)
    return model.to(device), processor
