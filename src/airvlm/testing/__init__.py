"""Checks for methods, tasks and families that others write, as scikit-learn's `check_estimator`; no pytest is needed.

    from airvlm.testing import check_method

    check_method(MyMethod(strength=0.5))            # raises AssertionError with the law and the family that fail
    check_method("my_package.methods:MyMethod:strength=0.5", families=["llava"], verbose=True)

The laws are run on small random models, which are built from configs: nothing is downloaded. Their decoders have four
layers, and an image has a few tens of visual tokens: give an object whose options suit that (`layers`, thresholds).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airvlm.testing.family_laws import check_family as check_family
    from airvlm.testing.method_laws import check_method as check_method
    from airvlm.testing.small_models import sample_image as sample_image
    from airvlm.testing.task_laws import check_task as check_task

# imported on first use: the models need torch and transformers, which take seconds
_MODULES = {
    "check_family": "family_laws",
    "check_method": "method_laws",
    "check_task": "task_laws",
    "sample_image": "small_models",
}

__all__ = ["check_family", "check_method", "check_task", "sample_image"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'airvlm.testing' has no attribute {name!r}")
    return getattr(import_module(f"airvlm.testing.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
