"""A whole evaluation: every task under every method beside vanilla, and the curve that a trivial control draws.

    run = evaluate(vlm, ["tiny-chair"], {"air": AIR()}, "runs/tiny")

Knows who asks what in which order; how a batch is answered, stored and scored is told elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

import airvlm.methods as registry
from airvlm.evaluation import BATCH_SIZE
from airvlm.evaluation.manifest import note
from airvlm.evaluation.matched import calibration, match
from airvlm.evaluation.plan import Asked, Batch, ModelFacts, chunks
from airvlm.evaluation.resources import keeping_images
from airvlm.evaluation.results import Results
from airvlm.evaluation.runner import pending, work
from airvlm.evaluation.shards import Shard
from airvlm.evaluation.store import Json, Store
from airvlm.evaluation.task_results import VANILLA, TaskResults
from airvlm.evaluation.trade_off import TradeOff, trade_off_of
from airvlm.tasks import load_task
from airvlm.tasks.base import Task

__all__ = ["Worker", "answer_all", "as_asked", "evaluate", "first_curve", "further", "unfinished"]

# answers batches and stores them, telling of each: one process (runner.work), or a cluster of them
Worker = Callable[[Sequence[Batch], Store, Callable[[Batch], None]], None]

FURTHEST = 16.0  # no bias beyond this: the control then says nothing at all
ROUNDS = 3  # attempts to reach a method that lies beyond the curve's end


def evaluate(
    vlm: Any,
    tasks: Iterable[str | Task | Asked],  # names, own tasks, or how exactly they are asked
    methods: Mapping[str, Any],
    out: str | Path,
    *,
    batch_size: int = BATCH_SIZE,
    shard: Shard = Shard(),  # frozen, and the whole is what no shard means
    curve: bool = True,  # draw the control's curve where a task has a trade-off
    matched: bool = False,  # ask each control also at the strength that changes as many answers
    progress: bool = True,
    worker: Worker | None = None,  # None: `vlm` itself, in this process
    model: ModelFacts | None = None,  # of the worker's model, where `vlm` is None
    command: Json | None = None,  # for the record: command line and date
    sweeps: Json | None = None,  # for the record: see sweeps.py
) -> Results:
    """Answer what is not yet answered in `out`, and read the run back. Vanilla is always among the methods."""
    asked = [as_asked(task) for task in tasks]
    for one in asked if matched else ():
        calibration(one)  # what is missing is said before anything is answered
    facts = model or ModelFacts.of(vlm)
    run_batches = worker or (lambda todo, store, done: work(vlm, todo, store, done))
    chosen = {one.key: {VANILLA: None, **(methods if one.methods is None else one.methods)} for one in asked}
    everything = {label: method for own in chosen.values() for label, method in own.items()}
    curves = {one.key: first_curve(one) if curve else {} for one in asked}
    configurations = {label: None if m is None else m.to_json() for label, m in everything.items()}

    def noted(controls: Mapping[str, Mapping[str, Any]], **more: Any) -> None:
        note(Path(out), facts, asked, configurations, _as_json(controls), **more)

    noted(curves, command=command if shard.index == 0 else None, sweeps=sweeps)
    with Store(out) as store, keeping_images(vlm, shard.count):

        def answered(plan: Mapping[str, Mapping[str, Any]], part: Shard = shard) -> None:
            parts = [(one, plan.get(one.key, {})) for one in asked]
            answer_all(run_batches, parts, facts, store, shard=part, batch_size=batch_size, progress=progress)

        def read() -> Results:
            return Results.load(out, store=store, asked=asked).only(list(chosen), list(everything))

        # who helps the others leaves nothing unanswered: then every process finds the same to be missing
        complete = shard.gathers or shard.helps
        at_strength: dict[str, Mapping[str, Any]] = {}  # task -> its controls, matched
        for one in asked if matched and complete else ():
            # before the split that is reported, so that an image's crops serve its matched controls too
            found = match(
                one,
                chosen[one.key],
                lambda part, plan: answer_all(
                    run_batches,
                    [(part, plan)],
                    facts,
                    store,
                    shard=shard,
                    batch_size=batch_size,
                    progress=progress,
                ),
                store,
                facts,
            )
            noted({}, matched={one.key: found.to_json()})
            at_strength[one.key] = found.methods
        answered({key: {**own, **at_strength.get(key, {}), **curves[key]} for key, own in chosen.items()})
        if curve and complete:
            answered({key: unfinished(task) for key, task in read().tasks.items()})
        for _ in range(ROUNDS if curve and complete else 0):
            run = read()
            more = {one.key: further(run.tasks[one.key]) for one in asked if curves[one.key]}
            if not any(more.values()):
                break
            noted(more)
            answered(more)
        return read()


def as_asked(task: str | Task | Asked) -> Asked:
    """A task by name, one's own, or one that says already how it is asked."""
    if isinstance(task, Asked):
        return task
    if isinstance(task, str):
        return Asked.of(task, load_task(task))
    if not isinstance(task, Task):
        raise TypeError(f"{task!r} is no task: give a name, or an object of a class derived from airvlm's Task")
    return Asked.of(task.name or type(task).__name__, task)


def answer_all(
    worker: Worker,
    plan: Sequence[tuple[Asked, Mapping[str, Any]]],  # each task with the methods that answer it
    model: ModelFacts,
    store: Store,
    *,
    shard: Shard = Shard(),
    batch_size: int = BATCH_SIZE,
    progress: bool = True,
) -> None:
    """Answer our share of what the store lacks of a plan, chunk of images by chunk of images."""
    units = [unit for one, methods in plan for unit in chunks(one, methods, model, batch_size)]
    own = len(range(shard.index, len(units), shard.count))
    # in the others' chunks we come from behind, as among the chunks: we meet whoever works on them once
    todo = [batch for i, unit in enumerate(shard.share(units)) for batch in (unit if i < own else reversed(unit))]
    _answer(worker, todo, store, progress)


def _answer(worker: Worker, todo: list[Batch], store: Store, progress: bool) -> None:
    """Let the worker do what is pending, with rate and time left on standard error."""
    left = pending(todo, store)
    # even a disabled bar takes a lock, which a forked process that was killed may still hold
    if not progress or not left:
        worker(left, store, lambda batch: None)
        return
    total, held, own = sum(len(batch.jobs) for batch in left), len(store), 0
    every = 0.5 if sys.stderr.isatty() else 10.0
    with tqdm(total=total, unit="answer", mininterval=every) as bar:

        def done(batch: Batch) -> None:
            nonlocal own
            own += len(batch.jobs)
            bar.set_description(f"{batch.jobs[0].question.task} {batch.label}", refresh=False)
            # what other processes have stored meanwhile counts too: they take their share of the total
            bar.update(min(total, max(own, len(store) - held)) - bar.n)

        worker(left, store, done)


def first_curve(asked: Asked) -> dict[str, Any]:
    """The controls of a task's trade-off, by label; none for a task without one."""
    if asked.task.kind not in ("caption", "yesno"):
        return {}
    trade = trade_off_of(asked.task.score(asked.items, [None] * len(asked.items)))
    return {} if trade is None else _controls(trade, trade.biases)


def _controls(trade: TradeOff, biases: Iterable[float]) -> dict[str, Any]:
    return {trade.method(bias): registry.parse_method(trade.method(bias)) for bias in biases}


def _as_json(curves: Mapping[str, Mapping[str, Any]]) -> Json:
    return {name: {label: m.to_json() for label, m in curve.items()} for name, curve in curves.items()}


def unfinished(task: TaskResults) -> dict[str, Any]:
    """Controls of the curve that an earlier command has drawn on fewer items."""
    return {label: registry.parse_method(label) for label in task.curve if task.unanswered(label)}


def further(task: TaskResults) -> dict[str, Any]:
    """Controls with a stronger bias, where a method lies beyond an end of the curve."""
    trade = task.trade_off
    if trade is None:
        return {}
    reached = {0.0: task.sample(VANILLA).value(trade.x)}
    for label, configuration in task.curve.items():
        reached[float(configuration["bias"])] = task.sample(label).value(trade.x)
    wanted = [task.sample(label).value(trade.x) for label in task.methods if label != VANILLA]
    ends = []
    if any(x < min(reached.values()) for x in wanted):
        ends.append(min(reached, key=lambda bias: reached[bias]))
    if any(x > max(reached.values()) for x in wanted):
        ends.append(max(reached, key=lambda bias: reached[bias]))
    # vanilla itself at an end means that no bias on that side was tried, or that it bought nothing: leave it
    stronger = [bias * 1.5 for bias in ends if bias and abs(bias) * 1.5 <= FURTHEST]
    return _controls(trade, stronger)
