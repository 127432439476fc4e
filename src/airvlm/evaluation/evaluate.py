"""Evaluate methods on tasks: plan, run, store, score.

    results = evaluate("tiny", ["tiny-chair"], ["crop-blend", "memvr"], out="runs/tiny")
    results.to_frame()

Vanilla always runs beside the methods, and so does a trivial control (a bias on the end token, or on yes) whose curve
shows what saying less alone would give. Every answer is stored as it comes: a run that was stopped resumes.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from airvlm.evaluation.manifest import update_manifest
from airvlm.evaluation.matched import calibration_spec, match_controls
from airvlm.evaluation.plan import Batch, ModelInfo, TaskSpec, plan_batches
from airvlm.evaluation.resources import MAX_ROWS, choose_resources, keep_images
from airvlm.evaluation.results import VANILLA, Results, TaskResults
from airvlm.evaluation.run import RunBatches, pending, run_batches
from airvlm.evaluation.store import Json, Store, StoreError
from airvlm.evaluation.sweeps import Sweep, parse_sweep, sweep_specs
from airvlm.evaluation.trade_off import TradeOff, trade_off_of
from airvlm.evaluation.workers import Shard, sigterm_as_keyboard_interrupt, start_workers
from airvlm.methods.names import METHODS, get_method
from airvlm.tasks.base import Task

__all__ = ["Evaluation", "Interrupted", "Runner", "curve_methods", "evaluate", "label_methods", "run_spread"]

T = TypeVar("T")
LARGEST_BIAS = 16.0  # beyond this the control says nothing at all
ROUNDS = 4  # in which the curve is completed and extended to methods beyond its end
PAPER_DEPTH = 32  # layers of the paper's decoder, to check a sweep before a model is loaded
REPORT_EVERY = 60.0  # seconds between lines of progress in a file


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during an evaluation; says how many answers were stored."""


def evaluate(
    model: Any,
    tasks: str | Task | TaskSpec | Iterable[str | Task | TaskSpec],
    methods: Any = ("crop-blend",),
    *,
    out: str | Path | None = None,
    limit: int | None = None,
    split: str = "test",
    data: str | Path | None = None,
    objects: str | Path | None = None,
    variant: str | None = None,
    batch_size: int | None = None,
    max_new_tokens: int | None = None,
    curve: bool = True,
    matched: bool = False,
    sweep: Sequence[str] = (),
    workers: int | None = None,
    shard: Shard | str | None = None,
    ray: int = 0,
    ray_address: str | None = None,
    progress: bool = True,
    command: Json | None = None,
) -> Results:
    """Answer what is not yet answered, and return the results. Vanilla is always among the methods.

    Args:
        model: a VLM, what `VLM.load` takes, or a function of a device that returns a VLM.
        tasks: names, Task objects or TaskSpecs.
        methods: methods or their spellings, as a list or with labels of your own.
        out: folder for the answers; the same call on the same folder resumes. Default: airvlm-runs/MODEL.
        limit: the first items of each task only.
        split: "test", "validation" or "calibration".
        data: folder of the benchmarks' files.
        objects: labels of your own images in `data`, for the tasks chair and pope-annotated.
        variant: a named variant of the tasks.
        batch_size: items per batch. Default: what fits the memory.
        max_new_tokens: longest answer. Default: each task's own.
        curve: also ask the trivial control at several biases, for differences at equal recall (or yes-ratio).
        matched: also ask each control at the strength at which it changes as many answers as what it controls.
        sweep: vary each method: "option=value,value,...", or the name of a sweep of the paper.
        workers: processes on this machine. Default: one per core for a small model, else one.
        shard: "i/n", to run only part i of n; the parts may share `out`.
        ray: number of workers of a Ray cluster, which spread the work in place of `workers`.
        ray_address: of a running Ray cluster. Default: start one here.
        progress: print what is asked for, and a progress bar if standard error is a terminal.
        command: stored with the results: {"command": ..., "date": ...}.
    """
    chosen = label_methods(methods)
    given = [tasks] if isinstance(tasks, str | Task | TaskSpec) else list(tasks)
    how: Json = {"split": split, "limit": limit, "max_new_tokens": max_new_tokens}
    how |= {"data": data, "objects": objects, "variant": variant}
    specs = [TaskSpec.of(task, **how) for task in given]
    keys = [spec.key for spec in specs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"a task is given twice: {', '.join(keys)}")
    for spec in specs if matched else ():
        calibration_spec(spec)  # raises before a model is loaded
    job = Evaluation(specs, chosen, tuple(sweep), curve, matched, command)
    planned, _ = job.expand(PAPER_DEPTH)  # likewise
    return run_spread(
        job.run,
        model,
        out=out,
        answers=sum(len(s.items) * (1 + len(chosen if s.methods is None else s.methods)) for s in planned),
        batch_size=batch_size,
        workers=workers,
        shard=shard,
        ray=ray,
        ray_address=ray_address,
        progress=progress,
    )


def label_methods(methods: Any) -> dict[str, Any]:
    """Methods by label: a spelling labels itself, an object is labeled as the command line spells it."""
    if isinstance(methods, Mapping):
        return {label: get_method(method) for label, method in methods.items()}
    given = [methods] if methods is None or isinstance(methods, str) or hasattr(methods, "to_json") else methods
    found = {}
    for one in given:
        method = get_method(one)
        found[VANILLA if method is None else one if isinstance(one, str) else method.label] = method
    return found


# -- who answers


@dataclass(frozen=True)
class Runner:
    """Who answers batches, which part of them, and the folder of the answers."""

    run_batches: RunBatches
    model: ModelInfo
    depth: int  # decoder layers
    folder: Path
    shard: Shard = Shard()  # noqa: RUF009  # frozen
    batch_size: int = MAX_ROWS
    progress: bool = True

    def run(self, plan: Sequence[tuple[TaskSpec, Mapping[str, Any]]], store: Store) -> None:
        """Answer this shard's part of what the store lacks of a plan: tasks, each with the methods that answer it."""
        chunks = [chunk for spec, methods in plan for chunk in plan_batches(spec, methods, self.model, self.batch_size)]
        own = len(range(self.shard.index, len(chunks), self.shard.count))
        # of other shards' chunks the last batches come first: two processes meet at most once in a chunk
        shared = enumerate(self.shard.share(chunks))
        batches = [batch for i, chunk in shared for batch in (chunk if i < own else reversed(chunk))]
        left = pending(batches, store)
        with _show_progress(left, store, self.progress) as done:
            self.run_batches(left, store, done)


@contextmanager
def _show_progress(batches: Sequence[Batch], store: Store, progress: bool) -> Iterator[Callable[[Batch], None]]:
    """A function to call after every batch: moves a bar on a terminal, and prints a line now and then elsewhere."""
    total, held, own = sum(len(batch.items) for batch in batches), len(store), 0
    # even a disabled bar takes a lock, which a forked process that was killed may still hold
    bar = tqdm(total=total, unit="answer") if progress and total and sys.stderr.isatty() else None
    printed = time.monotonic()

    def done(batch: Batch) -> None:
        nonlocal own, printed
        own += len(batch.items)
        count = min(total, max(own, len(store) - held))  # other processes' answers count as well
        if bar is not None:
            bar.set_description(f"{batch.items[0].key.task} {batch.label}", refresh=False)
            bar.update(count - bar.n)
        elif progress and time.monotonic() - printed > REPORT_EVERY:
            printed = time.monotonic()
            sys.stderr.write(f"airvlm: {count} of {total} answers\n")

    try:
        yield done
    finally:
        if bar is not None:
            bar.close()


def run_spread(
    job: Callable[[Runner], T],
    model: Any,
    *,
    out: str | Path | None,
    answers: int,
    batch_size: int | None = None,
    workers: int | None = None,
    shard: Shard | str | None = None,
    ray: int = 0,
    ray_address: str | None = None,
    progress: bool = True,
) -> T:
    """Run a job with a model, by as many processes as asked for or as suit the model.

    Args:
        job: gets a Runner and returns the result; it is pickled for other processes.
        answers: about how many the job asks for.
        model: as in `evaluate`, like the other arguments.
    """
    place = Shard.of(shard)
    if sum([bool(ray), (workers or 1) > 1, not place.whole]) > 1:
        raise ValueError("use one of workers, ray, shard and accelerate launch to spread the work, not two of them")
    vlm, load = (model, None) if hasattr(model, "batch") else (None, _loader(model))
    if load is None and (ray or (workers or 1) > 1):
        raise ValueError("other processes must load the model themselves: give its name or folder, not a VLM")
    if ray and load is not None:
        from airvlm.evaluation.ray_cluster import Cluster

        with Cluster(functools.partial(load, None), ray, ray_address) as cluster:
            info = cluster.model()
            folder = Path(out) if out is not None else _default_folder(info)
            with _interruptible(folder):
                size = batch_size or MAX_ROWS
                return job(Runner(cluster.run_batches, info, cluster.depth(), folder, place, size, progress))
    if load is not None:
        vlm = load(place.gpu())
    folder = Path(out) if out is not None else _default_folder(ModelInfo.of(vlm))
    left = max(0, answers - _count_stored(folder)) // place.count
    use = choose_resources(vlm, left, workers=workers if load and place.whole else 1, batch_size=batch_size)
    part = functools.partial(_run_part, load, job, folder, use.batch_size)
    with _interruptible(folder), start_workers(use.workers, part, use.threads) as own:
        return _run_here(job, vlm, folder, use.batch_size, own if use.workers > 1 else place, progress)


def _run_here(job: Callable[[Runner], T], vlm: Any, folder: Path, batch_size: int, shard: Shard, progress: bool) -> T:
    runner = Runner(
        functools.partial(run_batches, vlm),
        ModelInfo.of(vlm),
        len(vlm.parts.layers),
        folder,
        shard,
        batch_size,
        progress,
    )
    with keep_images(vlm, shard.count):
        return job(runner)


def _run_part(load: Any, job: Callable[[Runner], T], folder: Path, batch_size: int, shard: Shard) -> None:
    """What a worker process runs: the same job, with a model of its own."""
    _run_here(job, load(shard.gpu()), folder, batch_size, shard, False)


def _loader(model: Any) -> Callable[[str | None], Any]:
    """A function of a device that returns the model."""
    if model is None or isinstance(model, str | os.PathLike):
        return functools.partial(_load, None if model is None else os.fspath(model))
    if callable(model):
        return model
    raise TypeError(f"a model is a VLM, a name, a folder or a function that loads one, not {type(model).__name__}")


def _load(name: str | None, device: str | None) -> Any:
    from airvlm.vlm import VLM

    return VLM.load(name, device=device)


def _default_folder(model: ModelInfo) -> Path:
    name = "".join(c if c.isalnum() or c in "-._" else "-" for c in Path(model.name).name) or "model"
    return Path("airvlm-runs") / f"{name}-{model.fingerprint[:8]}"


def _count_stored(folder: Path) -> int:
    try:
        return len(Store(folder, readonly=True))
    except StoreError:
        return 0


@contextmanager
def _interruptible(folder: Path) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into Interrupted, which says what was stored."""
    try:
        with sigterm_as_keyboard_interrupt():
            yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"Interrupted. {_count_stored(folder)} answers are saved in {folder}; rerun the same command to resume."
        ) from None


# -- what is asked


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation asks, whoever answers. It pickles."""

    specs: Sequence[TaskSpec]
    methods: Mapping[str, Any]
    sweep: tuple[str, ...] = ()
    curve: bool = True
    matched: bool = False
    command: Json | None = None

    def expand(self, depth: int) -> tuple[list[TaskSpec], Json]:
        """The tasks with the methods of each, those of sweeps included; and what run.json says of the sweeps."""
        if not self.sweep:
            return list(self.specs), {}
        sweeps: list[tuple[str, Sweep]] = []
        for label, method in self.methods.items():
            if method is None:
                raise ValueError("vanilla has no options: nothing can be swept")
            sweeps += [(label, parse_sweep(text, method, depth)) for text in self.sweep]
        names = [sweep.name for _, sweep in sweeps[: len(self.sweep)]]
        if len(set(names)) < len(names):
            raise ValueError("--sweep: an option is varied twice; give all its values at once")
        specs, noted = list[TaskSpec](), dict[str, Any]()
        for spec in self.specs:
            more, facts = sweep_specs(spec, sweeps)
            specs += more
            noted |= facts
        return specs, noted

    def run(self, runner: Runner) -> Results:
        """Ask, store and score."""
        specs, sweeps = self.expand(runner.depth)
        methods = {s.key: {VANILLA: None, **(self.methods if s.methods is None else s.methods)} for s in specs}
        trades = {spec.key: _trade_off(spec) if self.curve else None for spec in specs}
        curves = {key: curve_methods(trade, trade.biases) if trade else {} for key, trade in trades.items()}
        everything = {label: method for own in methods.values() for label, method in own.items()}
        note = functools.partial(update_manifest, runner.folder, runner.model, specs, _as_json(everything))
        note(curves=_all_as_json(curves), sweeps=sweeps, command=self.command if runner.shard.index == 0 else None)
        with Store(runner.folder) as store:

            def ask(plan: Mapping[str, Mapping[str, Any]]) -> None:
                runner.run([(spec, plan.get(spec.key, {})) for spec in specs if plan.get(spec.key)], store)

            def read() -> Results:
                return Results.load(runner.folder, store=store, specs=specs).select(specs, everything, sweeps)

            if runner.progress and runner.shard.index == 0:
                _announce(specs, methods, curves, runner.model, store)
            # a shard that helps leaves nothing unanswered, so that every process decides the same from here on
            complete = runner.shard.gathers or runner.shard.helps
            matched: dict[str, Mapping[str, Any]] = {}
            for spec in specs if self.matched and complete else ():
                # before the split that is reported, so that what is cached of its images serves these methods as well
                matched[spec.key], facts = match_controls(
                    spec, methods[spec.key], lambda one, own: runner.run([(one, own)], store), store, runner.model
                )
                note(matched={spec.key: facts})
            ask({key: {**own, **matched.get(key, {}), **curves[key]} for key, own in methods.items()})
            for _ in range(ROUNDS if self.curve and complete else 0):
                tasks = read().tasks
                more = {key: curve_methods(trade, missing_biases(tasks[key])) for key, trade in trades.items() if trade}
                if not any(more.values()):
                    break
                note(curves=_all_as_json(more))
                ask(more)
            return read()


def _announce(
    specs: Sequence[TaskSpec],
    methods: Mapping[str, Mapping[str, Any]],
    curves: Mapping[str, Mapping[str, Any]],
    model: ModelInfo,
    store: Store,
) -> None:
    """Print how many answers are asked for, and of which methods."""
    total, stored = 0, 0
    for spec in specs:
        n, labels, biases = len(spec.items), ", ".join(methods[spec.key]), len(curves[spec.key])
        line = f"{spec.key}: {n} items x {len(methods[spec.key])} methods ({labels}) = {n * len(methods[spec.key])}"
        if biases:
            control = next(iter(curves[spec.key].values())).name
            line += f"; {n} items x {biases} biases of the {control} curve = {n * biases}"
        sys.stderr.write(f"airvlm: {line}\n")
        batches = plan_batches(spec, {**methods[spec.key], **curves[spec.key]}, model, MAX_ROWS)
        keys = [key for chunk in batches for batch in chunk for key in batch.keys]
        total += len(keys)
        stored += sum(key in store for key in keys)
    sys.stderr.write(f"airvlm: {total - stored} answers to generate, {stored} of {total} are stored\n")


# -- the curve of the trivial control


def _trade_off(spec: TaskSpec) -> TradeOff | None:
    """The trade-off of a task's metrics; None for a task without one."""
    if spec.task.kind not in ("caption", "yesno"):
        return None
    return trade_off_of(spec.task.score(spec.items, [None] * len(spec.items)))


def curve_methods(trade: TradeOff, biases: Iterable[float]) -> dict[str, Any]:
    """The trivial control at these biases, by label."""
    return {f"{trade.control}:bias={bias:g}": METHODS[trade.control](bias=bias) for bias in biases}  # type: ignore[call-arg]


def missing_biases(task: TaskResults) -> list[float]:
    """Biases that complete a task's curve.

    Those that an earlier evaluation asked on fewer items; then stronger ones, if a method lies beyond the curve's end.
    """
    trade = task.trade_off
    assert trade is not None, "only a task with a trade-off has a curve"
    unfinished = [float(method["bias"]) for label, method in task.curve.items() if task.unanswered(label)]
    if unfinished:
        return unfinished
    reached = {0.0: task.sample(VANILLA).value(trade.x)}
    reached |= {float(method["bias"]): task.sample(label).value(trade.x) for label, method in task.curve.items()}
    wanted = [task.sample(label).value(trade.x) for label in task.others]
    ends = []
    if any(x < min(reached.values()) for x in wanted):
        ends.append(min(reached, key=lambda bias: reached[bias]))
    if any(x > max(reached.values()) for x in wanted):
        ends.append(max(reached, key=lambda bias: reached[bias]))
    # vanilla at an end means that no bias was tried on that side, or that it changed nothing
    return [bias * 1.5 for bias in ends if bias and abs(bias) * 1.5 <= LARGEST_BIAS]


def _as_json(methods: Mapping[str, Any]) -> dict[str, Json | None]:
    return {label: None if method is None else method.to_json() for label, method in methods.items()}


def _all_as_json(curves: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {key: _as_json(curve) for key, curve in curves.items()}
