"""From a name to a model and its processor: an embedded model, a local folder, or a name on the hub.

Weights are read from safetensors only, and code that comes with a checkpoint never runs unless asked for.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import build_hf_headers, get_session
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedConfig

from airvlm import photo, tiny
from airvlm.models.families import FAMILIES, is_port

__all__ = ["EMBEDDED", "LoadError", "avoid_packing_on_cpu", "fingerprint", "load_parts"]

# Below this size every byte of a model is hashed; above it a sample of each tensor (hashing 14 GB takes a minute)
HASH_ALL_BELOW = 512 * 2**20
SAMPLE = 4096  # elements taken from each tensor of a larger model
TIMEOUT = 5.0  # seconds for the first word of the hub
HUB_OPTIONS = ("cache_dir", "local_files_only", "revision", "subfolder", "token")  # of everything that is fetched

# bitsandbytes in 4 bits: weights that share a scale, and output features that its packed form takes together
BLOCK, PACKED = 64, 32

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
    """Load a model and its processor.

    Args:
        name_or_path: an embedded model ("photo", the default, or "tiny"), "smol", a local folder, or a name on the hub.
        adapter: a LoRA to merge into the weights.
        device: where the model runs; a GPU if there is one.
        dtype: of the weights; by default float32 on a CPU, where half precision is slow, and the checkpoint's own
            elsewhere.
        device_map: as in transformers, to spread a model over devices.
        trust_remote_code: run code that comes with the checkpoint.
        allow_missing: accept weights that are missing or have another shape; they are then random.
        options: passed to transformers' `from_pretrained`; for "smol" also `parts`, a folder with its public parts.

    Returns:
        The model in evaluation mode, its processor, and its name.
    """
    name = _default_name() if name_or_path is None else str(name_or_path)
    if name == "smol" and not Path(name).is_dir():
        model, processor = _load_smol(_check_device(device), dtype, device_map, options)
        model = model if adapter is None else _merge_adapter(model, str(adapter))
        return model.eval(), processor, name if adapter is None else f"{name}+{Path(adapter).name}"
    source = EMBEDDED[name].model_path() if name in EMBEDDED else name_or_path or name
    folder = _local_folder(source)
    place = _check_device(device)
    if dtype is None:
        dtype = torch.float32 if place.type == "cpu" and device_map is None else "auto"
    if device_map is None and "quantization_config" in options:
        device_map = {"": place}  # quantized weights stay where they are loaded to
    if folder is None and _hub_is_unreachable(str(source), options):
        options["local_files_only"] = True
    where: dict[str, Any] = {"dtype": dtype, "device_map": device_map, **options}
    config = _read_config(str(folder or source), options)
    if (config.get("vision_config") or {}).get("model_type") == photo.MODEL_TYPE:
        from airvlm.photo.tower import register

        register()
    if is_port(config):
        model, processor = _load_port(folder or str(source), where)
    else:
        # a package that adds the family may register its model's class when it is imported
        FAMILIES.get(str(config.get("model_type")))
        model, processor = _from_pretrained(str(folder or source), trust_remote_code, where, allow_missing)
    if adapter is not None:
        model = _merge_adapter(model, str(adapter))
    if "quantization_config" in options:
        avoid_packing_on_cpu(model)
    if device_map is None:
        model = model.to(place)
    return model.eval(), processor, name if adapter is None else f"{name}+{Path(adapter).name}"


def _load_smol(
    place: torch.device, dtype: str | torch.dtype | None, device_map: Any, options: dict[str, Any]
) -> tuple[nn.Module, Any]:
    """The model smol, assembled from two public checkpoints and the part inside this package."""
    from airvlm.smol.assembly import GIVE_PARTS, LANGUAGE_MODEL, TOWER, PartsError, assemble, parts_folder

    if device_map is not None or "quantization_config" in options:
        raise LoadError("smol is assembled on one device: device_map and quantization_config do not apply to it")
    try:
        parts = parts_folder(options.pop("parts", None))
        if parts is None:
            for part in (TOWER, LANGUAGE_MODEL):
                try:
                    if _hub_is_unreachable(part.name, {**options, "revision": part.revision}, part.file):
                        options["local_files_only"] = True
                except LoadError as error:
                    raise PartsError(f"{error}. smol is made of it: {GIVE_PARTS}") from error
        attention = options.pop("attn_implementation", None)
        model, processor = assemble(parts, dtype=dtype or torch.float32, **options)
    except PartsError as error:
        raise LoadError(str(error)) from error
    if attention is not None:
        try:
            model.set_attn_implementation(attention)
        except (ImportError, ValueError) as error:
            raise LoadError(f"cannot load smol: {_first_line(error)}") from error
    return model.to(place), processor


def _default_name() -> str:
    """The first embedded model that this installation has."""
    return next((n for n, own in EMBEDDED.items() if (own.model_path() / "config.json").is_file()), "photo")


def _check_device(device: str | torch.device | None) -> torch.device:
    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise LoadError(f"device {device} cannot be used on this machine: {_first_line(error)}") from error
    return place


def _local_folder(source: str | Path) -> Path | None:
    """The folder that `source` names, or None for a name on the hub. Raises for a path that does not exist."""
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


def _hub_is_unreachable(name: str, options: Mapping[str, Any], file: str = "config.json") -> bool:
    """Ask the hub for a model once, and for a few seconds: transformers would try for half a minute.

    Raises LoadError if the hub has no such model, or cannot be reached and the model is not in the cache.
    """
    try:
        cached = try_to_load_from_cache(name, file, options.get("cache_dir"), options.get("revision"))
    except HFValidationError as error:
        raise LoadError(f"cannot load {name}: there is no such folder, and the hub has no such names") from error
    if constants.HF_HUB_OFFLINE or options.get("local_files_only"):
        reason = "the hub is switched off (HF_HUB_OFFLINE or local_files_only)"
    else:
        try:
            answer = get_session().head(
                hf_hub_url(name, file, revision=options.get("revision")),
                headers=build_hf_headers(token=options.get("token")),
                timeout=TIMEOUT,
            )
        except Exception as error:  # whatever the hub's client raises: no name, no route, no answer
            reason = f"the hub cannot be reached ({_first_line(error)})"
        else:
            if answer.status_code in (401, 404):
                raise LoadError(
                    f"cannot load {name}: there is no such folder, and no such model on the hub that you may read"
                )
            return False
    if not isinstance(cached, str):
        raise LoadError(f"cannot load {name}: there is no such folder, and {reason}")
    return True


def _read_config(source: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """config.json, which says whether transformers has the model or this package (models/ported)."""
    hub = {name: options[name] for name in HUB_OPTIONS if name in options}
    try:
        config: dict[str, Any] = PreTrainedConfig.get_config_dict(source, **hub)[0]
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot load {source}: {_first_line(error)}") from error
    return config


def _load_port(source: str | Path, where: dict[str, Any]) -> tuple[nn.Module, Any]:
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
    from transformers import AutoModelForImageTextToText, AutoProcessor  # they import transformers' model code

    hub = {name: where[name] for name in HUB_OPTIONS if name in where}
    try:
        processor = AutoProcessor.from_pretrained(source, trust_remote_code=trust_remote_code, **hub)
        if getattr(processor, "image_processor", None) is None:
            raise LoadError(f"{source} has a tokenizer but no image processor: it is not a vision-language model")
        model, info = AutoModelForImageTextToText.from_pretrained(
            source,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # all of them are named below
            **where,
        )
    except LoadError:
        raise
    except SafetensorError as error:
        raise LoadError(
            f"cannot load {source}: its weights are damaged or incomplete ({_first_line(error)}); fetch them again"
        ) from error
    except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError, RuntimeError) as error:
        raise LoadError(f"cannot load {source}: {_first_line(error)}") from error
    if not allow_missing:
        _check_complete(source, info)
    return model, processor


def _check_complete(source: str, info: Mapping[str, Any]) -> None:
    """Raise if weights were not read: they would be random, and the answers noise."""
    for kind, what in (("missing_keys", "are missing"), ("mismatched_keys", "have another shape")):
        names = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info.get(kind) or ())
        if names:
            raise LoadError(
                f"{source}: {len(names)} weights {what} ({', '.join(names[:3])}{', ...' if names[3:] else ''}); "
                "pass allow_missing=True (--allow-missing) to use random ones"
            )


def _merge_adapter(model: nn.Module, adapter: str) -> nn.Module:
    """The model with a LoRA merged into its weights: an ordinary model for every method."""
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
        digest.update(json.dumps(_without_source(config.to_dict()), sort_keys=True, default=str).encode())
    tensors = dict(model.state_dict())
    everything = sum(t.numel() * t.element_size() for t in tensors.values()) <= HASH_ALL_BELOW
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        if tensor.device.type == "meta":
            continue  # offloaded to disk: only its name and shape are known
        flat = tensor.detach().reshape(-1)
        if not everything and flat.numel() > SAMPLE:
            flat = flat[:: flat.numel() // SAMPLE]
        digest.update(flat.contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _without_source(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what does not change what is computed: where it was loaded from, and by which version."""

    def without_path(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        return {name: "" if name == "_name_or_path" else without_path(value) for name, value in part.items()}

    own = {"_name_or_path", "transformers_version"}
    return {name: without_path(value) for name, value in config.items() if name not in own}


def avoid_packing_on_cpu(model: nn.Module) -> None:
    """Keep bitsandbytes from packing layers that its packed form cannot hold; they are unpacked in each pass instead.

    On processors with AVX512-BF16 it packs every 4-bit layer in its first pass, and fails if the inputs are not a
    multiple of 64 or the outputs not of 32. In 8 bits it logs in every layer that float32 is cast. The classes are
    known by name here, so that bitsandbytes need not be installed.
    """
    modules: list[Any] = list(model.modules())
    if any(type(module).__name__ == "Linear8bitLt" for module in modules):
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    for module in modules:
        if type(module).__name__ == "Linear4bit" and (module.in_features % BLOCK or module.out_features % PACKED):
            module.support_avx512bf16_for_cpu = False


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
