"""Method: a configuration that is also a context manager.

`with METHOD(model, processor, images=images) as run:` makes a Run of it (run.py); leaving the block removes every
trace. A subclass adds fields (fields.py), and says in `start` what acts during a run. Knows nothing of hooks or passes.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from airvlm.hooks.fields import check, check_effect, without_effect
from airvlm.hooks.intervention import Context, Intervention
from airvlm.hooks.run import Run
from airvlm.models.anatomy import Anatomy

__all__ = ["Method", "Renamed"]


@dataclass(frozen=True)
class Renamed:
    """A field that had another name: the old spelling goes on working, with a warning."""

    to: str
    value: Callable[[Any], Any] = lambda old: old  # the old field's value -> the new one's
    back: Callable[[Any], Any] = lambda new: new


class _Kind(type):
    """The class of method classes: translates fields that were renamed, wherever a method is made."""

    renamed: Mapping[str, Renamed]

    def __call__(cls, *args: Any, **fields: Any) -> Any:
        for old in set(fields) & set(cls.renamed):
            new = cls.renamed[old]
            warnings.warn(f"{cls.__name__}: {old} is now called {new.to}", DeprecationWarning, stacklevel=2)
            fields[new.to] = new.value(fields.pop(old))
        return super().__call__(*args, **fields)


@dataclass(frozen=True)
class Method(metaclass=_Kind):
    """Base of every method: a frozen dataclass whose fields are its configuration."""

    name: ClassVar[str] = ""  # as the registry and the command line spell it
    publication: ClassVar[str] = ""  # where it was published
    mechanism: ClassVar[str] = ""  # what it does, in one line
    forwards: ClassVar[str] = "1"  # what it costs, in forward passes
    needs_images: ClassVar[bool] = True  # cannot act on a prompt without an image
    needs_pixels: ClassVar[bool] = False  # reads pixels: features encoded beforehand will not do
    renamed: ClassVar[Mapping[str, Renamed]] = {}  # old spelling of a field -> the new one
    kinds: ClassVar[dict[str, type[Method]]] = {}  # every subclass by its name, for from_json
    off: ClassVar[str | None] = None  # of an instance: why it is configured to do nothing ("its alpha is 0")
    calibrated_on: ClassVar[str | None] = None  # fingerprint of the model that `load` found its fields for

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.__dict__.get("name")
        if not name:
            return
        known = Method.kinds.get(name)
        if known is not None and _ours(known) and not _ours(cls):
            raise TypeError(f"the method name {name!r} is airvlm's own: give {cls.__qualname__} another")
        Method.kinds[name] = cls

    def __post_init__(self) -> None:
        """Every value is of its kind, finite, in range, and has an effect. A subclass that adds checks calls this."""
        check(self)
        check_effect(self)
        object.__setattr__(self, "off", self._off())

    def __getattr__(self, name: str) -> Any:
        """Fields by their old names."""
        renamed = type(self).renamed.get(name)
        if renamed is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        warnings.warn(
            f"{type(self).__name__}: {name} is now called {renamed.to}", DeprecationWarning, stacklevel=2
        )
        return renamed.back(getattr(self, renamed.to))

    @property
    def reading_name(self) -> str:
        """Which reading of its paper this is, where a method has several: fields may act in some of them only."""
        return ""

    def _off(self) -> str | None:
        """All fields that can turn it off do."""
        switches = [f for f in dataclasses.fields(self) if "off" in f.metadata]
        idle = without_effect(self, [f.name for f in switches])
        names = [f.name for f in switches if f.name not in idle]
        values = {f.name: f.metadata["off"] for f in switches}
        if not names or any(getattr(self, name) != values[name] for name in names):
            return None
        return f"its {' and '.join(names)} {'are' if len(names) > 1 else 'is'} {values[names[0]]:g}"

    def __call__(
        self,
        model: nn.Module,
        processor: Any = None,
        *,
        images: Any = None,
        anatomy: Anatomy | None = None,
        check_images: bool = True,
    ) -> Run:
        """This method on `model`, active inside a `with` block.

        images: the images of each batch row, in the batch's order: one image, a list of them, or None a row.
        anatomy: the model's parts, for models that `Anatomy.of` does not know.
        check_images: compare `images` with the pixels (or features) that the model is given, where both can be had.
        """
        return Run(self, model, processor, images, anatomy, check_images)

    def start(self, context: Context) -> Intervention:
        """What acts during one run; a subclass returns its own Intervention, or derives from a template."""
        raise NotImplementedError(
            f"{type(self).__name__} must say what acts during a run: def start(self, context)"
        )

    def intervention(self, context: Context) -> Intervention:
        """What acts during one run, or nothing where the method is configured to be off."""
        return self.start(context) if self.off is None else Intervention(self, context)

    # -- as JSON

    @classmethod
    def check_names(cls, given: Iterable[str], who: str) -> None:
        """Refuse a field that the method does not have, under its name or an old one."""
        known = [f.name for f in dataclasses.fields(cls)]
        for field in given:
            if field not in known and field not in cls.renamed:
                raise ValueError(f"{who} has no field {field!r}; it has {', '.join(known) or 'none'}")

    def to_json(self) -> dict[str, Any]:
        """Plain values that `Method.from_json` turns back into an equal method."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"name": self.name, **{k: _plain(v) for k, v in values.items()}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Method:
        """The method that `to_json` wrote, also an earlier version's: with old names, or fields that do nothing."""
        if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
            raise ValueError("a method's JSON is an object with its name and fields")
        name, values = data["name"], {k: _rich(v) for k, v in data.items() if k != "name"}
        kind = Method.kinds.get(name)
        if kind is None:
            raise ValueError(f"unknown method {name!r}; known: {', '.join(sorted(Method.kinds))}")
        kind.check_names(values, name)
        for old in set(values) & set(kind.renamed):
            new = kind.renamed[old]
            values[new.to] = new.value(values.pop(old))
        idle = without_effect(_unchecked(kind, values), values)
        return kind(**{k: v for k, v in values.items() if k not in idle})

    @staticmethod
    def load(path: str | Path) -> Method:
        """The method of a calibration file: {"method": {...}, "model": {"fingerprint": ...}}.

        Applied to another model than the one it was calibrated on, it warns.
        """
        try:
            content = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
            method = Method.from_json(content["method"])
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror or error}") from error
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{path} is no calibration: {_said(error)}") from error
        model = content.get("model")
        if isinstance(model, Mapping) and isinstance(model.get("fingerprint"), str):
            # beside the fields: where a method was calibrated does not make it another method
            object.__setattr__(method, "calibrated_on", model["fingerprint"])
        return method


def _ours(kind: type[Method]) -> bool:
    return kind.__module__.split(".")[0] == "airvlm"


def _unchecked(kind: type[Method], values: Mapping[str, Any]) -> Method:
    """An instance with these values, allowed or not, to ask which reading it is."""
    blank: Method = object.__new__(kind)
    for one in dataclasses.fields(kind):
        default = None if one.default is dataclasses.MISSING else one.default
        object.__setattr__(blank, one.name, values.get(one.name, default))
    return blank


def _said(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def _plain(value: Any) -> Any:
    if isinstance(value, Method):
        return value.to_json()
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _rich(value: Any) -> Any:
    if isinstance(value, Mapping) and "name" in value:
        return Method.from_json(value)
    return tuple(_rich(v) for v in value) if isinstance(value, list | tuple) else value
