"""A table of the paper beside our figures: cell by cell, with our interval, and whether the paper's lies outside it.

Two things are compared: the figure, and its change against vanilla, which depends less on which images were drawn.
Knows runs and the paper's tables; nothing of how answers came about or how the result is printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airvlm.evaluation.statistics import Estimate
from airvlm.evaluation.store import Json
from airvlm.evaluation.task_results import VANILLA, TaskResults
from airvlm.reporting.layout import paper_model
from airvlm.reporting.paper_tables import PaperPart, PaperRow, PaperTable
from airvlm.reporting.sheets import Cell, Column, Sheet
from airvlm.reporting.task_sheet import number, signed

__all__ = ["Compared", "beside", "compared", "comparison_sheet"]

OUTSIDE, INSIDE = "≠", "≈"


@dataclass(frozen=True)
class Compared:
    """One cell of the paper and ours."""

    part: str
    row: str  # the paper's
    label: str  # our method
    metric: str
    paper: float | None
    ours: Estimate
    paper_change: float | None  # against vanilla
    change: Estimate | None

    @property
    def differs(self) -> bool | None:
        """Whether the paper's figure lies outside our interval; None where either is not known."""
        return _outside(self.paper, self.ours)

    @property
    def change_differs(self) -> bool | None:
        return None if self.change is None else _outside(self.paper_change, self.change)

    def to_json(self) -> Json:
        return {
            "part": self.part,
            "row": self.row,
            "method": self.label,
            "metric": self.metric,
            "paper": self.paper,
            "ours": _plain(self.ours),
            "differs": self.differs,
            "paper_change": self.paper_change,
            "change": None if self.change is None else _plain(self.change),
            "change_differs": self.change_differs,
        }


def _outside(paper: float | None, ours: Estimate) -> bool | None:
    if paper is None or not ours.trusted:
        return None
    return not ours.low <= paper <= ours.high


def _plain(estimate: Estimate) -> Json:
    numbers = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {k: round(v, 4) if math.isfinite(v) else None for k, v in numbers.items()} | {"n": estimate.n}


def beside(table: PaperTable, model: str) -> tuple[str, bool]:
    """The paper's model whose figures stand beside ours, and whether it is the same model."""
    lower = model.lower()
    tuned = [name for name in table.models if name.startswith("SENTINEL")]
    if tuned and "sentinel" in lower:
        return tuned["13b" in lower], True
    if "LLaVA-1.5-13B" in table.models and "13b" in lower:
        return "LLaVA-1.5-13B", True
    found = paper_model(model)
    return (found, True) if found in table.models else (table.models[0], False)


def compared(part: PaperPart, task: TaskResults, rows: Sequence[PaperRow], model: str) -> list[Compared]:
    """Every cell of a part of which we have a figure."""
    known = task.scores(VANILLA).definitions
    metrics = [m for m in part.printed.metrics if m in known]
    metrics += [m for m in ("recall",) if "CHAIR_S" in metrics and m in known and m not in metrics]
    base = {metric: part.printed.value(model, VANILLA, metric) for metric in metrics}
    found = []
    for row in rows:
        sample, vanilla = task.sample(row.label), task.sample(VANILLA)
        for metric in metrics:
            paper = part.printed.value(model, row.name, metric)
            itself = row.label == VANILLA
            change = None if itself else sample.difference(vanilla, metric)
            moved = None if itself or paper is None or base[metric] is None else paper - (base[metric] or 0.0)
            found.append(Compared(part.key, row.name, row.label, metric, paper, sample.estimate(metric), moved, change))
    return found


def comparison_sheet(title: str, cells: Sequence[Compared], model: str, same: bool) -> Sheet:
    """The cells of one part, a line each: the figures, then their changes against vanilla."""
    columns = (
        Column("metric"),
        Column("the paper", paper=True),
        Column("ours"),
        Column("95 % interval"),
        Column(""),
        Column("the paper's Δ", paper=True),
        Column("our Δ"),
        Column("95 % interval"),
        Column(""),
    )
    lines = []
    for one in cells:
        change = one.change
        named = one.row if one.row == one.label else f"{one.row}: {one.label}"
        lines.append(
            (
                named,
                (
                    Cell(one.metric),
                    Cell("" if one.paper is None else f"{one.paper:g}"),
                    Cell(number(one.ours.value)),
                    Cell(_bounds(one.ours, number)),
                    Cell(_mark(one.differs)),
                    Cell("" if one.paper_change is None else signed(one.paper_change)),
                    Cell("" if change is None else signed(change.value)),
                    Cell("" if change is None else _bounds(change, signed)),
                    Cell(_mark(one.change_differs)),
                ),
            )
        )
    notes = [
        f"{OUTSIDE}: the paper's figure lies outside our interval, {INSIDE}: inside. Δ: against vanilla.",
        *([] if same else [f"Another model than the paper's {model}: only the direction of Δ compares."]),
    ]
    return Sheet(title, columns, tuple(lines), tuple(notes), corner="the paper's row: our method")


def _bounds(estimate: Estimate, show: Callable[[float], str]) -> str:
    return f"[{show(estimate.low)}, {show(estimate.high)}]" if estimate.trusted else "[?]"


def _mark(differs: bool | None) -> str:
    return "" if differs is None else OUTSIDE if differs else INSIDE
