"""The paper's two models that transformers does not have: Qwen-VL(-Chat) and GLM-4V-9B, from their official files.

    model, processor = airvlm.models.load("Qwen/Qwen-VL-Chat")

Importing this package has no effect. `register()` adds both models to transformers' Auto classes; `load` calls it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airvlm.models.ported.checkpoint import PORTS as PORTS
    from airvlm.models.ported.checkpoint import CheckpointError as CheckpointError
    from airvlm.models.ported.checkpoint import Port as Port
    from airvlm.models.ported.checkpoint import load as load
    from airvlm.models.ported.checkpoint import register as register

__all__ = ["PORTS", "CheckpointError", "Port", "load", "register"]


def __getattr__(name: str) -> Any:
    # Lazy: the models import their base classes from this package, and checkpoint.py imports the models
    if name not in __all__:
        raise AttributeError(f"module 'airvlm.models.ported' has no attribute {name!r}")
    return getattr(import_module("airvlm.models.ported.checkpoint"), name)
