"""The fakes under the names by which the evaluation finds tasks and methods."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # workers of a cluster unpickle the fakes by their names
import fakes
from commands import Starter

import airvlm.methods.names
import airvlm.tasks


@pytest.fixture(scope="session")
def commands() -> Iterator[Starter]:
    """What starts command lines on the fakes, each in a process of its own."""
    with Starter() as starter:
        yield starter


@pytest.fixture(autouse=True, scope="module")
def fake_names():
    """Yields the real parser of methods, for tests that need it."""
    real = airvlm.methods.names.parse_method
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(airvlm.methods.names, "parse_method", fakes.parse_fake)
        for name, task in fakes.TASKS.items():
            patch.setitem(airvlm.tasks.TASKS, name, task)
        yield real
