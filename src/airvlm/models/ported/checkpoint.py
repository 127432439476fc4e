"""Official checkpoints of Qwen-VL and GLM-4V, as they are on the hub, without their remote code.

Looks at a folder before anything is read, so that a wrong or half-downloaded one fails at once and says what is
missing; then transformers' own `from_pretrained` does the reading, with the name rules of names.py. Knows nothing of
what the models compute.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig, PreTrainedModel

from airvlm.models.ported.names import official_names
from airvlm.models.ported.ports import PORTS, Port, recognises, register
from airvlm.models.ported.processing import HUB_OPTIONS
from airvlm.models.ported.tiktoken_file import VocabularyError
from airvlm.models.quantised import any_size_on_a_cpu

# in the order in which transformers looks for them
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


def load(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    device_map: Any = None,
    **options: Any,
) -> tuple[PreTrainedModel, Any]:
    """A local folder with the official files, or a hub name -> (model in eval mode, processor).

    `options` go to transformers' `from_pretrained`: quantization_config, revision, max_memory, attn_implementation...
    """
    register()
    if options.pop("weights_only", True) is not True:
        raise CheckpointError("Pickled weights are read with weights_only=True only: anything else could run code.")
    options.pop("trust_remote_code", None)  # there is none to trust
    options.pop("use_safetensors", None)  # safetensors where there are any, else pickles through weights_only
    source = str(name_or_path)
    hub = {name: options[name] for name in HUB_OPTIONS if name in options}
    port = _port(source, hub)
    if Path(source).is_dir():
        config = port.config.from_pretrained(source)
        check_names(port, config, stored_names(Path(source)))
    try:
        processor = port.processor.from_pretrained(source, **hub)
        model, info = port.model.from_pretrained(
            source, dtype=dtype, device_map=device_map, weights_only=True, output_loading_info=True, **options
        )
    except (OSError, RuntimeError, SafetensorError, VocabularyError) as error:
        raise CheckpointError(f"{source}: {port.title} could not be loaded. {_first_line(error)}") from error
    wrong = {kind: sorted(map(str, found)) for kind, found in info.items() if found}
    if wrong:
        raise CheckpointError(f"{source} does not hold a whole {port.title}: {wrong}")
    _check_vocabulary(source, model, processor)
    _end_answers(model, processor, port)
    if "quantization_config" in options:
        any_size_on_a_cpu(model)
    if device is not None and device_map is None:
        model = model.to(device)
    return model.eval(), processor


def _port(source: str, hub: dict[str, Any]) -> Port:
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        raise CheckpointError(f"{source} has no config.json: give the folder with the official files.")
    try:
        config, _ = PreTrainedConfig.get_config_dict(source, **hub)
    except OSError as error:
        raise CheckpointError(f"{source}: no config.json could be read. {_first_line(error)}") from error
    if not recognises(config):
        known = " or ".join(f"{port.title} ({port.hub_name})" for port in PORTS.values())
        raise CheckpointError(f"{source} is a {config.get('model_type')!r} model, not {known}.")
    return PORTS[config["model_type"]]


# -- what a folder holds


def stored_names(folder: Path) -> set[str]:
    """The weight names in a folder's files, after making sure that every file is there and whole."""
    found = next((name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if found is None:
        raise CheckpointError(
            f"{folder} has no weights ({', '.join(WEIGHT_FILES)}); it holds "
            f"{', '.join(sorted(p.name for p in folder.iterdir())) or 'nothing'}. Download the repository again."
        )
    if not found.endswith(".index.json"):
        return _names_in(folder / found)
    try:
        index: dict[str, str] = json.loads((folder / found).read_text())["weight_map"]
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{folder / found} is not a weight index: {_first_line(error)}") from error
    files = sorted(set(index.values()))
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} is half downloaded: {len(missing)} of {len(files)} weight files are missing "
            f"({', '.join(missing)}). Download them again, for example with `hf download`."
        )
    held = {name: _names_in(folder / name) for name in files}
    lost = sorted(f"{name} ({file})" for name, file in index.items() if name not in held[file])
    if lost:
        raise CheckpointError(f"{folder}: {found} lists weights that the files do not hold: {', '.join(lost)}")
    return set(index)


def _names_in(file: Path) -> set[str]:
    with file.open("rb") as stream:
        head = stream.read(64)
    if head.startswith(b"version https://git-lfs"):
        raise CheckpointError(f"{file} is a Git LFS pointer, not the weights: run `git lfs pull` in its folder.")
    whole = f"{file} is damaged or half downloaded ({file.stat().st_size} bytes): download it again."
    if file.suffix == ".safetensors":
        try:
            with safe_open(file, framework="pt") as tensors:
                return set(tensors.keys())
        except SafetensorError as error:
            raise CheckpointError(f"{whole} {_first_line(error)}") from error
    if not zipfile.is_zipfile(file):  # the directory of a zip file is at its end: cut short, it has none
        raise CheckpointError(whole)
    try:
        return set(torch.load(file, map_location="meta", weights_only=True, mmap=True))
    except Exception as error:  # whatever a pickle may raise, most of all what weights_only refuses
        raise CheckpointError(f"{file} is not a plain file of weights: {_first_line(error)}") from error


def check_names(port: Port, config: PreTrainedConfig, stored: set[str]) -> None:
    """Raise unless the stored names are exactly those of the model that config.json describes."""
    with torch.device("meta"):
        model = port.model(config)
    wanted = official_names(model.state_dict(), port.conversions())
    ignored = {name for name in stored if name.endswith("rotary_pos_emb.inv_freq")}
    missing, unexpected = wanted - stored, stored - wanted - ignored
    if missing or unexpected:
        hint = ""
        if any(name.endswith((".qweight", ".qzeros", ".g_idx")) for name in unexpected):
            hint = " This is a GPTQ checkpoint: take the plain one and pass quantization_config."
        error = CheckpointError(
            f"The weights are not those of the {port.title} that config.json describes."
            f"{_listing('missing', missing)}{_listing('unexpected', unexpected)}{hint}"
        )
        error.missing, error.unexpected = frozenset(missing), frozenset(unexpected)
        raise error


def _listing(kind: str, found: Collection[str]) -> str:
    """Every name, those that differ by a layer's number together: `transformer.h.{0,1,2}.ln_1.weight`."""
    layers: dict[str, list[str]] = {}
    for name in found:
        parts = re.split(r"(?<=\.)(\d+)(?=\.)", name, maxsplit=1)  # before, number, after
        layers.setdefault("{}".join(parts[::2]), []).extend(parts[1:2])
    if not layers:
        return ""
    listed = (
        pattern.replace("{}", numbers[0] if len(numbers) == 1 else "{" + ",".join(sorted(numbers, key=int)) + "}")
        if numbers
        else pattern
        for pattern, numbers in sorted(layers.items())
    )
    return f" {len(found)} {kind}: {', '.join(listed)}."


# -- what belongs to a model


def _check_vocabulary(source: str, model: PreTrainedModel, processor: Any) -> None:
    if processor.image_token_id != model.config.image_token_id:
        raise CheckpointError(
            f"{source}: the vocabulary puts {processor.image_token} at id {processor.image_token_id}, config.json at "
            f"{model.config.image_token_id}; the vocabulary file and config.json belong to different models."
        )


def _end_answers(model: PreTrainedModel, processor: Any, port: Port) -> None:
    """The originals end answers in their own chat loops; here the generation configuration says where."""
    tokenizer = processor.tokenizer
    model.generation_config.eos_token_id = [tokenizer.convert_tokens_to_ids(stop) for stop in port.stops]
    model.generation_config.pad_token_id = tokenizer.pad_token_id


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
