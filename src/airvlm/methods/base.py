"""Method: the base of every method. The object is the configuration, the cache key and the context manager.

    with CropBlend(weight=0.5)(model, processor, images=images) as run:
        ids = model.generate(**inputs)
    print(run.report)

A method is a frozen dataclass: comparable, hashable, and converted to JSON and back without loss.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airvlm.methods.options import check_options, option
from airvlm.runtime.intervention import DECODING, Context, Intervention
from airvlm.runtime.session import Session

if TYPE_CHECKING:
    from torch import nn

    from airvlm.inputs.builder import ViewQueue
    from airvlm.inputs.images import LoadedImage
    from airvlm.models.parts import ModelParts

__all__ = ["Method", "option"]


@dataclass(frozen=True)
class Method:
    """Base of every method: a frozen dataclass whose fields are its options.

    A subclass sets the class variables below and overrides `start`, or derives from a template of
    `airvlm.methods.templates`, which needs less.
    """

    name: ClassVar[str] = ""  # as the registry and the command line spell it
    paper: ClassVar[str | None] = None  # where it was published; None for our own
    summary: ClassVar[str] = ""  # what it does, in one line
    site: ClassVar[str] = ""  # where it acts: visual tokens, attention, hidden states, feed-forward, logits, input, ...
    cost: ClassVar[str] = "1 pass"  # forward passes per token, and what else it computes
    data: ClassVar[str] = ""  # what it needs beside image and question: calibration pairs, boxes, ...
    decoding: ClassVar[tuple[str, ...]] = DECODING  # generation modes it supports; others are refused
    engines: ClassVar[tuple[str, ...]] = ("transformers",)  # where it runs
    exclusive: ClassVar[tuple[str, ...]] = ()  # what only one method of a composition may do: "loop", "re-ask"
    needs_images: ClassVar[bool] = True  # cannot act on a prompt without an image
    mixes_rows: ClassVar[bool] = False  # a control: a row's answer depends on the other rows of its batch
    needs_pixels: ClassVar[bool] = False  # reads pixels: features encoded beforehand are not enough
    disabled_reason: ClassVar[str | None] = None  # of an instance: why its options make it do nothing
    calibrated_on: ClassVar[str | None] = None  # fingerprint of the model that `load` found its options for

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {n: v for n, v in cls.__dict__.items() if isinstance(v, dataclasses.Field) and "help" in v.metadata}
        inherited = {n: f for n, f in getattr(cls, "__dataclass_fields__", {}).items() if "help" in f.metadata}
        if own or inherited:
            lines = [f"    {n}: {f.metadata['help']}." for n, f in {**inherited, **own}.items()]
            cls.__doc__ = f"{(cls.__doc__ or '').partition('Args:')[0].rstrip()}\n\nArgs:\n" + "\n".join(lines)

    def __post_init__(self) -> None:
        """Check every option. A subclass that adds checks calls this first."""
        check_options(self)
        switches = {f.name: f.metadata["off"] for f in dataclasses.fields(self) if "off" in f.metadata}
        if switches and all(getattr(self, name) == value for name, value in switches.items()):
            reason = " and ".join(f"its {name} is {value:g}" for name, value in switches.items())
            object.__setattr__(self, "disabled_reason", reason)

    @property
    def label(self) -> str:
        """The method as the command line spells it: its name and the options that differ from their defaults."""
        options = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        default = {f.name: f.default for f in dataclasses.fields(self)}
        inner = [value.label for value in options.values() if isinstance(value, Method)]  # of a wrapper
        name = f"{self.name}({inner[0]})" if inner else self.name
        changed = {n: v for n, v in options.items() if v != default[n] and not isinstance(v, Method)}
        return name + (":" + ",".join(f"{n}={_spell(v)}" for n, v in changed.items()) if changed else "")

    def __call__(
        self,
        model: nn.Module,
        processor: Any = None,
        *,
        images: Any = None,
        parts: ModelParts | None = None,
        check_images: bool = True,
        prompts: Sequence[str] | None = None,
    ) -> Session:
        """This method on `model`, active inside a `with` block.

        Args:
            model: a transformers vision-language model.
            processor: the model's processor.
            images: the images of each batch row, in the batch's order: one image, a list of images, or None per row.
            parts: the model's parts, for models that `ModelParts.of` does not know.
            check_images: compare `images` with the pixels or features that the model is given.
            prompts: each row's prompt with one placeholder per image; methods that ask again may need it.
        """
        return Session(self, model, processor, images, parts, check_images, prompts)

    def start(self, context: Context) -> Intervention:
        """What acts during one session."""
        raise NotImplementedError(f"{type(self).__name__} must define start(self, context), or use a template")

    def further_views(self, parts: ModelParts, processor: Any, images: Sequence[LoadedImage]) -> ViewQueue | None:
        """Views of these images that it will need as tokens beside the images themselves; None if there are none.

        Whoever encodes the images (`InputBuilder.build`) encodes them in the same call.
        """
        return None

    def bake(self, model: nn.Module) -> None:
        """Change the model's weights so that it computes what this method does, for engines that know no hooks."""
        raise TypeError(f"{self.name} is not a change of weights and cannot be baked into a model")

    def intervention(self, context: Context) -> Intervention:
        """What acts during one session; an intervention that does nothing if the options disable the method."""
        return self.start(context) if self.disabled_reason is None else Intervention(self, context)

    # -- as JSON

    def to_json(self) -> dict[str, Any]:
        """Plain values that `Method.from_json` turns back into an equal method."""
        return {"name": self.name, **{f.name: _to_plain(getattr(self, f.name)) for f in dataclasses.fields(self)}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Method:
        """The method that `to_json` wrote. Only names of the registry are accepted: nothing is imported or opened."""
        from airvlm.methods.names import build_method  # the registry imports every method

        if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
            raise ValueError("a method in JSON is an object with a name and options")
        return build_method(data["name"], {k: _from_plain(v) for k, v in data.items() if k != "name"})

    @staticmethod
    def load(path: str | Path) -> Method:
        """The method of a calibration file: {"method": {...}, "model": {"fingerprint": ...}}.

        Applied to a model with another fingerprint, it warns.
        """
        try:
            content = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
            method = Method.from_json(content["method"])
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror or error}") from error
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            problem = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{path} is not a calibration file: {problem}") from error
        model = content.get("model")
        if isinstance(model, Mapping) and isinstance(model.get("fingerprint"), str):
            # not an option: where a method was calibrated does not make it another method
            object.__setattr__(method, "calibrated_on", model["fingerprint"])
        return method


def _spell(value: Any) -> str:
    """An option's value as the command line takes it."""
    if isinstance(value, tuple):
        inner = [repr(v) if isinstance(v, str) else _spell(v) for v in value]
        return f"({','.join(inner)}{',' if len(value) == 1 else ''})"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _to_plain(value: Any) -> Any:
    if isinstance(value, Method):
        return value.to_json()
    return [_to_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _from_plain(value: Any) -> Any:
    if isinstance(value, Mapping) and "name" in value:
        return Method.from_json(value)
    return tuple(_from_plain(v) for v in value) if isinstance(value, list | tuple) else value
