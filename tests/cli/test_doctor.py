"""`airvlm doctor`: it knows every extra, and says how to get what is missing."""

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from airvlm import cli
from airvlm.cli import doctor

ROOT = Path(__file__).parents[2]
FOR_DEVELOPERS = {"dev", "docs"}
IMPORTED_AS = {"scikit-image": "skimage"}


def test_every_extra_is_a_door_that_needs_what_the_extra_brings() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    doors = {door.name: set(door.modules) for door in doctor.DOORS}
    for extra, requirements in project["optional-dependencies"].items():
        if extra in FOR_DEVELOPERS:
            continue
        if not requirements:  # an old name, whose packages belong to the core now
            continue
        names = {re.split(r"[\[<>=!~; ]", requirement)[0] for requirement in requirements} - {"airvlm"}
        assert doors[extra] == {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names}, extra


def test_the_core_is_what_the_package_depends_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[\[<>=!~; ]", requirement)[0] for requirement in project["dependencies"]]
    assert set(doctor.CORE) == set(names)


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = doctor.Door("magic", "flying", ("json", "no_such_module"), "pip install 'airvlm[magic]'")
    monkeypatch.setattr(doctor, "DOORS", (closed,))
    assert cli.run(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "no_such_module is not installed: pip install 'airvlm[magic]'" in printed
    assert f"torch           {metadata.version('torch')}" in printed


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--json"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert {"installed", "here", "doors"} == set(json.loads(printed))
