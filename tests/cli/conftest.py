"""What tests of the commands share: running a command line, a small model, and fakes for the evaluation."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import airvlm.methods.names
import airvlm.tasks
from airvlm import cli
from airvlm.cli import common
from airvlm.testing import small_models
from tests.checkpoints import save_llava

# by this one name in every test of the process: workers unpickle them by it
_SPEC = importlib.util.spec_from_file_location("fakes", Path(__file__).parents[1] / "evaluation" / "fakes.py")
assert _SPEC is not None and _SPEC.loader is not None
if "fakes" not in sys.modules:
    sys.modules["fakes"] = importlib.util.module_from_spec(_SPEC)
    _SPEC.loader.exec_module(sys.modules["fakes"])
fakes: Any = sys.modules["fakes"]


@dataclass(frozen=True)
class Outcome:
    """How a command line ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which is one JSON object and nothing else."""
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> Outcome:
        code = cli.run(arguments)
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a small random LLaVA."""
    return str(save_llava(tmp_path_factory.mktemp("llava")))


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("images") / "image.png"
    small_models.sample_image(1, (96, 80)).save(path)
    return str(path)


@pytest.fixture
def fake_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands load a fake model, and know fake tasks and methods."""
    monkeypatch.setattr(airvlm.methods.names, "parse_method", fakes.parse_fake)
    for name, task in fakes.TASKS.items():
        monkeypatch.setitem(airvlm.tasks.TASKS, name, task)
    vlm = fakes.FakeVLM()
    vlm.parts = SimpleNamespace(layers=range(6))
    monkeypatch.setattr(common, "load_model", lambda *_, **__: vlm)
