"""Which method a request to vLLM gets: the server's, the request's own, or none.

A setting is JSON, in the form of `airvlm serve`: false, or {"method": {"name": "crop-blend", "weight": 0.4}}. Methods
travel to vLLM's workers as tensors of bytes.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from airvlm import CropBlend, Method
from airvlm.methods.requests import MethodLimits, method_from_request

__all__ = ["check_engine", "from_tensor", "resolve", "to_setting", "to_tensor"]

OPERATOR = MethodLimits(crops=4096)


def resolve(server: Any, request: Any = None) -> CropBlend | None:
    """The method of one request; None is the model as it is. Raises ValueError for what vLLM cannot run.

    Args:
        server: the server's setting.
        request: the request's setting; None leaves the server's.
    """
    default = check_engine(_build(server, CropBlend(), OPERATOR))
    if request is None:
        return default
    return check_engine(_build(request, default or CropBlend(), MethodLimits()))


def _build(setting: Any, default: CropBlend, limits: MethodLimits) -> Method | None:
    try:
        return method_from_request(setting, default, limits)
    except ValueError as error:
        raise ValueError(f"airvlm: {error}") from error


def check_engine(method: Method | None) -> CropBlend | None:
    """The method, if vLLM can run it; None if it is disabled by its options."""
    if method is None or method.disabled_reason is not None:
        return None
    if not isinstance(method, CropBlend):
        raise ValueError(
            f"{method.label} cannot run in vLLM: it acts inside the decoder or changes another method. crop-blend, "
            "which changes visual tokens before prefill, can; `airvlm serve` runs every method."
        )
    return method


def to_setting(method: CropBlend | None) -> dict[str, Any] | bool:
    """The method as a setting."""
    return False if method is None else {"method": method.to_json()}


def to_tensor(method: CropBlend) -> Tensor:
    """The method as bytes (uint8), as a field beside the image's pixels."""
    return torch.frombuffer(bytearray(json.dumps(method.to_json()).encode()), dtype=torch.uint8)


def from_tensor(data: Tensor) -> CropBlend:
    """The method that `to_tensor` wrote."""
    return _read(bytes(data.cpu().tolist()))


@lru_cache(maxsize=256)
def _read(text: bytes) -> CropBlend:
    method = Method.from_json(json.loads(text))
    assert isinstance(method, CropBlend)
    return method
