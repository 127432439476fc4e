"""What reproducing a table of the paper takes: its tasks on the data at hand, its methods, and a measured time.

Knows where benchmarks are looked for and where they come from; nothing of results.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airvlm.cli import answering
from airvlm.cli.console import Failure
from airvlm.cli.options import Evaluating

if TYPE_CHECKING:
    from airvlm.evaluation.plan import Asked
    from airvlm.reporting.paper_tables import PaperPart, PaperRow, PaperTable

__all__ = ["Planned", "model_of", "planned", "tried"]

# the paper's models, and where they are
HUB = {
    "LLaVA-1.5-7B": "llava-hf/llava-1.5-7b-hf",
    "Qwen-VL-Chat": "Qwen/Qwen-VL-Chat",
    "GLM-4V-9B": "THUDM/glm-4v-9b",
}
# folders of --data that are looked into before itself, and the official source; by the task's first word
PLACES = {
    "chair": (("coco",), "COCO 2014: annotations_trainval2014.zip and val2014.zip, cocodataset.org"),
    "pope": (
        ("pope", "coco"),
        "questions: github.com/AoiDragon/POPE (COCO), github.com/DAMO-NLP-SG/VCD (A-OKVQA, GQA); images: val2014.zip, "
        "cocodataset.org, and GQA's, cs.stanford.edu/people/dorarad/gqa",
    ),
    "gpt4v": (
        ("llava-bench", "llava-bench-in-the-wild"),
        "huggingface.co/datasets/liuhaotian/llava-bench-in-the-wild",
    ),
    "object": (("object-halbench", "coco"), "github.com/RLHF-V/RLHF-V, and COCO 2014, cocodataset.org"),
    "amber": (("amber", "AMBER"), "github.com/junyangwang0410/AMBER"),
}
TINY = {"chair": "tiny-chair"} | {f"pope-coco-{s}": f"tiny-pope-{s}" for s in ("random", "popular", "adversarial")}
FEW = 4  # items of the trial
LONGEST = 60.0  # seconds of the trial, after which what is not yet measured is taken for the mean


def model_of(table: PaperTable, model: str | None) -> str:
    """The model that is named, or else the table's first."""
    return model or HUB[table.models[0]]


@dataclass(frozen=True)
class Planned:
    """A part of a table: what is asked of whom, or why it cannot be."""

    part: PaperPart
    rows: tuple[PaperRow, ...]
    asked: Asked | None
    data_line: str  # where the data were found, or what is missing and where it comes from

    @property
    def answers(self) -> int:
        return 0 if self.asked is None else len(self.asked.items) * len(self.methods())

    def methods(self) -> dict[str, Any]:
        """Ours, by label; a method that stands in several rows is asked once."""
        return {row.label: row.method for row in self.rows}

    def question(self) -> Asked:
        """The task with the methods that answer it."""
        assert self.asked is not None, "a part without data is not asked"
        return replace(self.asked, methods={k: m for k, m in self.methods().items() if m is not None})

    @property
    def task_line(self) -> str:
        if self.asked is None:
            return f"{self.part.key}: cannot be asked"
        judged = ", scored by a judge (AIRVLM_JUDGE_URL, docs/benchmarks.md)" if self.part.judged else ""
        asked = f"{len(self.asked.items)} items x {len(self.methods())} methods = {self.answers} answers"
        return f"{self.part.key}: {asked}{judged}"

    def settings(self, row: PaperRow) -> dict[str, Any]:
        """A method's own fields."""
        fields = {} if row.method is None else row.method.to_json()
        return {k: v for k, v in fields.items() if k != "name" and v is not None}

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.part.task,
            "key": self.part.key,
            "items": 0 if self.asked is None else len(self.asked.items),
            "answers": self.answers,
            "data": self.data_line,
            "found": self.asked is not None,
            "rows": [
                {
                    "paper": row.name,
                    "method": row.label,
                    "settings": self.settings(row),
                }
                for row in self.rows
            ],
        }


def planned(table: PaperTable, how: Evaluating, readings: Sequence[str] | None, depth: int) -> list[Planned]:
    """The parts of a table, each with its data or what is missing."""
    from airvlm.reporting.paper_tables import rows_of

    found = []
    for part in table.parts:
        try:
            rows = tuple(rows_of(part, readings, depth))
        except (ValueError, TypeError) as error:
            raise Failure(str(error)) from error
        asked, line = _data(part, how)
        found.append(Planned(part, rows, asked, line))
    return found


def _data(part: PaperPart, how: Evaluating) -> tuple[Asked | None, str]:
    tiny = how.model == "tiny"
    if tiny and part.task not in TINY:
        return None, f"{part.task} has no counterpart in the tiny model's world"
    name = TINY[part.task] if tiny else part.task
    own, source = PLACES.get(part.task.split("-")[0], ((part.task,), ""))
    folders = [None] if tiny or how.data is None else [*(how.data / folder for folder in own), how.data]
    trouble = ""
    for folder in folders:
        if folder is not None and folder != how.data and not folder.is_dir():
            continue
        try:
            [asked] = answering.ask_tasks(
                [name],
                replace(how, data=folder),
                max_new_tokens=part.max_new_tokens,
                noise=part.noise,
                label=part.key.replace(part.task, name, 1),
            )
        except Failure as error:
            trouble = trouble or error.format_message()
        else:
            return asked, "bundled scenes of the tiny model's world" if tiny else f"found in {folder}"
    return None, f"{trouble}; looked in {_places(folders)}; source: {source or _source(part.task)}"


def _places(folders: Sequence[Path | None]) -> str:
    return ", ".join(str(folder) for folder in folders if folder is not None) or "no folder (give --data FOLDER)"


def _source(task: str) -> str:
    from airvlm.tasks import load_task

    return load_task(task).source


def tried(
    table: PaperTable,
    how: Evaluating,
    readings: Sequence[str] | None,
    parts: Sequence[Planned],
    workers: int | None,
) -> tuple[float | None, str]:
    """Hours of the whole, by a few answers of each method on this machine; None and the reason where there are none."""
    from airvlm.evaluation.evaluate import answer_all
    from airvlm.evaluation.plan import ModelFacts
    from airvlm.evaluation.runner import work
    from airvlm.evaluation.store import Store

    if not any(part.asked for part in parts):
        return None, "not measured: no data"
    try:
        loader = answering.loader_of(replace(how, model=model_of(table, how.model)), [])
        vlm = loader(how.device)
    except (Failure, OSError, ValueError, ImportError) as error:
        return None, f"not measured: {str(error).splitlines()[0]}"
    facts, began = ModelFacts.of(vlm), time.monotonic()
    seconds, answers, measured, all_methods = 0.0, 0, 0, 0
    with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
        for part in planned(table, how, readings, len(vlm.parts.layers)):
            if part.asked is None:
                continue
            few, each = replace(part.asked, items=part.asked.items[:FEW]), []
            for label, method in part.methods().items():
                all_methods += 1
                if time.monotonic() - began > LONGEST and measured:
                    continue
                start = time.monotonic()
                answer_all(
                    lambda todo, into, done: work(vlm, todo, into, done),
                    [(few, {label: method})],
                    facts,
                    store,
                    batch_size=FEW,
                    progress=False,
                )
                each.append((time.monotonic() - start) / len(few.items))
                measured += 1
            cost = sum(each) / len(each) if each else seconds / max(answers, 1)
            seconds += cost * part.answers
            answers += part.answers
    shared = f" by {workers}" if workers and workers > 1 else ""
    note = f"in one process{shared}; {measured} of {all_methods} methods tried on {FEW} items"
    return seconds / 3600 / (workers or 1), note
