"""The example packages, built as wheels and installed into a folder of their own, as a user's would be."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from airvlm.methods import METHODS
from airvlm.models.families import FAMILIES
from airvlm.tasks import TASKS

EXAMPLES = Path(__file__).parents[2] / "examples"
REGISTRIES = (METHODS, TASKS, FAMILIES)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every package of examples/ installed."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    for project in sorted(EXAMPLES.glob("*/pyproject.toml")):
        list(WheelBuilder(str(project.parent)).build(directory=str(wheels), versions=["standard"]))
    built = [str(wheel) for wheel in wheels.glob("*.whl")]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--target", str(site), *built], check=True)
    return site


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same folder, importable during a test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(site))
    for registry in REGISTRIES:
        registry.refresh()
    yield site
    monkeypatch.undo()
    for name in set(sys.modules) - before:
        if name.startswith("airvlm_"):
            del sys.modules[name]
    for registry in REGISTRIES:
        registry.refresh()
