"""`airvlm info`: what is installed, which models, methods and tasks there are, and how a model sees an image."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from airvlm import VLM, photo, tiny
from airvlm.cli import info, method_table
from airvlm.methods import METHODS
from airvlm.models.families import FAMILIES
from airvlm.testing import small_models
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
FOR_DEVELOPERS = {"dev", "docs", "test"}


def requirements(lines: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", line)[0] for line in lines} - {"airvlm"}


# -- methods


def test_the_table_of_methods_equals_the_classes() -> None:
    assert method_table.read_table() == method_table.build_table(), "run: python -m airvlm.cli.method_table"
    assert list(method_table.read_table()) == [name for name in METHODS.own if name in method_table.read_table()]


def test_methods_are_listed_in_one_line_each_by_where_they_act(run: Run) -> None:
    lines = run("info", "methods").out.splitlines()
    for name, facts in method_table.read_table().items():
        summary = facts["summary"].removeprefix("control: ")
        found = [line for line in lines if re.match(rf"  {name}\s+{re.escape(summary)}$", line)]
        assert len(found) == 1, name
        heading = next(line for line in reversed(lines[: lines.index(found[0])]) if not line.startswith(" "))
        assert heading == ("Controls" if facts["site"] == "control" else f"Changes {facts['site']}")


@pytest.mark.parametrize("line", [("methods", "crop-blend"), ("crop-blend",)])
def test_a_method_is_shown_with_every_option(run: Run, line: tuple[str, ...]) -> None:
    printed = run("info", *line).out
    facts = method_table.read_table()["crop-blend"]
    assert "none: a method of this package" in printed
    for option in facts["options"]:
        assert option["help"]
        assert re.search(rf"{option['name']}={option['default']}\s+{re.escape(option['help'])}", printed)
        assert f"({option['values']})" in printed or not option["values"]
    for fact in ("cost", "decoding", "engines"):
        assert facts[fact] in printed


def test_a_method_of_somebody_s_module_is_shown(run: Run) -> None:
    told = run("info", "methods", "airvlm.methods.vaf:VAF", "--json").json
    built_in = method_table.read_table()["vaf"]
    assert {name: told[name] for name in built_in} == built_in


def test_methods_and_models_make_markdown_tables(run: Run) -> None:
    for topic, rows in (("methods", method_table.read_table()), ("models", FAMILIES.own)):
        lines = run("info", topic, "--markdown").out.splitlines()
        assert len(lines) == 2 + len(rows)
        assert {line.count("|") for line in lines} == {lines[0].count("|")}


# -- models


def test_every_family_is_listed_with_its_checkpoint_in_full(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    words = run("info", "models").out.split()
    for family in FAMILIES.values():
        assert {family.model_type, family.checkpoint} <= set(words)
    rows = run("info", "models", "--json").json["families"]
    assert [row["model_type"] for row in rows] == list(FAMILIES)


@pytest.mark.parametrize("name", ["llava", "llava-hf/llava-1.5-7b-hf"])
def test_one_family_is_found_by_type_or_checkpoint(run: Run, name: str) -> None:
    assert run("info", "models", name, "--json").json["title"] == "LLaVA 1.5"


def test_the_model_with_fetched_parts_is_listed_and_shown(run: Run) -> None:
    assert "from the hub" in next(line for line in run("info", "models").out.splitlines() if "smol  " in line)
    assert run("info", "smol").out == run("info", "models", "smol").out
    assert "timm/vit_base_patch16_clip_224.openai" in run("info", "smol", "--json").json["parts"]


@pytest.mark.parametrize("name", ["photo", "tiny"])
def test_an_embedded_model_tells_size_training_scores_and_limits(run: Run, name: str) -> None:
    told = run("info", "models", name, "--json").json
    assert told["architecture"]["visual tokens"] == 64
    assert told["scores"]["CHAIR_S"] > 0
    assert told["limits"]
    assert run("info", name).out == run("info", "models", name).out


def test_a_missing_embedded_model_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in (tiny, photo):
        monkeypatch.setattr(module, "model_path", lambda: tmp_path)
    done = run("info", "models", "tiny")
    assert (done.code, done.out) == (2, "")
    assert "not in this installation" in done.err
    assert run("info").code == 0


# -- overview, tasks, installation


def test_the_overview_has_version_models_and_what_is_installed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    here, absent = info.Extra("here", "running", ("json",)), info.Extra("magic", "flying", ("no_such_module",))
    monkeypatch.setattr(info, "EXTRAS", (here, absent))
    told = run("info", "--json").json
    assert (told["installed"], told["not_installed"]) == (["here"], ["magic"])
    assert list(told["models"]) == ["photo", "tiny"]
    printed = run("info").out
    assert printed.startswith(f"airvlm {told['version']}, Python")
    assert "CHAIR_S 56.8" in printed


def test_tasks_are_listed(run: Run) -> None:
    told = run("info", "tasks", "--json").json["tasks"]
    assert {"chair", "tiny-pope"} <= set(told)
    assert all(task["summary"] for task in told.values())
    assert list(run("info", "tasks", "chair", "--json").json["tasks"]) == ["chair"]


def test_extras_are_those_of_the_package_with_their_modules() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {extra.name: set(extra.modules) for extra in info.EXTRAS}
    for name, lines in project["optional-dependencies"].items():
        if name not in FOR_DEVELOPERS and requirements(lines):
            assert extras[name] == {n.replace("-", "_") for n in requirements(lines)}, name
    assert set(info.CORE) == requirements(project["dependencies"])


def test_the_installation_names_what_is_missing_and_how_to_install_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(info, "EXTRAS", (info.Extra("magic", "flying", ("json", "no_such_module")),))
    printed = run("info", "installation").out
    assert re.search(r"magic\s+not installed\s+flying", printed)
    assert re.search(r"magic\s+pip install 'airvlm\[magic\]'", printed)
    told = run("info", "installation", "--json").json
    assert told["versions"]["torch"] != "missing"
    assert told["extras"][0]["missing"] == ["no_such_module"]


def test_torch_is_asked_for_devices_where_there_is_a_driver(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"NVIDIA {i}")
    monkeypatch.setattr(info, "DRIVERS", ("/no/such/driver",))
    assert run("info", "installation", "--json").json["devices"].startswith("cpu (")
    monkeypatch.setattr(info, "DRIVERS", ("/no/such/driver", "/"))
    assert run("info", "installation", "--json").json["devices"].startswith("NVIDIA 0, NVIDIA 1, ")


# -- images


def test_an_image_is_told_with_its_tokens(run: Run, model: str, image: str) -> None:
    told = run("info", image, "-m", model, "--json").json
    assert told["image (pixels)"] == "96 x 80"
    assert told["visual tokens"] > 0
    assert "visual tokens" in run("info", image, "-m", model).out


@pytest.mark.parametrize("family", small_models.list_families())
def test_the_tokens_are_those_that_the_encoder_gives(family: str) -> None:
    model, processor = small_models.build(family)
    vlm = VLM(model, processor, name=family)
    picture = small_models.sample_image(1, (96, 80))
    facts = info.image_facts(vlm, picture)
    row = vlm.builder.read(picture, "what ?")
    ids = vlm.builder.build([row], pixels=True)["input_ids"][0].tolist()
    assert facts["visual tokens"] == ids.count(vlm.parts.image_token_id) > 0
    assert re.match(r"\d+ x \d+", facts["resized to (pixels)"]), facts
    assert facts["views"] >= 1
    assert json.dumps(facts)
