"""What the commands share at the terminal: one-line errors, aligned columns, and JSON that can be piped.

Results go to standard output; progress, warnings and errors go to standard error.
"""

import json
import math
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console

__all__ = ["Failure", "emit", "err", "out", "print_columns", "warn"]

UNLIMITED = 10_000  # columns of a file or a pipe: nothing is wrapped there


class Failure(typer.TyperException):
    """Input that cannot be used: one line on standard error, exit code 2, no traceback."""

    exit_code = 2

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(" ".join(str(message).split()))
        self.exit_code = code


def out() -> Console:
    """The console for results. Created at each use, so that it follows a redirected standard output."""
    return Console(file=sys.stdout, highlight=False)


def err() -> Console:
    """The console for everything else."""
    return Console(file=sys.stderr, highlight=False)


def print_columns(rows: Sequence[Sequence[str]], *, indent: int = 0, right: Sequence[int] = ()) -> None:
    """Print rows of text in aligned columns; on a terminal the last column is wrapped.

    Args:
        rows: cells of plain text, as many in each row.
        indent: blanks before each row.
        right: numbers of the columns that are aligned at their right.
    """
    if not rows:
        return
    console = out()
    width = console.width if console.is_terminal else UNLIMITED
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    start = indent + sum(widths[:-1]) + 2 * (len(widths) - 1)
    lines = []
    for row in rows:
        cells = [cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        last = cells[-1] if len(widths) - 1 in right else row[-1]
        wrapped = textwrap.wrap(last, max(20, width - start), drop_whitespace=len(widths) - 1 not in right) or [""]
        lines.append((" " * indent + "  ".join([*cells[:-1], wrapped[0]])).rstrip())
        lines += [" " * start + more for more in wrapped[1:]]
    sys.stdout.write("\n".join(lines) + "\n")


def emit(value: dict[str, Any]) -> None:
    """Print the one JSON object of a command."""
    sys.stdout.write(json.dumps(_finite(value), ensure_ascii=False, default=str, allow_nan=False) + "\n")
    sys.stdout.flush()


def _finite(value: Any) -> Any:
    """The value with null in place of infinite numbers and NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def warn(message: Any) -> None:
    """Print one line on standard error."""
    sys.stderr.write(f"airvlm: {' '.join(str(message).split())}\n")
