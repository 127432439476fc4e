"""Running methods over tasks, storing every answer, and saying what the answers show.

    from airvlm.evaluation import Results
    from airvlm.evaluation.evaluate import evaluate

Nothing is imported before it is asked for. Here also stands what the command line's help must know before anything
heavy is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from airvlm.registry import renamed_names

if TYPE_CHECKING:
    from airvlm.evaluation.plan import Asked as Asked
    from airvlm.evaluation.results import Results as Results
    from airvlm.evaluation.store import Store as Store
    from airvlm.evaluation.task_results import TaskResults as TaskResults

__all__ = ["BATCH_SIZE", "SWEEPS", "Asked", "Results", "Store", "TaskResults"]

BATCH_SIZE = 16  # questions that run together, where nothing is known of the model

# the paper's own sweeps by name; what each varies is in sweeps.py
SWEEPS = ("layers", "top_q", "tau", "patches", "eps", "length", "components", "controls", "noise")

_HOMES = {"Asked": "plan", "Results": "results", "Store": "store", "TaskResults": "task_results"}

_renamed = renamed_names(
    __name__,
    {"Run": f"{__name__}.results:Results", "TaskRun": f"{__name__}.task_results:TaskResults"},
)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return _renamed(name)
