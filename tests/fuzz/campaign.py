"""Runs spoilt files through the command line in this process, and says what is wrong with how it took them."""

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

__all__ = ["Case", "cases", "run"]

SEEDS = 12  # how often a mutation that draws is tried at most, over all kinds


@dataclass(frozen=True)
class Case:
    """One spoilt file."""

    kind: Kind
    file: str
    mutation: str
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.kind.name} {self.file} {self.mutation} #{self.seed}"


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def cases(seed: int = 0) -> Iterator[Case]:
    """Every mutation of every file of every kind, once."""
    for kind in KINDS:
        for file in kind.files:
            for mutation in MUTATIONS:
                yield Case(kind, file, mutation, seed)


def spoil(case: Case, folder: Path) -> bool:
    """Write the kind's files and spoil one; False where the mutation does not apply."""
    case.kind.make(folder)
    path = folder / case.file
    content = path.read_bytes()
    spoilt = MUTATIONS[case.mutation](content, random.Random(f"{case.seed} {case.kind.name} {case.mutation}"))
    if spoilt is None:
        return False
    path.write_bytes(spoilt)
    return True


def call(arguments: list[str]) -> Outcome:
    """One command line; what goes wrong in it is raised."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, task in OWN_TASKS.items():
            patch.setitem(TASKS, name, task)
        code = cli.run(arguments)
    return Outcome(code, out.getvalue(), err.getvalue())


def run(case: Case) -> str | None:
    """What is wrong with how a case ended, in one line; None where all is well."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    try:
        if not spoil(case, folder):
            return None
        before = sys.getrecursionlimit()
        try:
            outcome = call(case.kind.command(folder))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return f"{case}: {type(error).__name__}: {str(error)[:200]}"
        finally:
            sys.setrecursionlimit(before)
        return _judged(case, outcome)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judged(case: Case, outcome: Outcome) -> str | None:
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
    if (outcome.code == 3) == report["complete"] or (report["complete"] and (counts["missing"] or report["missing"])):
        return f"{case}: code {outcome.code} with {counts['missing']} missing"
    if counts["duplicate"] or counts["unknown"]:
        return f"{case}: duplicate or unknown answers were accepted: {counts}"
    if not report["n"]:
        return f"{case}: a score of nothing: {counts}"
    if outcome.code == 3 and not lines:
        return f"{case}: code 3 without a word"
    return None
