"""MME: 14 subtasks of yes/no questions, two about each image; a subtask scores acc + acc+, 200 at most.

Two questions belong together by image; the official results files say so only by the order of their
lines. Knows nothing of models; the parser is the official one, down to the four characters it looks at.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from airvlm.tasks.base import (
    MISSING,
    UNPARSED,
    Counts,
    Item,
    Metric,
    Ratio,
    Scores,
    Task,
    TaskDataMissing,
)
from airvlm.tasks.coverage import Coverage
from airvlm.tasks.files.reading import read_text

__all__ = ["COGNITION", "HALLUCINATION", "MME", "PERCEPTION"]

PERCEPTION = (
    "existence",
    "count",
    "position",
    "color",
    "posters",
    "celebrity",
    "scene",
    "landmark",
    "artwork",
    "OCR",
)
COGNITION = ("commonsense_reasoning", "numerical_calculation", "text_translation", "code_reasoning")
HALLUCINATION = ("existence", "count", "position", "color")
TOTALS = {
    "perception": PERCEPTION,
    "cognition": COGNITION,
    "hallucination": HALLUCINATION,
    "total": PERCEPTION + COGNITION,
}
QUESTIONS = dict.fromkeys(HALLUCINATION, 60) | {
    "posters": 294,
    "celebrity": 340,
    "scene": 400,
    "landmark": 400,
    "artwork": 400,
    "OCR": 40,
    "commonsense_reasoning": 140,
    "numerical_calculation": 40,
    "text_translation": 40,
    "code_reasoning": 40,
}
IMAGES = (".jpg", ".jpeg", ".png", ".webp")
ASK_YES_NO = "Please answer yes or no."


@dataclass(frozen=True)
class Points:
    """The score of some subtasks: for each, 100·acc + 100·acc+, in the official order of the additions."""

    subtasks: tuple[str, ...]

    def __call__(self, counts: Counts) -> Any:
        total: Any = 0
        with np.errstate(divide="ignore", invalid="ignore"):
            for s in self.subtasks:
                acc = np.divide(counts[f"{s}:right"], counts[f"{s}:asked"])
                acc_plus = np.divide(counts[f"{s}:both"], counts[f"{s}:images"])
                total = total + (acc * 100 + acc_plus * 100)
        return total


@dataclass(frozen=True)
class MME(Task):
    """MME from the release's folders: SUBTASK/*.txt beside images, or images/ and questions_answers_YN/."""

    parser: Literal["official", "lmms"] = "official"  # lmms: strips, drops full stops, accepts y and n
    instruction: Literal["official", "llava"] = "official"  # llava: LLaVA's last line for MME's
    subset: Literal["all", "hallucination"] = "all"  # hallucination: existence, count, position, color

    name: ClassVar[str] = "mme"
    kind: ClassVar[Literal["caption", "yesno", "choice", "judged"]] = "yesno"
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

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        need = f"MME's release: a folder a subtask ({', '.join(self.subtasks)}) with images and .txt questions"
        folder, items = self.folder(need), []
        for subtask in self.subtasks:
            for text in _question_files(folder / subtask, need):
                image = _image_of(text, folder / subtask)
                lines = [line.split("\t") for line in read_text(text).splitlines() if line.strip()]
                if any(len(cells) != 2 or cells[1].strip().lower() not in ("yes", "no") for cells in lines):
                    raise ValueError(f"{text}: expected lines of a question, a tab, and Yes or No")
                for k, (question, truth) in enumerate(lines):
                    meta = {"subtask": subtask, "group": f"{subtask}/{text.stem}"}
                    items.append(Item(f"{subtask}/{text.stem}/{k}", image, question, truth.strip().lower(), meta))
                if limit is not None and len(items) >= limit:
                    return items[:limit]
        return items

    @property
    def subtasks(self) -> tuple[str, ...]:
        return HALLUCINATION if self.subset == "hallucination" else TOTALS["total"]

    def prompt(self, item: Item) -> str:
        if self.instruction == "llava":
            head = item.question.removesuffix(ASK_YES_NO).rstrip()
            return f"{head}\nAnswer the question using a single word or phrase."
        return item.question

    def parse(self, item: Item, text: str) -> str | None:
        answer = text.lower()  # not stripped: the official script does not
        if self.parser == "lmms":
            answer = answer.strip().replace(".", "")
            answer = {"y": "yes", "n": "no"}.get(answer, answer)
        if answer in ("yes", "no"):
            return answer
        return next((word for word in ("yes", "no") if word in answer[:4]), None)

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        parsed = self.parse_all(items, answers)
        about: dict[str, list[int]] = defaultdict(list)
        for i, item in enumerate(items):
            about[item.group].append(i)
        per_item: list[dict[str, float]] = []
        for item, text, said in zip(items, answers, parsed):
            if text is None:
                per_item.append({MISSING: 1})
                continue
            s, right = item.meta["subtask"], float(said == item.truth)
            counts = {
                f"{s}:asked": 1.0,
                f"{s}:right": right,
                "asked": 1.0,
                "right": right,
                "yes": float(said == "yes"),
            }
            per_item.append(counts if said is not None else {**counts, UNPARSED: 1.0})
        for group in about.values():
            if any(answers[i] is None for i in group):
                continue  # acc+ of an image with a missing answer is unknown
            s, both = items[group[0]].meta["subtask"], float(all(parsed[i] == items[i].truth for i in group))
            per_item[group[0]] |= {f"{s}:images": 1.0, f"{s}:both": both, "images": 1.0, "both": both}
        return Scores(
            per_item,
            self._definitions({item.meta["subtask"] for item in items}),
            [item.group for item in items],
            [{"id": item.id, "parsed": said, "right": said == item.truth} for item, said in zip(items, parsed)],
            self._notes(items),
        )

    def _definitions(self, present: set[str]) -> dict[str, Metric]:
        metrics = {name: Metric(Points(parts)) for name, parts in TOTALS.items() if set(parts) <= present}
        metrics |= {
            "accuracy": Metric(Ratio("right", "asked")),
            "accuracy_plus": Metric(Ratio("both", "images")),
            "yes_ratio": Metric(Ratio("yes", "asked"), "neither"),
        }
        ordered = [s for s in TOTALS["total"] if s in present] + sorted(present - set(TOTALS["total"]))
        return metrics | {s: Metric(Points((s,))) for s in ordered}

    def _notes(self, items: Sequence[Item]) -> tuple[str, ...]:
        lacking = [s for s in self.subtasks if s not in {item.meta["subtask"] for item in items}]
        return (f"no totals over subtasks that were not asked: {', '.join(lacking)}",) if lacking else ()

    def rescore(self, answers: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
        """A folder of official results (SUBTASK.txt: image, question, truth, answer, by tabs), or one file."""
        files = sorted([*answers.glob("*.txt"), *answers.glob("*.txt.gz")]) if answers.is_dir() else [answers]
        if not files:
            raise ValueError(f"{answers}: no results files (existence.txt, count.txt, …) in this folder")
        items: list[Item] = []
        said: list[str | None] = []
        notes, doubled = list[str](), 0
        for file in files:
            subtask = file.name.removesuffix(".gz").removesuffix(".txt")
            lines = _result_lines(file)
            repeated = [n for n, cells in enumerate(lines, 1) if cells[:2] in [other[:2] for other in lines[: n - 1]]]
            doubled += len(repeated)
            if repeated and not lenient:
                raise ValueError(f"{file}, line {repeated[0]}: this question stands there twice; --lenient counts both")
            if subtask in QUESTIONS and len(lines) != QUESTIONS[subtask]:
                notes.append(f"{subtask} has {len(lines)} questions here, {QUESTIONS[subtask]} in MME")
            for n, cells in enumerate(lines):
                meta = {"subtask": subtask, "group": f"{subtask}/{n // 2}"}  # pairs are lines 1-2, 3-4, …
                items.append(Item(f"{subtask}/{n}", None, cells[1], cells[2].lower(), meta))
                said.append(cells[3])
        scores = self.score(items, said)
        coverage = replace(Coverage.whole(len(items)), duplicate=doubled)
        return replace(scores, coverage=coverage, notes=(*notes, *scores.notes))


def _result_lines(file: Path) -> list[list[str]]:
    """The cells of each line of a results file, whose lines 1-2, 3-4, … must be about one image each."""
    lines = [line.split("\t") for line in re.split(r"\r?\n", read_text(file).rstrip("\r\n"))]
    for n, cells in enumerate(lines, 1):
        if len(cells) != 4 or cells[2].lower() not in ("yes", "no"):
            found = f"{len(cells)} cells" if len(cells) != 4 else f"{cells[2][:20]!r} where yes or no should be"
            raise ValueError(
                f"{file}, line {n}: expected image, question, yes or no, answer, separated by tabs; found {found}"
            )
        if n % 2 == 0 and cells[0] != lines[n - 2][0]:
            raise ValueError(
                f"{file}, line {n}: lines {n - 1} and {n} should be about one image, and are about "
                f"{lines[n - 2][0][:40]!r} and {cells[0][:40]!r}: a line is lost, or the lines are out of order"
            )
    if len(lines) % 2:
        raise ValueError(f"{file}: {len(lines)} lines, but two questions belong to each image: a line is lost")
    return lines


def _question_files(folder: Path, need: str) -> list[Path]:
    inner = folder / "questions_answers_YN"
    files = sorted((inner if inner.is_dir() else folder).glob("*.txt")) if folder.is_dir() else []
    if not files:
        raise TaskDataMissing(
            f"mme: no questions in {folder}; put there {need} (ask its authors, see the MME project page)"
        )
    return files


def _image_of(text: Path, folder: Path) -> Path:
    for place in (folder / "images", folder, text.parent):
        for suffix in IMAGES:
            if (place / (text.stem + suffix)).is_file():
                return place / (text.stem + suffix)
    raise TaskDataMissing(
        f"mme: no image for {text}; expected {text.stem}.jpg or .png in {folder} or {folder / 'images'}"
    )
