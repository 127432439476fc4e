"""Which method a request gets: the server's own, the request's changes to it, or none; refused where vLLM cannot.

A setting is True (AIR as it is), False (the model as it is), a method as the command line spells it, or a mapping of
AIR's fields, with "method" for its name. Knows nothing of vLLM: methods travel to its workers as tensors of bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from airvlm import AIR, Method, parse_method

__all__ = ["Setting", "from_tensor", "resolve", "to_tensor", "written"]

Setting: TypeAlias = "str | bool | Mapping[str, Any] | Method | None"


def resolve(server: Setting, request: Setting = None) -> AIR | None:
    """The method of one request; None for the model as it is. Raises ValueError for what vLLM cannot serve."""
    default = _method(True if server is None else server, AIR(), local=True)
    if request is None:
        return default
    return _method(request, default or AIR(), local=False)  # it came over a network: no file is read for it


def _method(setting: Setting, base: AIR, *, local: bool) -> AIR | None:
    if setting is False:
        return None
    if setting is True:
        return base
    if isinstance(setting, str | Method):
        return _served(parse_method(setting, local=local) if isinstance(setting, str) else setting)
    if not isinstance(setting, Mapping):
        raise ValueError(f"airvlm = {setting!r}: give false, true, a method's name or its fields")
    changes = {name: tuple(v) if isinstance(v, list) else v for name, v in setting.items() if name != "method"}
    method: Method | None = base
    if "method" in setting:
        method = parse_method(str(setting["method"]), local=local)
        if method is None and changes:
            raise ValueError(f"airvlm: the model as it is has no {', '.join(changes)}")
    chosen = _served(method)
    if chosen is None:
        return None
    own = {field.name: getattr(chosen, field.name) for field in fields(AIR)}
    for name in changes:
        if name not in own:
            raise ValueError(f"airvlm: air has no field {name!r}; it has {', '.join(sorted(own))}")
    try:
        changed = AIR(**{**own, **changes})
    except TypeError as error:
        raise ValueError(f"airvlm: {error}") from error
    return _served(changed)


def _served(method: Method | None) -> AIR | None:
    """The method, if it changes visual tokens before prefill and nothing else; None where it is off."""
    if method is None:
        return None
    if not isinstance(method, AIR):
        raise ValueError(
            f"{method.name} cannot run in vLLM: it acts while the decoder runs, and vLLM's decoder shows no step of "
            "it. AIR's transported reading (method air) can; `airvlm serve` takes every method."
        )
    if method.reading != "carry":
        raise ValueError(
            f"air-{method.reading_name} (reading='ffn') cannot run in vLLM: it writes to feed-forward outputs, where "
            "vLLM's compiled decoder cannot be reached. Use air, the transported reading; `airvlm serve` takes every "
            "method."
        )
    if method.source != "original":
        raise ValueError(f"source={method.source!r} is a control for evaluations: vLLM serves source='original'")
    return None if method.off else method


def written(air: AIR | None) -> dict[str, Any] | bool:
    """The method as a setting of plain values, every field of it."""
    return False if air is None else {k: v for k, v in air.to_json().items() if k != "name"}


def to_tensor(method: AIR) -> Tensor:
    """The method as bytes (uint8), as a field beside the image's pixels."""
    return torch.frombuffer(bytearray(json.dumps(method.to_json()).encode()), dtype=torch.uint8)


def from_tensor(data: Tensor) -> AIR:
    """The method that `to_tensor` wrote."""
    return _read(bytes(data.cpu().tolist()))


@lru_cache(maxsize=256)
def _read(text: bytes) -> AIR:
    method = Method.from_json(json.loads(text))
    assert isinstance(method, AIR)
    return method
