"""`airvlm serve`: what it refuses, and how it starts each engine."""

import json
from typing import Any

import pytest

from airvlm.cli import serve
from airvlm.methods import CropBlend
from tests.cli.conftest import Run


def test_an_address_for_other_machines_needs_a_key(run: Run) -> None:
    pytest.importorskip("fastapi")
    done = run("serve", "--host", "0.0.0.0")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "add --api-key" in done.err


def test_a_missing_package_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    for line, said in (([], "airvlm[serve]"), (["--page"], "airvlm[web]"), (["--engine", "vllm"], "pip install vllm")):
        done = run("serve", *line)
        assert done.code == 2
        assert said in done.err


def test_the_server_runs_the_model_under_the_method(run: Run, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    served: list[Any] = []
    monkeypatch.setattr("airvlm.serve.run.run_server", lambda app, **options: served.append(options))
    made: list[Any] = []
    monkeypatch.setattr("airvlm.serve.app.make_app", lambda vlm, **options: made.append(options))
    line = ["serve", "-m", model, "--set", "weight=0.2", "--port", "0", "--max-images", "3", "--allow-host", "box"]
    assert run(*line).code == 0
    assert made[0]["method"] == CropBlend(weight=0.2)
    assert made[0]["allow_hosts"] == ("box",)
    assert made[0]["limits"].images == 3
    assert (served[0]["host"], served[0]["port"]) == ("127.0.0.1", 0)


def test_options_after_two_dashes_go_to_vllm(run: Run, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: True)
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _, arguments: started.append(arguments) or pytest.skip("started"))
    with pytest.raises(pytest.skip.Exception):
        run(
            "serve",
            "--engine",
            "vllm",
            "-m",
            model,
            "--port",
            "9",
            "--",
            "--max-model-len",
            "64",
            "--hf-overrides",
            '{"a": 1}',
        )
    (line,) = started
    assert line[line.index("--max-model-len") + 1] == "64"
    assert line[line.index("--port") + 1] == "9"
    assert json.loads(line[line.index("--hf-overrides") + 1])["a"] == 1
    assert line.count("--hf-overrides") == 1
