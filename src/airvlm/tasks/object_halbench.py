"""Object HalBench: hallucinated objects in answers to 300 varied requests for a description (RLHF-V).

Knows nothing about models. `Resp` is the share of answers with a hallucinated object among the answers that name any,
`Ment` the share of hallucinated objects among all, each counted once an answer. The official extractor is a retired
language model followed by a large parser, so that its figures cannot be repeated; `words` finds objects as CHAIR does
and is deterministic, `judge` asks the configured judge for the list of visible objects first.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from airvlm.tasks.base import UNPARSED, Item, Metric, Ratio, Scores, read_records
from airvlm.tasks.chair import Chair
from airvlm.tasks.files.coco import image_id, read_objects
from airvlm.tasks.files.described import Described
from airvlm.tasks.judges.judge import JudgeQuestion, say
from airvlm.tasks.judges.judged import JudgedTask, fill, recorded
from airvlm.tasks.words.objects import Mention, mentions

__all__ = ["ObjectHalBench", "named_objects"]

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
# Words that this benchmark counts beyond CHAIR's.
_FURTHER = {"brother": "person", "pedestrian": "person", "motor bike": "motorcycle", "cheesecake": "cake"}
_FURTHER_WORDS = re.compile(rf"\b({'|'.join(_FURTHER)})s?\b")
SHORT = 3  # answers of at most this many words name no objects


def named_objects(text: str) -> list[Mention]:
    """Objects that a text names, each word once."""
    plain = _FURTHER_WORDS.sub(lambda found: _FURTHER[found[1]], text.lower())
    return list({mention.word: mention for mention in mentions(plain, "exact")}.values())


def read_list(verdict: str) -> list[str] | None:
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
    kind = "caption"
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
        folder = self.folder(f"COCO's annotations/, and {FILE} or val2014/ (images)")
        if not (folder / FILE).exists():
            listed = Chair(folder, truth_words="exact", seed=self.seed).items(IMAGES, split)[:limit]
            return [Item(item.id, item.image, REQUESTS[i % len(REQUESTS)], item.truth) for i, item in enumerate(listed)]
        records = read_records(folder / FILE)[:limit]
        ids = [image_id(record.get("image_id", record.get("image_path", ""))) for record in records]
        truth = read_objects(folder, "exact", frozenset(ids))
        return [
            Item(key, base64.b64decode(record["image"]), record["question"], sorted(truth[key]))
            for key, record in zip(ids, records, strict=True)
        ]

    def parse(self, item: Item, text: str) -> list[Mention]:
        return named_objects(text) if len(text.split()) > SHORT else []

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        """Each item's truth is the collection of categories in its image."""
        named: list[list[Mention] | None] = [
            None if text is None else self.parse(item, text) for item, text in zip(items, answers, strict=True)
        ]
        said: list[dict[str, Any]] = [{} for _ in items]
        if self.extractor == "judge":
            named, said = self._judged(answers)
        per_item: list[dict[str, float]] = []
        details: list[dict[str, Any]] = []
        for item, text, objects, verdict in zip(items, answers, named, said, strict=True):
            if objects is None:
                per_item.append({"missing": 1.0})
                details.append({"id": item.id, **verdict})
                continue
            wrong = [mention for mention in objects if mention.category not in item.truth]
            right = {mention.category for mention in objects} & set(item.truth)
            per_item.append(
                {
                    "naming": float(bool(objects)),
                    "hallucinating": float(bool(wrong)),
                    "mentions": float(len(objects)),
                    "hallucinated": float(len(wrong)),
                    "found": float(len(right)),
                    "objects": float(len(item.truth)),
                }
                | ({} if text is None or text.strip() else {UNPARSED: 1.0})
            )
            details.append(
                {
                    "id": item.id,
                    "objects": [mention.category for mention in objects],
                    "hallucinated": [mention.category for mention in wrong],
                    "hallucinated_words": [mention.word for mention in wrong],
                    **verdict,
                }
            )
        metrics = {
            "Resp": Metric(Ratio("hallucinating", "naming"), "lower"),
            "Ment": Metric(Ratio("hallucinated", "mentions"), "lower"),
            "recall": Metric(Ratio("found", "objects")),
        }
        return Scores(per_item, metrics, [item.group for item in items], details)

    def _judged(self, answers: Sequence[str | None]) -> tuple[list[list[Mention] | None], list[dict[str, Any]]]:
        """Objects among the words that the judge lists; missing where it lists none that can be read."""
        asked = [i for i, text in enumerate(answers) if text is not None and len(text.split()) > SHORT]
        prompts = [say(fill(self.template(), description=str(answers[i]))) for i in asked]
        verdicts = dict(zip(asked, self.the_judge().ask_all(JudgeQuestion(p, read_list) for p in prompts), strict=True))
        named: list[list[Mention] | None] = []
        for i, text in enumerate(answers):
            verdict = verdicts.get(i)
            if verdict is None:
                named.append(None if text is None else [])
            else:
                named.append(None if verdict.value is None else named_objects(", ".join(verdict.value)))
        return named, recorded([verdicts.get(i) for i in range(len(answers))])

    def rescore(self, answers: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
        """Descriptions by image id, against a COCO annotations folder or JSON of image id -> objects."""
        truth = truth or self.folder("COCO's annotations/")
        described = Described.read(answers, truth, "exact", lenient=lenient)
        items = [Item(image, None, "", described.objects[image]) for image in described.images]
        return described.scored(self.score(items, described.texts))
