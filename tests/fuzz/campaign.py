"""Runs `airvlm score` on damaged files in this process, and tells what is wrong with how it ended."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airvlm import cli
from airvlm.tasks import TASKS
from tests.fuzz.kinds import KINDS, OWN_TASKS, Kind
from tests.fuzz.mutations import MUTATIONS

__all__ = ["Case", "cases", "find_problem", "run_case", "run_command"]


@dataclass(frozen=True)
class Case:
    """One damaged file."""

    kind: Kind
    file: str
    mutation: str
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.kind.name} {self.file} {self.mutation} #{self.seed}"


@dataclass(frozen=True)
class Outcome:
    """How a command line ended, and what it printed."""

    code: int
    out: str
    err: str


def cases(seed: int = 0) -> Iterator[Case]:
    """Every mutation of every file of every kind, once."""
    for kind in KINDS:
        for file in kind.files:
            for mutation in MUTATIONS:
                yield Case(kind, file, mutation, seed)


def damage_file(case: Case, folder: Path) -> bool:
    """Write the kind's files and damage one; False if the mutation does not apply."""
    case.kind.make(folder)
    path = folder / case.file
    content = path.read_bytes()
    damaged = MUTATIONS[case.mutation](content, random.Random(f"{case.seed} {case.kind.name} {case.mutation}"))
    if damaged is None:
        return False
    path.write_bytes(damaged)
    return True


def run_command(arguments: list[str]) -> Outcome:
    """Run one command line; unexpected exceptions are raised."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, task in OWN_TASKS.items():
            patch.setitem(TASKS, name, task)
        code = cli.run(arguments)
    return Outcome(code, out.getvalue(), err.getvalue())


def run_case(case: Case) -> str | None:
    """What is wrong with how a case ended, in one line; None if nothing is."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    try:
        if not damage_file(case, folder):
            return None
        before = sys.getrecursionlimit()
        try:
            outcome = run_command(case.kind.command(folder))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return f"{case}: {type(error).__name__}: {str(error)[:200]}"
        finally:
            sys.setrecursionlimit(before)
        return find_problem(case, outcome)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_problem(case: Case, outcome: Outcome) -> str | None:
    """What is wrong with an outcome: a traceback, silence, or counts that do not add up."""
    lines = outcome.err.splitlines()
    if "Traceback" in outcome.err or outcome.code not in (0, 2, 3):
        return f"{case}: code {outcome.code}: {outcome.err[-300:]}"
    if outcome.code == 2:
        if outcome.out or not 1 <= len(lines) <= 2:
            return f"{case}: code 2 with {len(lines)} lines and {len(outcome.out)} characters of output"
        return None
    try:
        report = json.loads(outcome.out)
    except ValueError:
        return f"{case}: code {outcome.code} without a JSON object: {outcome.out[:80]!r}"
    counts = report["coverage"]
    if counts["matched"] + counts["missing"] != counts["expected"] or counts["matched"] > counts["expected"]:
        return f"{case}: counts that do not add up: {counts}"
    no_truth = "not scored: " in outcome.err  # there are no labels, or no judge's verdicts
    if report["complete"] and (counts["missing"] or report["missing"]):
        return f"{case}: complete, but {counts['missing']} are missing"
    if (outcome.code == 3) == (report["complete"] and not no_truth):
        return f"{case}: code {outcome.code} with {counts['missing']} missing"
    if counts["duplicate"] or counts["unknown"]:
        return f"{case}: duplicate or unknown answers were accepted: {counts}"
    if not report["n"]:
        return f"{case}: a score of nothing: {counts}"
    if outcome.code == 3 and not lines:
        return f"{case}: code 3 without a word"
    return None
