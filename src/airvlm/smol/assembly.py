"""Assemble smol: two public checkpoints and the trained part become a plain `LlavaForConditionalGeneration`.

The trained part is one safetensors file: the projector, a LoRA that is merged into the language model's weights, and a
sample of the public weights that it was trained with. Parts whose weights differ from that sample by more than their
quantization could explain are refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from safetensors import SafetensorError, safe_open
from tokenizers import AddedToken
from torch import Tensor, nn
from transformers import (
    AutoTokenizer,
    CLIPImageProcessor,
    CLIPVisionModel,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from airvlm.smol import PARTS_VARIABLE, model_path
from airvlm.smol.tower import read_open_clip_tower

__all__ = ["LANGUAGE_MODEL", "TOWER", "Part", "PartsError", "TrainedPart", "assemble", "parts_folder", "sample_weights"]

GIVE_PARTS = f"without a network, give a folder with both parts: parts=FOLDER or {PARTS_VARIABLE}=FOLDER"
IMAGE_TOKEN = "<image>"  # not a password
DOWNLOAD_OPTIONS = ("cache_dir", "local_files_only", "token")
SAMPLE = 256  # elements that are compared of each sampled tensor
PROBE = "Is there a dining table in the image? Yes, and 2 forks."  # text whose token ids are compared


@dataclass(frozen=True)
class Part:
    """A public checkpoint: its name and revision on the hub, and its subfolder in a folder of parts."""

    name: str
    revision: str
    folder: str
    tolerance: float  # largest relative distance from the sampled weights
    file: str = "config.json"  # without which it is not there


# The parts of training were read from quantized files: 8 bits (tower) and 4 bits (language model).
TOWER = Part(
    "timm/vit_base_patch16_clip_224.openai",
    "977e3dd0ec55ab8da155f2fbeb6b5f54948b6e3d",
    "clip-vit-base-patch16",
    0.05,
    "open_clip_model.safetensors",
)
LANGUAGE_MODEL = Part(
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "12fd25f77366fa6b3b4b768ec3050bf629380bac",
    "SmolLM2-135M-Instruct",
    0.2,
)


class PartsError(ValueError):
    """A part is missing, or is not the one that smol was trained with; the message says which and what to do."""


@dataclass(frozen=True)
class TrainedPart:
    """The content of the trained file."""

    tensors: dict[str, Tensor]
    image_size: int
    lora_scale: float
    probe: list[int]  # token ids of PROBE

    @classmethod
    def read(cls, path: Path) -> TrainedPart:
        with safe_open(path, "pt") as file:
            facts = file.metadata() or {}
            tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118  # not a dict
        return cls(tensors, int(facts["image_size"]), float(facts["lora_scale"]), json.loads(facts["probe"]))

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Tensors whose names begin with `prefix.`, without it."""
        return {name[len(prefix) + 1 :]: t for name, t in self.tensors.items() if name.startswith(f"{prefix}.")}


def parts_folder(parts: str | Path | None) -> Path | None:
    """The folder of parts: the given one, else that of the environment variable, else None for the hub."""
    given = parts or os.environ.get(PARTS_VARIABLE)
    if not given:
        return None
    folder = Path(given).expanduser()
    for part in (TOWER, LANGUAGE_MODEL):
        names = dict.fromkeys((part.file, "config.json"))
        if not any((folder / part.folder / name).is_file() for name in names):
            raise PartsError(
                f"{folder} has no {part.folder}/{' or '.join(names)}; a folder of parts has the subfolders "
                f"{TOWER.folder} and {LANGUAGE_MODEL.folder}"
            )
    return folder


def sample_weights(model: nn.Module) -> dict[str, Tensor]:
    """A few hundred elements each of the embedding, of one layer's weights at both ends, and of its norms."""
    found = {}
    for name, tensor in model.state_dict().items():
        layers = [piece for piece in name.split(".") if piece.isdigit()]
        if tensor.dtype.is_floating_point and tensor.numel() >= SAMPLE and (not layers or layers[0] in ("0", "9")):
            flat = tensor.detach().float().flatten()
            found[name] = flat[:: len(flat) // SAMPLE][:SAMPLE].clone()
    return found


def assemble(
    parts: str | Path | None = None,
    *,
    trained: Path | None = None,
    dtype: torch.dtype | str = torch.float32,
    **hub: Any,
) -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """Build the model and its processor.

    Args:
        parts: a folder with the subfolders `clip-vit-base-patch16` and `SmolLM2-135M-Instruct`; by default that of the
            environment variable AIRVLM_SMOL_PARTS, or else the hub at fixed revisions.
        trained: the trained file; by default the one in the package.
        dtype: of the weights.
        hub: options of `from_pretrained`, such as `cache_dir` or `local_files_only`.

    Raises:
        PartsError: if a part cannot be loaded, or is another one than smol was trained with.
    """
    learned = TrainedPart.read(trained or model_path() / "trained.safetensors")
    folder = parts_folder(parts)
    tower = _load_tower(folder, **hub)
    weights = {"dtype": torch.float32, "use_safetensors": True}
    language_model = _load(LlamaForCausalLM, LANGUAGE_MODEL, folder, **weights, **hub)
    tokenizer = _load(AutoTokenizer, LANGUAGE_MODEL, folder, **hub)
    _check_weights(TOWER, tower, learned.under("tower_sample"))
    _check_weights(LANGUAGE_MODEL, language_model, learned.under("language_model_sample"))
    if (ids := tokenizer(PROBE, add_special_tokens=False)["input_ids"]) != learned.probe:
        raise PartsError(f"the tokenizer of {LANGUAGE_MODEL.name} is another one: {PROBE!r} gives {ids}")
    _merge_lora(language_model, learned.under("lora"), learned.lora_scale)
    tokenizer.add_tokens([AddedToken(IMAGE_TOKEN, special=True, normalized=False)])
    tokenizer.padding_side = "left"
    image_token = int(tokenizer.convert_tokens_to_ids(IMAGE_TOKEN))
    model = _join(tower, language_model, learned, image_token)
    model = model.to(torch.float32 if dtype == "auto" else _as_dtype(dtype)).eval()
    return model, _make_processor(tokenizer, learned.image_size, tower.config.patch_size)


def _as_dtype(dtype: torch.dtype | str) -> torch.dtype:
    named = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    assert isinstance(named, torch.dtype)
    return named


def _load_tower(folder: Path | None, **hub: Any) -> CLIPVisionModel:
    """The tower: open_clip's file from the hub or a folder, or a folder that transformers wrote."""
    if folder is not None and (folder / TOWER.folder / "config.json").is_file():
        return _load(CLIPVisionModel, TOWER, folder, dtype=torch.float32, use_safetensors=True)
    with _explained(TOWER, folder):
        if folder is not None:
            return read_open_clip_tower(folder / TOWER.folder / TOWER.file)
        known = {name: value for name, value in hub.items() if name in DOWNLOAD_OPTIONS}
        return read_open_clip_tower(Path(hf_hub_download(TOWER.name, TOWER.file, revision=TOWER.revision, **known)))


def _load(kind: Any, part: Part, folder: Path | None, **options: Any) -> Any:
    """A part in transformers' layout from the folder, or from the hub at its fixed revision."""
    with _explained(part, folder):
        if folder is not None:
            return kind.from_pretrained(folder / part.folder, **options)
        return kind.from_pretrained(part.name, revision=part.revision, **options)


@contextmanager
def _explained(part: Part, folder: Path | None) -> Iterator[None]:
    """Errors of loading a part as PartsError, with what to do."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise PartsError(
            f"cannot load {folder / part.folder if folder else part.name}, a part of smol: {reason}. {GIVE_PARTS}"
        ) from error


def _check_weights(part: Part, model: nn.Module, sample: Mapping[str, Tensor]) -> None:
    """Raise if sampled weights are farther from those of training than quantization explains."""
    found = sample_weights(model)
    for name, wanted in sample.items():
        if name not in found or found[name].shape != wanted.shape:
            raise PartsError(f"{part.name} has another shape than smol was trained with: {name}")
        distance = float((found[name] - wanted).norm() / wanted.norm().clamp_min(1e-12))
        if not distance <= part.tolerance:
            raise PartsError(
                f"{part.name} is not the checkpoint that smol was trained with: {name} differs by {distance:.0%} "
                f"(at most {part.tolerance:.0%}); use revision {part.revision}"
            )


def _merge_lora(model: nn.Module, lora: Mapping[str, Tensor], scale: float) -> None:
    """Add scale * B @ A to each weight that has the pair `<name>.A` and `<name>.B`.

    In float64, so that the rounded weights, and with them the model's fingerprint, are the same on every processor.
    """
    state = model.state_dict()
    for name in {key.rsplit(".", 1)[0] for key in lora}:
        weight, b, a = (t.double() for t in (state[f"{name}.weight"], lora[f"{name}.B"], lora[f"{name}.A"]))
        with torch.no_grad():
            state[f"{name}.weight"].copy_(weight + scale * (b @ a))


def _join(tower: Any, language_model: Any, learned: TrainedPart, image_token: int) -> LlavaForConditionalGeneration:
    """One LLaVA of the parts, with the tower's positions interpolated to the trained image size."""
    vision = tower.config.to_dict() | {"image_size": learned.image_size}
    language_model.resize_token_embeddings(image_token + 1, mean_resizing=False)
    text = language_model.config.to_dict()
    with torch.no_grad():
        language_model.get_input_embeddings().weight[image_token].zero_()  # never read: visual tokens replace it
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=image_token,
        image_seq_length=(learned.image_size // tower.config.patch_size) ** 2,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        projector_hidden_act="gelu",
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    state = tower.state_dict()
    place = next(name for name in state if name.endswith("position_embedding.weight"))
    state[place] = _resize_positions(state[place], learned.image_size // tower.config.patch_size)
    state = {name: t for name, t in state.items() if not name.endswith("position_ids")}
    missing = model.model.vision_tower.load_state_dict(state, strict=False).missing_keys
    assert all(name.endswith("position_ids") for name in missing), missing
    model.model.language_model.load_state_dict(language_model.model.state_dict())
    model.model.multi_modal_projector.load_state_dict(learned.under("projector"))
    model.tie_weights()
    model.generation_config = language_model.generation_config
    return model


def _resize_positions(table: Tensor, side: int) -> Tensor:
    """Positions (1 + n * n, d) of a tower as (1 + side * side, d), as transformers interpolates them."""
    old = round((len(table) - 1) ** 0.5)
    grid = table[1:].double().reshape(1, old, old, -1).permute(0, 3, 1, 2)  # float64: see _merge_lora
    grid = nn.functional.interpolate(grid, size=(side, side), mode="bicubic", align_corners=False)
    return torch.cat([table[:1], grid.permute(0, 2, 3, 1).reshape(side * side, -1).to(table.dtype)])


def _make_processor(tokenizer: Any, image_size: int, patch_size: int) -> LlavaProcessor:
    size = {"height": image_size, "width": image_size}
    return LlavaProcessor(
        image_processor=CLIPImageProcessor(size=size, crop_size=size, do_center_crop=False),
        tokenizer=tokenizer,
        patch_size=patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=IMAGE_TOKEN,
        chat_template=(model_path() / "chat_template.jinja").read_text(),
    )
