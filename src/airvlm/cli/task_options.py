"""The options that `evaluate` and `calibrate` share: tasks, where answers are stored, and how the work is spread."""

import functools
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airvlm.cli import common
from airvlm.cli.console import Failure
from airvlm.cli.options import ModelOptions, ObjectsOption

if TYPE_CHECKING:
    from airvlm.vlm import VLM

__all__ = ["ModelLoader", "SpreadOptions", "TaskOptions", "current_command", "exit_on_interrupt", "model_loader"]

_spread_option: Any = functools.partial(typer.Option, rich_help_panel="Spreading the work")


@dataclass(frozen=True)
class TaskOptions:
    """Which items, and where their answers are stored."""

    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Use N images of each task, with all questions.")
    ] = None
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            metavar="N",
            min=1,
            help="Maximum number of generated tokens.",
            show_default="the task's own",
        ),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", help="Your own copy of the benchmark.", show_default="fetched"),
    ] = None
    objects: ObjectsOption = None
    variant: Annotated[
        str | None, typer.Option("--variant", metavar="NAME", help="A variant of the task's parser or protocol.")
    ] = None
    approximate: Annotated[
        bool,
        typer.Option(
            "--approximate",
            help="Score by rules where NLTK's tagger or CAPTURE's parser is not installed; every output says so.",
        ),
    ] = False
    out: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Where answers are stored. The same command on the same folder resumes.",
            show_default="airvlm-runs/MODEL",
        ),
    ] = None


@dataclass(frozen=True)
class SpreadOptions:
    """How the work is spread over processes."""

    batch_size: Annotated[
        int | None,
        _spread_option("--batch-size", metavar="N", min=1, help="Batch size.", show_default="what fits the memory"),
    ] = None
    workers: Annotated[
        int | None,
        _spread_option(
            "--workers",
            metavar="N",
            min=1,
            help="Processes on this machine.",
            show_default="one per core for a small model, else one",
        ),
    ] = None
    shard: Annotated[
        str | None,
        _spread_option("--shard", metavar="I/N", help="Run shard i of n, as in 0/4; they may share --output."),
    ] = None
    ray: Annotated[int, _spread_option("--ray", metavar="N", min=0, help="Use N workers of a Ray cluster.")] = 0
    ray_address: Annotated[
        str | None,
        _spread_option(
            "--ray-address",
            metavar="ADDRESS",
            help="Address of a running Ray cluster ('auto' to detect).",
            show_default="start one locally",
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """As `airvlm.evaluate` takes them."""
        return {**asdict(self), "workers": self.workers or 0}


@dataclass
class ModelLoader:
    """Loads a command's model, once per process and device. It pickles without the model, for other processes."""

    load: Callable[..., "VLM"]
    options: ModelOptions
    _held: dict[str | None, "VLM"] = field(default_factory=dict, repr=False)

    def __call__(self, device: str | None) -> "VLM":
        if device not in self._held:
            self._held = {device: self.load(self.options, self.options.device or device)}
        return self._held[device]

    def __getstate__(self) -> dict[str, Any]:
        return {"load": self.load, "options": self.options, "_held": {}}


def model_loader(options: ModelOptions, tasks: Sequence[str]) -> ModelLoader:
    """A function of a device that loads the command's model."""
    if options.device is not None:
        import torch

        try:
            torch.empty(0, device=options.device)
        except Exception as error:  # torch raises several kinds, by the device
            reason = str(error).splitlines()[0]
            raise Failure(f"--device {options.device} cannot be used here: {reason}") from error
    return ModelLoader(common.load_model, replace(options, model=common.default_model(tasks, options.model)))


def current_command() -> dict[str, str]:
    """This command line and the time, for the record."""
    return {"command": shlex.join(["airvlm", *sys.argv[1:]]), "date": time.strftime("%Y-%m-%d %H:%M")}


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """End the command in one line, with exit code 130, after Ctrl-C or SIGTERM."""
    from airvlm.evaluation.spread import Interrupted

    try:
        yield
    except Interrupted as error:
        raise Failure(str(error), code=130) from None
