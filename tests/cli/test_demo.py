"""`airvlm demo` on a stand-in for both models: none of their words matter, only that they are told as they are."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from airvlm import cli, photo, tiny
from airvlm.cli import demo_photo
from tests.checkpoints import save_llava

FIELDS = ["--scene", "3", "--set", "num_crops=4", "--set", "num_prototypes=4"]


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llava(tmp_path_factory.mktemp("embedded"))


@pytest.fixture(autouse=True)
def embedded(monkeypatch: pytest.MonkeyPatch, stand_in: Path) -> None:
    for module in (tiny, photo):
        monkeypatch.setattr(module, "model_path", lambda: stand_in)


@pytest.fixture
def no_photograph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_photo, "find_spec", lambda name: None)


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A photograph of the user's, not square."""
    path = tmp_path / "own.jpg"
    Image.effect_noise((320, 200), 60).convert("RGB").save(path)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.run(arguments)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, "demo", "--json", *arguments, *FIELDS)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.usefixtures("no_photograph")
def test_the_scene_is_told_beside_its_truth_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "new" / "demo.png"
    shown = told(capsys, "-o", str(target))
    truth = list(tiny.scenes("test")[3].names)
    assert shown["truth"] == truth
    assert shown["photograph"] is None
    for answer in shown["answers"].values():
        assert set(answer["missed"]) <= set(truth)
        assert not set(answer["wrong"]) & set(truth)
    with Image.open(target) as drawing:
        assert drawing.width > 600


@pytest.mark.usefixtures("no_photograph")
def test_without_a_photograph_one_line_says_how_to_see_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, "demo", "-o", str(tmp_path / "demo.png"), *FIELDS)
    assert code == 0
    assert "it shows" in out
    assert out.splitlines()[-1] == demo_photo.HOW
    assert not (tmp_path / "demo-photo.png").exists()


def test_the_user_s_photograph_is_described_under_both_and_nothing_is_judged(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, own: str
) -> None:
    shown = told(capsys, "--image", own, "-o", str(tmp_path / "demo.png"))["photograph"]
    assert (shown["image"], shown["truth"]) == (own, None)
    assert list(shown["answers"]) == ["vanilla", "air"]
    assert shown["answers"]["air"]["report"]["fired"]
    assert all("wrong" not in answer for answer in shown["answers"].values())
    assert Path(shown["output"]) == tmp_path / "demo-photo.png"
    with Image.open(shown["output"]) as drawing:
        assert drawing.width > 600


def test_a_photograph_that_cannot_be_read_is_one_line_before_any_model_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("airvlm.cli.asking.load", lambda *_: pytest.fail("loaded"))
    code, out, err = run(capsys, "demo", "--image", str(tmp_path / "none.jpg"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "does not exist" in err


def test_the_free_photograph_is_told_with_its_credit_and_every_object_in_question_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("skimage")
    monkeypatch.setattr(demo_photo, "named", lambda text: ["cup", "dog"])
    shown = told(capsys, "-o", str(tmp_path / "demo.png"))["photograph"]
    assert shown["truth"] == ["cup", "spoon", "dining table"]
    assert "CC0" in shown["credit"]
    asked = ["a cup", "a spoon", "a dining table", "a dog"]
    assert list(shown["questions"]) == [f"Is there {one} in the image?" for one in asked]
    assert all(list(said) == ["vanilla", "air"] for said in shown["questions"].values())
    code, out, _ = run(capsys, "demo", "-o", str(tmp_path / "demo.png"), *FIELDS)
    assert code == 0
    assert "the photograph" in out
    assert "Is there a dog" in out


def test_the_free_photograph_is_the_one_that_was_looked_at() -> None:
    pytest.importorskip("skimage")
    found = demo_photo.find_photograph(None)
    assert found is not None
    assert found.image.size == (600, 400)
    assert "skimage" in found.source


def test_a_scene_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "demo", "--scene", "elsewhere")
    assert (code, out) == (2, "")
    assert "no such test scene" in err
