"""`airvlm data`, and an evaluation that fetches its data by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airvlm.cli import run
from tests.data_sets import sources
from tests.data_sets.conftest import server  # noqa: F401  # a fixture
from tests.data_sets.server import DataServer
from tests.golden import DATA


@pytest.fixture
def pope(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> DataServer:  # noqa: F811  # the fixture above
    sources.add_pope(server, monkeypatch)
    return server


def test_list_tells_size_license_and_source(pope: DataServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["task", "here", "download", "license", "from"]
    row = next(line for line in lines if line.startswith("repope"))
    assert "85 MB" in row and "not stated" in row and "github.com/YanNeu/RePOPE" in row
    assert run(["data", "list", "pope", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["data"]
    assert [fact["task"] for fact in facts] == ["pope"] and facts[0]["complete"] is False
    assert not pope.requests


def test_get_where_and_verify(pope: DataServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "airvlm/data/pope"
    assert run(["data", "where", "pope"]) == 1
    output = capsys.readouterr()
    assert output.out.strip() == str(folder) and "airvlm data get pope" in output.err
    assert run(["data", "get", "pope"]) == 0
    output = capsys.readouterr()
    assert output.out.split() == ["pope", str(folder)] and "license" in output.err
    assert run(["data", "where", "pope"]) == 0
    assert run(["data", "verify", "pope"]) == 0
    assert "6 files are intact" in capsys.readouterr().out
    (folder / "coco_pope_random.json").write_text("x")
    assert run(["data", "verify", "pope"]) == 1
    assert "coco_pope_random.json is damaged" in capsys.readouterr().out
    assert run(["data", "verify", "pope", "--repair"]) == 0
    assert run(["data", "verify", "pope", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["verified"]["pope"]["intact"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["get"], "needs a task"),
        (["get", "pop"], "pope"),
        (["get", "tiny-chair"], "has no data to fetch"),
        (["fetch", "pope"], "fetch"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["data", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.slow
def test_evaluate_fetches_what_it_needs(pope: DataServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evaluate", "pope", "--model", "tiny", "--method", "vanilla", "--limit", "2", "--no-curve", "--json"]
    code = run([*command, "--output", str(tmp_path / "run"), "--workers", "1"])
    output = capsys.readouterr()
    assert code in (0, 1), output.err  # 1: the emoji model may answer neither yes nor no
    assert "fetching about 85 MB" in output.err
    figures = json.loads(output.out.splitlines()[-1])["pope"]["vanilla"]
    assert "yes_ratio" in json.dumps(figures)
    assert pope.count("val2014") == 3


def test_a_host_that_is_away_ends_the_command_in_one_line(
    server: DataServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["data", "get", "dash-b"]) == 2
    error = capsys.readouterr().err.splitlines()
    assert "YanNeu/DASH-B is not there" in error[-1]


def test_a_missing_tagger_stops_the_evaluation_before_anything_is_fetched(
    server: DataServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("airvlm.tasks.words.tagger._load", lambda: "NLTK is not installed. Run: the command")
    sources.add_amber(server, monkeypatch)
    assert run(["evaluate", "amber", "--model", "tiny"]) == 2
    error = capsys.readouterr().err
    assert "Run: the command" in error and "--approximate" in error and error.count("\n") == 1
    assert run(["evaluate", "detailcaps", "--model", "tiny"]) == 2
    assert "pip install capture_metric" in capsys.readouterr().err
    assert not server.requests


@pytest.mark.slow
def test_an_approximate_evaluation_says_so_in_every_output(
    server: DataServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sources.add_amber(server, monkeypatch)
    command = ["evaluate", "amber", "--approximate", "--model", "tiny", "--method", "vanilla", "--no-curve"]
    command += ["--max-new-tokens", "4", "--workers", "1", "--output", str(tmp_path / "run")]
    for more in ([], ["--markdown"], ["--json"]):
        run([*command, *more])
        assert "amber, approximate" in capsys.readouterr().out
    run(["report", str(tmp_path / "run"), "--output", str(tmp_path / "page")])
    assert "amber, approximate" in capsys.readouterr().out + "".join(
        path.read_text() for path in (tmp_path / "page").rglob("*") if path.suffix in (".html", ".md", ".csv", ".tex")
    )


def test_score_goes_on_with_rules_if_told_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("airvlm.tasks.words.tagger._load", lambda: "NLTK is not installed. Run: the command")
    command = ["score", "amber", str(DATA / "amber/generative.json"), "--truth", str(DATA / "amber/data")]
    assert run(command) == 2
    assert "Run: the command" in capsys.readouterr().err
    assert run([*command, "--approximate"]) == 0
    output = capsys.readouterr().out
    assert "variant=approximate" in output and "note: approximate" in output
    assert run([*command, "--approximate", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["settings"]["tagger"] == "rules (approximate)" and content["notes"][0].startswith("approximate")
    assert run(["score", "pope", str(DATA / "pope/answers.jsonl"), "--approximate"]) == 2
    assert "leave it out" in capsys.readouterr().err
