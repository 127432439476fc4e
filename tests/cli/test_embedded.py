"""The commands about the embedded model and its world, on a stand-in for the model: none of its figures matter."""

import json
from pathlib import Path
from typing import Any

import pytest

from airvlm import cli, photo, tiny
from tests.checkpoints import save_llava


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_llava(tmp_path_factory.mktemp("embedded"))
    (folder / "card.json").write_text(json.dumps({"training": {"minutes": 3}, "scores": {"CHAIR_S": 20.0}}))
    return folder


@pytest.fixture(autouse=True)
def embedded(monkeypatch: pytest.MonkeyPatch, stand_in: Path) -> None:
    for module in (tiny, photo):
        monkeypatch.setattr(module, "model_path", lambda: stand_in)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.run(arguments)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_about_tells_size_training_scores_and_limits_of_both_models(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "about", "--json")
    facts: dict[str, Any] = json.loads(out)
    assert code == 0
    assert list(facts) == ["photo", "tiny"]
    for own in facts.values():
        assert own["architecture"]["decoder layers"] == 4
        assert own["scores"] == {"CHAIR_S": 20.0}
        assert own["limits"]
    code, out, _ = run(capsys, "about", "tiny")
    assert "CHAIR_S" in out
    assert "photo" not in out.splitlines()


def test_tiny_is_an_old_name_of_about(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "tiny", "--json")
    assert code == 0
    assert "tiny" in json.loads(out)
    assert "now called airvlm about" in err


def test_about_a_model_that_is_not_embedded_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "about", "large")
    assert (code, out) == (2, "")
    assert "photo and tiny" in err


def test_a_missing_embedded_model_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tiny, "model_path", lambda: tmp_path)
    code, out, err = run(capsys, "about", "tiny")
    assert (code, out) == (2, "")
    assert "not in this installation" in err


def test_the_same_seed_draws_the_same_scene(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drawn = []
    for name in ("a.png", "b.png"):
        code, out, _ = run(capsys, "scene", "--seed", "5", "--context", "farm", "-o", str(tmp_path / name), "--json")
        assert code == 0
        truth = json.loads(out)
        drawn.append((truth["objects"], (tmp_path / name).read_bytes()))
    assert drawn[0] == drawn[1]
    assert truth["context"] == "farm"
