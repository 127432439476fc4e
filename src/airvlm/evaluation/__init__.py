"""Run methods over tasks, store every answer, and say what the answers show.

    results = airvlm.evaluate("tiny", ["tiny-chair"], ["crop-blend", "memvr"], out="runs/tiny")

An answer passes plan.py (what is asked, in batches), run.py (the model answers), store.py (a line on disk) and
results.py (scores, with statistics.py and trade_off.py); evaluate.py goes through these steps. Names are imported
lazily: reading results does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airvlm.evaluation.plan import TaskSpec as TaskSpec
    from airvlm.evaluation.results import Results as Results
    from airvlm.evaluation.results import TaskResults as TaskResults
    from airvlm.evaluation.store import Store as Store

__all__ = ["SWEEPS", "Results", "Store", "TaskResults", "TaskSpec"]

# names of the paper's sweeps, for the command line's help; what each varies is in sweeps.py
SWEEPS = ("layers", "num_prototypes", "tau", "num_crops", "eps", "length", "components", "controls", "noise")

_HOMES = {"Results": "results", "Store": "store", "TaskResults": "results", "TaskSpec": "plan"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
