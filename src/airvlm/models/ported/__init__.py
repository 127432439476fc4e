"""The paper's two models that transformers does not have: Qwen-VL(-Chat) and GLM-4V-9B, from their official files.

    model, processor = airvlm.models.load("Qwen/Qwen-VL-Chat")

Nothing happens on import. `register()` makes transformers' Auto classes and weight loading know both; `load` calls it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airvlm.models.ported.checkpoint import CheckpointError as CheckpointError
    from airvlm.models.ported.checkpoint import load as load
    from airvlm.models.ported.ports import PORTS as PORTS
    from airvlm.models.ported.ports import Port as Port
    from airvlm.models.ported.ports import recognises as recognises
    from airvlm.models.ported.ports import register as register

__all__ = ["PORTS", "CheckpointError", "Port", "load", "recognises", "register"]


def __getattr__(name: str) -> Any:
    """Lazily: the models import what they share from this package, and the loader imports the models."""
    if name not in __all__:
        raise AttributeError(f"module 'airvlm.models.ported' has no attribute {name!r}")
    home = "checkpoint" if name in ("CheckpointError", "load") else "ports"
    return getattr(import_module(f"airvlm.models.ported.{home}"), name)
