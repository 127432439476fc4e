"""`airvlm bench methods`: the table, its JSON, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from airvlm import cli
from airvlm.cli.bench import split
from tests.checkpoints import save_llava


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llava(tmp_path_factory.mktemp("llava"))


OPTIONS = [
    "--repeats",
    "2",
    "--tokens",
    "3",
    "--method",
    "vanilla",
    "--method",
    "air:num_crops=2",
    "--method",
    "vcd",
]


def test_it_prints_one_row_a_method(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bench", "methods", "--model", str(model), *OPTIONS]) == 0
    printed = capsys.readouterr().out
    for name in ("vanilla", "air:num_crops=2", "vcd", "2 of 2"):
        assert name in printed


def test_json_is_one_object_with_ratios_to_vanilla(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bench", "--json", "--model", str(model), *OPTIONS]) == 0
    printed = capsys.readouterr().out
    (result,) = json.loads(printed)["results"]
    assert printed.count("\n") == 1
    rows: dict[str, Any] = {row["method"]: row for row in result["methods"]}
    assert rows["vanilla"]["ratio"] == 1.0
    assert rows["vcd"]["ratio"] > 1 and rows["vcd"]["acted"] == 2
    assert set(rows["vanilla"]) >= {"seconds", "tokens_per_second", "peak_memory_bytes", "ratio_spread"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "engines"], "engines"),
        (["bench", "--methods", "vanilla,nothing"], "nothing"),
        (["bench", "--methods", ""], "empty"),
        (["bench", "--model", "/no/such/folder"], "no such"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1 and not printed.out


def test_methods_at_commas_still_work_and_are_deprecated(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["bench", "--json", "--model", str(model), "--repeats", "1", "--tokens", "2"]
    assert cli.run([*line, "--methods", "vanilla,air:num_crops=2,keep=1"]) == 0
    printed = capsys.readouterr()
    (result,) = json.loads(printed.out)["results"]
    assert [row["method"] for row in result["methods"]] == ["vanilla", "air:num_crops=2,keep=1"]
    assert "--methods is deprecated" in printed.err


def test_commas_inside_a_methods_fields_belong_to_it() -> None:
    text = "vanilla, air:keep=3,eps=0.1,air-paper:layers=(2,4),keep=1,vcd"
    assert split(text) == ["vanilla", "air:keep=3,eps=0.1", "air-paper:layers=(2,4),keep=1", "vcd"]
