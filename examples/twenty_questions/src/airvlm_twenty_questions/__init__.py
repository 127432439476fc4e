"""Twenty yes/no questions about scenes of the emoji model: a minimal task.

The questions are in questions.jsonl. A task says what is asked, how an answer is parsed, and what each item counts;
metrics, intervals, the store and the report are handled by airvlm.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from airvlm import tiny
from airvlm.tasks import Item, Metric, Ratio, Scores, Task

QUESTIONS = Path(__file__).parent / "questions.jsonl"


@dataclass(frozen=True)
class TwentyQuestions(Task):
    """Twenty yes/no questions about ten scenes."""

    name: ClassVar[str] = "twenty-questions"
    kind: ClassVar[Literal["yesno"]] = "yesno"
    max_new_tokens: ClassVar[int] = 8
    source: ClassVar[str] = "written for this example"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        images = {scene.id: scene for scene in tiny.scenes("test")}
        rows = [json.loads(line) for line in QUESTIONS.read_text().splitlines()][:limit]
        # Items about one image are resampled together when intervals are computed
        return [
            Item(row["id"], images[row["scene"]], row["question"], row["answer"], {"group": row["scene"]})
            for row in rows
        ]

    def parse(self, item: Item, text: str) -> str | None:
        word = text.strip(" .,!").split(" ")[0].lower()
        return word if word in ("yes", "no") else None

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        def count(item: Item, text: str) -> tuple[dict[str, float], dict[str, str | None]]:
            said = self.parse(item, text)
            counts = {"asked": 1.0, "right": float(said == item.truth), "yes": float(said == "yes")}
            return counts | {"unparsed": float(said is None)}, {"said": said}

        definitions = {
            "accuracy": Metric(Ratio("right", "asked")),
            "yes_ratio": Metric(Ratio("yes", "asked"), better="neither"),
        }
        return Scores.of(items, answers, count, definitions)
