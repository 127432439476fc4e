"""`airvlm calibrate METHOD --data` and `airvlm bake`: files that the library reads, and refusals in one line."""

import json
import shutil
from pathlib import Path

import pytest

from airvlm import VLM, Nullu
from airvlm.cli import run
from airvlm.methods.artifacts import Artifact
from airvlm.tiny import scenes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images")
    for scene in scenes("test")[:3]:
        shutil.copy(scene.path, path)
    return path


def test_an_artifact_is_made_and_baked_into_a_checkpoint(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nullu.safetensors"
    command = ["calibrate", "nullu", "--data", str(folder), "--pairs", "image", "--model", "tiny", "--json"]
    assert run([*command, "--output", str(file)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["file"] == str(file) and (told["pairs"], told["pairs_kind"]) == (3, "image")
    assert Artifact.load(file).info.method == "nullu"
    assert run(["bake", str(tmp_path / "baked"), "--method", f"nullu:artifact={file},rank=2", "--model", "tiny"]) == 0
    image = scenes("test")[5].path
    hooks = VLM.load("tiny").describe(image, method=Nullu(artifact=str(file), rank=2)).text
    assert VLM.load(tmp_path / "baked").describe(image).text == hooks


def test_text_pairs_of_ones_own(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"image": str(path), "truthful": "There is a cup.", "hallucinated": "There is a dog."}
        for path in sorted(folder.iterdir())
    ]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("\n".join(map(json.dumps, lines)))
    file = tmp_path / "vti.safetensors"
    assert run(["calibrate", "vti", "--data", str(pairs), "--model", "tiny", "--output", str(file)]) == 0
    assert Artifact.load(file).info.pairs_kind == "texts"
    pairs.write_text('{"image": "a.png"}')
    assert run(["calibrate", "vti", "--data", str(pairs), "--model", "tiny"]) == 2
    assert "line 1: expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["calibrate", "vcd", "--data", "."], "vcd needs no artifact"),
        (["calibrate", "nullu"], "add --data FOLDER"),
        (["calibrate", "nullu", "vti", "--data", "."], "one method that needs an artifact"),
        (["calibrate", "nullu", "--data", "nowhere"], "not a folder with images"),
        (["bake", "nowhere", "--method", "vcd"], "not a change of weights"),
        (["bake", "nowhere", "--method", "vanilla"], "nothing to bake"),
        (["bake", ".", "--method", "nullu"], "is not empty"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) <= 2
