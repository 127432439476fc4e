"""From a name to a model and its processor: an embedded one, a local folder, or a name on the model hub.

Weights are read from safetensors only, and a checkpoint's own code never runs unless asked for. This file knows
nothing of questions, images or methods.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForImageTextToText, AutoProcessor, PreTrainedConfig

from airvlm import photo, tiny
from airvlm.models.families import FAMILIES, is_port
from airvlm.models.quantised import any_size_on_a_cpu

__all__ = ["EMBEDDED", "LoadError", "fingerprint", "load_parts"]

# Below this size every byte of a model is hashed; above it a sample of each tensor (hashing 14 GB takes a minute)
HASH_ALL_BELOW = 512 * 2**20
SAMPLE = 4096  # elements taken from each tensor of a larger model


# The models inside the package, by name; the first is the default
EMBEDDED = {"photo": photo, "tiny": tiny}


class LoadError(ValueError):
    """A model, processor or adapter could not be loaded; the message says why and what to do."""


def load_parts(
    name_or_path: str | Path | None = None,
    *,
    adapter: str | Path | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: Any = None,
    trust_remote_code: bool = False,
    allow_missing: bool = False,
    **options: Any,
) -> tuple[nn.Module, Any, str]:
    """(model in evaluation mode, processor, name). `name_or_path=None` is the embedded photograph model.

    `dtype=None` is float32 on a CPU, where half precision is slow, and the checkpoint's own elsewhere.
    `allow_missing`: load weights that are not all there, or of another shape; the rest is drawn at random.
    """
    name = _default() if name_or_path is None else str(name_or_path)
    source = EMBEDDED[name].model_path() if name in EMBEDDED else name_or_path or name
    folder = _local_folder(source)
    place = _place(device)
    if dtype is None:
        dtype = torch.float32 if place.type == "cpu" and device_map is None else "auto"
    if device_map is None and "quantization_config" in options:
        device_map = {"": place}  # quantised weights stay where they are loaded to
    where: dict[str, Any] = {"dtype": dtype, "device_map": device_map, **options}
    config = _config(str(folder or source))
    if (config.get("vision_config") or {}).get("model_type") == photo.MODEL_TYPE:
        from airvlm.photo.tower import register

        register()
    if is_port(config):
        model, processor = _port(folder or str(source), where)
    else:
        # a package that brings the family may register its model's class when it is imported
        FAMILIES.get(str(config.get("model_type")))
        model, processor = _from_pretrained(str(folder or source), trust_remote_code, where, allow_missing)
    if adapter is not None:
        model = _with_adapter(model, str(adapter))
    if "quantization_config" in options:
        any_size_on_a_cpu(model)
    if device_map is None:
        model = model.to(place)
    return model.eval(), processor, name if adapter is None else f"{name}+{Path(adapter).name}"


def _default() -> str:
    """The first embedded model that this installation holds."""
    return next((n for n, own in EMBEDDED.items() if (own.model_path() / "config.json").is_file()), "photo")


def _place(device: str | torch.device | None) -> torch.device:
    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise LoadError(f"device {device}: this machine has none that can be used ({_first_line(error)})") from error
    return place


def _local_folder(source: str | Path) -> Path | None:
    """The folder that `source` names, or None for a name on the hub. Raises where a path leads nowhere."""
    path = Path(source).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise LoadError(f"{path} is not a model folder: it has no config.json")
        return path
    if path.is_file():
        raise LoadError(f"{path} is a file; give the folder that holds config.json and the safetensors files")
    # A hub name is `name` or `owner/name`; everything else was meant as a path
    if isinstance(source, Path) or path.is_absolute() or str(source).count("/") > 1 or str(source)[:1] in ".~":
        raise LoadError(f"no such model folder: {source}")
    return None


def _config(source: str) -> dict[str, Any]:
    """config.json, which says whether transformers has the model, or we do (airvlm.models)."""
    try:
        config: dict[str, Any] = PreTrainedConfig.get_config_dict(source)[0]
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot load {source}: {_first_line(error)}") from error
    return config


def _port(source: str | Path, where: dict[str, Any]) -> tuple[nn.Module, Any]:
    from airvlm import models

    try:
        load, problem = models.load, models.CheckpointError
    except ImportError as error:
        raise LoadError(f"cannot load {source}: {_first_line(error)}") from error
    try:
        loaded: tuple[nn.Module, Any] = load(source, **where)
    except problem as error:
        raise LoadError(str(error)) from error
    return loaded


def _from_pretrained(
    source: str, trust_remote_code: bool, where: dict[str, Any], allow_missing: bool
) -> tuple[nn.Module, Any]:
    try:
        processor = AutoProcessor.from_pretrained(source, trust_remote_code=trust_remote_code)
        model, info = AutoModelForImageTextToText.from_pretrained(
            source,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below, all of them
            **where,
        )
    except SafetensorError as error:
        raise LoadError(
            f"cannot load {source}: its weights are damaged or not whole ({_first_line(error)}); fetch them again"
        ) from error
    except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError, RuntimeError) as error:
        raise LoadError(f"cannot load {source}: {_first_line(error)}") from error
    if getattr(processor, "image_processor", None) is None:
        raise LoadError(f"{source} has no image processor: it is not a vision-language model")
    if not allow_missing:
        _check_whole(source, info)
    return model, processor


def _check_whole(source: str, info: Mapping[str, Any]) -> None:
    """Every weight was read: one that was not is drawn at random, and the answers would be noise without a word."""
    for kind, what in (("missing_keys", "are missing"), ("mismatched_keys", "have another shape")):
        names = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info.get(kind) or ())
        if names:
            raise LoadError(
                f"{source}: {len(names)} weights {what} ({', '.join(names[:3])}{', ...' if names[3:] else ''}); "
                "pass allow_missing=True (--allow-missing) to draw them at random"
            )


def _with_adapter(model: nn.Module, adapter: str) -> nn.Module:
    """The model with a LoRA merged into its weights, so that methods meet an ordinary model."""
    try:
        from peft import PeftModel
    except ImportError as error:
        raise LoadError("an adapter needs PEFT: pip install airvlm[lora]") from error
    folder = Path(adapter).expanduser()
    if folder.is_dir() and not (folder / "adapter_model.safetensors").is_file():
        raise LoadError(f"{folder} has no adapter_model.safetensors (pickled weights are not loaded)")
    try:
        return PeftModel.from_pretrained(model, adapter).merge_and_unload()
    except (OSError, ValueError, KeyError) as error:
        raise LoadError(f"cannot load the adapter {adapter}: {_first_line(error)}") from error


def fingerprint(model: nn.Module) -> str:
    """A hash of the model's configuration and weights, equal wherever the same weights are loaded."""
    digest = hashlib.sha256()
    config = getattr(model, "config", None)
    if config is not None:
        # where it was loaded from, and by which version, says nothing of what it computes
        facts = {k: v for k, v in config.to_dict().items() if k not in {"_name_or_path", "transformers_version"}}
        digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    tensors = dict(model.state_dict())
    everything = sum(t.numel() * t.element_size() for t in tensors.values()) <= HASH_ALL_BELOW
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        if tensor.device.type == "meta":
            continue  # offloaded to disk: its name and shape must do
        flat = tensor.detach().reshape(-1)
        if not everything and flat.numel() > SAMPLE:
            flat = flat[:: flat.numel() // SAMPLE]
        digest.update(flat.contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
