"""The methods, one paper per file, and their names.

The names are those of public.py, which is imported when one of them is used: loading a model needs no method.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from airvlm.methods.public import *  # noqa: F403
    from airvlm.methods.public import __all__ as __all__


def __getattr__(name: str) -> _Any:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module("airvlm.methods.public"), name)
