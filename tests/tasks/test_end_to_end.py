"""From the user's folder to the report: benchmarks in the evaluation, with a stand-in for a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from airvlm.evaluation.evaluate import evaluate
from airvlm.evaluation.results import Results
from airvlm.reporting.page import Report, report_html
from tests.fake_judge import FakeJudge


@dataclass
class FixedAnswer:
    text: str
    prompt: str = ""
    tokens: int = 1
    finished: bool = True
    seconds: float = 0.0
    report: None = None


class StandIn:
    """Answers everything with one text and finds first options most likely."""

    name, fingerprint = "stand-in", "0" * 16
    parts = SimpleNamespace(layers=range(2))

    def __init__(self, text: str) -> None:
        self.text = text

    def batch(self, requests: Sequence[tuple[Any, str]], **_: Any) -> Iterator[FixedAnswer]:
        return (FixedAnswer(self.text) for _ in requests)

    def likelihood(self, image: Any, question: str, options: Sequence[str], **_: Any) -> list[float]:
        return [-float(n) for n in range(len(options))]


def run_task(name: str, data: Path, text: str, variant: str | None = None) -> Results:
    out = data / "run"
    model = StandIn(text)
    evaluate(
        lambda device: model, name, [], out=out, data=data, variant=variant, curve=False, workers=1, progress=False
    )
    return Results.load(out)  # as `airvlm report` reads it: from the files alone


def test_vstar_by_likelihood(tmp_path: Path) -> None:
    for part in ("direct_attributes", "relative_position"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "a.json").write_text(json.dumps({"question": "?", "options": ["right", "wrong"]}))
        Image.new("RGB", (4, 4)).save(tmp_path / part / "a.jpg")
    run = run_task("vstar", tmp_path, "")
    assert run.tasks["vstar"].scores("vanilla").metrics["accuracy"] == 100.0
    assert run.problems() == []


def test_hallusionbench_graded_by_words(tmp_path: Path) -> None:
    keys = {"category": "VS", "subcategory": "chart", "set_id": "0", "figure_id": "0", "visual_input": "0"}
    records = [keys | {"question_id": q, "gt_answer": q, "question": "Is it?", "filename": None} for q in ("0", "1")]
    (tmp_path / "HallusionBench.json").write_text(json.dumps(records))
    run = run_task("hallusionbench", tmp_path, "Yes, it is.", variant="string")
    assert run.tasks["hallusionbench"].scores("vanilla").metrics["aAcc"] == 50.0


def test_mmhal_with_the_judge_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        {"image_id": str(i), "image_content": ["dog"], "question": f"q{i}?", "gt_answer": "A."} for i in range(8)
    ]
    (tmp_path / "images").mkdir()
    for i in range(8):
        Image.new("RGB", (4, 4), (i, 0, 0)).save(tmp_path / "images" / f"{i}.jpg")
    (tmp_path / "response_template.json").write_text(json.dumps(records))
    with FakeJudge(lambda prompt, n: "Rating: 2" if "q3" in prompt else "Rating: 4") as fake:
        monkeypatch.setenv("AIRVLM_JUDGE_URL", fake.url)
        monkeypatch.setenv("AIRVLM_JUDGE_MODEL", "fake-model")
        monkeypatch.setenv("AIRVLM_JUDGE_CACHE", str(tmp_path / "verdicts.jsonl"))
        run = run_task("mmhal", tmp_path, "A dog.")
        text = report_html(Report.of([run]))
        assert len(fake.requests) == 8, "verdicts are stored: scoring again asks nothing"
    assert run.tasks["mmhal"].scores("vanilla").metrics["rating"] == 3.75
    assert "fake-model" in text
    assert "3.8" in text
