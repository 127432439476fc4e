"""POPE: "Is there a ... in the image?" about objects that are there and objects that are not (Li et al., 2023).

Reads the nine official files (COCO, A-OKVQA, GQA; random, popular, adversarial) from the user's folder, or builds
questions of the three settings from any annotated set of images.
"""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from airvlm.tasks.answers import (
    ITEMS_FROM_FILE,
    Entry,
    match_entries,
    require_rows,
    score_by_id,
    score_entries,
    score_format,
)
from airvlm.tasks.base import Coverage, Item, Metric, Ratio, Scores, Task, TaskDataMissing
from airvlm.tasks.chair import draw_images
from airvlm.tasks.files.coco import Instances, find_annotation_files, find_images, read_labels, read_split
from airvlm.tasks.files.reading import Row, find_file, make_rows, read_records
from airvlm.tasks.words.yesno import PARSERS, YesNo, parse_yes_no, score_yes_no

__all__ = [
    "PROMPTS",
    "SETTINGS",
    "Pope",
    "Setting",
    "build_questions",
    "keep_one_pair",
    "read_annotated_objects",
    "split_limit",
]

Setting = Literal["random", "popular", "adversarial", "all"]
SETTINGS: tuple[Setting, ...] = ("random", "popular", "adversarial")
DATASETS = ("coco", "aokvqa", "gqa")
IMAGES = 500
PER_IMAGE = 3  # questions of each answer
# What papers append to the question; "plain" is POPE's own.
PROMPTS: dict[str, str] = {
    "plain": "",
    "yesno": " Please answer yes or no.",
    "vcd": " Please answer this question with one word.",
    "clearsight": " Please just answer yes or no.",
    "llava": "\nAnswer the question using a single word or phrase.",
}


@dataclass(frozen=True)
class Pope(Task):
    """POPE; with setting or dataset "all", these are scored together and one by one."""

    dataset: str = "coco"  # coco, aokvqa, gqa, all of them, or annotated: questions built from annotations
    setting: Setting = "all"
    parser: str = "strict"  # a key of yesno.PARSERS
    prompt_style: str = "plain"  # a key of PROMPTS
    seed: int = 0  # annotated: of the images and the random objects
    count: int = IMAGES  # annotated: number of images
    one_pair: bool = False  # annotated: one question of each answer per image, see keep_one_pair
    objects: Path | None = None  # annotated: a label file, see files/coco.py

    name: ClassVar[str] = "pope"
    kind = "yesno"
    max_new_tokens: ClassVar[int] = 16
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {name: {"parser": name} for name in PARSERS}
    source: ClassVar[str] = "POPE's files, e.g. coco_pope_random.json, and the images, in --data FOLDER"

    @property
    def is_built(self) -> bool:
        """Whether the questions are built from annotations."""
        return self.dataset == "annotated" or self.objects is not None

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        need = "objects.json or COCO's annotations" if self.is_built else "coco_pope_random.json, ..."
        folder = self.require_folder(f"{need} and the images")
        datasets = ("annotated",) if self.is_built else DATASETS if self.dataset == "all" else (self.dataset,)
        settings = SETTINGS if self.setting == "all" else (self.setting,)
        parts = [(dataset, setting) for dataset in datasets for setting in settings]
        labels = None if self.objects is None else Path(self.objects)
        known = read_annotated_objects(folder, self.seed, split, labels, self.count) if self.is_built else {}
        found: list[Item] = []
        for (dataset, setting), part_limit in zip(parts, split_limit(limit, len(parts)), strict=True):
            if self.is_built:
                records = build_questions(known, setting, seed=self.seed)
                if self.one_pair:
                    records = keep_one_pair(records, setting, settings, seed=self.seed)
                rows = make_rows(records, folder, "question")
            else:
                rows = read_records(self.find_questions(folder, dataset, setting))
            items = _make_items(rows, setting, f"{dataset}-{setting}-")[:part_limit]
            found += [replace(item, image=_find_image(folder, item.image)) for item in items]
        return found

    def find_questions(self, folder: Path, dataset: str, setting: str) -> Path:
        """The file with the questions of one setting."""
        places = ("pope", dataset, f"pope/{dataset}", f"POPE/{dataset}")
        return find_file(folder, f"{dataset}_pope_{setting}.json", *places, task=self.name)

    def prompt(self, item: Item) -> str:
        if self.prompt_style not in PROMPTS:
            raise ValueError(f"unknown prompt style {self.prompt_style!r}. Known: {', '.join(PROMPTS)}")
        return item.question + PROMPTS[self.prompt_style]

    def parse(self, item: Item, text: str) -> YesNo | None:
        return parse_yes_no(text, item.truth, self.parser)

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        return score_yes_no(items, answers, self.parser, group="setting", variant=self.variant_name)


def split_limit(limit: int | None, parts: int) -> list[int | None]:
    """A limit on all items as limits on equal parts."""
    if limit is None:
        return [None] * parts
    return [limit // parts + (part < limit % parts) for part in range(parts)]


def _make_items(rows: Sequence[Row], setting: str, prefix: str = "") -> list[Item]:
    """The questions of a POPE file; questions without an id or an image are numbered."""
    items = []
    for number, row in enumerate(rows, 1):
        image = row.read_id("image") if row.has("image") else str(number)
        key = f"{prefix}{row.read_id('question_id', default=str(number))}"
        label = row.read_choice("label", choices=("yes", "no"))
        items.append(Item(key, image, row.read_text("text", default=""), label, {"group": image, "setting": setting}))
    return items


def _find_image(folder: Path, name: str) -> Path:
    return find_file(
        folder, name, "val2014", "images", "images/val2014", "gqa", "gqa/images", "images/gqa", task="pope"
    )


# -- questions built from annotations


def read_annotated_objects(
    folder: Path, seed: int = 0, split: str = "test", labels: Path | None = None, count: int = IMAGES
) -> dict[str, list[str]]:
    """Image file -> its objects, most prominent first, for images that have enough of them.

    Args:
        folder: the folder with the images.
        seed: decides which images are drawn.
        split: the split; if the label file has splits of its own, all images of that split are taken.
        labels: a label file. Default: the folder's objects.json, or else COCO's instances, ordered by their area.
        count: the number of images.
    """
    listed = None
    if labels is not None:
        known = read_labels(labels)
        paths = find_images(folder, known)
        if not paths:
            raise TaskDataMissing(f"pope: {folder} has none of the images that {labels} names")
        listed = read_split(labels, split)
        known = {str(paths[image].relative_to(folder)): known[image] for image in listed or paths if image in paths}
    elif (folder / "objects.json").exists():
        known = read_labels(folder / "objects.json", keep_names=True)
    else:
        known = _order_by_area(folder)
    enough = {image: names for image, names in known.items() if len(set(names)) >= PER_IMAGE}
    if not enough:
        raise TaskDataMissing(f"pope: no image of {labels or folder} has {PER_IMAGE} objects, which POPE asks for")
    if labels is not None and len(enough) < len(known):
        few = f"{len(known) - len(enough)} of {len(known)} images have fewer than {PER_IMAGE} objects"
        warnings.warn(f"pope: {few}, which POPE asks for: they are left out", stacklevel=2)
    if listed is not None:
        return enough
    return {image: enough[image] for image in draw_images(list(enough), seed, split, count)}


def _order_by_area(folder: Path) -> dict[str, list[str]]:
    """Image file -> its objects, largest first, from COCO's instances."""
    found: dict[str, list[str]] = {}
    for file in find_annotation_files(folder, "instances"):
        instances = Instances(file)
        areas: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for image, name, area in instances.annotations:
            areas[image][name] += area
        for image, file_name in instances.files.items():
            found[file_name] = sorted(areas[image], key=areas[image].__getitem__, reverse=True)
    return found


def make_question(name: str) -> str:
    """POPE's question about an object, with the right article."""
    return f"Is there {'an' if name[:1].lower() in 'aeiou' else 'a'} {name} in the image?"


def build_questions(
    objects: Mapping[str, Sequence[str]], setting: Setting, *, per_image: int = PER_IMAGE, seed: int = 0
) -> list[dict[str, Any]]:
    """Build POPE's questions from images with known objects.

    For each image its first `per_image` objects are asked for, and as many absent ones. Images with fewer objects are
    left out.

    Args:
        objects: image -> names of its objects, most prominent first.
        setting: how absent objects are chosen: random ones, the most frequent ones (popular), or those that occur most
            often together with the objects of the image (adversarial).
        per_image: questions per image and answer.
        seed: of the random objects.

    Returns:
        Records with the fields of the official files.
    """
    frequency = Counter(name for names in objects.values() for name in set(names))
    together: dict[str, Counter[str]] = {name: Counter() for name in frequency}
    for names in objects.values():
        for name in set(names):
            together[name].update(set(names) - {name})
    rank = {name: (-count, name) for name, count in frequency.items()}
    records: list[dict[str, Any]] = []
    for image, names in objects.items():
        present = list(dict.fromkeys(names))
        absent = sorted(set(frequency) - set(present), key=rank.__getitem__)
        if len(present) < per_image or len(absent) < per_image:
            continue
        if setting == "random":
            wrong = random.Random(f"{seed}:{image}").sample(sorted(absent), per_image)
        elif setting == "popular":
            wrong = absent[:per_image]
        elif setting == "adversarial":
            wrong = []
            for name in present[:per_image]:
                left = [other for other in absent if other not in wrong]
                wrong.append(min(left, key=lambda other: (-together[name][other], rank[other])))
        else:
            raise ValueError(f"unknown setting {setting!r}. Known: {', '.join(SETTINGS)}")
        for right, missing in zip(present, wrong, strict=False):
            for name, label in ((right, "yes"), (missing, "no")):
                question = {"question_id": len(records) + 1, "image": image, "text": make_question(name)}
                records.append({**question, "label": label})
    return records


def keep_one_pair(
    records: Iterable[dict[str, Any]], setting: Setting, settings: Sequence[Setting] = SETTINGS, *, seed: int = 0
) -> list[dict[str, Any]]:
    """Of each image one question of each answer, in one of the settings: what `build_questions` made, thinned out.

    Questions about one image are alike, so more images with fewer questions tell more in the same time.

    Args:
        records: questions of one setting.
        setting: theirs.
        settings: one of these is drawn for each image.
        seed: of the draw.
    """
    images: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        images[record["image"]].append(record)
    kept: list[dict[str, Any]] = []
    for image, own in images.items():
        draw = random.Random(f"{seed}:pair:{image}")
        chosen, place = draw.choice(settings), 2 * draw.randrange(len(own) // 2)
        kept += own[place : place + 2] if chosen == setting else []
    return kept


# -- files of answers

ANSWER_FIELDS = ("text", "answer", "response", "prediction", "output")
_OBJECT = re.compile(r"is there an? (.+?) in the im", re.IGNORECASE)
TOLERATED = 0.05  # share of prompts that may ask for another object than the question they are matched with


@score_format.register
def score_pope_file(task: Pope, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score answers (question_id, text) against a POPE file, or answers with a label; without labels, parse them."""
    if truth is None and task.is_built:
        return score_by_id(task, path, lenient=lenient)
    rows = require_rows(read_records(path), path)
    labeled = any("label" in row for row in rows)
    if truth is None and not labeled:
        if task.data is not None:
            return score_by_id(task, path, lenient=lenient)
        return _score_without_labels(task, [row.read_text(*ANSWER_FIELDS) for row in rows])
    if truth is None:
        items = _make_items(rows, "given")
        texts = [row.read_text(*ANSWER_FIELDS) for row in rows]
        entries = [Entry(item.id, text, row.line) for item, text, row in zip(items, texts, rows, strict=True)]
        unique = list({item.id: item for item in items}.values())
        return score_entries(task, unique, entries, path, lenient=lenient, notes=(ITEMS_FROM_FILE,))
    questions = _make_items(require_rows(read_records(truth), truth, "questions"), "given")
    matched, coverage, notes = _match_answers(rows, questions, path, truth, lenient=lenient)
    answered = [(item, text) for item, text in zip(questions, matched, strict=True) if text is not None]
    scores = task.score([item for item, _ in answered], [text for _, text in answered])
    return replace(scores, coverage=coverage, notes=(*notes, *scores.notes))


def _match_answers(
    rows: Sequence[Row], questions: Sequence[Item], path: Path, truth: Path, *, lenient: bool
) -> tuple[list[str | None], Coverage, tuple[str, ...]]:
    """The answer to each question, by question_id, or line by line where ids cannot be used."""
    texts = [row.read_text(*ANSWER_FIELDS) for row in rows]
    reason = _find_reason_to_match_lines(rows, questions, path)
    if reason:
        _check_prompts(list(zip(rows, questions, strict=True)), path, truth)
        n = len(texts)
        note = f"answers and questions were matched line by line, because {reason}"
        return list(texts), Coverage(n, n, n), (note,)
    ids = [item.id for item in questions]
    if len(set(ids)) < len(ids):
        raise ValueError(f"{truth}: duplicate question_id {next(key for key in ids if ids.count(key) > 1)}")
    entries = [Entry(row.read_id("question_id", "id"), text, row.line) for row, text in zip(rows, texts, strict=True)]
    matched, coverage = match_entries(ids, entries, path, lenient=lenient)
    by_id = {item.id: item for item in questions}
    pairs = [(row, by_id[entry.key]) for row, entry in zip(rows, entries, strict=True) if entry.key in by_id]
    _check_prompts(pairs, path, truth)
    return matched, coverage, ()


def _find_reason_to_match_lines(rows: Sequence[Row], questions: Sequence[Item], path: Path) -> str | None:
    """Why answers and questions have to be matched line by line; None if their ids can be used."""
    without_id = [row for row in rows if not {"question_id", "id"} & set(row)]
    if without_id and len(without_id) < len(rows):
        raise without_id[0].error("question_id", "missing, where other records have one")
    if len(rows) != len(questions):
        if without_id:
            raise ValueError(
                f"{path} has {len(rows)} answers to {len(questions)} questions; without a question_id in every record "
                "they cannot be matched"
            )
        return None
    if without_id:
        return "they have no ids"
    by_id = {item.id: item for item in questions}
    given = [row.read_id("question_id", "id") for row in rows]
    if len(by_id) < len(questions) or not set(given) & set(by_id):
        return "their ids do not match"
    # some files number their questions in their own way: then only the prompts show which answer belongs where
    pairs = [(row, by_id[key]) for row, key in zip(rows, given, strict=True) if key in by_id]
    lines = list(zip(rows, questions, strict=True))
    if _ask_for_others(pairs) and not _ask_for_others(lines):
        return "only so do their prompts match"
    return None


def _check_prompts(pairs: Sequence[tuple[Row, Item]], path: Path, truth: Path) -> None:
    """Refuse a file whose own prompts ask for other objects than the questions."""
    if _ask_for_others(pairs):
        asked, known = _find_other_objects(pairs)[0]
        raise ValueError(f"{path} does not answer {truth}: it was asked {asked!r}, not {known!r}")


def _ask_for_others(pairs: Sequence[tuple[Row, Item]]) -> bool:
    return len(_find_other_objects(pairs)) > TOLERATED * len(pairs)


def _find_other_objects(pairs: Iterable[tuple[Row, Item]]) -> list[tuple[str, str]]:
    """(object of the prompt, object of the question) where an answer's own prompt asks for another object."""
    objects = [
        (_find_object(row.get("prompt", row.get("question"))), _find_object(item.question)) for row, item in pairs
    ]
    return [(asked, known) for asked, known in objects if asked and known and asked != known]


def _find_object(question: Any) -> str | None:
    match = _OBJECT.search(question) if isinstance(question, str) else None
    return match[1].lower() if match else None


def _score_without_labels(task: Pope, texts: Sequence[str]) -> Scores:
    """What each answer says, and the share of answers that say yes."""
    details: list[dict[str, Any]] = []
    for number, text in enumerate(texts, 1):
        parsed = {label: parse_yes_no(text, label, task.parser) for label in ("yes", "no")}
        fields = {f"parsed_if_{label}": value for label, value in parsed.items()}
        own = fields if PARSERS[task.parser].sees_label else {"parsed": parsed["yes"]}
        details.append({"id": str(number), "answer": text, **own})
    answers = [row.get("parsed", row.get("parsed_if_yes")) for row in details]
    counts = [{"n": 1.0, "yes": float(answer == "yes"), "unparsed": float(answer is None)} for answer in answers]
    note = "no labels: give the POPE file with --truth for accuracy and F1"
    metrics = {"yes_ratio": Metric(Ratio("yes", "n"), "neither")}
    return Scores(counts, metrics, [row["id"] for row in details], details, (note,), variant=task.variant_name)
