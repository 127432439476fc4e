"""`airvlm calibrate`: which method at which setting helps a model, found on one split and measured on another.

Knows the options and what to print; the search itself is airvlm.evaluation.calibration.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airvlm.cli import answering
from airvlm.cli.answering import RowsOption, WorkersOption
from airvlm.cli.console import Failure, emit, err, out, warn
from airvlm.cli.options import Evaluating, JsonOption, MethodsOption, RayAddressOption, RayOption

if TYPE_CHECKING:  # torch takes seconds to import: each function imports what it runs, so that --help does not
    from airvlm.evaluation.calibrated import Calibration
    from airvlm.evaluation.evaluate import Worker
    from airvlm.evaluation.plan import Asked, ModelFacts
    from airvlm.evaluation.shards import Shard
    from airvlm.vlm import VLM

__all__ = ["calibrate"]

RESULT = "calibration.json"


def calibrate(
    task: Annotated[list[str], typer.Argument(help="Captioning or yes/no tasks, as in tiny-chair tiny-pope.")],
    method: MethodsOption = None,
    how: Evaluating = Evaluating(),
    budget: Annotated[
        str, typer.Option("--budget", help="How much it may cost: answers (20000) or time (90s, 20m, 2h).")
    ] = "20m",
    settings: Annotated[
        int, typer.Option("--settings", min=1, help="Settings to begin with, the methods' defaults first.")
    ] = 24,
    max_recall_loss: Annotated[
        float, typer.Option("--max-recall-loss", min=0.0, help="Points of recall that may be lost.")
    ] = 1.0,
    batch_size: RowsOption = None,
    workers: WorkersOption = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            help="We are process i of n on the same --out, as 0/4: each begins with its part, then helps the others.",
        ),
    ] = None,
    ray: RayOption = 0,
    ray_address: RayAddressOption = None,
    plot: Annotated[bool, typer.Option("--plot/--no-plot", help="Draw what was found (needs airvlm[plots]).")] = True,
    json: JsonOption = False,
) -> None:
    """Find the method and setting that help your model, and what they are worth.

    Many settings on few items, the better half on twice as many, and so on: successive halving on the calibration
    split. What counts is the distance from the curve that saying less (or no) draws, at equal recall (or yes-ratio).
    The best is then measured once on the validation split. Where nothing beats vanilla beyond its interval, it says
    so.
    Without --method: all readings of air. Answers are kept: a larger budget asks nothing twice.

    The result is calibration.json; use it with [bold]--method @calibration.json[/bold].

    [bold]Examples[/bold]

    airvlm calibrate tiny-chair tiny-pope --model tiny --budget 10m --out runs/calibration

    airvlm calibrate chair pope --data coco --model llava-hf/llava-1.5-7b-hf --method air --method memvr --budget 2h
    """
    from airvlm.evaluation.spending import parse_budget
    from airvlm.storage.atomic import write_atomically

    try:
        spent = parse_budget(budget)
    except ValueError as error:
        raise Failure(str(error)) from error
    # a stage needs all answers: who does one part goes on with the others', until the stage is complete
    here = replace(answering.place(shard), helps=True) if shard else answering.place(None)
    answering.check_spread(ray, workers, here)
    names = method or ["air"]
    asked = answering.ask_tasks(task, how, max_new_tokens=how.max_new_tokens)
    parts = [_parts(one) for one in asked]
    _check(names)
    search = _Search(parts, names, settings, {"budget": spent, "max_recall_loss": max_recall_loss})
    loader = answering.loader_of(how, task)
    if ray:
        found, folder = _on_ray(search, functools.partial(loader, how.device), how, ray, ray_address, batch_size)
    else:
        found, folder = _here(search, loader, how, here, workers, batch_size)
    if here.helps and here.index and not shard:
        return  # the first process of the launch speaks for all
    path = folder / RESULT
    write_atomically(path, _text(found))
    drawings = _drawn(found, folder) if plot else []
    if json:
        emit(found.to_json() | {"file": str(path)})
        return
    _print(found, path, drawings)


def _here(
    search: _Search,
    loader: Callable[..., VLM],
    how: Evaluating,
    here: Shard,
    workers: int | None,
    batch_size: int | None,
) -> tuple[Calibration, Path]:
    """By this process, and those of this machine that help it; and where the answers are."""
    from airvlm.evaluation.plan import ModelFacts
    from airvlm.evaluation.resources import chosen
    from airvlm.evaluation.workers import working_together

    vlm = loader(how.device or answering.gpu_of(here))
    folder = how.out_folder or answering.default_folder(ModelFacts.of(vlm))
    use = chosen(vlm, 10**6, workers=workers if here.whole else 1, batch_size=batch_size)
    search = search.with_rows(use.batch_size)
    others = functools.partial(_other_part, loader, search, folder, how.device)
    with answering.stoppable(folder), working_together(use.workers, others, use.threads) as part:
        return search.by(vlm, folder, part if use.workers > 1 else here), folder


def _on_ray(
    search: _Search,
    load: Callable[[], VLM],
    how: Evaluating,
    count: int,
    address: str | None,
    batch_size: int | None,
) -> tuple[Calibration, Path]:
    """By the workers of a Ray cluster; and where the answers are."""
    from airvlm.evaluation.ray_cluster import Cluster
    from airvlm.evaluation.resources import chosen
    from airvlm.evaluation.shards import Shard

    with Cluster(load, count, address) as cluster:
        facts = cluster.facts()
        folder = how.out_folder or answering.default_folder(facts)
        search = search.with_rows(batch_size or chosen(None, 0).batch_size)
        with answering.stoppable(folder):
            return search.run(cluster.work, facts, cluster.depth(), folder, Shard()), folder


def _parts(asked: Asked) -> tuple[Asked, Asked]:
    from airvlm.evaluation.splits import calibration_and_validation

    try:
        calibration, validation, own = calibration_and_validation(asked)
    except ValueError as error:
        raise Failure(str(error)) from error
    if not own:
        warn(
            f"{asked.name} has no calibration and validation splits of its own: its images are divided, "
            f"{len(calibration.items)} items to search on, {len(validation.items)} to measure on"
        )
    return calibration, validation


def _check(names: Sequence[str]) -> None:
    from airvlm.evaluation.candidates import candidates

    try:
        candidates(names, 1, 32)
    except ValueError as error:
        raise Failure(str(error)) from error


@dataclass(frozen=True)
class _Search:
    """What is searched, whoever answers; picklable."""

    parts: Sequence[tuple[Asked, Asked]]
    names: Sequence[str]
    settings: int
    options: dict[str, Any]

    def with_rows(self, batch_size: int) -> _Search:
        return replace(self, options={**self.options, "batch_size": batch_size})

    def by(self, vlm: VLM, folder: Path, part: Shard, **more: Any) -> Calibration:
        """By a model of this process."""
        from airvlm.evaluation.plan import ModelFacts
        from airvlm.evaluation.runner import work

        depth = len(vlm.parts.layers)
        return self.run(
            lambda todo, into, done: work(vlm, todo, into, done),
            ModelFacts.of(vlm),
            depth,
            folder,
            part,
            **more,
        )

    def run(self, worker: Worker, facts: ModelFacts, depth: int, folder: Path, part: Shard, **more: Any) -> Calibration:
        from airvlm.evaluation.calibration import calibrate as find
        from airvlm.evaluation.candidates import candidates
        from airvlm.evaluation.store import Store

        def ask(split: str, most: int | None) -> list[Asked]:
            chosen = [both[split == "validation"] for both in self.parts]
            return [replace(one, items=one.items[:most]) for one in chosen]

        tried = candidates(self.names, self.settings, depth)
        with Store(folder) as store:
            return find(ask, tried, facts, store, worker, shard=part, **{**self.options, **more})


def _other_part(loader: Callable[..., VLM], search: _Search, folder: Path, device: str | None, part: Shard) -> None:
    """Another process's part, with a model of its own."""
    search.by(loader(device or answering.gpu_of(part)), folder, part, progress=False)


def _text(found: Calibration) -> str:
    import json

    return json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n"


def _drawn(found: Calibration, folder: Path) -> list[Path]:
    from airvlm.reporting import plots
    from airvlm.reporting.calibration_plots import draw

    if not plots.available():
        warn("no plots: pip install 'airvlm[plots]'")
        return []
    return draw(found, folder)


def _print(found: Calibration, path: Path, drawings: Sequence[Path]) -> None:
    from rich.table import Table

    stage = found.validation or found.stages[-1]
    table = Table("setting", "gain", "95 % interval", "recall", "changed", title=f"{stage.split} split")
    for one in stage.found[:10]:
        gain, recall = one.gain, one.recall_change
        table.add_row(
            one.candidate.label,
            f"{gain.value:+.2f}",
            f"[{gain.low:+.2f}, {gain.high:+.2f}]",
            "" if recall is None else f"{recall.value:+.2f}",
            f"{one.changed:.0%}",
        )
    console = out()
    console.print(table)
    console.print(
        "gain: points better than the control's curve at equal recall or yes-ratio, mean over the tasks",
        style="dim",
    )
    console.print(f"{found.tried} settings tried, {found.answers} answers given, {found.seconds:.0f} s", markup=False)
    console.print(found.reason, markup=False)
    chosen = found.recommended
    if chosen is None:
        console.print("recommended: vanilla", markup=False)
    else:
        console.print(f"recommended: --method {chosen.label}   (or --method @{path})", markup=False)
    for drawing in drawings:
        err().print(str(drawing), markup=False)
