"""Models: loading them, their parts, and what differs between families.

Two models of the paper are not in transformers: Qwen-VL(-Chat) and GLM-4V-9B. They are imported when they are asked
for:

    model, processor = airvlm.models.load("Qwen/Qwen-VL-Chat")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airvlm.models.ported import PORTS as PORTS
    from airvlm.models.ported import CheckpointError as CheckpointError
    from airvlm.models.ported import Port as Port
    from airvlm.models.ported import load as load
    from airvlm.models.ported import register as register

__all__ = ["PORTS", "CheckpointError", "Port", "load", "register"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'airvlm.models' has no attribute {name!r}")
    return getattr(import_module("airvlm.models.ported"), name)
