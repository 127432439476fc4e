"""`airvlm demo` on a stand-in for both models: its words do not matter, only that they are shown as they are."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from airvlm import photo, tiny
from airvlm.cli import demo
from tests.cli.conftest import Run

OPTIONS = ["--scene", "3", "--set", "num_crops=3"]
LABEL = "crop-blend:num_crops=3"


@pytest.fixture(autouse=True)
def embedded(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    for module in (tiny, photo):
        monkeypatch.setattr(module, "model_path", lambda: Path(model))


@pytest.fixture
def no_photographs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PHOTOGRAPHS", {})


@pytest.mark.usefixtures("no_photographs")
def test_the_scene_is_judged_by_its_truth(run: Run) -> None:
    told = run("demo", "--json", *OPTIONS).json
    truth = list(tiny.scenes("test")[3].names)
    assert [result["truth"] for result in told["results"]] == [truth]
    assert list(told["results"][0]["answers"]) == ["vanilla", LABEL]
    for answer in told["results"][0]["answers"].values():
        assert set(answer["missed"]) <= set(truth)
        assert not set(answer["wrong"]) & set(truth)


@pytest.mark.usefixtures("no_photographs")
def test_no_file_is_written_unless_asked_for(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("demo", *OPTIONS)
    assert done.code == 0
    assert not list(tmp_path.iterdir())
    told = run("demo", "--json", "-o", "drawings", *OPTIONS).json
    with Image.open(told["results"][0]["drawing"]) as drawing:
        assert drawing.width > 600


def test_the_user_s_photographs_are_described_and_not_judged(run: Run, tmp_path: Path) -> None:
    own = [str(tmp_path / f"{number}.jpg") for number in range(2)]
    for path in own:
        Image.effect_noise((320, 200), 60).convert("RGB").save(path)
    _, *results = run("demo", "--json", "--image", own[0], "--image", own[1], *OPTIONS).json["results"]
    assert [result["image"] for result in results] == own
    for result in results:
        assert result["truth"] is None
        assert result["answers"][LABEL]["report"]["fired"]
        assert all("wrong" not in answer for answer in result["answers"].values())


def test_a_photograph_that_cannot_be_read_fails_before_a_model_is_loaded(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("airvlm.cli.common.load_model", lambda *_: pytest.fail("loaded"))
    done = run("demo", "--image", str(tmp_path / "none.jpg"))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


def test_free_photographs_come_with_their_credit_and_the_rate(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _, *results = run("demo", "--json", *OPTIONS).json["results"]
    assert [Path(result["image"]).name for result in results] == list(demo.PHOTOGRAPHS)
    assert all("public domain" in result["credit"] or "CC0" in result["credit"] for result in results)
    calls: list[Any] = []
    monkeypatch.setattr(demo, "_print_note", calls.append)
    assert run("demo").code == 0
    assert calls == [demo.RATES["tiny"], demo.RATES["photo"], demo.LARGER]


def test_another_model_describes_the_photographs_without_the_rate_of_photo(
    run: Run, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(demo, "_print_note", calls.append)
    assert run("demo", "--model", model).code == 0
    assert calls == [demo.RATES["tiny"], "", ""]


def test_the_rate_is_told_for_the_measured_method_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(demo, "_print_note", calls.append)
    run("demo", *OPTIONS)
    assert not [text for text in calls if "Of 1," in text]
