"""What tasks scored by a judge share: where the judge comes from, its prompt, and what of it is recorded.

The prompts in the tasks are our own words for the official instructions. Who has a benchmark's official
prompt puts it into the data folder as judge_prompt.txt, with the same {placeholders}, and it is used
instead; its hash is in the record either way.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from airvlm.tasks.base import MISSING, Metric, Ratio, Scores, Task
from airvlm.tasks.judges.judge import Judge, Verdict

__all__ = ["JudgedTask", "fill", "missing", "recorded", "unjudged"]

PROMPT_FILE = "judge_prompt.txt"


@dataclass(frozen=True)
class JudgedTask(Task):
    """A task whose score asks a judge."""

    judge: Judge | None = field(default=None, repr=False, compare=False)  # None: the one AIRVLM_JUDGE_* describe

    kind: ClassVar[Literal["caption", "yesno", "choice", "judged"]] = "judged"
    judge_prompt: ClassVar[str] = ""  # our words, with {placeholders}

    def the_judge(self) -> Judge:
        return self.judge or Judge.from_environment()

    def template(self) -> str:
        """The prompt to the judge: the user's judge_prompt.txt if there is one, else ours."""
        path = Path(self.data) / PROMPT_FILE if self.data else None
        return path.read_text(encoding="utf-8") if path and path.is_file() else self.judge_prompt

    def settings(self) -> dict[str, Any]:
        own = {name: value for name, value in super().settings().items() if name != "judge"}
        model = self.judge.model if self.judge else os.environ.get("AIRVLM_JUDGE_MODEL")
        return own | {
            "judge_model": model,
            "judge_prompt": hashlib.sha256(self.template().encode()).hexdigest()[:16],
        }


def fill(template: str, **values: str) -> str:
    """The template with its {placeholders} replaced; one pass, so that an answer cannot hold any."""
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), template)


def missing() -> dict[str, float]:
    """The counts of an item without an answer or a verdict: it is in no metric."""
    return {MISSING: 1.0}


def unjudged(answers: Mapping[str, str | None], why: str) -> Scores:
    """What can be said of answers without a judge: how many there are, and how long. No score is made up."""
    counts = [
        missing() if text is None else {"answers": 1.0, "words": float(len(text.split()))} for text in answers.values()
    ]
    metrics = {"length": Metric(Ratio("words", "answers", scale=1.0), "neither")}
    details = [{"id": key} for key in answers]
    return Scores(counts, metrics, list(answers), details, (f"answers read, not judged: {why}",))


def recorded(verdicts: Sequence[Verdict[Any] | None]) -> list[dict[str, Any]]:
    """What people want to see of each verdict: the words, the model, the prompt's hash, and why one is missing."""
    return [
        {}
        if v is None
        else {
            "verdict": v.raw,
            "judge": v.served_by or v.model,
            "prompt": v.prompt_hash,
            "error": v.error,
            "value": v.value,
        }
        for v in verdicts
    ]
