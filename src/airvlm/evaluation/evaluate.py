"""Evaluate methods on tasks: plan, run, store, score.

    results = evaluate("tiny", ["tiny-chair"], ["crop-blend", "memvr"], out="runs/tiny")
    results.to_frame()

Vanilla always runs beside the methods. A trivial control (a bias on the end token, or on yes) draws the curve that
saying less alone would give; it is read from vanilla's own run, see traces.py. Every answer is stored as it comes: a
run that was stopped resumes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airvlm.evaluation.manifest import update_manifest
from airvlm.evaluation.matched import calibration_spec, match_controls
from airvlm.evaluation.plan import Batch, TaskSpec, methods_to_json, plan_phases, plan_traces, split_method
from airvlm.evaluation.recorder import trace_problem
from airvlm.evaluation.results import VANILLA, Results, TaskResults
from airvlm.evaluation.run import pending
from airvlm.evaluation.spread import Runner, run_spread
from airvlm.evaluation.store import Json, Store
from airvlm.evaluation.sweeps import Sweep, parse_sweep, sweep_specs
from airvlm.evaluation.trade_off import TradeOff, trade_off_of
from airvlm.evaluation.workers import Shard
from airvlm.methods.names import METHODS, get_method
from airvlm.tasks.base import Task

__all__ = ["Evaluation", "curve_methods", "evaluate", "find_trade_off", "label_methods"]

LARGEST_BIAS = 16.0  # beyond this the control says nothing at all
ROUNDS = 10  # in which the curve is completed and extended: enough to reach LARGEST_BIAS from 0.5
PAPER_DEPTH = 32  # layers of the paper's decoder, to check a sweep before a model is loaded


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
    approximate: bool = False,
    batch_size: int | None = None,
    max_new_tokens: int | None = None,
    curve: bool = True,
    matched: bool = False,
    matched_limit: int | None = None,
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
        limit: so many images of each task, in a fixed shuffled order, with all their questions. Default: all.
        split: "test", "validation" or "calibration".
        data: folder of the benchmarks' files.
        objects: labels of your own images in `data`, for the tasks chair and pope-annotated.
        variant: a named variant of the tasks.
        approximate: score by rules instead of NLTK's tagger or other models that are not installed; every output then
            says "approximate".
        batch_size: items per batch. Default: what fits the memory.
        max_new_tokens: longest answer. Default: each task's own.
        curve: record margins, so that the same runs also hold the answers of the trivial control at several biases,
            for differences at equal recall (or yes-ratio).
        matched: also ask each control at the strength at which it changes as many answers as what it controls.
        matched_limit: images of the calibration split that this strength is searched on. Default: `limit`.
        sweep: vary each method: "option=value,value,...", or the name of a sweep of the paper.
        workers: processes on this machine; 0 is one per core for a small model, else one. More than one need a script
            with `if __name__ == "__main__":`. Default: this process alone.
        shard: "i/n", to run only part i of n; the parts may share `out`.
        ray: number of workers of a Ray cluster, which spread the work in place of `workers`.
        ray_address: of a running Ray cluster. Default: start one here.
        progress: print what is asked for, and a progress bar if standard error is a terminal.
        command: stored with the results: {"command": ..., "date": ...}.
    """
    chosen = label_methods(methods)
    given = [tasks] if isinstance(tasks, str | Task | TaskSpec) else list(tasks)
    how: Json = {"split": split, "limit": limit, "max_new_tokens": max_new_tokens}
    how |= {"data": data, "objects": objects, "variant": variant, "approximate": approximate}
    specs = [TaskSpec.of(task, **how) for task in given]
    keys = [spec.key for spec in specs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"a task is given twice: {', '.join(keys)}")
    for spec in specs if matched else ():
        calibration_spec(spec)  # raises before a model is loaded
    job = Evaluation(specs, chosen, tuple(sweep), curve, matched, matched_limit, command)
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


# -- what is asked


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation asks, in any process. It pickles."""

    specs: Sequence[TaskSpec]
    methods: Mapping[str, Any]
    sweep: tuple[str, ...] = ()
    curve: bool = True
    matched: bool = False
    matched_limit: int | None = None
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
        trades = {spec.key: find_trade_off(spec) if self.curve else None for spec in specs}
        curves = {key: curve_methods(trade, trade.biases) if trade else {} for key, trade in trades.items()}
        everything = {label: method for own in methods.values() for label, method in own.items()}
        note = functools.partial(update_manifest, runner.folder, runner.model, specs, methods_to_json(everything))
        note(curves=_all_to_json(curves), sweeps=sweeps, command=self.command if runner.shard.index == 0 else None)
        with Store(runner.folder) as store:

            def ask(plan: Mapping[str, Mapping[str, Any]]) -> None:
                runner.run([(spec, plan.get(spec.key, {})) for spec in specs if plan.get(spec.key)], store)

            def read() -> Results:
                return Results.load(runner.folder, store=store, specs=specs).select(specs, everything, sweeps)

            if runner.progress and runner.shard.index == 0:
                _announce(runner, [(spec, {**methods[spec.key], **curves[spec.key]}) for spec in specs], store)
            # a shard that helps returns when all items are answered: every process decides the same from here on
            complete = runner.shard.gathers or runner.shard.helps
            matched: dict[str, Mapping[str, Any]] = {}
            for spec in specs if self.matched and complete else ():
                # before the split that is reported, so that what is cached of its images serves these methods as well
                matched[spec.key], facts = match_controls(
                    spec,
                    methods[spec.key],
                    lambda one, own: runner.run([(one, own)], store),
                    store,
                    runner.model,
                    self.matched_limit,
                )
                note(matched={spec.key: facts})
            ask({key: {**own, **matched.get(key, {}), **curves[key]} for key, own in methods.items()})
            for _ in range(ROUNDS if self.curve and complete else 0):
                tasks = read().tasks
                more = {key: curve_methods(trade, extend_curve(tasks[key])) for key, trade in trades.items() if trade}
                if not any(more.values()):
                    break
                note(curves=_all_to_json(more))
                ask(more)
            return read()


def _announce(runner: Runner, plan: Sequence[tuple[TaskSpec, Mapping[str, Any]]], store: Store) -> None:
    """Print what is asked: of how many images, under which methods, and how many answers that takes."""
    lines, batches = [], list[Batch]()
    for (spec, methods), runs in zip(plan, plan_traces(plan, runner.model), strict=True):
        lines.append(f"{spec.key}: {spec.sample_text}")
        own = {label for run in runs for label in run.labels if label != run.label}
        alone = [label for label in methods if label not in own]
        n = len(spec.items)
        lines.append(f"{spec.key}: {n} items x {len(alone)} runs ({', '.join(alone)}) = {n * len(alone)} answers")
        if own:
            control = runs[0].request.control
            lines.append(f"{spec.key}: the {control} curve is read from the same runs ({', '.join(sorted(own))})")
        elif any(split_method(method)[1] for method in methods.values()):
            why = trace_problem(None, spec.generation) or "the model's margins cannot be recorded"
            lines.append(f"{spec.key}: every bias of the curve is a run of its own: {why}")
    for chunks in plan_phases(plan, runner.model, runner.batch_size):
        batches += [batch for chunk in chunks for batch in chunk if batch.trace or not batch.traced]
    total, left = (sum(len(batch.items) for batch in part) for part in (batches, pending(batches, store)))
    lines.append(f"{left} answers to generate, {total - left} of {total} are stored")
    sys.stderr.writelines(f"airvlm: {line}\n" for line in lines)


# -- the curve of the trivial control


def find_trade_off(spec: TaskSpec) -> TradeOff | None:
    """The trade-off of a task's metrics; None for a task without one."""
    if spec.task.kind not in ("caption", "yesno"):
        return None
    return trade_off_of(spec.task.score(spec.items[:1], [None]))


def curve_methods(trade: TradeOff, biases: Iterable[float]) -> dict[str, Any]:
    """The trivial control at these biases, by label."""
    return {f"{trade.control}:bias={bias:g}": METHODS[trade.control](bias=bias) for bias in biases}  # type: ignore[call-arg]


def missing_biases(task: TaskResults) -> list[float]:
    """Biases that complete a task's curve.

    Those that an earlier evaluation asked on fewer items; then stronger ones, if a method lies beyond the curve's end.
    """
    trade = task.trade_off
    assert trade is not None, "only a task with a trade-off has a curve"
    unfinished = [float(method["bias"]) for label, method in task.curve.items() if task.count_unanswered(label)]
    if unfinished:
        return unfinished
    reached = {0.0: task.sample(VANILLA).value(trade.x)}
    reached |= {float(method["bias"]): task.sample(label).value(trade.x) for label, method in task.curve.items()}
    wanted = [task.sample(label).value(trade.x) for label in task.others]
    ends = []
    # the strongest bias of those that reach an end: a weak one may change nothing
    if any(x < min(reached.values()) for x in wanted):
        ends.append(min(reached, key=lambda bias: (reached[bias], -abs(bias))))
    if any(x > max(reached.values()) for x in wanted):
        ends.append(max(reached, key=lambda bias: (reached[bias], abs(bias))))
    return [bias * 1.5 for bias in ends if bias and abs(bias) * 1.5 <= LARGEST_BIAS]


def extend_curve(task: TaskResults) -> list[float]:
    """Those that a task's curve lacks, and those that it has: a trace holds what it was asked for. None if complete."""
    missing = missing_biases(task)
    return sorted({*missing, *(float(method["bias"]) for method in task.curve.values())}) if missing else []


def _all_to_json(curves: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {key: methods_to_json(curve) for key, curve in curves.items()}
