"""Compiled graphs: one that was traced before hooks were added ignores them, so it is forgotten first.

Knows the ways of compiling a module, and nothing of methods.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import nn

__all__ = ["forget_graphs", "is_compiled"]


def forget_graphs(given: nn.Module, model: nn.Module, *, decodes: bool, stack: ExitStack) -> None:
    """Drop graphs of the model as the caller holds it (`given`) and as transformers calls it (`model`).

    decodes: decode steps matter too, which generate compiles by itself. Resetting is process-wide in torch.
    """
    if any(is_compiled(module) for module in given.modules()):
        torch.compiler.reset()
        stack.callback(torch.compiler.reset)  # graphs traced with the hooks must not outlive them
    elif decodes and "_compiled_call" in model.__dict__:
        del model._compiled_call  # None would crash get_compiled_call, which only tests hasattr
        torch.compiler.reset()


def is_compiled(module: nn.Module) -> bool:
    """Whether the module runs a graph that may have been traced before."""
    if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod"):
        return True
    forward = module.__dict__.get("forward")  # forward = torch.compile(forward)
    return hasattr(forward, "_torchdynamo_orig_callable")
