"""Method: a configuration that is also a context manager.

`with METHOD(model, processor, images=images) as run:` makes a Run of it (run.py); leaving the block removes every
trace. A subclass adds fields, and says in `begin` what acts during a run. Knows nothing of hooks or passes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from airvlm.hooks.intervention import Intervention
from airvlm.hooks.run import Run
from airvlm.models.anatomy import Anatomy

__all__ = ["Method"]


@dataclass(frozen=True)
class Method:
    """Base of every method: a frozen dataclass whose fields are its configuration."""

    name: ClassVar[str] = ""  # as the registry and the command line spell it
    publication: ClassVar[str] = ""  # where it was published
    mechanism: ClassVar[str] = ""  # what it does, in one line
    forwards: ClassVar[str] = ""  # what it costs, in forward passes
    needs_images: ClassVar[bool] = True  # cannot act on a prompt without a picture
    needs_pixels: ClassVar[bool] = False  # reads pixels: features encoded beforehand will not do
    kinds: ClassVar[dict[str, type[Method]]] = {}  # every subclass by its name, for from_json

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("name"):
            Method.kinds[cls.name] = cls

    def __call__(
        self,
        model: nn.Module,
        processor: Any = None,
        *,
        images: Any = None,
        anatomy: Anatomy | None = None,
    ) -> Run:
        """This method on `model`, active inside a `with` block.

        images: the pictures of each row, in the batch's order: one picture, a list of them, or None a row.
        anatomy: the model's parts, for models that `Anatomy.of` does not know.
        """
        return Run(self, model, processor, images, anatomy)

    def begin(self, run: Run) -> Intervention:
        """What acts during one run; a subclass returns its own Intervention."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Plain values that `Method.from_json` turns back into an equal method."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"name": self.name, **{k: _plain(v) for k, v in values.items()}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Method:
        """The method that `to_json` wrote."""
        name, values = data["name"], {k: v for k, v in data.items() if k != "name"}
        if name not in Method.kinds:
            raise ValueError(f"unknown method {name!r}; known: {', '.join(sorted(Method.kinds))}")
        return Method.kinds[name](**{k: _rich(v) for k, v in values.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Method):
        return value.to_json()
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _rich(value: Any) -> Any:
    if isinstance(value, Mapping) and "name" in value:
        return Method.from_json(value)
    return tuple(_rich(v) for v in value) if isinstance(value, list | tuple) else value
