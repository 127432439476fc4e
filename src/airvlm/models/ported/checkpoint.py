"""Load official checkpoints of Qwen-VL and GLM-4V as they are on the hub, without their remote code.

A folder is checked before anything is loaded, so that a wrong or incomplete one fails at once and the error says what
is missing. Then transformers' own `from_pretrained` reads it with the weight renamings that each model states.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, WeightTransform, rename_source_key

from airvlm.models.families import FAMILIES, is_port
from airvlm.models.glm_4v import processing as glm
from airvlm.models.glm_4v.model import Glm4VConfig, Glm4VForConditionalGeneration, glm_conversions
from airvlm.models.loading import avoid_packing_on_cpu
from airvlm.models.ported.processing import HUB_OPTIONS, SquareImageProcessor
from airvlm.models.ported.tokenizer import VocabularyError
from airvlm.models.qwen_vl import processing as qwen
from airvlm.models.qwen_vl.model import QwenVLConfig, QwenVLForConditionalGeneration, qwen_conversions

# In the order in which transformers looks for them
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded; the message says what is wrong with it and what to do."""

    missing: frozenset[str] = frozenset()  # weight names that should be there
    unexpected: frozenset[str] = frozenset()  # weight names that should not


@dataclass(frozen=True)
class Port:
    """One of the two models."""

    title: str
    config: type[PreTrainedConfig]
    model: type[PreTrainedModel]
    processor: Any
    conversions: Callable[[], list[WeightTransform]]  # official weight names -> those of `model`
    stops: tuple[str, ...]  # special tokens that end an answer

    @property
    def section(self) -> str:
        """The section of config.json that distinguishes the model from text-only ones of the same model_type."""
        return str(FAMILIES[self.config.model_type].ported)


PORTS: dict[str, Port] = {
    "qwen": Port(
        "Qwen-VL", QwenVLConfig, QwenVLForConditionalGeneration, qwen.QwenVLProcessor, qwen_conversions, qwen.STOPS
    ),
    "chatglm": Port(
        "GLM-4V", Glm4VConfig, Glm4VForConditionalGeneration, glm.Glm4VProcessor, glm_conversions, glm.STOPS
    ),
}


def register() -> None:
    """Add both models to transformers' Auto classes and weight loading. A second call changes nothing."""
    for model_type, port in PORTS.items():
        AutoConfig.register(model_type, port.config, exist_ok=True)
        AutoModelForImageTextToText.register(port.config, port.model, exist_ok=True)
        AutoProcessor.register(port.config, port.processor, exist_ok=True)
        pixels = {"pil": SquareImageProcessor}
        AutoImageProcessor.register(port.config, image_processor_classes=pixels, exist_ok=True)
        AutoTokenizer.register(port.config, port.processor.official_tokenizer, exist_ok=True)
        # By class, not by model_type: text-only Qwen and ChatGLM share the latter and have other weights
        register_checkpoint_conversion_mapping(port.model.__name__, port.conversions(), overwrite=True)


def load(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    device_map: Any = None,
    **options: Any,
) -> tuple[PreTrainedModel, Any]:
    """Load Qwen-VL or GLM-4V.

    Args:
        name_or_path: a local folder with the official files, or a hub name.
        dtype: type of the weights; "auto" keeps the stored one.
        device: where the model goes, if there is no `device_map`.
        device_map: as in transformers.
        **options: for transformers' `from_pretrained`: quantization_config, revision, attn_implementation, ...

    Returns:
        The model in evaluation mode, and its processor.
    """
    register()
    if options.pop("weights_only", True) is not True:
        raise CheckpointError("Pickled weights are read with weights_only=True only: anything else could run code.")
    options.pop("trust_remote_code", None)  # no remote code is ever run
    options.pop("use_safetensors", None)  # safetensors where there are any, otherwise pickles through weights_only
    source = str(name_or_path)
    hub = {name: options[name] for name in HUB_OPTIONS if name in options}
    port = _find_port(source, hub)
    if Path(source).is_dir():
        check_weight_names(port, port.config.from_pretrained(source), list_weight_names(Path(source)))
    try:
        processor = port.processor.from_pretrained(source, **hub)
        model, info = port.model.from_pretrained(
            source, dtype=dtype, device_map=device_map, weights_only=True, output_loading_info=True, **options
        )
    except (OSError, RuntimeError, SafetensorError, VocabularyError) as error:
        raise CheckpointError(f"{source}: {port.title} could not be loaded. {_first_line(error)}") from error
    wrong = {kind: sorted(map(str, found)) for kind, found in info.items() if found}
    if wrong:
        raise CheckpointError(f"{source} does not hold a complete {port.title}: {wrong}")
    if processor.image_token_id != model.config.image_token_id:
        raise CheckpointError(
            f"{source}: the vocabulary puts {processor.image_token} at id {processor.image_token_id}, config.json at "
            f"{model.config.image_token_id}; the vocabulary file and config.json belong to different models."
        )
    # The originals end answers in their own chat loops; here the generation configuration says where
    tokenizer = processor.tokenizer
    model.generation_config.eos_token_id = [tokenizer.convert_tokens_to_ids(stop) for stop in port.stops]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    if "quantization_config" in options:
        avoid_packing_on_cpu(model)
    if device is not None and device_map is None:
        model = model.to(device)
    return model.eval(), processor


def _find_port(source: str, hub: dict[str, Any]) -> Port:
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        raise CheckpointError(f"{source} has no config.json: give the folder with the official files.")
    try:
        config, _ = PreTrainedConfig.get_config_dict(source, **hub)
    except OSError as error:
        raise CheckpointError(f"{source}: no config.json could be read. {_first_line(error)}") from error
    if not is_port(config):
        known = " or ".join(f"{port.title} ({FAMILIES[name].checkpoint})" for name, port in PORTS.items())
        raise CheckpointError(f"{source} is a {config.get('model_type')!r} model, not {known}.")
    return PORTS[config["model_type"]]


def list_weight_names(folder: Path) -> set[str]:
    """The weight names in a folder's files; raises CheckpointError unless every file is there and complete."""
    found = next((name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if found is None:
        raise CheckpointError(
            f"{folder} has no weights ({', '.join(WEIGHT_FILES)}); it holds "
            f"{', '.join(sorted(p.name for p in folder.iterdir())) or 'nothing'}. Download the repository again."
        )
    if not found.endswith(".index.json"):
        return _names_in_file(folder / found)
    try:
        index: dict[str, str] = json.loads((folder / found).read_text())["weight_map"]
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{folder / found} is not a weight index: {_first_line(error)}") from error
    files = sorted(set(index.values()))
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} is incomplete: {len(missing)} of {len(files)} weight files are missing "
            f"({', '.join(missing)}). Download them again, for example with `hf download`."
        )
    held = {name: _names_in_file(folder / name) for name in files}
    lost = sorted(f"{name} ({file})" for name, file in index.items() if name not in held[file])
    if lost:
        raise CheckpointError(f"{folder}: {found} lists weights that the files do not hold: {', '.join(lost)}")
    return set(index)


def _names_in_file(file: Path) -> set[str]:
    with file.open("rb") as stream:
        head = stream.read(64)
    if head.startswith(b"version https://git-lfs"):
        raise CheckpointError(f"{file} is a Git LFS pointer, not the weights: run `git lfs pull` in its folder.")
    damaged = f"{file} is damaged or incomplete ({file.stat().st_size} bytes): download it again."
    if file.suffix == ".safetensors":
        try:
            with safe_open(file, framework="pt") as tensors:
                return set(tensors.keys())
        except SafetensorError as error:
            raise CheckpointError(f"{damaged} {_first_line(error)}") from error
    # The directory of a zip file is at its end, so a truncated file has none
    if not zipfile.is_zipfile(file):
        raise CheckpointError(damaged)
    try:
        return set(torch.load(file, map_location="meta", weights_only=True, mmap=True))
    # Whatever a pickle may raise, above all what weights_only refuses
    except Exception as error:
        raise CheckpointError(f"{file} is not a plain file of weights: {_first_line(error)}") from error


def official_names(names: Iterable[str], conversions: list[WeightTransform]) -> set[str]:
    """The names under which a checkpoint stores the parameters `names` of a model."""
    back = [transform.reverse_transform() for transform in reversed(conversions)]
    renamings = [transform for transform in back if isinstance(transform, WeightRenaming)]
    joins = [transform for transform in back if isinstance(transform, WeightConverter)]
    return {rename_source_key(name, renamings, joins, reverse=True)[0] for name in names}


def check_weight_names(port: Port, config: PreTrainedConfig, stored: set[str]) -> None:
    """Raise CheckpointError unless the stored names are exactly those of the model that config.json describes."""
    with torch.device("meta"):
        model = port.model(config)
    wanted = official_names(model.state_dict(), port.conversions())
    ignored = {name for name in stored if name.endswith("rotary_pos_emb.inv_freq")}
    missing, unexpected = wanted - stored, stored - wanted - ignored
    if missing or unexpected:
        hint = ""
        if any(name.endswith((".qweight", ".qzeros", ".g_idx")) for name in unexpected):
            hint = " This is a GPTQ checkpoint: use the unquantized one and pass quantization_config."
        error = CheckpointError(
            f"The weights are not those of the {port.title} that config.json describes."
            f"{_list_names('missing', missing)}{_list_names('unexpected', unexpected)}{hint}"
        )
        error.missing, error.unexpected = frozenset(missing), frozenset(unexpected)
        raise error


def _list_names(kind: str, names: Collection[str]) -> str:
    """All names; those that differ only in a layer's number are joined: `transformer.h.{0,1,2}.ln_1.weight`."""
    layers: dict[str, list[str]] = {}
    for name in names:
        parts = re.split(r"(?<=\.)(\d+)(?=\.)", name, maxsplit=1)  # before, number, after
        layers.setdefault("{}".join(parts[::2]), []).extend(parts[1:2])
    if not layers:
        return ""
    listed = []
    for pattern, numbers in sorted(layers.items()):
        joined = ",".join(sorted(numbers, key=int))
        listed.append(pattern.replace("{}", f"{{{joined}}}" if len(numbers) > 1 else joined) if numbers else pattern)
    return f" {len(names)} {kind}: {', '.join(listed)}."


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
