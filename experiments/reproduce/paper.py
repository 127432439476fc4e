"""The paper's tables by number: what each asks, under which methods, what it prints, and what nobody can reproduce."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from airvlm.methods import Method, get_method

__all__ = ["PaperPart", "PaperRow", "PublishedTable", "attainable", "load_tables", "paper_facts", "rows_of"]

FILE = Path(__file__).with_name("paper_tables.yaml")
BASELINES = ("vcd", "memvr", "vaf")
IMAGES = 500  # of CHAIR, in the paper
VANILLA = "vanilla"


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper, and a method of ours that fills it."""

    name: str  # as the paper has it; the method's own label if the paper has no such row
    label: str
    method: Method | None  # None is vanilla


@dataclass(frozen=True)
class PaperPart:
    """One task of a table, asked in one way, with the paper's figures: model -> row -> values by metric."""

    task: str
    metrics: tuple[str, ...]
    figures: dict[str, dict[str, list[float | None]]]
    max_new_tokens: int | None = None
    noise: float = 0.0
    judged: bool = False
    varies: Any = None  # "layers", "components", or row -> spelling around AIR

    @property
    def key(self) -> str:
        """Its name in a results folder."""
        cap = "" if self.max_new_tokens is None else f", at most {self.max_new_tokens} tokens"
        return self.task + cap + (f", noise {self.noise * 255:.0f}/255" if self.noise else "")

    def value(self, model: str, row: str, metric: str) -> float | None:
        """A figure of the paper; None if it does not print it."""
        values = self.figures.get(model, {}).get(row)
        return values[self.metrics.index(metric)] if values and metric in self.metrics else None


@dataclass(frozen=True)
class PublishedTable:
    """A table of the paper."""

    name: str
    title: str
    models: tuple[str, ...]
    parts: tuple[PaperPart, ...]
    notes: tuple[str, ...]
    timed: bool = False

    def not_reproducible(self) -> list[str]:
        """What nobody can reproduce: what is known of the table, and cells that no count of images gives."""
        found = list(self.notes)
        for part in self.parts:
            if part.task != "chair" or "CHAIR_S" not in part.metrics:
                continue
            odd = [
                f"{model} {row} {values[0]:g}"
                for model, rows in part.figures.items()
                for row, values in rows.items()
                if values[0] is not None and not attainable(values[0], IMAGES, decimals=1)
            ]
            if odd:
                found.append(f"{part.key}: CHAIR_S is not a share of {IMAGES} images in: {'; '.join(odd)}")
        return found

    def compared_model(self, model: str, adapter: str = "") -> tuple[str, bool]:
        """The paper's model whose figures are shown, and whether it is the same model as ours."""
        for name in self.models:
            facts = paper_facts()["models"][name]
            named = any(part in model.lower() for part in facts["names"])
            if named and facts.get("adapter", "") in adapter.lower() and bool(adapter) == ("adapter" in facts):
                return name, True
        return self.models[0], False


def attainable(value: float, n: int, decimals: int = 2, scale: float = 100.0) -> bool:
    """Whether a printed share can be k of n at all, given its decimals: 61.92 % of 293 cannot."""
    if n < 1:
        return False
    k = round(value / scale * n)
    half = 0.5 * 10.0**-decimals + 1e-9  # both ways of rounding a half occur in print
    return 0 <= k <= n and abs(scale * k / n - value) <= half


@cache
def paper_facts() -> dict[str, Any]:
    """The content of paper_tables.yaml."""
    content: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return content


@cache
def load_tables() -> dict[str, PublishedTable]:
    """All tables by name."""
    facts = paper_facts()
    tables = {}
    for name, table in facts["tables"].items():
        parts = []
        for part in table["parts"]:
            own = {**part, "metrics": tuple(part["metrics"]), "noise": float(Fraction(part.get("noise", 0)))}
            parts.append(PaperPart(**own))
        notes = tuple(facts["notes"].get(note, note) for note in table["not_reproducible"])
        tables[name] = PublishedTable(
            name, table["title"], tuple(table["models"]), tuple(parts), notes, table.get("timed", False)
        )
    return tables


def rows_of(part: PaperPart, air: list[str] | None, depth: int) -> list[PaperRow]:
    """The rows of a part, vanilla first.

    Args:
        part: of a table.
        air: the methods in rows that the paper calls AIR; None is those of paper_tables.yaml.
        depth: decoder layers of the model.
    """
    facts = paper_facts()
    names = dict.fromkeys(row for rows in part.figures.values() for row in rows)
    rows = [PaperRow(VANILLA, VANILLA, None)]
    rows += [PaperRow(name, name, get_method(name)) for name in names if name in BASELINES]
    for spelling in facts["air"] if air is None else air:
        method = get_method(spelling)
        assert method is not None, "vanilla has a row of its own"
        if part.varies is None:
            rows.append(PaperRow("air", spelling, method))
        elif isinstance(part.varies, dict):
            found = {name: get_method(template.format(spelling)) for name, template in part.varies.items()}
            rows += [PaperRow(name, m.label, m) for name, m in found.items() if m is not None]
        else:
            made = _layers(method, depth) if part.varies == "layers" else _components(method)
            rows += [PaperRow(name, m.label, m) for name, m in made.items()]
    if part.varies is None:
        rows += [PaperRow(spelling, spelling, get_method(spelling)) for spelling in facts["ours"]]
    return rows


def _layers(method: Method, depth: int) -> dict[str, Method]:
    """The paper's spans of a decoder of 32 layers, as shares of this one's depth."""
    firsts = {k: min(depth - 1, round(depth * k / 32)) for k in range(16, 32, 2)}
    return {f"{k}-32": _set(method, layers=(first, depth)) for k, first in firsts.items()}


def _components(method: Method) -> dict[str, Method]:
    """Without prototypes: all visual tokens. Without selection: all crops."""
    all_tokens = _set(method, num_prototypes=None)
    all_crops = {"keep": method.num_crops}  # type: ignore[attr-defined]  # AIR and AIRMemory have crops
    return {
        "neither": _set(all_tokens, **all_crops),
        "OT-based patch reinforcement": all_tokens,
        "prototype-based token reduction": _set(method, **all_crops),
        "both": method,
    }


def _set(method: Method, **options: Any) -> Method:
    try:
        return replace(method, **options)
    except TypeError as error:
        raise ValueError(
            f"{method.label} has no {' or '.join(options)}: it cannot fill the rows of this table"
        ) from error
