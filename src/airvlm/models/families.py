"""The supported model families: one row per `config.model_type`, with everything in which families differ.

Packages add families by entry points of the group `airvlm.families`. No model code is imported here: where the parts
of a model are is asked of the model itself (parts.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from airvlm.registry import Registry

__all__ = ["FAMILIES", "MAX_CROP_BATCH", "REFUSED", "VIEW_SIDE", "Family", "Layout", "is_port"]

MAX_CROP_BATCH = 48  # views in one call of the vision tower when crops are encoded: 12 tiles of 4 crops
VIEW_SIDE = 448  # pixels; at native resolution a crop counts as one view per square of this side

# How pixel_values holds several images. images: one row per image; patches: rows counted by image_grid_thw; tiles:
# anything else (tiles, padding to the largest image), where an image's pixels may depend on the images beside it
Layout: TypeAlias = Literal["images", "patches", "tiles"]


@dataclass(frozen=True)
class Family:
    """One supported `config.model_type`."""

    model_type: str
    title: str  # the usual name
    checkpoint: str  # one public checkpoint of the family
    resolution: str  # how an image becomes visual tokens
    layout: Layout = "tiles"  # of pixel_values
    plain_pixels: bool = False  # pixel_values is (images, 3, H, W): crops may be cut from the tensor itself
    # The prompt where a checkpoint has no chat template: {images} stands for the placeholders
    prompt: str = "{images}\n{question}\n"
    # Options with which the image processor shows a crop in one view: a crop is a zoom already
    one_view: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    # Most views (tiles) that the image processor makes of a crop; None at native resolution, where its size decides
    views_per_crop: int | None = 1
    # Memory that one view needs in the vision tower, in half precision and without weights; None where nobody counted
    # it (experiments/speed/tower_memory.py)
    view_bytes: int | None = None
    tiles_key: str | None = None  # output of the image processor that counts each image's tiles
    nested: bool = False  # the image processor wants a list of images per row, and features come per row
    note: str = ""  # what a user should know before comparing numbers
    # The section of config.json that marks a model of this package (models/ported), which transformers does not have
    ported: str | None = None
    # For models whose parts transformers' accessors do not find: model -> ModelParts
    parts: Callable[[Any], Any] | None = None


def _table(*families: Family) -> Registry[Family]:
    return Registry("airvlm.families", {family.model_type: family for family in families}, _adopt)


def _adopt(name: str, thing: Any, package: str) -> Family:
    """Check what an entry point names: a Family of that model type."""
    if not isinstance(thing, Family):
        raise TypeError(f"{thing!r} is not an airvlm.models.families.Family")
    if thing.model_type != name:
        raise TypeError(f"its model_type is {thing.model_type!r}, and the entry point's name must be the same")
    return thing


_FIXED = "fixed square"
_NATIVE = "native resolution"
_ANYRES = "base view and tiles (any-res), newline tokens between rows"
_POST_NORM = "normalizes after the feed-forward: only the ratio of an added term counts"
_DEEPSTACK = "adds visual features in its first layers (deepstack); crops have their last features only"
_MIXTURE = "mixture of experts: methods change the routed output, not the router"
_PORTED = (
    "official files, no remote code; equal to the original on small random weights, "
    "the released ones were not run (docs/reference/models.md)"
)
_SPLITS = MappingProxyType({"do_image_splitting": False})

FAMILIES: Registry[Family] = _table(
    Family(
        "llava",
        "LLaVA 1.5",
        "llava-hf/llava-1.5-7b-hf",
        _FIXED,
        "images",
        plain_pixels=True,
        view_bytes=44_904_448,
        prompt="USER: {images}\n{question} ASSISTANT:",
    ),
    Family(
        "llava_next",
        "LLaVA-NeXT",
        "llava-hf/llava-v1.6-mistral-7b-hf",
        _ANYRES,
        views_per_crop=5,
        view_bytes=46_259_203,
    ),
    Family("llava_onevision", "LLaVA-OneVision", "llava-hf/llava-onevision-qwen2-7b-ov-hf", _ANYRES, views_per_crop=10),
    Family(
        "vipllava",
        "ViP-LLaVA",
        "llava-hf/vip-llava-7b-hf",
        _FIXED,
        "images",
        plain_pixels=True,
        prompt="###Human: {images}\n{question}###Assistant:",
    ),
    Family("qwen2_vl", "Qwen2-VL", "Qwen/Qwen2-VL-7B-Instruct", _NATIVE, "patches", views_per_crop=None),
    Family(
        "qwen2_5_vl",
        "Qwen2.5-VL",
        "Qwen/Qwen2.5-VL-7B-Instruct",
        _NATIVE,
        "patches",
        views_per_crop=None,
        view_bytes=129_042_561,
    ),
    Family(
        "qwen3_vl", "Qwen3-VL", "Qwen/Qwen3-VL-8B-Instruct", _NATIVE, "patches", views_per_crop=None, note=_DEEPSTACK
    ),
    Family(
        "qwen3_vl_moe",
        "Qwen3-VL, mixture of experts",
        "Qwen/Qwen3-VL-30B-A3B-Instruct",
        _NATIVE,
        "patches",
        views_per_crop=None,
        note=f"{_MIXTURE}; {_DEEPSTACK}",
    ),
    Family(
        "internvl",
        "InternVL 3",
        "OpenGVLab/InternVL3-8B-hf",
        "thumbnail and tiles",
        plain_pixels=True,
        one_view=MappingProxyType({"crop_to_patches": False}),
        tiles_key="num_patches",
        view_bytes=27_289_600,
    ),
    Family(
        "gemma3",
        "Gemma 3",
        "google/gemma-3-4b-it",
        _FIXED,
        plain_pixels=True,
        one_view=MappingProxyType({"do_pan_and_scan": False}),
        note=_POST_NORM,
    ),
    Family(
        "paligemma",
        "PaliGemma",
        "google/paligemma2-3b-mix-448",
        _FIXED,
        "images",
        plain_pixels=True,
        prompt="{images}{question}",
    ),
    Family(
        "idefics3",
        "Idefics3",
        "HuggingFaceM4/Idefics3-8B-Llama3",
        "global view and tiles",
        one_view=_SPLITS,
        nested=True,
    ),
    Family(
        "smolvlm",
        "SmolVLM",
        "HuggingFaceTB/SmolVLM2-2.2B-Instruct",
        "global view and tiles",
        one_view=_SPLITS,
        nested=True,
    ),
    Family(
        "glm4v", "GLM-4.1V", "zai-org/GLM-4.1V-9B-Thinking", _NATIVE, "patches", views_per_crop=None, note=_POST_NORM
    ),
    Family("glm46v", "GLM-4.6V", "zai-org/GLM-4.6V-Flash", _NATIVE, "patches", views_per_crop=None, note=_POST_NORM),
    Family(
        "glm4v_moe",
        "GLM-4.5V, mixture of experts",
        "zai-org/GLM-4.5V",
        _NATIVE,
        "patches",
        views_per_crop=None,
        note=_MIXTURE,
    ),
    Family(
        "mistral3", "Mistral Small 3.1", "mistralai/Mistral-Small-3.1-24B-Instruct-2503", _NATIVE, views_per_crop=None
    ),
    Family(
        "qwen",
        "Qwen-VL",
        "Qwen/Qwen-VL-Chat",
        _FIXED,
        "images",
        plain_pixels=True,
        note=_PORTED,
        ported="visual",
    ),
    Family(
        "chatglm",
        "GLM-4V",
        "THUDM/glm-4v-9b",
        _FIXED,
        "images",
        plain_pixels=True,
        note=_PORTED,
        ported="vision_config",
    ),
)

# Families that cannot be supported, and why
REFUSED: dict[str, str] = {
    "mllama": "it reads the image by cross-attention and has no image tokens in its sequence, "
    "so there are no visual tokens to change",
}


def is_port(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a model of this package, which transformers does not have."""
    family = FAMILIES.get(str(config.get("model_type")))
    return family is not None and family.ported is not None and bool(config.get(family.ported))
