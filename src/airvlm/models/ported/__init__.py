"""The paper's two models that transformers does not have: Qwen-VL(-Chat) and GLM-4V-9B, from their official files.

    model, processor = airvlm.models.load("Qwen/Qwen-VL-Chat")

Nothing happens on import. `register()` makes transformers' Auto classes and weight loading know both; `load` calls it.
"""

from airvlm.models.ported.checkpoint import CheckpointError, load
from airvlm.models.ported.ports import PORTS, Port, recognises, register

__all__ = ["PORTS", "CheckpointError", "Port", "load", "recognises", "register"]
