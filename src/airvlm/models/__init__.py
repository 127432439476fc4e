"""Models: loading them, their parts, and what differs between families.

Two models of the paper are not in transformers: Qwen-VL(-Chat) and GLM-4V-9B. They are imported when they are asked
for, and need a newer transformers than the rest of the package:

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

PORTS_NEED = (5, 21)  # the first transformers with the weight conversions that the ports are written in


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'airvlm.models' has no attribute {name!r}")
    import transformers

    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if version < PORTS_NEED:
        raise ImportError(
            f"Qwen-VL and GLM-4V need transformers {'.'.join(map(str, PORTS_NEED))} or later, this is "
            f"{transformers.__version__}: pip install -U transformers. All other models work with it."
        )
    return getattr(import_module("airvlm.models.ported"), name)
