"""A server for the tests of data sets, and a machine that knows no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airvlm.data import download
from tests.data_sets.server import DataServer


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataServer]:
    """A server in place of the hub and of every other host; caches are empty, and nothing waits."""
    monkeypatch.setenv("AIRVLM_CACHE", str(tmp_path / "airvlm"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download, "PAUSE", 0.0)
    with DataServer() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("AIRVLM_DATA_MIRROR", f"{running.url}/mirror")
        yield running
