"""A valid file for every task and kind of truth that `airvlm score` takes, small, to be damaged in many ways.

Each kind writes its files into a folder and gives the command line; `files` are those that may be damaged.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from airvlm.tasks import Item, TaskEntry
from airvlm.tasks.tiny import TinyYesNo
from tests.golden import DATA

__all__ = ["KINDS", "OWN_TASKS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """One way to call `airvlm score`."""

    name: str
    task: str
    make: Callable[[Path], None]  # writes the files
    answers: str
    truth: str | None = None
    options: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()  # files to damage; by default the answers
    scored: bool = True  # False: code 3, as there is no ground truth, or not all of the benchmark

    @property
    def files(self) -> tuple[str, ...]:
        return self.damaged or (self.answers,)

    def command(self, folder: Path) -> list[str]:
        truth = ["--truth", str(folder / self.truth)] if self.truth else []
        return ["score", self.task, str(folder / self.answers), *truth, *self.options, "--json"]


def _copy(*names: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for name in names:
            source = DATA / name
            if source.is_dir():
                shutil.copytree(source, folder / source.name)
            else:
                (folder / source.name).write_bytes(source.read_bytes())

    return make


def _write(**files: Any) -> Callable[[Path], None]:
    """Files by name (with "_" before the ending for "."): lists as JSON lines, everything else as JSON."""

    def make(folder: Path) -> None:
        for name, content in files.items():
            path = folder / ".".join(name.rsplit("_", 1))
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = "\n".join(map(json.dumps, content)) if path.suffix == ".jsonl" else json.dumps(content)
            path.write_text(lines)

    return make


def _head(name: str, lines: int, to: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / to).write_text("".join((DATA / name).read_text().splitlines(keepends=True)[:lines]))

    return make


def _all(*makers: Callable[[Path], None]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for maker in makers:
            maker(folder)

    return make


def _gzip(maker: Callable[[Path], None], name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        maker(folder)
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))

    return make


OBJECTS = {str(n): names for n, names in enumerate([["dog", "person"], ["cat"], ["bus", "car"], ["pizza"]], 1)}
CAPTIONS = [
    {"image_id": n, "caption": text}
    for n, text in enumerate(["A dog and a cat.", "A cat.", "A bus.", "A man eats a pizza."], 1)
]
QUESTIONS = [
    {"question_id": n, "image": f"{n}.jpg", "text": "Is there a dog in the image?", "label": label}
    for n, label in enumerate(("yes", "no", "yes", "no"), 1)
]
ANSWERS = [{"question_id": n, "text": text} for n, text in enumerate(("Yes", "No", "No", "Yes."), 1)]
LABELED = [{**question, "answer": "Yes"} for question in QUESTIONS]
COCO = {
    "images": [{"id": n, "file_name": f"COCO_val2014_{n:012d}.jpg"} for n in range(1, 5)],
    "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}],
    "annotations": [{"image_id": n, "category_id": 1 + n % 2, "area": 3.5} for n in range(1, 5)],
}
COCO_CAPTIONS = {"annotations": [{"image_id": n, "caption": "a dog on a bench"} for n in range(1, 5)]}
HALLUSION = [
    {"category": "VD", "subcategory": "math", "visual_input": "1", "set_id": "0", "figure_id": str(f),
     "question_id": str(q), "question": "Is it?", "gt_answer": str((f + q) % 2), "filename": None}
    for f in range(2) for q in range(2)
]  # fmt: skip
SAID = [{**{k: v for k, v in one.items() if k not in ("gt_answer", "question")}, "model_prediction": "Yes."}
        for one in HALLUSION]  # fmt: skip
GRADES = {f"v1_{n}": {"content": ["0.5"], "score": [0.5]} for n in range(4)}
VET = {
    f"v1_{n}": {"imagename": f"{n}.png", "question": "What?", "answer": "a dog", "capability": ["rec", "ocr"]}
    for n in range(4)
}
REVIEWS = [
    {"question_id": n, "category": "llava_bench_conv", "content": "8 7\nfine", "tuple": [8.0, 7.0]} for n in range(4)
]
WILD = [{"question_id": n, "text": "An answer of a few words.", "prompt": "What?"} for n in range(4)]
REPLIES = [{"choices": [{"message": {"content": f"Rating: {n % 7}"}}]} for n in range(96)]
VSTAR = [{"question_id": n, "category": "direct_attributes", "options": ["red", "blue"], "label": "A", "text": "A"}
         for n in range(4)]  # fmt: skip
SCENES = [{"item": f"existence-{scene}-{k}", "text": "Yes"} for scene in ("a", "b") for k in range(2)]
BLEU = {
    "hyp": {str(n): "a dog on a bench" for n in range(4)},
    "refs": {str(n): ["a dog", "a bench"] for n in range(4)},
}


class FewScenes(TinyYesNo):
    """The first scenes alone: how a file is taken does not depend on how many thousand items there are."""

    name: ClassVar[str] = "tiny-existence-few"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        return super().items(min(20, limit or 20), split)


OWN_TASKS = {FewScenes.name: TaskEntry(f"{__name__}:FewScenes", "for these tests alone", package="tests")}


def _tiny(folder: Path) -> None:
    items = FewScenes().items()
    (folder / "a.jsonl").write_text("\n".join(json.dumps({"item": i.id, "text": "Yes"}) for i in items))


def _mmbench_truth(folder: Path) -> None:
    rows = [line.split("\t") for line in (DATA / "mmbench/predictions.tsv").read_text().splitlines()]
    (folder / "t.tsv").write_text("\n".join("\t".join(row[:-1]) for row in rows) + "\n")
    said = [{"index": int(row[0]), "prediction": row[-1]} for row in rows[1:]]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, said)))


def _coco(folder: Path) -> None:
    (folder / "annotations").mkdir()
    (folder / "annotations/instances_val2014.json").write_text(json.dumps(COCO))
    (folder / "annotations/captions_val2014.json").write_text(json.dumps(COCO_CAPTIONS))


def _hr_bench(folder: Path) -> None:
    rows = json.loads((DATA / "hr_bench/predictions.json").read_text())["rows"][:6]
    left = ("parsed", "hit", "prediction")
    table = [{**{k: str(v) for k, v in row.items() if k not in left}, "image": "x.jpg"} for row in rows]
    (folder / "hr_bench_4k.jsonl").write_text("\n".join(map(json.dumps, table)))
    said = [{"index": row["index"], "prediction": row["prediction"]} for row in rows]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, said)))


def _detailcaps(folder: Path) -> None:
    rows = [{"id": str(n), "image": "x.jpg", "references": ["A dog on a bus.", "A cat."]} for n in range(4)]
    (folder / "detailcaps.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = [{"id": str(n), "text": "A dog and a car."} for n in range(4)]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, said)))


RELATIONS = [
    {"image_id": str(n), "query_prompt": "Is it? Please answer yes or no.", "label": "yes", "response": "Yes",
     "relation_type": ("perception", "cognitive")[n % 2]}
    for n in range(4)
]  # fmt: skip
DASH = [{"img_id": f"{n}.png", "object_name": "ladder", "gt": ("yes", "no")[n % 2], "response": "no"} for n in range(4)]
_captions = _write(a_jsonl=CAPTIONS, t_json=OBJECTS)
_amber = _copy("amber/data", "amber/generative.json", "amber/discriminative.json")
KINDS: tuple[Kind, ...] = (
    Kind("chair", "chair", _captions, "a.jsonl", "t.json"),
    Kind("chair-truth", "chair", _captions, "a.jsonl", "t.json", damaged=("t.json",)),
    Kind("chair-list", "chair", _write(a_json=CAPTIONS, t_json=OBJECTS), "a.json", "t.json"),
    Kind("chair-gzip", "chair", _gzip(_captions, "a.jsonl"), "a.jsonl.gz", "t.json"),
    Kind("chair-alone", "chair", _captions, "a.jsonl", scored=False),
    Kind("chair-coco", "chair", _all(_captions, _coco), "a.jsonl", "annotations",
         damaged=("annotations/instances_val2014.json", "annotations/captions_val2014.json")),
    Kind("chair-wordnet", "chair", _captions, "a.jsonl", "t.json",
         ("--variant", "wordnet", "--set", "approximate=true")),
    Kind("object-halbench", "object-halbench", _captions, "a.jsonl", "t.json"),
    Kind("bleu", "bleu", _write(a_json=BLEU), "a.json"),
    Kind("bleu-truth", "bleu", _write(a_jsonl=CAPTIONS, t_json={str(n): ["a dog"] for n in range(1, 5)}),
         "a.jsonl", "t.json", damaged=("t.json", "a.jsonl")),
    Kind("pope", "pope", _write(a_jsonl=ANSWERS, t_json=QUESTIONS), "a.jsonl", "t.json"),
    Kind("pope-truth", "pope", _write(a_jsonl=ANSWERS, t_jsonl=QUESTIONS), "a.jsonl", "t.jsonl", damaged=("t.jsonl",)),
    Kind("pope-labeled", "pope", _write(a_jsonl=LABELED), "a.jsonl"),
    Kind("pope-unlabeled", "pope", _write(a_jsonl=ANSWERS), "a.jsonl", scored=False),
    Kind("amber", "amber", _amber, "generative.json", "data", ("--set", "approximate=true")),
    Kind("amber-truth", "amber", _amber, "generative.json", "data", ("--set", "approximate=true"),
         ("data/annotations.json", "data/relation.json", "data/safe_words.txt")),
    Kind("amber-yesno", "amber-yesno", _amber, "discriminative.json", "data"),
    Kind("amber-yesno-truth", "amber-yesno", _amber, "discriminative.json", "data", damaged=("data/annotations.json",)),
    Kind("mme", "mme", _copy("mme/results"), "results", damaged=("results/existence.txt",)),
    Kind("mmbench", "mmbench", _copy("mmbench/predictions.tsv"), "predictions.tsv"),
    Kind("mmbench-ids", "mmbench", _mmbench_truth, "a.jsonl", "t.tsv"),
    Kind("mmbench-truth", "mmbench", _mmbench_truth, "a.jsonl", "t.tsv", damaged=("t.tsv",)),
    Kind("hallusionbench", "hallusionbench", _copy("hallusionbench/judged.json"), "judged.json", scored=False),
    Kind("hallusionbench-string", "hallusionbench", _write(a_json=SAID, t_json=HALLUSION), "a.json", "t.json",
         ("--variant", "string")),
    Kind("hallusionbench-truth", "hallusionbench", _write(a_json=SAID, t_json=HALLUSION), "a.json", "t.json",
         ("--variant", "string"), ("t.json",)),
    Kind("mmvet-grades", "mmvet", _write(a_json=GRADES, t_json=VET), "a.json", "t.json"),
    Kind("mmvet-truth", "mmvet", _write(a_json=GRADES, t_json=VET), "a.json", "t.json", damaged=("t.json",)),
    Kind("mmvet-alone", "mmvet", _write(a_json={f"v1_{n}": "an answer" for n in range(4)}), "a.json", scored=False),
    Kind("llava-bench-reviews", "llava-bench", _write(a_jsonl=REVIEWS), "a.jsonl"),
    Kind("llava-bench-alone", "llava-bench", _write(a_jsonl=WILD), "a.jsonl", scored=False),
    Kind("mmhal", "mmhal", _write(a_json=REPLIES), "a.json"),
    Kind("vstar", "vstar", _write(a_jsonl=VSTAR), "a.jsonl"),
    Kind("repope", "repope", _write(a_jsonl=ANSWERS, t_json=QUESTIONS), "a.jsonl", "t.json", ("--variant", "repope")),
    Kind("dash-b", "dash-b", _write(a_json=DASH), "a.json"),
    Kind("reefknot", "reefknot", _write(a_jsonl=RELATIONS), "a.jsonl"),
    Kind("hr-bench", "hr-bench", _hr_bench, "a.jsonl", "hr_bench_4k.jsonl"),
    Kind("hr-bench-truth", "hr-bench", _hr_bench, "a.jsonl", "hr_bench_4k.jsonl", damaged=("hr_bench_4k.jsonl",)),
    Kind("detailcaps", "detailcaps", _detailcaps, "a.jsonl", "detailcaps.jsonl", ("--approximate",),
         ("a.jsonl", "detailcaps.jsonl")),
    Kind("tiny", FewScenes.name, _tiny, "a.jsonl"),
)  # fmt: skip
