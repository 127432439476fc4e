"""The evaluation's fakes at the command line: a model, tasks and methods that need no weights."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import airvlm.methods
import airvlm.tasks
from airvlm.cli import asking

# by this one name in every test of the process: workers unpickle them by it
_SPEC = importlib.util.spec_from_file_location("fakes", Path(__file__).parents[1] / "evaluation" / "fakes.py")
assert _SPEC is not None and _SPEC.loader is not None
if "fakes" not in sys.modules:
    sys.modules["fakes"] = importlib.util.module_from_spec(_SPEC)
    _SPEC.loader.exec_module(sys.modules["fakes"])
fakes: Any = sys.modules["fakes"]


@pytest.fixture
def fake_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands load a fake model, and know fake tasks and methods."""
    monkeypatch.setattr(airvlm.methods, "parse_method", fakes.parse_fake)
    for name, task in fakes.TASKS.items():
        monkeypatch.setitem(airvlm.tasks.TASKS, name, task)
    vlm = fakes.FakeVLM()
    vlm.parts = SimpleNamespace(layers=range(6))
    monkeypatch.setattr(asking, "load", lambda *_, **__: vlm)
