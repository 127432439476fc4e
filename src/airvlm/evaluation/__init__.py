"""Running methods over tasks, storing every answer, and saying what the answers show.

    from airvlm.evaluation import Run
    from airvlm.evaluation.evaluate import evaluate

Nothing is imported before it is asked for. Here also stands what the command line's help must know before anything
heavy is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airvlm.evaluation.plan import Asked as Asked
    from airvlm.evaluation.run import Run as Run
    from airvlm.evaluation.run import TaskRun as TaskRun
    from airvlm.evaluation.store import Store as Store

__all__ = ["BATCH_SIZE", "SWEEPS", "Asked", "Run", "Store", "TaskRun"]

BATCH_SIZE = 16  # questions that run together, where nothing is known of the model

# the paper's own sweeps by name; what each varies is in sweeps.py
SWEEPS = ("layers", "top_q", "tau", "patches", "eps", "length", "components", "controls", "noise")

_HOMES = {"Run": "run", "TaskRun": "run", "Asked": "plan", "Store": "store"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
