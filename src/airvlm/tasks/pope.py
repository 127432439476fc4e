"""POPE: "Is there a ... in the image?" about objects that are there and objects that are not (Li et al., 2023).

Knows nothing about models. Takes the nine official files (COCO, A-OKVQA, GQA; random, popular, adversarial) from the
user's folder, or makes questions of the three kinds from any annotated set of images (pope_builder.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import AliasChoices, Field

from airvlm.tasks.base import Item, Metric, Scores, Task, TaskDataMissing
from airvlm.tasks.coverage import Coverage, Given, match
from airvlm.tasks.files.reading import read_records
from airvlm.tasks.files.records import Checked, Id, Label, OptionalId, Text, checked, first_of
from airvlm.tasks.pope_builder import SETTINGS, Setting, annotated_objects, build_questions
from airvlm.tasks.words.yesno import PARSERS, YesBias, read_yes_no, yes_no_scores

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


class PopeQuestion(Checked):
    """A question of a POPE file."""

    question_id: OptionalId = None
    image: Id | None = None
    text: Text = ""
    label: Label


class PopeAnswer(Checked):
    """An answer to one."""

    question_id: OptionalId = None
    text: Text = first_of("text", "answer", "response", "prediction", "output")
    prompt: Any = Field(default=None, validation_alias=AliasChoices("prompt", "question"))


class LabelledPopeAnswer(PopeAnswer):
    """An answer that carries its label."""

    image: Id | None = None
    label: Label

    def question(self) -> PopeQuestion:
        own = {} if self.question_id is None else {"question_id": self.question_id}
        return PopeQuestion(**own, image=self.image, label=self.label, line=self.line)


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
    source: ClassVar[str] = "POPE's files, e.g. coco_pope_random.json, and the images, in --data FOLDER"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        need = (
            "objects.json or COCO's annotations"
            if self.dataset == "annotated" or self.objects is not None
            else "coco_pope_random.json, .."
        )
        folder = self.folder(f"{need} and the images")
        kind = "annotated" if self.objects is not None else self.dataset
        datasets = DATASETS if kind == "all" else (kind,)
        settings = SETTINGS if self.setting == "all" else (self.setting,)
        files = [(dataset, setting) for dataset in datasets for setting in settings]
        labels = None if self.objects is None else Path(self.objects)
        known = (
            annotated_objects(folder, self.seed, split, labels=labels, count=self.count) if kind == "annotated" else {}
        )
        found: list[Item] = []
        for (dataset, setting), share in zip(files, spread(limit, len(files)), strict=True):
            if dataset == "annotated":
                made = build_questions(known, setting, seed=self.seed)
                questions = checked(PopeQuestion, made, folder)
            else:
                file = _find(folder, f"{dataset}_pope_{setting}.json")
                questions = checked(PopeQuestion, read_records(file), file)
            items = _items(questions, f"{dataset}-{setting}", setting)
            found += [_with_image(item, folder) for item in items[:share]]
        return found

    def prompt(self, item: Item) -> str:
        if self.prompt_style not in PROMPTS:
            raise ValueError(f"no prompt style {self.prompt_style!r}; there are: {', '.join(PROMPTS)}")
        return item.question + PROMPTS[self.prompt_style]

    def parse(self, item: Item, text: str) -> YesBias | None:
        return read_yes_no(text, item.truth, self.parser)

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        return yes_no_scores(items, answers, self.parser, group="setting")

    def rescore(self, answers: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
        """Answers as JSON lines (question_id, text), against a POPE file; or answers that carry their label."""
        if truth is None and (self.dataset == "annotated" or self.objects is not None):
            return super().rescore(answers, lenient=lenient)
        records = read_records(answers)
        if not records:
            raise ValueError(f"{answers} holds no answers")
        if truth is None and not any("label" in record for record in records):
            return self._without_labels([one.text for one in checked(PopeAnswer, records, answers)])
        if truth is None:
            labelled = checked(LabelledPopeAnswer, records, answers)
            keys = [one.question_id or str(number) for number, one in enumerate(labelled, 1)]
            given = [Given(key, one.text, one.line) for key, one in zip(keys, labelled, strict=True)]
            texts, coverage = match(list(dict.fromkeys(keys)), given, answers, lenient=lenient)
            last = dict(zip(keys, labelled, strict=True))
            items = _items([one.question() for one in last.values()], "", "given")
            return replace(self.score(items, texts), coverage=coverage)
        questions = checked(PopeQuestion, read_records(truth), truth)
        if not questions:
            raise ValueError(f"{truth} holds no questions")
        said = checked(PopeAnswer, records, answers)
        texts, coverage, notes = _matched(said, questions, answers, truth, lenient=lenient)
        kept = [(question, text) for question, text in zip(questions, texts, strict=True) if text is not None]
        scores = self.score(_items([question for question, _ in kept], "", "given"), [text for _, text in kept])
        return replace(scores, coverage=coverage, notes=(*notes, *scores.notes))

    def _without_labels(self, texts: Sequence[str]) -> Scores:
        details: list[dict[str, Any]] = []
        for number, text in enumerate(texts, 1):
            row: dict[str, Any] = {"id": str(number), "answer": text}
            if PARSERS[self.parser].sees_label:
                row |= {f"parsed_if_{label}": read_yes_no(text, label, self.parser) for label in ("yes", "no")}
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


def _matched(
    said: Sequence[PopeAnswer],
    questions: Sequence[PopeQuestion],
    answers: Path,
    truth: Path,
    *,
    lenient: bool,
) -> tuple[list[str | None], Coverage, tuple[str, ...]]:
    """The answer to each question: by question id, or line by line where the ids do not serve."""
    numbered = all(a.question_id is not None for a in said) and all(q.question_id for q in questions)
    ids = [str(question.question_id) for question in questions]
    bare = [one.line for one in said if one.question_id is None]
    if bare and len(bare) < len(said):
        raise ValueError(f"{answers}, line {bare[0]}, field question_id: missing, where other records have one")
    theirs = {one.question_id for one in said}
    by_line = len(said) == len(questions) and (not numbered or len(set(ids)) < len(ids) or not theirs & set(ids))
    if by_line:
        texts: list[str | None] = [one.text for one in said]
        _refuse_others(list(zip(said, questions, strict=True)), answers, truth)
        note = "answers and questions were matched line by line, because their ids do not match"
        return texts, Coverage.whole(len(said)), (note,) if numbered else ()
    if not numbered:
        raise ValueError(
            f"{answers} has {len(said)} answers, {truth} has {len(questions)} questions, and without a question_id "
            "in every record of both they cannot be matched"
        )
    if len(set(ids)) < len(ids):
        twice = next(key for key in ids if ids.count(key) > 1)
        raise ValueError(f"{truth}: question_id {twice} stands there twice")
    texts, coverage = match(
        ids, [Given(str(one.question_id), one.text, one.line) for one in said], answers, lenient=lenient
    )
    by_id = dict(zip(ids, questions, strict=True))
    pairs = [(one, by_id[str(one.question_id)]) for one in said if one.question_id in by_id]
    if len(said) == len(questions) and len(_strange(pairs)) > len(pairs) // 20:
        in_order = list(zip(said, questions, strict=True))  # some files number their questions in their own way
        if len(_strange(in_order)) <= len(in_order) // 20:
            note = "answers and questions were matched line by line, because their prompts match so"
            return [one.text for one in said], Coverage.whole(len(said)), (note,)
    _refuse_others(pairs, answers, truth)
    return texts, coverage, ()


def _refuse_others(pairs: Sequence[tuple[PopeAnswer, PopeQuestion]], answers: Path, truth: Path) -> None:
    strange = _strange(pairs)
    if len(strange) > len(pairs) // 20:
        raise ValueError(f"{answers} does not answer {truth}: it was asked {strange[0][0]!r}, not {strange[0][1]!r}")


def _strange(pairs: Sequence[tuple[PopeAnswer, PopeQuestion]]) -> list[tuple[str, str]]:
    """(object asked for, object of the label) where an answer's own prompt is about something else."""
    objects = [(_asked(answer.prompt), _asked(question.text)) for answer, question in pairs]
    return [(asked, known) for asked, known in objects if asked and known and asked != known]


def _asked(question: Any) -> str | None:
    match = _OBJECT.search(question) if isinstance(question, str) else None
    return match[1].lower() if match else None


def _items(questions: Sequence[PopeQuestion], source: str, setting: str) -> list[Item]:
    items = []
    for number, question in enumerate(questions, 1):
        image = question.image or str(number)
        key = f"{source}-{question.question_id or number}".strip("-")
        items.append(Item(key, image, question.text, question.label, {"group": image, "setting": setting}))
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


def _with_image(item: Item, folder: Path) -> Item:
    for place in ("", "val2014", "images", "images/val2014", "gqa", "gqa/images", "images/gqa"):
        if (path := folder / place / str(item.image)).exists():
            return Item(item.id, path, item.question, item.truth, item.meta)
    raise TaskDataMissing(f"pope: no image {item.image} in {folder} or its val2014/, images/ or gqa/ folder")
