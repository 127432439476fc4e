"""Object HalBench: hallucinated objects in answers to 300 varied requests for a description (RLHF-V).

`Resp` is the share of answers with a hallucinated object among the answers that name any object, `Ment` the share of
hallucinated objects among all, each counted once per answer. The official extractor is a retired language model
followed by a large parser, so its figures cannot be repeated. `words` finds objects as CHAIR does and is deterministic;
`judge` asks the configured judge for the visible objects first.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from airvlm.tasks.answers import score_format
from airvlm.tasks.base import UNPARSED, Item, Metric, Ratio, Scores, TaskKind, parse_answers
from airvlm.tasks.chair import Chair, read_described_images
from airvlm.tasks.files.coco import get_image_key, read_objects
from airvlm.tasks.files.reading import read_records
from airvlm.tasks.judges.judge import JudgeQuestion, make_messages
from airvlm.tasks.judges.task import JudgedTask
from airvlm.tasks.words.objects import Mention, find_mentions

__all__ = ["ObjectHalBench", "find_objects"]

IMAGES = 300
FILE = "obj_halbench_300_with_image.jsonl"
# Our own eight requests, for those who have COCO but not the official file; asked in turn.
REQUESTS = (
    "Describe this image in detail.",
    "What is in this picture? Tell me everything you can see.",
    "Please give a thorough description of the image.",
    "Can you walk me through the contents of this photo?",
    "Write a detailed account of what this image shows.",
    "What do you notice in this image? Be as complete as you can.",
    "Explain what is going on in the picture and which things are in it.",
    "Look closely at the image and report all that is visible.",
)
# Words that this benchmark counts in addition to CHAIR's.
_MORE_WORDS = {"brother": "person", "pedestrian": "person", "motor bike": "motorcycle", "cheesecake": "cake"}
_MORE_WORDS_PATTERN = re.compile(rf"\b({'|'.join(_MORE_WORDS)})s?\b")
SHORT = 3  # answers of at most this many words name no objects
METRICS = {
    "Resp": Metric(Ratio("hallucinating", "naming"), "lower"),
    "Ment": Metric(Ratio("hallucinated", "mentions"), "lower"),
    "recall": Metric(Ratio("found", "objects")),
    "length": Metric(Ratio("words", "answers", scale=1.0), "neither"),
}


def find_objects(text: str) -> list[Mention]:
    """The objects that a text names, each word once."""
    plain = _MORE_WORDS_PATTERN.sub(lambda found: _MORE_WORDS[found[1]], text.lower())
    return list({mention.word: mention for mention in find_mentions(plain, "exact")}.values())


def parse_list(verdict: str) -> list[str] | None:
    """The JSON list of words in a judge's reply."""
    found = re.search(r"\[.*?\]", verdict, re.DOTALL)
    try:
        words = json.loads(found[0]) if found else None
    except json.JSONDecodeError:
        return None
    return [str(word) for word in words] if isinstance(words, list) else None


@dataclass(frozen=True)
class ObjectHalBench(JudgedTask):
    """Object HalBench, on the official file of requests or on 300 images of our own list."""

    extractor: Literal["words", "judge"] = "words"
    seed: int = 0  # of the list of images, without the official file

    name: ClassVar[str] = "object-halbench"
    kind: ClassVar[TaskKind] = "caption"
    max_new_tokens: ClassVar[int] = 512
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "words": {"extractor": "words"},
        "judge": {"extractor": "judge"},
    }
    source: ClassVar[str] = f"RLHF-V; --data FOLDER with COCO's annotations/ and {FILE} or val2014/"
    judge_prompt: ClassVar[str] = (
        "Below is a description of a picture. List the physical objects that it says are visible in the picture, "
        "as nouns in the singular, without guesses, feelings and things said to be absent. "
        'Reply with a JSON list only, such as ["dog", "bench"], or [] if there are none.\n\n{description}'
    )

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.require_folder(f"COCO's annotations/, and {FILE} or val2014/ (images)")
        if not (folder / FILE).exists():
            listed = Chair(folder, truth_words="exact", seed=self.seed).items(IMAGES, split)[:limit]
            return [Item(item.id, item.image, REQUESTS[i % len(REQUESTS)], item.truth) for i, item in enumerate(listed)]
        rows = read_records(folder / FILE)[:limit]
        ids = [get_image_key(row.read_id("image_id", "image_path")) for row in rows]
        truth = read_objects(folder, "exact", set(ids))
        return [
            Item(key, base64.b64decode(row.read_text("image")), row.read_text("question"), sorted(truth[key]))
            for key, row in zip(ids, rows, strict=True)
        ]

    def parse(self, item: Item, text: str) -> list[Mention]:
        return find_objects(text) if len(text.split()) > SHORT else []

    def make_question(self, item: Item, answer: str) -> JudgeQuestion[list[str]]:
        return JudgeQuestion(make_messages(self.fill_prompt(description=answer)), parse_list)

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        """Each item's truth is the collection of categories in its image."""
        objects = parse_answers(self, items, answers)
        details: list[dict[str, Any]] = [{} for _ in items]
        if self.extractor == "judge":
            asked = [text if text is not None and len(text.split()) > SHORT else None for text in answers]
            for i, verdict in enumerate(self.ask_judge(items, asked)):
                if verdict is not None:
                    objects[i] = None if verdict.value is None else find_objects(", ".join(verdict.value))
                    details[i] = verdict.to_json()

        def count(item: Item, found: tuple[str, list[Mention]]) -> tuple[dict[str, float], dict[str, Any]]:
            text, mentions = found
            wrong = [mention for mention in mentions if mention.category not in item.truth]
            counts = {
                "answers": 1.0,
                "words": float(len(text.split())),
                "naming": float(bool(mentions)),
                "hallucinating": float(bool(wrong)),
                "mentions": float(len(mentions)),
                "hallucinated": float(len(wrong)),
                "found": float(len({mention.category for mention in mentions} & set(item.truth))),
                "objects": float(len(item.truth)),
            }
            if not text.strip():
                counts[UNPARSED] = 1.0
            return counts, {
                "objects": [mention.category for mention in mentions],
                "hallucinated": [mention.category for mention in wrong],
                "hallucinated_words": [mention.word for mention in wrong],
            }

        found = [None if mentions is None else (str(text), mentions) for text, mentions in zip(answers, objects)]
        return Scores.of(items, found, count, METRICS, variant=self.variant_name, more_details=details)


@score_format.register
def score_object_halbench_file(
    task: ObjectHalBench, path: Path, truth: Path | None = None, *, lenient: bool = False
) -> Scores:
    """Score descriptions by image, against a COCO annotations folder or a label file."""
    truth = truth or task.require_folder("COCO's annotations/")
    described = read_described_images(path, truth, "exact", lenient=lenient)
    items = [Item(entry.key, None, "", described.objects[entry.key]) for entry in described.entries]
    return described.annotate(task.score(items, [entry.value for entry in described.entries]))
