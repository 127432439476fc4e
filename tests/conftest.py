"""`pytest --fast`: leave out the tests that are marked slow, and those that were measured to be."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only tests that need less than half a second")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--fast"):
        return
    measured = set((ROOT / "tests" / "slow.txt").read_text().splitlines())
    slow = [item for item in items if _name(item) in measured or item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in set(slow)]


def _name(item: pytest.Item) -> str:
    function = item.name.split("[")[0]
    return f"{item.path.relative_to(ROOT).as_posix()}::{function}"
