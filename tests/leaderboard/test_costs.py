"""Costs of a leaderboard's methods: every image new, all methods in one run, kept in the folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from airvlm import VLM
from airvlm.evaluation.plan import TaskSpec
from airvlm.leaderboard import costs
from airvlm.leaderboard.costs import Cost, measure_costs
from airvlm.methods import get_method

SPECS = [TaskSpec.of("tiny-chair", limit=2)]


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


@pytest.fixture
def asked(vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """(method's name, the images of a batch), of every batch that is answered."""
    seen: list[Any] = []
    batch = vlm.batch

    def watch(requests: Any, *, method: Any, **options: Any) -> Any:
        seen.append((None if method is None else method.name, [image.tobytes() for image, _ in requests]))
        return batch(requests, method=method, **options)

    monkeypatch.setattr(vlm, "batch", watch)
    monkeypatch.setattr(costs, "TOKENS", 2)
    monkeypatch.setattr(costs, "ROUNDS", 1)
    return seen


def test_every_answer_that_is_timed_is_about_a_new_image(vlm: VLM, asked: list[Any], tmp_path: Path) -> None:
    measure_costs(vlm, {"vcd": get_method("vcd")}, SPECS, tmp_path)
    assert {name for name, _ in asked} == {None, "vcd"}
    images = [image for _, batch in asked for image in batch]
    assert len(images) == len(set(images)) == 4 * len(asked)


def test_costs_are_kept_until_a_method_or_the_model_is_another(vlm: VLM, asked: list[Any], tmp_path: Path) -> None:
    methods = {"vcd": get_method("vcd")}
    found = measure_costs(vlm, methods, SPECS, tmp_path)
    assert found["vcd"].prefill > 0 and found["vcd"].answer > 0
    first = len(asked)
    assert measure_costs(vlm, methods, SPECS, tmp_path) == found
    assert len(asked) == first
    more = measure_costs(vlm, methods | {"memvr": get_method("memvr")}, SPECS, tmp_path)  # beside vanilla again
    assert set(more) == {"vcd", "memvr"} and {name for name, _ in asked[first:]} == {None, "memvr"}
    assert more["vcd"] == found["vcd"] and measure_costs(vlm, methods, SPECS, tmp_path) == found
    second = len(asked)
    assert set(measure_costs(vlm, {"damo": get_method("damo")}, SPECS, tmp_path)) == {"damo"}  # nothing was held of it
    assert len(asked) > second
    second = len(asked)
    content = json.loads((tmp_path / costs.FILE).read_text())
    (tmp_path / costs.FILE).write_text(json.dumps(content | {"fingerprint": "another"}))
    measure_costs(vlm, methods, SPECS, tmp_path)
    assert len(asked) > second


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"fingerprint": 1, "costs": 3}'])
def test_a_damaged_file_is_measured_again(vlm: VLM, asked: list[Any], tmp_path: Path, content: str) -> None:
    (tmp_path / costs.FILE).write_text(content.replace("1", json.dumps(vlm.fingerprint)))
    assert isinstance(measure_costs(vlm, {"vcd": get_method("vcd")}, SPECS, tmp_path)["vcd"], Cost)
    assert asked


def test_a_method_that_fails_on_this_model_has_no_cost(vlm: VLM, asked: list[Any], tmp_path: Path) -> None:
    methods = {"vcd": get_method("vcd"), "nullu": get_method("nullu")}  # without its artifact
    assert set(measure_costs(vlm, methods, SPECS, tmp_path)) == {"vcd"}
    timed = len(asked)
    assert set(measure_costs(vlm, methods, SPECS, tmp_path)) == {"vcd"} and len(asked) == timed
