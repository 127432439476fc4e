"""`generate` while a method is active: seen before it runs, refused where no method could act, restored afterwards.

Knows transformers' generation options, and nothing of hooks or of what a method does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from transformers import LogitsProcessorList

from airvlm.hooks.intervention import Call, Intervention, is_aside

__all__ = ["prepared", "shadow_generate", "token_ids"]


def shadow_generate(
    model: nn.Module, before: Callable[[dict[str, Any]], Call], after: Callable[[], None], stack: ExitStack
) -> None:
    """Put a `generate` on the instance that calls `before` with all arguments by name, and `after` when it is done."""
    original = getattr(model, "generate", None)
    if original is None:
        return
    signature = inspect.signature(original)
    names = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]

    def generate(*args: Any, **kwargs: Any) -> Any:
        if is_aside():
            return original(*args, **kwargs)
        call = before(dict(zip(names, args, strict=False)) | kwargs)
        try:
            return original(**call.arguments)
        finally:
            after()

    generate.__signature__ = signature  # type: ignore[attr-defined]  # a nested run reads it again
    shadowed = model.__dict__.get("generate")
    model.__dict__["generate"] = generate

    def restore() -> None:
        if shadowed is None:
            model.__dict__.pop("generate", None)
        else:
            model.__dict__["generate"] = shadowed

    stack.callback(restore)


def prepared(call: Call, name: str, intervention: Intervention) -> Call:
    """The call with what the intervention adds to it. Raises for modes that no method can serve."""
    if call.option("prefill_chunk_size") is not None:
        raise ValueError(
            f"{name} cannot act with prefill_chunk_size: transformers then drops the picture from the prefill. "
            "Leave prefill_chunk_size unset."
        )
    if call.option("cache_implementation") == "paged":
        raise ValueError(f"{name} cannot act in continuous batching: use another cache_implementation.")
    if call.arguments.get("assistant_model") is not None:
        raise ValueError(
            f"{name} cannot act in assisted decoding: the assistant's guesses are not made under it, and a model that "
            "assists itself is seen twice. Leave assistant_model out."
        )
    if intervention.decodes:
        _stay_eager(call)
    intervention.call(call)
    extra = intervention.processors(call)
    if extra:
        given = call.arguments.get("logits_processor") or []
        call.arguments["logits_processor"] = LogitsProcessorList([*given, *extra])
    return call


def token_ids(ids: Any, name: str) -> Tensor:
    """input_ids as (rows, tokens), or an error that says why they are needed."""
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        raise ValueError(
            f"{name} needs input_ids of shape (rows, tokens): inputs_embeds alone do not say which tokens are the "
            "picture."
        )
    return ids


def _stay_eager(call: Call) -> None:
    """generate compiles decode steps by itself on some devices and caches: not while a method acts in them."""
    config = call.arguments.get("generation_config")
    if config is None:
        call.arguments["disable_compile"] = True
    else:
        eager = {**config.to_dict(), "disable_compile": True}
        call.arguments["generation_config"] = type(config).from_dict(eager)
