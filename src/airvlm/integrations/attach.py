"""attach(model, processor, method): every `generate` call of a model runs under a method, until `detach`.

    model = airvlm.attach(model, processor, "crop-blend")
    model.generate(**processor(text=..., images=..., return_tensors="pt"))
    print(airvlm.get_attachment(model).report)
    model = airvlm.detach(model)

For trainers and servers that hold a model for long. Each call opens and closes a session of its own, so nothing is left
on the model between calls, and threads wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar
from weakref import WeakSet, ref

from torch import Tensor, nn

from airvlm.inputs.remember import derive_class, is_wrapped, unwrap, wrap
from airvlm.methods.base import Method
from airvlm.methods.names import get_method
from airvlm.models.parts import ModelParts, check_processor
from airvlm.report import Report
from airvlm.runtime.contexts import ActiveContexts
from airvlm.runtime.intervention import DISABLED
from airvlm.runtime.locks import ModelInUseError, lock_of
from airvlm.runtime.session import Session

__all__ = ["Attachment", "attach", "detach", "get_attachment"]

M = TypeVar("M", bound=nn.Module)
KEY = "_airvlm_attachment"  # in the __dict__ of an attached model


class Attachment:
    """A method that is attached to a model.

    Attributes:
        method: the method.
        report: what it did in the latest call, of any thread; None before the first.
    """

    def __init__(
        self,
        model: nn.Module,
        parts: ModelParts,
        processor: Any,
        method: Method,
        on_report: Callable[[Report], None] | None,
    ) -> None:
        self.method = method
        self.processor = processor
        self.report: Report | None = None
        self.on_report = on_report
        self.given = ref(model)  # with torch.compile's or PEFT's wrapper
        self.base: Any = type(parts.model)  # the model's own class
        self.image_token_id = parts.image_token_id
        self.wrapped_processor = not is_wrapped(processor)

    def __repr__(self) -> str:
        return f"<Attachment of {self.method.label}>"


_ATTACHMENTS: WeakSet[Attachment] = WeakSet()
_SESSIONS: WeakSet[Session] = WeakSet()  # opened for a call of an attached model


def attach(
    model: M,
    processor: Any,
    method: Method | str = "crop-blend",
    *,
    on_report: Callable[[Report], None] | None = None,
) -> M:
    """Run every `generate` call of this model under a method, until `detach`.

    The processor is wrapped (see `wrap`), so that calls need no `images=`. A call without an image is answered by the
    model as it is, and its report says so. Plain forward passes, as in training, are not changed; a `with` block of
    another method replaces the attached one while it is open. Saving, pickling and copying give the plain model.

    Args:
        model: a transformers vision-language model. It is changed in place and returned.
        processor: its processor.
        method: a method or its spelling.
        on_report: called with the report of each call, in the thread of the call.
    """
    chosen = get_method(method)
    if chosen is None:
        raise ValueError("attach needs a method; a model without one is vanilla already")
    parts = ModelParts.of(model)
    check_processor(processor, parts)
    inner = parts.model
    if get_attachment(inner) is not None:
        raise ValueError(f"{get_attachment(inner)!r} is on this model already: call airvlm.detach(model) first")
    with lock_of(inner).acquire():
        if ActiveContexts.of(inner) is not None:
            raise ModelInUseError("a block is open on this model: attach a method before or after it")
        if "generate" in inner.__dict__:
            raise ValueError("generate of this model was replaced by another function: undo that first")
        attachment = Attachment(model, parts, processor, chosen, on_report)
        wrap(processor)
        inner.__dict__[KEY] = attachment
        inner.__class__ = _attached_class(attachment.base)
        _ATTACHMENTS.add(attachment)
    return model


def detach(model: M) -> M:
    """Undo `attach`, in place. Waits for calls that are running; raises ValueError if nothing is attached."""
    inner = ModelParts.of(model).model
    attachment = get_attachment(inner)
    if attachment is None:
        raise ValueError("no method is attached to this model")
    with lock_of(inner).acquire():
        inner.__class__ = attachment.base
        del inner.__dict__[KEY]
        _ATTACHMENTS.discard(attachment)
        if attachment.wrapped_processor and all(a.processor is not attachment.processor for a in _ATTACHMENTS):
            unwrap(attachment.processor)
    return model


def get_attachment(model: nn.Module) -> Attachment | None:
    """What is attached to this model, with the report of the latest call; None if nothing is."""
    return ModelParts.of(model).model.__dict__.get(KEY)


@cache
def _attached_class(base: type) -> type:
    """One class per model class, without a reference to any model: classes are kept by caches elsewhere."""
    return derive_class(base, {"generate": _AttachedGenerate(base)}, without=KEY)


class _AttachedGenerate:
    """`generate` of an attached model: found before the one that an open session puts on the instance."""

    def __init__(self, base: Any) -> None:
        self.own = base.generate

    def __get__(self, model: Any, kind: Any = None) -> Any:
        if model is None:
            return self.own
        own = self.own.__get__(model)

        @wraps(own)  # with its signature, which transformers and others read
        def generate(*args: Any, **kwargs: Any) -> Any:
            return _generate(model, model.__dict__[KEY], own, args, kwargs)

        return generate

    def __set__(self, model: Any, value: Any) -> None:
        raise AttributeError("generate of a model with an attached method cannot be replaced: detach it first")


def _generate(
    model: Any, attachment: Attachment, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """One call under the attached method."""
    contexts = ActiveContexts.of(model)
    if DISABLED.get() or (contexts is not None and contexts.calling is threading.current_thread()):
        return own(*args, **kwargs)  # inside a session's call: the model's own
    block = None if contexts is None else next((one for one in contexts.open if one not in _SESSIONS), None)
    if block is not None and "generate" in model.__dict__:
        return model.__dict__["generate"](*args, **kwargs)  # a block is open, and decides
    if lock_of(model).is_mine:
        raise ModelInUseError(
            f"this model has {attachment.method.label} attached, and VLM gives each call its own method: call "
            "airvlm.detach(model) first, or pass method="
        )
    with lock_of(model).acquire():
        ids = kwargs.get("input_ids", kwargs.get("inputs", args[0] if args else None))
        shows_image = not isinstance(ids, Tensor) or bool((ids == attachment.image_token_id).any())
        if attachment.method.needs_images and not shows_image:
            out = own(*args, **kwargs)
            reason = "this call shows no image"
            report = Report(attachment.method.to_json(), fired=False, reason=reason, expected=True)
        else:
            given = attachment.given()
            session = attachment.method(model if given is None else given, attachment.processor)
            _SESSIONS.add(session)
            with session:
                out = session.generate(*args, **kwargs)
            report = session.report
        attachment.report = report
    if attachment.on_report is not None:
        attachment.on_report(report)
    return out
