"""DASH-B: "Can you see a ... in this image?" about 70 objects, on images that were found to provoke a false yes.

2682 images, one question each: 1341 do not show the object, 1341 do (Augustin, Neuhaus and Hein, 2025). Reads the
official layout (dash_benchmark_neg.json and dash_benchmark_pos.json beside the folders neg/ and pos/), or
questions.jsonl and images/ as `airvlm data get dash-b` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from airvlm.tasks.answers import ITEMS_FROM_FILE, Entry, require_rows, score_by_id, score_entries, score_format
from airvlm.tasks.base import Counts, Item, Metric, Ratio, Scores, Task, TaskDataMissing
from airvlm.tasks.files.reading import Row, read_json, read_records
from airvlm.tasks.words.yesno import PARSERS, YesNo, parse_yes_no, score_yes_no

__all__ = ["DashB"]

PARTS: dict[str, YesNo] = {"neg": "no", "pos": "yes"}
QUESTIONS = "questions.jsonl"
WHERE = "huggingface.co/datasets/YanNeu/DASH-B"


def _compute_harmonic_mean(counts: Counts) -> Any:
    """The harmonic mean of TNR and TPR: a model that always says the same gets 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        tnr, tpr = (np.divide(counts[f"{part}.correct"], counts[f"{part}.n"]) for part in PARTS)
        return np.where(tnr + tpr > 0, 200 * tnr * tpr / (tnr + tpr), np.where(np.isfinite(tnr + tpr), 0.0, np.nan))


METRICS: dict[str, Metric] = {
    "TNR": Metric(Ratio("neg.correct", "neg.n")),  # images without the object that are answered with no
    "TPR": Metric(Ratio("pos.correct", "pos.n")),  # images with the object that are answered with yes
    "harmonic_mean": Metric(_compute_harmonic_mean),
}


@dataclass(frozen=True)
class DashB(Task):
    """DASH-B; accuracy, TNR, TPR and their harmonic mean, with the yes-ratio beside them."""

    parser: str = "strict"  # a key of yesno.PARSERS; dash-b is the official one

    name: ClassVar[str] = "dash-b"
    kind = "yesno"
    max_new_tokens: ClassVar[int] = 16
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {name: {"parser": name} for name in PARSERS}
    source: ClassVar[str] = f"YanNeu/DASH-B; data at {WHERE}"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.require_folder(f"{QUESTIONS} and images/, or the official json files, neg/ and pos/ ({WHERE})")
        if (folder / QUESTIONS).is_file():
            rows = require_rows(read_records(folder / QUESTIONS), folder / QUESTIONS, "questions")
            found = [_make_item(row, folder) for row in rows]
        else:
            found = _read_official(folder)
        # the official order has all "no" first: alternate, so that a limit takes as many of either
        parts = [[item for item in found if item.truth == answer] for answer in PARTS.values()]
        longest = max(len(part) for part in parts)
        return [part[i] for i in range(longest) for part in parts if i < len(part)][:limit]

    def parse(self, item: Item, text: str) -> YesNo | None:
        return parse_yes_no(text, item.truth, self.parser)

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        scores = score_yes_no(items, answers, self.parser, variant=self.variant_name)
        # counts of the images with and without the object
        for item, counts in zip(items, scores.per_item, strict=True):
            part = "pos" if item.truth == "yes" else "neg"
            counts |= {f"{part}.{name}": counts[name] for name in ("n", "correct") if name in counts}
        shared = ("accuracy", "yes_ratio", "precision", "f1")
        definitions = {name: scores.definitions[name] for name in shared[:2]} | METRICS
        return replace(scores, definitions=definitions | {name: scores.definitions[name] for name in shared[2:]})


def _make_question(name: str) -> str:
    # the official query does not choose the article
    return f"Can you see a {name} in this image? Please answer only with yes or no."


def _make_item(row: Row, folder: Path) -> Item:
    label, image = row.read_choice("answer", choices=("yes", "no")), folder / row.read_text("image")
    name = row.read_text("object")
    meta = {"object": name, "group": row.read_text("image")}
    return Item(row.read_id("question_id"), image, row.read_text("question", default=_make_question(name)), label, meta)


def _read_official(folder: Path) -> list[Item]:
    """The questions of dash_benchmark_neg.json and dash_benchmark_pos.json, {source: {object: [files]}}."""
    folder = folder / "images" if (folder / "images" / "dash_benchmark_neg.json").is_file() else folder
    items = []
    for part, label in PARTS.items():
        file = folder / f"dash_benchmark_{part}.json"
        if not file.is_file():
            raise TaskDataMissing(f"dash-b: neither {QUESTIONS} nor {file.name} is in {folder}; get them from {WHERE}")
        for source, objects in _read_tree(file).items():
            for name, images in objects.items():
                for image in images:
                    path = folder / part / source / name / image
                    meta = {"object": name, "group": f"{part}/{source}/{name}/{image}"}
                    items.append(Item(f"{part}/{source}/{name}/{image}", path, _make_question(name), label, meta))
    return items


def _read_tree(file: Path) -> dict[str, dict[str, list[str]]]:
    tree = read_json(file)
    objects = list(tree.values()) if isinstance(tree, dict) else [None]
    if not all(isinstance(value, dict) and all(isinstance(v, list) for v in value.values()) for value in objects):
        raise ValueError(f"{file}: expected a JSON object of source -> object -> list of image files")
    return tree


@score_format.register
def score_dash_b_file(task: DashB, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score answers by id, or the official file of answers, [{"img_id", "object_name", "gt", "response"}]."""
    rows = require_rows(read_records(path), path)
    if truth is not None or not all({"gt", "response"} <= set(row) for row in rows):
        return score_by_id(task, path, truth, lenient=lenient)
    items, entries = [], []
    for n, row in enumerate(rows):
        key = row.read_id("question_id", default=str(n))
        meta = {"object": row.read_text("object_name", default="")}
        items.append(Item(key, None, "", row.read_choice("gt", choices=("yes", "no")), meta))
        entries.append(Entry(key, row.read_text("response"), row.line))
    unique = list({item.id: item for item in items}.values())
    return score_entries(task, unique, entries, path, lenient=lenient, notes=(ITEMS_FROM_FILE,))
