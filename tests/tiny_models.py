"""Small random vision-language models of every supported family, built from configs: nothing is downloaded.

`build(family)` gives a model and a processor, `inputs(processor, rows)` a left-padded batch of unlike prompts.
The weights are scaled so that logits depend on every token: an intervention changes what is generated. This
file knows nothing of airvlm, so that the library is tested against transformers and not against itself.
"""

import random
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText, BatchFeature, PreTrainedTokenizerFast

from tests.tiny_configs import (
    BOS,
    CONFIGS,
    END,
    EOS,
    FAMILIES,
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
    "FAMILIES",
    "IMAGE",
    "LAYERS",
    "VIEW",
    "WIDTH",
    "build",
    "inputs",
    "rows",
    "sample_image",
    "shared",
]

WORDS = """
<pad> <s> </s> <unk> <image> <video> <vision> </vision> USER: ASSISTANT: . , ? yes no is there a an the in of
and on this image picture please describe detail what colour how many object left right dog cat fork table
chair car person bird boat red green blue black white two three four small large near far sits stands with to
it
""".split()

Row = tuple[str, Sequence[Image.Image]]


class TinyProcessor:
    """The family's own image processor beside a word tokenizer.

    Placeholders are counted by encoding the row's images, so that no family's counting rule is repeated here.
    """

    def __init__(self, family: str, model: nn.Module) -> None:
        image_processor, settings = IMAGE_PROCESSORS[family]
        self.family, self.model = family, model
        self.image_processor = image_processor(**settings)
        self.tokenizer = tokenizer()
        self.image_token, self.image_token_id = "<image>", IMAGE

    def image_inputs(self, by_row: Sequence[Sequence[Image.Image]]) -> dict[str, Any]:
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

    def __call__(self, images: Any = None, text: Any = None, **_: Any) -> BatchFeature:
        texts = [text] if isinstance(text, str) else list(text)
        by_row = [[] for _ in texts] if images is None else [_listed(row) for row in images]
        ids = [self._ids(row, own) for row, own in zip(texts, by_row, strict=True)]
        length = max(map(len, ids))
        input_ids = torch.tensor([[PAD] * (length - len(row)) + row for row in ids])
        attention_mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in ids])
        batch = {"input_ids": input_ids, "attention_mask": attention_mask, **self.image_inputs(by_row)}
        if self.family in TOKEN_TYPES:
            batch[TOKEN_TYPES[self.family]] = (input_ids == IMAGE).long()
        return BatchFeature(batch)

    def _ids(self, text: str, images: Sequence[Image.Image]) -> list[int]:
        """One text with each <image> spelled out as its image's placeholders."""
        counts = [self.placeholders([image]) for image in images]
        if self.family == "llava_onevision" and len(images) > 1:  # several images a row are not tiled
            counts = [self.placeholders(images) // len(images)] * len(images)
        ids = [BOS]
        for token in self.tokenizer(text, add_special_tokens=False)["input_ids"]:
            ids += [START, *[IMAGE] * counts.pop(0), END] if token == IMAGE else [token]
        if counts:
            raise ValueError(f"{len(counts)} images have no <image> in {text!r}")
        return ids

    def decode(self, ids: Any, **options: Any) -> str:
        return self.tokenizer.decode(ids, **options)

    def batch_decode(self, ids: Any, **options: Any) -> list[str]:
        return self.tokenizer.batch_decode(ids, **options)


def _listed(images: Any) -> list[Image.Image]:
    return [images] if isinstance(images, Image.Image) else list(images or ())


def tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer over WORDS, padding on the left."""
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, padding_side="left", **special)


def sample_image(seed: int, size: tuple[int, int] = (48, 40)) -> Image.Image:
    """Coloured shapes on a noisy background: an image whose crops differ."""
    draw_from = random.Random(seed)
    noise = np.random.default_rng(seed).integers(0, 256, (size[1] // 8 + 1, size[0] // 8 + 1, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(4):
        x, y = draw_from.randrange(size[0]), draw_from.randrange(size[1])
        colour = tuple(draw_from.randrange(256) for _ in range(3))
        draw.rectangle((x, y, x + draw_from.randrange(4, 20), y + draw_from.randrange(4, 20)), fill=colour)
    return image


def inputs(processor: TinyProcessor, rows: Sequence[Row]) -> BatchFeature:
    """A left-padded batch; a row is its text and its images, one for each <image> of the text."""
    return processor(text=[text for text, _ in rows], images=[images for _, images in rows])


def rows() -> list[Row]:
    """Unlike prompts: one image, none, two, and one of another shape."""
    return [
        ("USER: <image> is there a fork in the image ? ASSISTANT:", [sample_image(1)]),
        ("USER: how many . ASSISTANT:", []),
        ("USER: <image> <image> what is left and right ASSISTANT:", [sample_image(2), sample_image(3)]),
        ("USER: <image> please describe this image in detail . ASSISTANT:", [sample_image(4, (40, 64))]),
    ]


@torch.no_grad()
def scale(model: nn.Module, seed: int) -> None:
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


def build(family: str, *, dtype: torch.dtype = torch.float32, **text: Any) -> tuple[Any, TinyProcessor]:
    """A fresh model of `family` in eval mode and its processor; `text` overrides fields of its text config."""
    settings = CONFIGS[family] | {"text_config": CONFIGS[family]["text_config"] | text}
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, tie_word_embeddings=False, **settings)
    model = AutoModelForImageTextToText.from_config(config)
    scale(model, zlib.crc32(family.encode()))
    model.generation_config.update(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    model.generation_config.suppress_tokens = [IMAGE, VIDEO]  # trained models never say them
    model = model.to(dtype).eval()
    return model, TinyProcessor(family, model)


shared = cache(build)  # one model a session for tests that leave it as they found it
