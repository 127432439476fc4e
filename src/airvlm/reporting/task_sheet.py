"""One task as a table: figures, differences to vanilla, the distance from the control's curve, matched controls.

Brief for the terminal and a README, full for the page, where the column that decides comes first. Every figure stands
with its interval; a caption task's CHAIR never without its distance at equal recall. Knows what the columns mean;
nothing about how a table is written down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from airvlm.evaluation.statistics import Estimate, mcnemar
from airvlm.evaluation.task_results import VANILLA, TaskResults
from airvlm.evaluation.trade_off import TradeOff
from airvlm.reporting.sheets import Cell, Column, Sheet

__all__ = [
    "ARROWS",
    "at_equal_columns",
    "change_cell",
    "count_columns",
    "figure_cells",
    "figure_columns",
    "matched_columns",
    "number",
    "signed",
    "task_sheet",
    "title_of",
]

LEADING, SHOWN = 4, 10  # metrics at the front of a full table, and in all of it; the CSV has all
BRIEF = 6  # metrics of a brief one
ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}
UNKNOWN = "?"  # in place of an interval that the images cannot tell

Columns = list[tuple[Column, dict[str, Cell]]]  # each with its cells by method


def number(value: float, digits: int = 1) -> str:
    return "–" if not math.isfinite(value) else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{round(value, 6) + 0.0:+.1f}".replace("-", "−")  # what only rounding left is no sign


def interval(estimate: Estimate) -> str:
    if not math.isfinite(estimate.value):
        return ""
    return f"[{number(estimate.low)}, {number(estimate.high)}]" if estimate.trusted else f"[{UNKNOWN}]"


def spread(estimate: Estimate) -> str:
    if not math.isfinite(estimate.value):
        return ""
    return f"± {number(estimate.error)}" if estimate.trusted else f"± {UNKNOWN}"


def task_sheet(name: str, task: TaskResults, *, brief: bool = False) -> Sheet:
    """Everything that decides about a task."""
    labels = list(dict.fromkeys((VANILLA, *task.methods)))
    others = [label for label in labels if label != VANILLA]
    definitions = list(task.scores(VANILLA).definitions)
    trade = task.trade_off
    decides = at_equal_columns(task, others, trade) + matched_columns(task, others, trade)
    differences = _differences(task, others, definitions[:2], sure=trade is None)
    counts = count_columns(task, labels, others)
    if brief:
        columns = figure_columns(task, labels, definitions[:BRIEF], brief) + differences + decides + counts
    else:
        columns = decides + figure_columns(task, labels, definitions[:LEADING], brief) + differences + counts
        columns += figure_columns(task, labels, definitions[LEADING:SHOWN], brief)
    rows = tuple((label, tuple(cells.get(label, Cell()) for _, cells in columns)) for label in labels)
    notes = () if brief else _notes(task, trade, any(UNKNOWN in c.under for _, r in rows for c in r))
    return Sheet(name, tuple(column for column, _ in columns), rows, notes)


def title_of(task: TaskResults) -> str:
    """What was asked, in a line."""
    generation = task.asked.generation
    images = len(set(task.scores(VANILLA).groups))
    split = "" if task.asked.split in task.asked.key else f", {task.asked.split} split"
    parts = [f"{task.asked.key}{split}", f"{len(task.items)} items on {images} images"]
    if "max_new_tokens" in generation:
        parts.append(f"at most {generation['max_new_tokens']} tokens, greedy")
    if generation.get("noise"):
        parts.append(f"images disturbed by {generation['noise'] * 255:.0f}/255")
    return "; ".join(parts)


def figure_columns(task: TaskResults, labels: Sequence[str], metrics: Sequence[str], brief: bool) -> Columns:
    """A column for each metric."""
    definitions = task.scores(VANILLA).definitions
    group = "" if brief else "figures"
    return [
        (
            Column(metric + ("" if brief else ARROWS[definitions[metric].better]), group),
            figure_cells(task, metric, labels, brief),
        )
        for metric in metrics
    ]


def figure_cells(task: TaskResults, metric: str, labels: Sequence[str], brief: bool = False) -> dict[str, Cell]:
    """A metric of every method; bold where it is the best by more than the interval of each difference."""
    samples = {label: task.sample(label) for label in labels if label in task.methods or label == VANILLA}
    better = task.scores(VANILLA).definitions[metric].better
    # a figure that a bias on one token buys has no best: the lowest CHAIR belongs to whoever says least
    bought = task.trade_off is not None and metric in task.trade_off.ys
    best = None
    known = {label: s.value(metric) for label, s in samples.items() if math.isfinite(s.value(metric))}
    if better != "neither" and not bought and not brief and len(known) > 1:
        first = (max if better == "higher" else min)(known, key=lambda label: known[label])
        rest = [samples[label] for label in known if label != first]
        sure = all(samples[first].difference(other, metric).significant for other in rest)
        best = first if sure else None
    show = spread if brief else interval
    return {
        label: Cell(number(e.value), show(e), best=label == best)
        for label, e in ((label, sample.estimate(metric)) for label, sample in samples.items())
    }


def at_equal_columns(task: TaskResults, others: Sequence[str], trade: TradeOff | None) -> Columns:
    """The distance from the control's curve, by metric."""
    if trade is None:
        return []
    at = {label: task.at_equal(label) for label in others}
    found = []
    for y in trade.ys:
        better = task.scores(VANILLA).definitions[y].better
        cells = {
            label: _signed(here[y].difference, better, "" if here[y].inside else "beyond the curve")
            for label, here in at.items()
            if y in here
        }
        if cells:
            found.append((Column(f"Δ {y}", f"at equal {_x(trade)}", deciding=True), cells))
    return found


def matched_columns(task: TaskResults, others: Sequence[str], trade: TradeOff | None) -> Columns:
    """Each control at the strength of what it controls, and what the method is worth beyond it."""
    controls = [label for label in others if label in task.matched]
    controls = [label for label in controls if all(r is not None for r in task.records(task.matched[label]["label"]))]
    if trade is None or not controls:
        return []
    y = trade.ys[0]
    better = task.scores(VANILLA).definitions[y].better
    own, beyond = {}, {}
    for label in controls:
        facts = task.matched[label]
        at = task.at_equal(facts["label"])
        if y not in at:
            continue
        name = next(name for name in ("weight", "strength") if name in facts)
        strength = f"{name}={facts[name]:g}"
        own[label] = _signed(at[y].difference, better, f"{strength}, {task.changed(facts['label'])} changed")
        if facts["controls"] in task.methods:
            method = task.sample(facts["controls"])
            minus = method.difference(task.sample(facts["label"]), y)
            beyond[label] = _signed(minus, better, f"{_x(trade)} {signed(_other(task, facts, trade))}", sure=False)
    columns = [(Column(f"Δ {y} at equal {_x(trade)}", "control, matched"), own)]
    if beyond:
        columns.append((Column(f"{y} of the method minus it", "control, matched"), beyond))
    return columns


def _other(task: TaskResults, facts: dict[str, str], trade: TradeOff) -> float:
    """The method's recall or yes-ratio minus the control's."""
    return task.sample(facts["controls"]).difference(task.sample(facts["label"]), trade.x).value


def _differences(task: TaskResults, others: Sequence[str], metrics: Sequence[str], sure: bool) -> Columns:
    """To vanilla; unmarked where another column decides, since it may deny what stands here."""
    found = []
    for metric in metrics:
        better = task.scores(VANILLA).definitions[metric].better
        cells = {}
        for label in others:
            p = mcnemar(task.scores(label), task.scores(VANILLA), metric)
            estimate = task.sample(label).difference(task.sample(VANILLA), metric)
            cells[label] = _signed(estimate, better, "" if p is None else f"p = {p:.2g}", sure=sure)
        found.append((Column(f"Δ {metric}", "to vanilla"), cells))
    return found


def change_cell(task: TaskResults, label: str, metric: str) -> Cell:
    """A metric's change against vanilla, unmarked."""
    better = task.scores(VANILLA).definitions[metric].better
    return _signed(task.sample(label).difference(task.sample(VANILLA), metric), better, sure=False)


def count_columns(task: TaskResults, labels: Sequence[str], others: Sequence[str]) -> Columns:
    """Answers that a method changed, in which it acted, and that do not count."""
    group = f"of {len(task.items)}"
    acted = {label: task.fired(label) for label in others}
    columns: Columns = [
        (Column("changed", group), {label: Cell(str(task.changed(label))) for label in others}),
        (Column("acted", group), {label: Cell(str(k)) for label, k in acted.items() if k is not None}),
    ]
    wrong: dict[str, Cell] = {}
    for label in labels:
        counts = {
            "failed": task.failed(label),
            "unanswered": task.unanswered(label),
            "unparsed": task.scores(label).unparsed,
        }
        said = ", ".join(f"{k} {name}" for name, k in counts.items() if k)
        wrong |= {label: Cell(said)} if said else {}
    return columns + ([(Column("not counted", group), wrong)] if wrong else [])


def _notes(task: TaskResults, trade: TradeOff | None, unknown: bool) -> tuple[str, ...]:
    n, images = len(task.items), len(set(task.scores(VANILLA).groups))
    notes = [
        f"{n} items on {images} images, {task.asked.split} split. Brackets: 95 % intervals, paired over images. Bold: "
        "better than every other row by more than the interval of the difference."
    ]
    if trade is not None:
        notes.append(
            f"At equal {_x(trade)}: the method minus what a bias on one token alone (`{trade.control}`) buys at best "
            f"at the method's own {_x(trade)}. This is the column that decides; only there is a gain ticked."
        )
    if task.matched:
        notes.append(
            "Control, matched: the control at the strength that changes as many answers of the calibration split as "
            "the method it controls."
        )
    if unknown:
        notes.append(f"[{UNKNOWN}]: too few images, or no two that differ, to tell an interval.")
    return (*notes, *task.scores(VANILLA).notes)


def _x(trade: TradeOff) -> str:
    return trade.x.replace("_", "-")


def _signed(estimate: Estimate, better: str, more: str = "", *, sure: bool = True) -> Cell:
    if not math.isfinite(estimate.value):
        return Cell("–")
    bounds = f"[{signed(estimate.low)}, {signed(estimate.high)}]" if estimate.trusted else f"[{UNKNOWN}]"
    gains = (estimate.value > 0) == (better == "higher")
    marked = sure and estimate.significant and better != "neither"
    under = " ".join(part for part in (bounds, more) if part)
    return Cell(signed(estimate.value), under, mood=("good" if gains else "bad") if marked else "")
