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
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

WORDS = """<pad> <s> </s> <unk> <image> <video> <vision> </vision> USER: ASSISTANT: . , ? yes no is
there a an the in of and on this image picture please describe detail what colour how many object left right dog cat fork table
chair car person bird boat red green blue black white two three four small large near far sits stands with to
it""".split()  # noqa: SIM905 - a list of sixty quoted words is harder to read
PAD, BOS, EOS, IMAGE, VIDEO, START, END = 0, 1, 2, 4, 5, 6, 7
LAYERS, WIDTH, VIEW = 4, 32, 32  # decoder layers, hidden size, pixels a side

TEXT: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "tie_word_embeddings": False,
}
TOWER: dict[str, Any] = {  # CLIP and its relatives: 4 x 4 patches a view
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": VIEW,
    "patch_size": 8,
}
NATIVE: dict[str, Any] = {  # Qwen's and GLM's: patches of 4 pixels, merged 2 x 2
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 4,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": WIDTH,
}
MROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
GRID = [[VIEW, 2 * VIEW], [2 * VIEW, VIEW], [2 * VIEW, 2 * VIEW]]
MARKS = {"image_token_id": IMAGE, "video_token_id": VIDEO}
GLM_MARKS = {**MARKS, "image_start_token_id": START, "image_end_token_id": END}
QWEN_MARKS = {**MARKS, "vision_start_token_id": START, "vision_end_token_id": END}
QWEN3_VISION = {**NATIVE, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
GLM_VISION = {**NATIVE, "image_size": VIEW}
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2, "norm_topk_prob": True}

CONFIGS: dict[str, dict[str, Any]] = {
    "llava": {
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {"model_type": "clip_vision_model", **TOWER},
        "image_token_index": IMAGE,
    },
    "llava_next": {
        "text_config": {"model_type": "mistral", **TEXT},
        "vision_config": {"model_type": "clip_vision_model", **TOWER},
        "image_token_index": IMAGE,
        "image_grid_pinpoints": GRID,
    },
    "llava_onevision": {
        "text_config": {"model_type": "qwen2", **TEXT},
        "vision_config": {"model_type": "siglip_vision_model", **TOWER},
        "image_token_index": IMAGE,
        "video_token_index": VIDEO,
        "image_grid_pinpoints": GRID,
    },
    "vipllava": {
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {"model_type": "clip_vision_model", **TOWER},
        "image_token_index": IMAGE,
        "vision_feature_layers": [-1, -2],
    },
    "qwen2_vl": {
        "text_config": {**TEXT, "rope_parameters": MROPE},
        "vision_config": {**NATIVE, "embed_dim": 32, "hidden_size": WIDTH, "mlp_ratio": 2},
        **QWEN_MARKS,
    },
    "qwen2_5_vl": {
        "text_config": {**TEXT, "rope_parameters": MROPE},
        "vision_config": {**NATIVE, "window_size": 16, "fullatt_block_indexes": [1]},
        **QWEN_MARKS,
    },
    "qwen3_vl": {
        "text_config": {**TEXT, "rope_parameters": {**MROPE, "mrope_interleaved": True}},
        "vision_config": QWEN3_VISION,
        **QWEN_MARKS,
    },
    "qwen3_vl_moe": {
        "text_config": {
            **TEXT,
            **EXPERTS,
            "num_experts": 4,
            "rope_parameters": {**MROPE, "mrope_interleaved": True},
        },
        "vision_config": QWEN3_VISION,
        **QWEN_MARKS,
    },
    "internvl": {
        "text_config": {"model_type": "qwen2", **TEXT},
        "vision_config": {**TOWER, "image_size": [VIEW, VIEW], "patch_size": [4, 4]},
        "image_token_id": IMAGE,
        "image_seq_length": 16,
    },
    "gemma3": {
        "text_config": {**TEXT, "query_pre_attn_scalar": 8, "sliding_window": 256},
        "vision_config": {**TOWER, "vision_use_head": False},
        "image_token_index": IMAGE,
        "boi_token_index": START,
        "eoi_token_index": END,
        "mm_tokens_per_image": 16,
    },
    "paligemma": {
        "text_config": {"model_type": "gemma", **TEXT},
        "vision_config": {
            "model_type": "siglip_vision_model",
            **TOWER,
            "vision_use_head": False,
            "projection_dim": WIDTH,
        },
        "image_token_index": IMAGE,
        "projection_dim": WIDTH,
        "hidden_size": WIDTH,
    },
    "idefics3": {
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {**TOWER, "patch_size": 4},
        "image_token_id": IMAGE,
        "scale_factor": 2,
    },
    "smolvlm": {
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {**TOWER, "patch_size": 4},
        "image_token_id": IMAGE,
        "scale_factor": 2,
    },
    "glm4v": {"text_config": {**TEXT, "rope_parameters": MROPE}, "vision_config": GLM_VISION, **GLM_MARKS},
    "glm46v": {
        "text_config": {"model_type": "glm4v_text", **TEXT, "rope_parameters": MROPE},
        "vision_config": {"model_type": "glm4v_vision", **GLM_VISION},
        **GLM_MARKS,
    },
    "glm4v_moe": {
        "text_config": {
            **TEXT,
            **EXPERTS,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "rope_parameters": {**MROPE, "partial_rotary_factor": 1.0},
        },
        "vision_config": GLM_VISION,
        **GLM_MARKS,
    },
    "mistral3": {
        "text_config": {"model_type": "mistral", **TEXT},
        "vision_config": {"model_type": "pixtral", **TOWER, "patch_size": 4, "head_dim": 8, "image_size": 64},
        "image_token_index": IMAGE,
        "spatial_merge_size": 2,
    },
}
FAMILIES = tuple(CONFIGS)

_SQUARE = {"height": VIEW, "width": VIEW}
_PIXELS = {"shortest_edge": 16 * 16, "longest_edge": VIEW * VIEW}
_CLIP = {"size": {"shortest_edge": VIEW}, "crop_size": _SQUARE}
_ANYRES = {"size": {"shortest_edge": VIEW}, "crop_size": _SQUARE, "image_grid_pinpoints": GRID}
_QWEN = {"size": _PIXELS, "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}
_GLM = {
    **_QWEN,
    "size": {"shortest_edge": 2 * 16 * 16, "longest_edge": 2 * VIEW * VIEW},
}  # it counts frames too
_TILES = {"size": {"longest_edge": 2 * VIEW}, "max_image_size": {"longest_edge": VIEW}}

IMAGE_PROCESSORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llava": (CLIPImageProcessorPil, _CLIP),
    "llava_next": (LlavaNextImageProcessorPil, _ANYRES),
    "llava_onevision": (LlavaOnevisionImageProcessorPil, {"size": _SQUARE, "image_grid_pinpoints": GRID}),
    "vipllava": (CLIPImageProcessorPil, _CLIP),
    "qwen2_vl": (Qwen2VLImageProcessorPil, _QWEN),
    "qwen2_5_vl": (Qwen2VLImageProcessorPil, _QWEN),
    "qwen3_vl": (Qwen2VLImageProcessorPil, _QWEN),
    "qwen3_vl_moe": (Qwen2VLImageProcessorPil, _QWEN),
    "internvl": (GotOcr2ImageProcessorPil, {"size": _SQUARE, "crop_to_patches": True, "max_patches": 2}),
    "gemma3": (Gemma3ImageProcessorPil, {"size": _SQUARE}),
    "paligemma": (SiglipImageProcessorPil, {"size": _SQUARE}),
    "idefics3": (Idefics3ImageProcessorPil, _TILES),
    "smolvlm": (Idefics3ImageProcessorPil, _TILES),
    "glm4v": (Glm4vImageProcessorPil, _GLM),
    "glm46v": (Glm46VImageProcessorPil, _GLM),
    "glm4v_moe": (Glm4vImageProcessorPil, _GLM),
    "mistral3": (PixtralImageProcessorPil, {"size": {"longest_edge": VIEW}, "patch_size": 8}),
}
TOKEN_TYPES = {
    "gemma3": "token_type_ids",
    "paligemma": "token_type_ids",
}  # 1 on visual rows, under either name
TOKEN_TYPES |= {name: "mm_token_type_ids" for name in FAMILIES if name.startswith(("qwen", "glm"))}

Row = tuple[str, Sequence[Image.Image]]


class TinyProcessor:
    """The family's own image processor beside a word tokenizer.

    Placeholders are counted by encoding the row's pictures, so that no family's counting rule is repeated here.
    """

    def __init__(self, family: str, model: nn.Module) -> None:
        image_processor, settings = IMAGE_PROCESSORS[family]
        self.family, self.model = family, model
        self.image_processor = image_processor(**settings)
        self.tokenizer = tokenizer()
        self.image_token, self.image_token_id = "<image>", IMAGE

    def image_inputs(self, pictures_by_row: Sequence[Sequence[Image.Image]]) -> dict[str, Any]:
        rows = [list(pictures) for pictures in pictures_by_row if pictures]
        if not rows:
            return {}
        nested = self.family in ("idefics3", "smolvlm")
        images = rows if nested else [picture for row in rows for picture in row]
        features = dict(self.image_processor(images=images, return_tensors="pt"))
        features.pop("num_patches", None)
        features.pop("num_crops", None)
        if "batch_num_images" in features:
            features["batch_num_images"] = torch.tensor([len(row) for row in rows])
        return features

    @torch.no_grad()
    def placeholders(self, pictures: Sequence[Image.Image]) -> int:
        """Visual tokens of one row."""
        if not pictures:
            return 0
        arguments = self.image_inputs([pictures])
        arguments = {k: v.to(self.model.dtype) if v.is_floating_point() else v for k, v in arguments.items()}
        features = self.model.base_model.get_image_features(**arguments, return_dict=True).pooler_output
        return sum(entry.numel() // WIDTH for entry in features)

    def __call__(self, images: Any = None, text: Any = None, **_: Any) -> BatchFeature:
        texts = [text] if isinstance(text, str) else list(text)
        pictures = [[] for _ in texts] if images is None else [_listed(row) for row in images]
        ids = [self._ids(row, own) for row, own in zip(texts, pictures, strict=True)]
        length = max(map(len, ids))
        input_ids = torch.tensor([[PAD] * (length - len(row)) + row for row in ids])
        attention_mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in ids])
        batch = {"input_ids": input_ids, "attention_mask": attention_mask, **self.image_inputs(pictures)}
        if self.family in TOKEN_TYPES:
            batch[TOKEN_TYPES[self.family]] = (input_ids == IMAGE).long()
        return BatchFeature(batch)

    def _ids(self, text: str, pictures: Sequence[Image.Image]) -> list[int]:
        """One text with each <image> spelled out as its picture's placeholders."""
        counts = [self.placeholders([picture]) for picture in pictures]
        if self.family == "llava_onevision" and len(pictures) > 1:  # several pictures a row are not tiled
            counts = [self.placeholders(pictures) // len(pictures)] * len(pictures)
        ids = [BOS]
        for token in self.tokenizer(text, add_special_tokens=False)["input_ids"]:
            ids += [START, *[IMAGE] * counts.pop(0), END] if token == IMAGE else [token]
        if counts:
            raise ValueError(f"{len(counts)} pictures have no <image> in {text!r}")
        return ids

    def decode(self, ids: Any, **options: Any) -> str:
        return self.tokenizer.decode(ids, **options)

    def batch_decode(self, ids: Any, **options: Any) -> list[str]:
        return self.tokenizer.batch_decode(ids, **options)


def _listed(pictures: Any) -> list[Image.Image]:
    return [pictures] if isinstance(pictures, Image.Image) else list(pictures or ())


def tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer over WORDS, padding on the left."""
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, padding_side="left", **special)


def picture(seed: int, size: tuple[int, int] = (48, 40)) -> Image.Image:
    """Coloured shapes on a noisy background: a picture whose crops differ."""
    draw_from = random.Random(seed)
    noise = np.random.default_rng(seed).integers(
        0, 256, (size[1] // 8 + 1, size[0] // 8 + 1, 3), dtype=np.uint8
    )
    image = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(4):
        x, y = draw_from.randrange(size[0]), draw_from.randrange(size[1])
        colour = tuple(draw_from.randrange(256) for _ in range(3))
        draw.rectangle((x, y, x + draw_from.randrange(4, 20), y + draw_from.randrange(4, 20)), fill=colour)
    return image


def inputs(processor: TinyProcessor, rows: Sequence[Row]) -> BatchFeature:
    """A left-padded batch; a row is its text and its pictures, one for each <image> of the text."""
    return processor(text=[text for text, _ in rows], images=[pictures for _, pictures in rows])


def rows() -> list[Row]:
    """Unlike prompts: one picture, none, two, and one of another shape."""
    return [
        ("USER: <image> is there a fork in the image ? ASSISTANT:", [picture(1)]),
        ("USER: how many . ASSISTANT:", []),
        ("USER: <image> <image> what is left and right ASSISTANT:", [picture(2), picture(3)]),
        ("USER: <image> please describe this image in detail . ASSISTANT:", [picture(4, (40, 64))]),
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
            fan_in = (
                weight.shape[-1]
                if weight.ndim == 2
                else weight[0].numel()
                if weight.ndim > 3
                else weight.shape[1]
            )
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
