"""What judged tasks share: the prompt, the settings, and items without a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from airvlm.tasks.base import Item, Metric, Ratio, Scores
from airvlm.tasks.judges.judge import JudgeQuestion, make_messages
from airvlm.tasks.judges.task import JudgedTask, score_unjudged
from tests.fake_judge import FakeJudge
from tests.tasks.conftest import judge_at

ITEMS = [Item("a", None, "1 + 1?", "2"), Item("b", None, "2 + 2?", "4"), Item("c", None, "3 + 3?", "6")]


@dataclass(frozen=True)
class Sums(JudgedTask):
    name: ClassVar[str] = "sums"
    judge_prompt: ClassVar[str] = "{question} {prediction} {unknown}"

    def make_question(self, item: Item, answer: str) -> JudgeQuestion[bool]:
        prompt = self.fill_prompt(question=item.question, prediction=answer)
        return JudgeQuestion(make_messages(prompt), {"right": True, "wrong": False}.get)

    def aggregate(self, items: Sequence[Item], verdicts: Sequence[Any], details: Sequence[Mapping[str, Any]]) -> Scores:
        def count(item: Item, right: bool) -> tuple[dict[str, float], dict[str, Any]]:
            return {"n": 1.0, "right": float(right)}, {}

        return Scores.of(items, verdicts, count, {"accuracy": Metric(Ratio("right", "n"))}, more_details=details)


def test_an_item_without_an_answer_or_a_readable_verdict_is_missing() -> None:
    with FakeJudge(lambda prompt, n: "right" if "2 {prediction}" in prompt else "hm") as fake:
        scores = Sums(judge=judge_at(fake)).score(ITEMS, ["2 {prediction}", None, "7"])
    assert (scores.metrics["accuracy"], scores.missing) == (100.0, 2)
    assert [row.get("verdict") for row in scores.details] == ["right", None, "hm"]
    # placeholders of an answer stay, and so do those that the task does not fill
    assert "1 + 1? 2 {prediction} {unknown}" in [request["messages"][0]["content"] for request in fake.requests]
    assert len(fake.requests) == 4, "one answer is missing, and the unreadable reply was asked for three times"


def test_the_user_may_replace_the_prompt_and_the_settings_have_its_hash(tmp_path: Path) -> None:
    before = Sums(tmp_path).settings()
    (tmp_path / "judge_prompt.txt").write_text("official: {prediction}")
    after = Sums(tmp_path).settings()
    assert Sums(tmp_path).fill_prompt(prediction="x") == "official: x"
    assert before["judge_prompt"] != after["judge_prompt"] and "judge" not in after


def test_answers_without_a_judge_are_only_measured() -> None:
    scores = score_unjudged({"a": "two words", "b": None}, "no judge")
    assert (scores.metrics, scores.missing) == ({"length": 2.0}, 1)
    assert scores.notes == ("answers read, not judged: no judge",)


def test_an_empty_answer_is_none() -> None:
    assert [Sums().parse(ITEMS[0], text) for text in (" two ", " ", "")] == ["two", None, None]
