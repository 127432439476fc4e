"""What benchmarks that are scored by a judge share: the judge, its prompt, and how verdicts become scores.

The prompts in the benchmarks are our own words for the official instructions. To use a benchmark's official prompt, put
it into the data folder as judge_prompt.txt, with the same {placeholders}. The settings have its hash either way.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from airvlm.tasks.base import MISSING, Item, Metric, Ratio, Scores, Task, TaskKind
from airvlm.tasks.judges.judge import Judge, JudgeQuestion, Verdict

__all__ = ["JudgedTask", "score_unjudged"]

PROMPT_FILE = "judge_prompt.txt"


@dataclass(frozen=True)
class JudgedTask(Task):
    """A task whose score asks a judge.

    A subclass defines `make_question` (what the judge is asked about one answer) and `aggregate` (scores from the
    verdicts), or a `score` of its own.
    """

    judge: Judge | None = field(default=None, repr=False, compare=False)  # None: the one of AIRVLM_JUDGE_*

    kind: ClassVar[TaskKind] = "judged"
    judge_prompt: ClassVar[str] = ""  # our words, with {placeholders}

    def get_judge(self) -> Judge:
        return self.judge or Judge.from_environment()

    def get_template(self) -> str:
        """The prompt to the judge: the user's judge_prompt.txt if there is one, or else our own."""
        path = Path(self.data) / PROMPT_FILE if self.data else None
        return path.read_text(encoding="utf-8") if path and path.is_file() else self.judge_prompt

    def fill_prompt(self, **values: str) -> str:
        """The prompt with its placeholders filled in; one pass, so placeholders in an answer stay as they are."""
        return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), self.get_template())

    def settings(self) -> dict[str, Any]:
        own = {name: value for name, value in super().settings().items() if name != "judge"}
        model = self.judge.model if self.judge else os.environ.get("AIRVLM_JUDGE_MODEL")
        prompt = hashlib.sha256(self.get_template().encode()).hexdigest()[:16]
        return own | {"judge_model": model, "judge_prompt": prompt}

    def parse(self, item: Item, text: str) -> Any:
        return text.strip() or None

    def make_question(self, item: Item, answer: str) -> JudgeQuestion[Any]:
        """The question to the judge about one answer."""
        raise NotImplementedError

    def ask_judge(self, items: Sequence[Item], answers: Sequence[str | None]) -> list[Verdict[Any] | None]:
        """The verdict on each answer; None where there is no answer."""
        asked = [i for i, text in enumerate(answers) if text is not None]
        verdicts = self.get_judge().ask_all(self.make_question(items[i], str(answers[i])) for i in asked)
        by_item = dict(zip(asked, verdicts, strict=True))
        return [by_item.get(i) for i in range(len(items))]

    def aggregate(self, items: Sequence[Item], verdicts: Sequence[Any], details: Sequence[Mapping[str, Any]]) -> Scores:
        """Scores from the values of verdicts, None where there is none."""
        raise NotImplementedError

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        verdicts = self.ask_judge(items, answers)
        values = [None if verdict is None else verdict.value for verdict in verdicts]
        return self.aggregate(items, values, [{} if verdict is None else verdict.to_json() for verdict in verdicts])


def score_unjudged(answers: Mapping[str, str | None], reason: str) -> Scores:
    """What can be said about answers without a judge: how many there are and how long they are."""
    counts: list[dict[str, float]] = [
        {MISSING: 1.0} if text is None else {"answers": 1.0, "words": float(len(text.split()))}
        for text in answers.values()
    ]
    metrics = {"length": Metric(Ratio("words", "answers", scale=1.0), "neither")}
    details = [{"id": key} for key in answers]
    return Scores(counts, metrics, list(answers), details, (f"answers read, not judged: {reason}",))
