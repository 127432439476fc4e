"""`pytest --fast` leaves out tests that are marked slow, and only `pytest --all` runs those that are marked exhaustive.

Exhaustive tests repeat on every family what is tested on one of each kind. Mark a test slow that needs half a second
or more on a quiet machine, or whose parameters need ten together. `make test` prints the slowest (`--durations`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out tests that are marked slow")
    parser.addoption("--all", action="store_true", help="also run tests that are marked exhaustive")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = ["slow"] * config.getoption("--fast") + ["exhaustive"] * (not config.getoption("--all"))
    chosen = [item for item in items if any(item.get_closest_marker(name) for name in left_out)]
    config.hook.pytest_deselected(items=chosen)
    gone = set(chosen)
    items[:] = [item for item in items if item not in gone]


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Stores wait for the disk after every batch, which takes longer than the rest of many tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
