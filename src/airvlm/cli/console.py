"""What every sub-command shares at the terminal: failing in one line, and JSON that can be piped.

Results go to standard output; progress, warnings and errors go to standard error. Knows nothing of models.
"""

import json
import math
import sys
from typing import Any

import typer
from rich.console import Console

__all__ = ["Failure", "emit", "err", "out", "warn"]


class Failure(typer.TyperException):
    """Input that cannot be used: one clear line on standard error, exit code 2, no traceback."""

    exit_code = 2

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(" ".join(str(message).split()))
        self.exit_code = code


def out() -> Console:
    """The console for results. Made anew at each use, so that it follows a redirected standard output."""
    return Console(file=sys.stdout, highlight=False)


def err() -> Console:
    """The console for everything else."""
    return Console(file=sys.stderr, highlight=False)


def emit(value: dict[str, Any]) -> None:
    """The one JSON object of a command."""
    sys.stdout.write(json.dumps(_finite(value), ensure_ascii=False, default=str, allow_nan=False) + "\n")
    sys.stdout.flush()


def _finite(value: Any) -> Any:
    """The value with null for what JSON has no number for: infinite figures, and those that are none."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def warn(message: Any) -> None:
    """One line on standard error."""
    sys.stderr.write(f"airvlm: {' '.join(str(message).split())}\n")
