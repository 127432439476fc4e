"""Rows of the leaderboard from results, their ranks, and boards of several people in one.

    board = Board.of(results)
    board = merge([board, Board.load("theirs.json")])

What counts is the difference to a trivial control at equal recall (or yes-ratio). Methods whose intervals overlap share
a rank: a method's rank is one more than the number of methods whose whole interval is better.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airvlm.evaluation.results import VANILLA, Results, TaskResults
from airvlm.evaluation.store import digest
from airvlm.leaderboard.costs import Cost
from airvlm.methods.names import METHODS
from airvlm.reporting.tables import rows_to_csv

__all__ = ["Beyond", "Board", "BoardError", "Row", "Setup", "interval_text", "merge", "verdict"]

FORMAT = "airvlm-leaderboard-1"
LARGEST_FILE = 20_000_000  # bytes of a board that is read
AGREES = 0.5  # points by which vanilla's figures of two boards may differ: rounding differs between machines
ROUNDING = 1e-6  # points that are no difference
VERSIONS = ("airvlm", "transformers")

Text = Annotated[str, Field(max_length=2000)]
Name = Annotated[str, Field(max_length=200)]


class BoardError(ValueError):
    """A board cannot be read or merged; the message says why."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Setup(_Strict):
    """What rows must share to be compared: a model on some items of a task."""

    model: Name
    fingerprint: Name
    task: Name
    variant: Name
    split: Name
    items: int
    images: int
    items_hash: Name  # of ids, images and questions, in order
    generation: Name  # of the decoding options
    metric: Name  # the headline
    better: Name
    held_equal: Name | None  # what is held equal: recall or the yes-ratio


class Beyond(_Strict):
    """A method's gain minus that of a control that changes as many answers; positive is better."""

    control: Text  # the control's label
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """`+2.1 [0.3, 4.0] mean-token(crop-blend:weight=0.1)`."""
        return f"{interval_text(self.value, self.low, self.high)} {self.control}"


class Row(_Strict):
    """One method in one setup."""

    setup: str  # key of the setup
    method: Text  # as the command line spells it
    name: Name  # in the registry
    paper: Text | None = None
    site: Name = ""
    summary: Text = ""
    note: Text = ""  # why it never acted, or failed
    value: float | None = None
    low: float | None = None
    high: float | None = None
    difference: float | None = None  # to vanilla, as measured; positive is better
    gain: float | None = None  # at equal recall or yes-ratio; positive is better
    gain_low: float | None = None
    gain_high: float | None = None
    on_curve: bool | None = None  # false: beyond the end of the control's curve
    metrics: dict[Name, float | None] = {}
    tokens: float | None = None
    acted: float | None = None  # share of answers
    changed: float | None = None  # share of answers
    cost: float | None = None  # time of an answer over vanilla's, of a prefill where answers are a word or two
    keeping_bias: float | None = None
    beyond: list[Beyond] = Field(default=[], max_length=20)
    calibrated: bool = False  # the best setting on the calibration split; False: the method's default options
    submitted_by: Name = ""

    @property
    def explained(self) -> float | None:
        """The part of the difference to vanilla that a bias at the same recall (or yes-ratio) gives as well."""
        return None if self.gain is None or self.difference is None else self.difference - self.gain + 0.0


class Board(_Strict):
    """All rows, and what they were measured on."""

    format: str = FORMAT
    versions: dict[Name, Name] = {}
    setups: dict[Name, Setup] = {}
    rows: list[Row] = Field(default=[], max_length=20_000)
    skipped: dict[Name, Text] = {}  # methods that were not run, and why

    @classmethod
    def of(
        cls,
        results: Results,
        *,
        skipped: dict[str, str] | None = None,
        calibrated: Collection[str] = (),
        notes: Mapping[str, str] | None = None,
        costs: Mapping[str, Cost] | None = None,
        submitted_by: str = "",
    ) -> Board:
        """The board of a results folder.

        Args:
            results: of an evaluation; tasks without a trade-off are left out.
            skipped: methods that were not run, and why.
            calibrated: labels of settings that were found on the calibration split.
            notes: by label, to be said beside the figures.
            costs: by label, as `measure_costs` finds them.
            submitted_by: who measured it, shown beside every row.
        """
        setups, rows = {}, []
        for task in results.tasks.values():
            trade = task.trade_off
            if trade is None:
                continue
            setup = _setup(results, task, trade.ys[0], trade.x)
            key = f"{setup.model}, {setup.task}"
            setups[key] = setup
            matched = {own: facts for own, facts in task.matched.items() if own in task.methods}
            known = dict(costs or {})
            known |= {facts["label"]: known[own] for own, facts in matched.items() if own in known}
            labels = dict.fromkeys([*task.methods, *(facts["label"] for facts in matched.values())])
            made = [_row(task, key, setup, label, known.get(label), submitted_by) for label in labels]
            made = [_add_controls(task, row, setup, list(matched.values())) for row in made]
            for row in made:
                note = "; ".join(filter(None, (row.note, (notes or {}).get(row.method))))[:500]
                rows.append(row.model_copy(update={"calibrated": row.method in calibrated, "note": note}))
        versions = {name: metadata.version(name) for name in VERSIONS}
        return cls(versions=versions, setups=setups, rows=rows, skipped=skipped or {})

    # -- ranks

    def rank_rows(self, setup: str) -> list[tuple[int | None, Row]]:
        """Rows of a setup with their ranks, best first; rows without a figure have no rank and come last."""
        rows = [row for row in self.rows if row.setup == setup]
        known = [row for row in rows if _interval(row) is not None]
        ranks = {id(row): 1 + sum(_beats(other, row) for other in known) for row in known}
        known.sort(key=lambda row: (ranks[id(row)], -(row.gain or 0.0), row.method))
        return [(ranks[id(row)], row) for row in known] + [(None, row) for row in rows if id(row) not in ranks]

    def is_controlled(self, setup: str) -> bool:
        """Whether any method of a setup was compared with a control of the same strength."""
        return any(row.beyond for row in self.rows if row.setup == setup)

    def compare_setups(self) -> list[tuple[str, dict[str, Row]]]:
        """Each method with its rows by setup: those that are better in most setups, and worse in fewest, first.

        Settings and strengths that were found for one setup are left out: they have no row in another.
        """
        matched = {(row.setup, one.control) for row in self.rows for one in row.beyond}
        found: dict[str, dict[str, Row]] = {}
        for row in self.rows:
            if row.name != VANILLA and not row.calibrated:
                found.setdefault(row.method, {})[row.setup] = row

        def place(entry: tuple[str, dict[str, Row]]) -> tuple[int, int, str]:
            verdicts = [verdict(row) for row in entry[1].values()]
            return -verdicts.count("better"), verdicts.count("worse"), entry[0]

        shown = {method: rows for method, rows in found.items() if any((key, method) not in matched for key in rows)}
        return sorted(shown.items(), key=place)

    # -- files

    @classmethod
    def load(cls, path: str | Path) -> Board:
        """Read a board that `airvlm leaderboard` wrote. Nothing that it names is imported or opened."""
        path = Path(path)
        try:
            if path.stat().st_size > LARGEST_FILE:
                raise BoardError(f"{path} is larger than {LARGEST_FILE // 10**6} MB")
            board = cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise BoardError(f"{path}: {error.strerror or error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise BoardError(f"{path} is not a leaderboard: {where}: {first['msg']}") from error
        if board.format != FORMAT:
            raise BoardError(f"{path} has the format {board.format!r}, not {FORMAT!r}")
        missing = {row.setup for row in board.rows} - set(board.setups)
        if missing:
            raise BoardError(f"{path} has rows of a setup that it does not describe: {sorted(missing)[0]}")
        return board

    def to_json(self) -> str:
        return self.model_dump_json(indent=1) + "\n"

    def to_csv(self) -> str:
        """One line per row, with its setup."""
        lines = []
        for key, setup in self.setups.items():
            for rank, row in self.rank_rows(key):
                flat = row.model_dump(exclude={"metrics", "setup", "beyond"})
                beyond = {"beyond": "; ".join(one.text for one in row.beyond)}
                lines.append({"rank": rank, **setup.model_dump(), **flat, **beyond, **row.metrics})
        columns = list(dict.fromkeys(name for line in lines for name in line))
        return rows_to_csv([{name: line.get(name) for name in columns} for line in lines])


def verdict(row: Row) -> str:
    """Whether the whole interval of a row's gain is better or worse than the trivial control."""
    if row.gain_low is None or row.gain_high is None:
        return "unclear"
    return "better" if row.gain_low > ROUNDING else "worse" if row.gain_high < -ROUNDING else "unclear"


def merge(boards: Sequence[Board]) -> Board:
    """One board of several. Refused if a setup differs between them, or if vanilla's figures do.

    Args:
        boards: what each of several people measured.
    """
    if not boards:
        raise BoardError("no leaderboards to merge")
    versions = dict(boards[0].versions)
    setups: dict[str, Setup] = {}
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    for board in boards:
        for name in VERSIONS:
            if board.versions.get(name) != versions.get(name):
                raise BoardError(
                    f"the boards were made with {name} {versions.get(name)} and {board.versions.get(name)}: "
                    "measure them again with one version"
                )
        for key, setup in board.setups.items():
            _check_same(key, setups.setdefault(key, setup), setup)
        skipped |= {name: why for name, why in board.skipped.items() if name not in skipped}
        for row in board.rows:
            held = next((r for r in rows if r.setup == row.setup and r.method == row.method), None)
            if held is None:
                rows.append(row)
            elif row.method == VANILLA:
                _check_vanilla(held, row)
            elif held.submitted_by == row.submitted_by:
                raise BoardError(f"{row.setup}: {row.method} is in two boards of the same name")
            else:
                rows.append(row)
    measured = {row.name for row in rows}
    kept = {name: why for name, why in skipped.items() if name not in measured}
    return Board(versions=versions, setups=setups, rows=rows, skipped=kept)


def _check_same(key: str, a: Setup, b: Setup) -> None:
    for name, value in a.model_dump().items():
        other = getattr(b, name)
        if other != value:
            raise BoardError(f"{key}: the boards differ in {name}: {value!r} and {other!r}")


def _check_vanilla(a: Row, b: Row) -> None:
    if a.value is None or b.value is None or abs(a.value - b.value) > AGREES:
        raise BoardError(
            f"{a.setup}: vanilla measures {a.value} in one board and {b.value} in another, which differ by more than "
            f"{AGREES} points: model or decoding are not the same"
        )


# -- making rows


def _setup(results: Results, task: TaskResults, metric: str, x: str) -> Setup:
    spec = task.spec
    items = [(item.id, str(item.image), spec.task.prompt(item)) for item in spec.items]
    return Setup(
        model=results.model_name,
        fingerprint=results.model["fingerprint"],
        task=spec.key,
        variant=spec.task.variant_name,
        split=spec.split,
        items=len(spec.items),
        images=task.sample(VANILLA).images,
        items_hash=digest([(number, prompt) for number, _, prompt in items]),
        generation=json.dumps(spec.generation, sort_keys=True),
        metric=metric,
        better=task.better(metric),
        held_equal=x,
    )


def _row(task: TaskResults, key: str, setup: Setup, label: str, cost: Cost | None, submitted_by: str) -> Row:
    configuration = task.configuration(label)
    name = VANILLA if configuration is None else str(configuration["name"])
    kind = METHODS.get(name)
    n = max(1, len(task.items))
    rows = {row["metric"]: row for row in task.rows_of(label)}
    own = rows[setup.metric]
    sign = -1.0 if setup.better == "lower" else 1.0
    gain = _orient(own, sign)
    difference = None if own["difference"] is None else sign * own["difference"] + 0.0
    if label == VANILLA:
        gain = (0.0, 0.0, 0.0)  # on the curve by definition
    failed = own["failed"] + own["unanswered"]
    note = _failure(task, label, failed) if failed else task.inactive_reason(label) or ""
    if not failed and setup.held_equal == "recall" and rows["recall"]["value"] == 0:
        note, gain = "names no object that is there", (None, None, None)
    if failed:
        gain, difference = (None, None, None), None
    return Row(
        setup=key,
        method=label,
        name=name,
        paper=None if kind is None else kind.paper,
        site="" if kind is None else str(kind.site),
        summary="the model as it is" if kind is None else str(kind.summary),
        note=note[:500],
        value=own["value"],
        low=own["low"],
        high=own["high"],
        difference=difference,
        gain=gain[0],
        gain_low=gain[1],
        gain_high=gain[2],
        on_curve=None if failed else own["on_curve"],
        metrics={metric: row["value"] for metric, row in rows.items()},
        tokens=own["tokens"],
        acted=None if own["fired"] is None else own["fired"] / n,
        changed=None if own["changed"] is None else own["changed"] / n,
        cost=None if cost is None else cost.answer if (own["tokens"] or 0) > 2 else cost.prefill,
        keeping_bias=own["keeping_bias"],
        submitted_by=submitted_by,
    )


def _failure(task: TaskResults, label: str, failed: int) -> str:
    """How many answers failed, and the first error."""
    errors = [record.error for record in task.records(label) if record is not None and record.error]
    return f"{failed} of {len(task.items)} answers failed" + (f": {errors[0]}" if errors else "")


def _add_controls(task: TaskResults, row: Row, setup: Setup, matched: Sequence[dict[str, Any]]) -> Row:
    """A row with its method's gain over its controls; or with what a control was matched with."""
    for facts in matched:
        if facts["label"] == row.method:
            goal, reached, n = (facts["changed"][name] for name in ("goal", "reached", "items"))
            text = f"as strong as {facts['controls']}: changes {reached} and {goal} of {n} calibration answers"
            return row.model_copy(update={"note": "; ".join(filter(None, (text, row.note)))[:500]})
    sign = -1.0 if setup.better == "lower" else 1.0
    found = []
    for facts in matched:
        if facts["controls"] != row.method or row.gain is None or task.count_unanswered(facts["label"]):
            continue
        beyond = task.beyond(row.method, facts["label"], setup.metric)
        if beyond is not None and math.isfinite(beyond.value):
            ends = sorted(sign * end for end in (beyond.low, beyond.high))
            low, high = ends if beyond.trusted else (None, None)
            found.append(Beyond(control=facts["label"], value=sign * beyond.value, low=low, high=high))
    return row.model_copy(update={"beyond": found})


def _orient(row: dict[str, Any], sign: float) -> tuple[float | None, float | None, float | None]:
    """(value, low, high) of the difference at equal, such that more is better."""
    value, low, high = (row[name] for name in ("at_equal", "at_equal_low", "at_equal_high"))
    if value is None or low is None or high is None:
        return value if value is None else sign * value + 0.0, None, None
    ends = sorted((sign * low + 0.0, sign * high + 0.0))  # + 0.0 turns -0.0 into 0.0
    return sign * value + 0.0, ends[0], ends[1]


def _interval(row: Row) -> tuple[float, float] | None:
    return None if row.gain_low is None or row.gain_high is None else (row.gain_low, row.gain_high)


def _beats(a: Row, b: Row) -> bool:
    one, other = _interval(a), _interval(b)
    return one is not None and other is not None and one[0] > other[1] + ROUNDING


def interval_text(value: float, low: float | None, high: float | None) -> str:
    """`+4.7 [2.9, 6.4]`, or `+4.7` without an interval."""
    return f"{value:+.1f}" + ("" if low is None else f" [{low:.1f}, {high:.1f}]")
