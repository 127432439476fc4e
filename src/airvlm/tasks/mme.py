"""MME: 14 subtasks of yes/no questions, two per image; a subtask scores 100 * acc + 100 * acc+, at most 200.

acc+ is the share of images with both questions right. The two questions of an image belong together by their image; in
the official results files, by their order. The parser is the official one, which looks at four characters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from airvlm.tasks.answers import score_by_id, score_format
from airvlm.tasks.base import (
    MISSING,
    UNPARSED,
    Counts,
    Coverage,
    Item,
    Metric,
    Ratio,
    Scores,
    Task,
    TaskDataMissing,
    TaskKind,
    parse_answers,
)
from airvlm.tasks.files.reading import get_suffix, read_text
from airvlm.tasks.words.yesno import parse_opening, parse_yes_no

__all__ = ["COGNITION", "HALLUCINATION", "MME", "PERCEPTION"]

QUESTIONS = {  # subtask -> number of questions
    **dict.fromkeys(("existence", "count", "position", "color"), 60),
    **{"posters": 294, "celebrity": 340, "scene": 400, "landmark": 400, "artwork": 400, "OCR": 40},
    **{"commonsense_reasoning": 140, "numerical_calculation": 40, "text_translation": 40, "code_reasoning": 40},
}
PERCEPTION, COGNITION = tuple(QUESTIONS)[:10], tuple(QUESTIONS)[10:]
HALLUCINATION = PERCEPTION[:4]
TOTALS = {
    "perception": PERCEPTION,
    "cognition": COGNITION,
    "hallucination": HALLUCINATION,
    "total": PERCEPTION + COGNITION,
}
IMAGES = (".jpg", ".jpeg", ".png", ".webp")
ASK_YES_NO = "Please answer yes or no."


@dataclass(frozen=True)
class Points:
    """The sum of 100 * acc + 100 * acc+ over some subtasks, added in the official order."""

    subtasks: tuple[str, ...]

    def __call__(self, counts: Counts) -> Any:
        total: Any = 0
        with np.errstate(divide="ignore", invalid="ignore"):
            for name in self.subtasks:
                acc = np.divide(counts[f"{name}:right"], counts[f"{name}:asked"])
                acc_plus = np.divide(counts[f"{name}:both"], counts[f"{name}:images"])
                total = total + (acc * 100 + acc_plus * 100)
        return total


@dataclass(frozen=True)
class MME(Task):
    """MME from the folders of its release: SUBTASK/*.txt beside images, or images/ and questions_answers_YN/."""

    parser: Literal["official", "lmms"] = "official"  # lmms: strips, removes periods, accepts y and n
    instruction: Literal["official", "llava"] = "official"  # llava: LLaVA's instruction instead of MME's
    subset: Literal["all", "hallucination"] = "all"  # hallucination: existence, count, position, color

    name: ClassVar[str] = "mme"
    kind: ClassVar[TaskKind] = "yesno"
    max_new_tokens: ClassVar[int] = 16
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "official": {"parser": "official"},
        "lmms": {"parser": "lmms"},
        "llava": {"instruction": "llava"},
        "hallucination": {"subset": "hallucination"},
    }
    source: ClassVar[str] = (
        "BradyFU/Awesome-Multimodal-Large-Language-Models, branch Evaluation; data on request from its authors"
    )

    @property
    def subtasks(self) -> tuple[str, ...]:
        return HALLUCINATION if self.subset == "hallucination" else TOTALS["total"]

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        need = f"MME's release: one folder per subtask ({', '.join(self.subtasks)}) with images and .txt questions"
        folder, items = self.require_folder(need), []
        for subtask in self.subtasks:
            for text in _find_question_files(folder / subtask, need):
                image = _find_image(text, folder / subtask)
                lines = [line.split("\t") for line in read_text(text).splitlines() if line.strip()]
                if any(len(cells) != 2 or cells[1].strip().lower() not in ("yes", "no") for cells in lines):
                    raise ValueError(f"{text}: expected lines of a question, a tab, and Yes or No")
                for k, (question, truth) in enumerate(lines):
                    meta = {"subtask": subtask, "group": f"{subtask}/{text.stem}"}
                    items.append(Item(f"{subtask}/{text.stem}/{k}", image, question, truth.strip().lower(), meta))
                if limit is not None and len(items) >= limit:
                    return items[:limit]
        return items

    def prompt(self, item: Item) -> str:
        if self.instruction == "llava":
            head = item.question.removesuffix(ASK_YES_NO).rstrip()
            return f"{head}\nAnswer the question using a single word or phrase."
        return item.question

    def parse(self, item: Item, text: str) -> str | None:
        # the official script does not strip
        return parse_yes_no(text, "yes", "lmms-eval-mme") if self.parser == "lmms" else parse_opening(text.lower())

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        parsed = parse_answers(self, items, answers)
        right = [answer == item.truth for item, answer in zip(items, parsed)]
        images: dict[str, list[int]] = defaultdict(list)
        per_item: list[dict[str, float]] = []
        for i, (item, text, answer) in enumerate(zip(items, answers, parsed)):
            images[item.group].append(i)
            counts = {"asked": 1.0, "right": float(right[i])}
            counts |= {f"{item.meta['subtask']}:{name}": value for name, value in counts.items()}
            counts |= {"yes": float(answer == "yes")} | ({UNPARSED: 1.0} if answer is None else {})
            per_item.append({MISSING: 1.0} if text is None else counts)
        for group in images.values():
            # acc+ of an image with a missing answer is unknown
            if all(answers[i] is not None for i in group):
                counts = {"images": 1.0, "both": float(all(right[i] for i in group))}
                subtask = items[group[0]].meta["subtask"]
                per_item[group[0]] |= counts | {f"{subtask}:{name}": value for name, value in counts.items()}
        present = {item.meta["subtask"] for item in items}
        lacking = [name for name in self.subtasks if name not in present]
        notes = (f"no totals over subtasks that were not asked: {', '.join(lacking)}",) if lacking else ()
        details = [
            {"id": item.id, "parsed": answer, "right": is_right} for item, answer, is_right in zip(items, parsed, right)
        ]
        groups = [item.group for item in items]
        return Scores(per_item, _define_metrics(present), groups, details, notes, variant=self.variant_name)


def _define_metrics(present: set[str]) -> dict[str, Metric]:
    metrics = {name: Metric(Points(parts)) for name, parts in TOTALS.items() if set(parts) <= present}
    metrics |= {
        "accuracy": Metric(Ratio("right", "asked")),
        "accuracy_plus": Metric(Ratio("both", "images")),
        "yes_ratio": Metric(Ratio("yes", "asked"), "neither"),
    }
    ordered = [name for name in TOTALS["total"] if name in present] + sorted(present - set(TOTALS["total"]))
    return metrics | {name: Metric(Points((name,))) for name in ordered}


def _find_question_files(folder: Path, need: str) -> list[Path]:
    inner = folder / "questions_answers_YN"
    files = sorted((inner if inner.is_dir() else folder).glob("*.txt")) if folder.is_dir() else []
    if not files:
        raise TaskDataMissing(
            f"mme: no questions in {folder}; it should hold {need} (ask its authors, see the MME project page)"
        )
    return files


def _find_image(text: Path, folder: Path) -> Path:
    for place in (folder / "images", folder, text.parent):
        for suffix in IMAGES:
            if (place / (text.stem + suffix)).is_file():
                return place / (text.stem + suffix)
    raise TaskDataMissing(
        f"mme: no image for {text}; expected {text.stem}.jpg or .png in {folder} or {folder / 'images'}"
    )


@score_format.register
def score_mme_file(task: MME, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score a folder of official results (SUBTASK.txt with lines of image, question, truth, answer), or one of them."""
    if path.is_file() and get_suffix(path) != ".txt":
        return score_by_id(task, path, truth, lenient=lenient)
    files = sorted([*path.glob("*.txt"), *path.glob("*.txt.gz")]) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path}: no results files (existence.txt, count.txt, ...) in this folder")
    items: list[Item] = []
    texts: list[str | None] = []
    notes, duplicates = list[str](), 0
    for file in files:
        subtask = file.name.removesuffix(".gz").removesuffix(".txt")
        lines = _read_results(file)
        seen: set[tuple[str, str]] = set()
        for n, (image, question, label, answer) in enumerate(lines):
            if (image, question) in seen:
                duplicates += 1
                if not lenient:
                    raise ValueError(f"{file}, line {n + 1}: duplicate question; with --lenient both count")
            seen.add((image, question))
            # pairs are lines 1-2, 3-4, ...
            meta = {"subtask": subtask, "group": f"{subtask}/{n // 2}"}
            items.append(Item(f"{subtask}/{n}", None, question, label.lower(), meta))
            texts.append(answer)
        if len(lines) != QUESTIONS.get(subtask, len(lines)):
            notes.append(f"{subtask} has {len(lines)} questions here, {QUESTIONS[subtask]} in MME")
    scores, n = task.score(items, texts), len(items)
    return replace(scores, coverage=Coverage(n, n, n, duplicates), notes=(*notes, *scores.notes))


def _read_results(file: Path) -> list[tuple[str, str, str, str]]:
    """The cells of each line of a results file, in which two lines each are about one image."""
    lines = [line.split("\t") for line in re.split(r"\r?\n", read_text(file).rstrip("\r\n"))]
    for n, cells in enumerate(lines, 1):
        if len(cells) != 4 or cells[2].lower() not in ("yes", "no"):
            found = f"{len(cells)} cells" if len(cells) != 4 else f"{cells[2][:20]!r} instead of yes or no"
            raise ValueError(
                f"{file}, line {n}: expected image, question, yes or no, answer, separated by tabs; found {found}"
            )
        if n % 2 == 0 and cells[0] != lines[n - 2][0]:
            raise ValueError(
                f"{file}, line {n}: lines {n - 1} and {n} should be about one image, but are about "
                f"{lines[n - 2][0][:40]!r} and {cells[0][:40]!r}: a line is lost, or the lines are out of order"
            )
    if len(lines) % 2:
        raise ValueError(f"{file}: {len(lines)} lines, but two questions belong to each image: a line is lost")
    return [(cells[0], cells[1], cells[2], cells[3]) for cells in lines]
