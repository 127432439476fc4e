"""POPE: "Is there a ... in the image?" about objects that are there and objects that are not (Li et al., 2023).

Knows nothing about models. Takes the nine official files (COCO, A-OKVQA, GQA; random, popular, adversarial) from the
user's folder, or makes questions of the three kinds from any annotated set of pictures (pope_builder.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from airvlm.tasks.base import Item, Metric, Scores, Task, TaskDataMissing, read_records
from airvlm.tasks.pope_builder import SETTINGS, Setting, annotated_objects, build_questions
from airvlm.tasks.words.yesno import PARSERS, YesNo, read_yes_no, yes_no_scores

__all__ = ["PROMPTS", "Pope", "spread"]

DATASETS = ("coco", "aokvqa", "gqa")
# What the papers put after the question; "plain" is POPE's own.
PROMPTS: dict[str, str] = {
    "plain": "",
    "yesno": " Please answer yes or no.",
    "vcd": " Please answer this question with one word.",
    "clearsight": " Please just answer yes or no.",
    "llava": "\nAnswer the question using a single word or phrase.",
}
_OBJECT = re.compile(r"is there an? (.+?) in the im", re.IGNORECASE)


def spread(limit: int | None, parts: int) -> list[int | None]:
    """A limit on all items as limits on equal parts."""
    if limit is None:
        return [None] * parts
    return [limit // parts + (part < limit % parts) for part in range(parts)]


@dataclass(frozen=True)
class Pope(Task):
    """POPE; `all` settings or datasets are scored together and one by one."""

    dataset: str = "coco"  # coco, aokvqa, gqa, all of them, or annotated: questions made from annotations
    setting: Setting = "all"
    parser: str = "strict"  # see yesno.PARSERS
    prompt_style: str = "plain"  # see PROMPTS
    seed: int = 0  # of made questions: which images, and the random objects
    count: int = 500  # annotated: images that questions are made about
    objects: Path | None = None  # annotated: JSON of image -> [object names]; see files/labels.py

    name: ClassVar[str] = "pope"
    kind = "yesno"
    max_new_tokens: ClassVar[int] = 16
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {name: {"parser": name} for name in PARSERS}
    source: ClassVar[str] = "POPE's files, e.g. coco_pope_random.json, and the pictures, in --data FOLDER"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        need = (
            "objects.json or COCO's annotations"
            if self.dataset == "annotated" or self.objects is not None
            else "coco_pope_random.json, .."
        )
        folder = self.folder(f"{need} and the pictures")
        kind = "annotated" if self.objects is not None else self.dataset
        datasets = DATASETS if kind == "all" else (kind,)
        settings = SETTINGS if self.setting == "all" else (self.setting,)
        files = [(dataset, setting) for dataset in datasets for setting in settings]
        found: list[Item] = []
        for (dataset, setting), share in zip(files, spread(limit, len(files)), strict=True):
            if dataset == "annotated":
                labels = None if self.objects is None else Path(self.objects)
                known = annotated_objects(folder, self.seed, split, labels=labels, count=self.count)
                records = build_questions(known, setting, seed=self.seed)
            else:
                records = read_records(_find(folder, f"{dataset}_pope_{setting}.json"))
            items = _items(records, f"{dataset}-{setting}", setting)
            found += [_with_picture(item, folder) for item in items[:share]]
        return found

    def prompt(self, item: Item) -> str:
        if self.prompt_style not in PROMPTS:
            raise ValueError(f"no prompt style {self.prompt_style!r}; there are: {', '.join(PROMPTS)}")
        return item.question + PROMPTS[self.prompt_style]

    def parse(self, item: Item, text: str) -> YesNo | None:
        return read_yes_no(text, item.truth, self.parser)

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        return yes_no_scores(items, answers, self.parser, group="setting")

    def rescore(self, answers: Path, truth: Path | None = None) -> Scores:
        """Answers as JSON lines (question_id, text), against a POPE file; or answers that carry their label."""
        records = read_records(answers)
        texts = [_text(record, answers, number) for number, record in enumerate(records, 1)]
        if truth is None and not all("label" in record for record in records):
            return self._without_labels(texts)
        known = records if truth is None else read_records(truth)
        labels = records if truth is None else _matched(records, known, answers, truth)
        scores = self.score(_items(labels, "", "given"), texts)
        if len(labels) < len(known):
            scores = replace(scores, notes=(f"{len(labels)} of {len(known)} questions are answered",))
        return scores

    def _without_labels(self, texts: Sequence[str]) -> Scores:
        details: list[dict[str, Any]] = []
        for number, text in enumerate(texts, 1):
            row: dict[str, Any] = {"id": str(number), "answer": text}
            if PARSERS[self.parser].sees_label:
                row |= {
                    f"parsed_if_{label}": read_yes_no(text, label, self.parser) for label in ("yes", "no")
                }
            else:
                row["parsed"] = read_yes_no(text, "yes", self.parser)
            details.append(row)
        said = [row.get("parsed", row.get("parsed_if_yes")) for row in details]
        counts = [{"n": 1.0, "yes": float(s == "yes"), "unparsed": float(s is None)} for s in said]
        only = {"yes_ratio": Metric(_yes_ratio, "neither")}
        note = "no labels: give the POPE file with --truth for accuracy and F1"
        return Scores(counts, only, [row["id"] for row in details], details, (note,))


def _yes_ratio(counts: Mapping[str, Any]) -> Any:
    return 100 * counts["yes"] / counts["n"]


def _text(record: Mapping[str, Any], path: Path, number: int) -> str:
    for key in ("text", "answer", "response", "prediction", "output"):
        if isinstance(record.get(key), str):
            return str(record[key])
    raise ValueError(f"{path}, record {number}: no answer under text, answer, response, prediction or output")


def _matched(
    records: Sequence[Mapping[str, Any]], labels: Sequence[Mapping[str, Any]], answers: Path, truth: Path
) -> list[Mapping[str, Any]]:
    """The label record of each answer: by question id, or line by line where that fits the questions better."""
    matches: list[list[Mapping[str, Any]]] = []
    absent: list[str] = []
    if all("question_id" in record for record in [*records, *labels]):
        by_id = {str(label["question_id"]): label for label in labels}
        absent = [str(r["question_id"]) for r in records if str(r["question_id"]) not in by_id]
        if not absent:
            matches.append([by_id[str(record["question_id"])] for record in records])
    if len(records) == len(labels):  # some files number their questions in their own way
        matches.append(list(labels))
    if not matches and absent:
        raise ValueError(f"{truth} has no question {absent[0]} (and {len(absent) - 1} others of {answers})")
    if not matches:
        raise ValueError(f"{answers} has {len(records)} answers, {truth} has {len(labels)} questions")
    best = min(matches, key=lambda match: len(_strange(records, match)))
    strange = _strange(records, best)
    if len(strange) > len(records) // 20:
        raise ValueError(
            f"{answers} does not answer {truth}: it was asked {strange[0][0]!r}, not {strange[0][1]!r}"
        )
    return best


def _strange(
    records: Sequence[Mapping[str, Any]], labels: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """(object asked for, object of the label) where an answer's own prompt is about something else."""
    pairs = [
        (_asked(record.get("prompt", record.get("question"))), _asked(label.get("text")))
        for record, label in zip(records, labels, strict=True)
    ]
    return [(asked, known) for asked, known in pairs if asked and known and asked != known]


def _asked(question: Any) -> str | None:
    match = _OBJECT.search(question) if isinstance(question, str) else None
    return match[1].lower() if match else None


def _items(records: Sequence[Mapping[str, Any]], source: str, setting: str) -> list[Item]:
    items = []
    for number, record in enumerate(records, 1):
        label = str(record["label"]).strip().lower()
        if label not in {"yes", "no"}:
            raise ValueError(
                f"question {record.get('question_id', number)}: the label is {label!r}, not yes or no"
            )
        image = str(record.get("image", number))
        question = str(record.get("text", ""))
        key = f"{source}-{record.get('question_id', number)}".strip("-")
        items.append(Item(key, image, question, label, {"picture": image, "setting": setting}))
    return items


def _find(folder: Path, name: str) -> Path:
    dataset = name.split("_")[0]
    for place in (
        folder,
        folder / "pope",
        folder / dataset,
        folder / "pope" / dataset,
        folder / "POPE" / dataset,
    ):
        if (place / name).exists():
            return place / name
    raise TaskDataMissing(f"pope: no {name} in {folder} or its pope/ or {dataset}/ folder")


def _with_picture(item: Item, folder: Path) -> Item:
    for place in ("", "val2014", "images", "images/val2014", "gqa", "gqa/images", "images/gqa"):
        if (path := folder / place / str(item.image)).exists():
            return Item(item.id, path, item.question, item.truth, item.meta)
    raise TaskDataMissing(
        f"pope: no picture {item.image} in {folder} or its val2014/, images/ or gqa/ folder"
    )
