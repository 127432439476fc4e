"""`airvlm score` on every official file that we have: the official figures of docs/reference/benchmarks.md come out.

Each kind of file is a row of KINDS; a file of the golden folder that belongs to none of them fails the last test.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from airvlm import cli
from airvlm.tasks.files import coco
from airvlm.tasks.files.reading import read_json
from airvlm.tasks.words.tagger import find_tagger
from tests.golden import FOLDER, YESNO_COLUMNS, golden

OBJECTS = "chair/gt_objects_coco2014_trainval.json.gz"
Figures = dict[str, Any]  # metric -> official value, or a pytest.approx of it
Report = dict[str, Any]  # what --json prints


@cache
def _json(name: str) -> Any:
    path = golden(name)
    return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


def _printed(pattern: str, name: str) -> dict[str, str]:
    return dict(re.findall(pattern, golden(name).read_text()))


def near(value: float, digits: int) -> Any:
    """Equal in every digit that was printed."""
    return pytest.approx(value, abs=0.5001 * 10**-digits)


# -- what the official scripts printed, by file


def opera(words: str) -> Callable[[Path], Figures]:
    def figures(file: Path) -> Figures:
        official = _json("chair/opera_captions_scores.json")[file.stem][words]
        # wordnet stands for a tagger: how close it comes is in docs/reference/benchmarks.md
        allowed = {"CHAIRs": 0.05, "CHAIRi": 0.03, "Recall": 0.08, "Len": 0.01}
        if words.startswith("maxlinn"):
            allowed = dict.fromkeys(allowed, 1e-9)
        names = {"CHAIRs": "CHAIR_S", "CHAIRi": "CHAIR_I", "Recall": "recall", "Len": "length"}
        return {names[k]: pytest.approx(100 * v, abs=allowed[k]) for k, v in official.items()}

    return figures


def table_2(words: str) -> Callable[[Path], Figures]:
    def figures(file: Path) -> Figures:
        official = _json("chair/pope_table2_scores.json")[file.name.split(".")[0]][words]
        allowed = 0.005001 if words == "maxlinn" else 0.085001
        names = {"CHAIRs": "CHAIR_S", "CHAIRi": "CHAIR_I", "Recall": "recall"}
        return {name: pytest.approx(official[k], abs=allowed) for k, name in names.items()}

    return figures


def bleu(file: Path) -> Figures:
    part = "full" if "full" in file.stem else "first_sentence"
    official = _json("bleu/bleu_scores.json")[f"llava-1.5_greedy/{part}"]
    figures = {f"BLEU-{n}": v for n, v in enumerate(official["corpus_bleu1..4"], 1)}
    figures |= {f"BLEU-{n}-image": v for n, v in enumerate(official["mean_sentence_bleu1..4"], 1)}
    return {k: pytest.approx(100 * v, rel=1e-9) for k, v in {**figures, "BLEU": official["halc_bleu"]}.items()}


def pope(_: Path) -> Figures:
    official = {"accuracy": 89.7667, "precision": 91.8596, "recall": 87.2667, "f1": 89.5043}
    return {name: near(value, 4) for name, value in official.items()} | {"yes_ratio": near(47.5, 1)}


def amber(file: Path) -> Figures:
    [expected] = file.parent.glob(f"{file.stem}*.expected.txt")
    found = _printed(r"(\w+):\t+ ([\d.]+)", f"amber/{expected.name}")
    return {name: near(float(value), 1) for name, value in found.items()}


def mme(file: Path) -> Figures:
    text = golden("mme", f"{file.name}.expected.txt").read_text()
    perception, cognition = re.findall(r"total score: ([\d.]+)", text)
    figures = dict(re.findall(r"\t (\w+)  score: ([\d.]+)", text))
    figures |= {"perception": perception, "cognition": cognition}
    return {name: pytest.approx(float(value), rel=1e-9) for name, value in figures.items()}


def hallusionbench(file: Path) -> Figures:
    text = golden("hallusionbench", f"{file.stem}.expected.txt").read_text()
    cells = [float(cell) for line in re.findall(r"GPT Eval(.*)", text) for cell in re.findall(r"[\d.]+", line)]
    names = "qAcc fAcc easy hard aAcc yes_difference false_yes - figure_inconsistent figure_wrong LH VI Mixed"
    figures = dict(zip(names.split(), cells, strict=True))
    shares = {"yes_difference", "false_yes"}  # printed as shares, where all others are percents
    return {
        name: near(100 * value if name in shares else value, 4)
        for name, value in figures.items()
        if name != "-"  # the consistent figures are fAcc once more
    }


def reviews(file: Path) -> Figures:
    official = {
        "eval1": (64.7, 77.6, 59.3, 47.7),
        "eval2": (65.3, 78.8, 59.0, 48.5),
        "eval3": (66.3, 79.6, 59.0, 50.8),
    }
    names = ("all", "complex", "conv", "detail")
    return {k: near(v, 1) for k, v in zip(names, official[file.stem.rsplit("-", 1)[1]], strict=True)}


def grades(file: Path) -> Figures:
    table = file.with_name(file.name.replace("grade", "cap-score").replace(".json", ".csv"))
    row = next(r for r in csv.DictReader(table.open()) if r[""] == "llava-v1.5-7b")
    return {name: near(float(row[name]), 1) for name in ("total", "std")}


def nothing_but(**figures: float) -> Callable[[Path], Figures]:
    return lambda _: {name: pytest.approx(value, abs=0.005) for name, value in figures.items()}


# -- what was read from each answer


def same_objects(words: str) -> Callable[[Path, Report], None]:
    def check(file: Path, report: Report) -> None:
        official = _json("chair/per_caption.json.gz")[file.stem][words]
        ours = [[int(row["id"]), row["objects"], row["hallucinated"]] for row in report["items"]]
        assert ours == [row[:3] for row in official]

    return check


def nearly_the_same_objects(words: str) -> Callable[[Path, Report], None]:
    """At most one caption in fifty has other objects: the rules stand for a tagger."""

    def check(file: Path, report: Report) -> None:
        official = _json("chair/per_caption.json.gz")[file.stem][words]
        other = [
            row["id"]
            for row, (_, objects, *_) in zip(report["items"], official, strict=True)
            if row["objects"] != objects
        ]
        assert len(other) <= len(official) / 50, other

    return check


def same_words(column: str) -> Callable[[Path, Report], None]:
    def check(file: Path, report: Report) -> None:
        official = [case[column]["node_words"] for case in json.loads(file.read_text())]
        assert [row["objects"] for row in report["items"]] == official

    return check


def same_images(file: Path, report: Report) -> None:
    part = "full" if "full" in file.stem else "first_sentence"
    official = _json("bleu/bleu_scores.json")[f"llava-1.5_greedy/{part}"]["per_image"]
    for row in report["items"]:
        ours = [row[f"BLEU-{n}"] / 100 for n in range(1, 5)]
        assert ours == pytest.approx(official[row["id"]], rel=1e-6)


def same_cells(file: Path, report: Report) -> None:
    assert {name: report["counts"][name] for name in ("tp", "fp", "tn", "fn")} == {
        "tp": 1309,
        "fp": 116,
        "tn": 1384,
        "fn": 191,
    }


def same_reading(column: str, nothing: str = "") -> Callable[[Path, Report], None]:
    def check(file: Path, report: Report) -> None:
        for case, row in zip(json.loads(file.read_text()), report["items"], strict=True):
            official = case[column].lower()
            if "multi-line" in official:  # such an answer has no place in the official file
                official = nothing
            assert (row["parsed"] or nothing) == official, case["answer"]

    return check


def same_verdict(parser: str) -> Callable[[Path, Report], None]:
    """For parsers that look at the label."""
    cells = {("yes", "yes"): "TP", ("no", "yes"): "FN", ("no", "no"): "TN", ("yes", "no"): "FP"}

    def check(file: Path, report: Report) -> None:
        for case, row in zip(json.loads(file.read_text()), report["items"], strict=True):
            for label in ("yes", "no"):
                assert cells[row[f"parsed_if_{label}"], label] == case[f"{parser}_gt_{label}"], case["answer"]

    return check


def bare_words(file: Path, report: Report) -> None:
    for case, row in zip(json.loads(file.read_text()), report["items"], strict=True):
        for label in ("yes", "no"):
            assert (row["parsed"] == label) == bool(case[f"lmms_pope_gt_{label}_score"]), case["answer"]


def anything(file: Path, report: Report) -> None:
    """The figures say it all."""


@dataclass(frozen=True)
class Kind:
    """Files of one kind, how they are scored, and what must come out."""

    files: str  # pattern of names in the golden folder; a folder may be one answer
    task: str
    figures: Callable[[Path], Figures]
    items: Callable[[Path, Report], None] = anything
    truth: str | None = None
    variant: str | None = None
    scored: bool = True  # False: neither ground truth nor verdicts, the answers are only read

    def command(self, file: Path) -> list[str]:
        truth = ["--truth", str(golden(self.truth))] if self.truth else []
        partial = ["--partial"] if self.task == "amber" else []  # its official files answer a part of the items
        if find_tagger() is None and (self.variant or "").startswith("wordnet"):
            partial = ["--set", "approximate=true"]
        return [
            "score",
            self.task,
            str(file),
            *truth,
            *partial,
            *(["--variant", self.variant] if self.variant else []),
        ]


def _kinds() -> Iterator[Kind]:
    pattern, wordnet = "maxlinn_words+maxlinn_gt", "opera_words+maxlinn_gt"
    captions, table2 = "chair/opera_captions/*.jsonl", "chair/pope_table2_captions/*.jsonl.gz"
    yield Kind(captions, "chair", opera(pattern), same_objects(pattern), OBJECTS)
    yield Kind(captions, "chair", opera(wordnet), nearly_the_same_objects(wordnet), OBJECTS, "wordnet")
    yield Kind(captions, "chair", opera("opera_words+opera_gt"), anything, OBJECTS, "wordnet-truth")
    yield Kind(table2, "chair", table_2("maxlinn"), anything, OBJECTS)
    yield Kind(table2, "chair", table_2(wordnet), anything, OBJECTS, "wordnet")
    words, length = "chair/caption_to_words.json", nothing_but(length=7.66)
    yield Kind(words, "chair", length, same_words("maxlinn_pattern"), scored=False)
    yield Kind(words, "chair", length, same_words("opera_wordnet"), variant="wordnet", scored=False)
    yield Kind("bleu/*_inputs.json", "bleu", bleu, same_images)
    answers, questions = "pope/*_answers.jsonl", "pope/coco_pope_random.json"
    for variant in (None, "rucaibox", "clearsight"):
        yield Kind(answers, "pope", pope, same_cells, questions, variant)
    parsers, unlabelled = "pope/yesno_parsers.json", nothing_but()
    for variant, column, nothing in YESNO_COLUMNS:
        yield Kind(parsers, "pope", unlabelled, same_reading(column, nothing), variant=variant, scored=False)
    for variant in ("vcd", "clearsight"):
        yield Kind(parsers, "pope", unlabelled, same_verdict(variant), variant=variant, scored=False)
    yield Kind(parsers, "pope", unlabelled, bare_words, variant="lmms-eval", scored=False)
    if find_tagger() is not None:
        yield Kind("amber/*.json", "amber", amber, truth="../data/amber")
    yield Kind("mme/LaVIN", "mme", mme)
    yield Kind("mme/llava-v1.5-7b", "mme", mme)
    yield Kind("hallusionbench/*.json", "hallusionbench", hallusionbench)
    yield Kind("llava_bench_wild/*-eval?.jsonl", "llava-bench", reviews)
    yield Kind("llava_bench_wild/answers_*.jsonl", "llava-bench", nothing_but(length=92.73), scored=False)
    yield Kind("mmvet/*-grade-?runs.json", "mmvet", grades)
    yield Kind("mmvet/llava-v1.5-7b.json*", "mmvet", nothing_but(length=53.78), scored=False)


KINDS = list(_kinds())
# what the answers are compared with, what was printed, and what is no answer at all
OTHERS = (
    "README.md",
    "amber/*.json",
    "models/*",
    "*expected.txt",
    "*reported.txt",
    "*scores.json",
    "mme/*/*.txt",
) + (
    OBJECTS,
    "chair/per_caption.json.gz",
    "pope/coco_pope_random.json",
    "mmvet/llava-mm-vet.jsonl",
    "mmvet/*-score-?runs.csv",
    "mmbench/*.json",  # read in tests/tasks/test_mmbench.py
)


@cache
def read_once(path: Path) -> Any:
    return read_json(path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    # the objects of 123,000 images are the truth of 27 of the files below: parsed once, by the code that always does
    monkeypatch.setattr(coco, "read_json", lambda path: read_once(path) if path == golden(OBJECTS) else read_json(path))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(list(arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def _name(kind: Kind) -> str:
    return f"{kind.files} {kind.variant or ''}".strip()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=_name)
def test_an_official_file_is_accepted_as_it_is_and_scores_as_published(run: Any, kind: Kind) -> None:
    golden()
    files = sorted(FOLDER.glob(kind.files))
    assert files, f"no file {kind.files}"
    for file in files:
        code, out, err = run(*kind.command(file), "--items", "--json")
        assert code == (0 if kind.scored else 3), err
        report = json.loads(out)
        figures = kind.figures(file)
        assert {name: report["metrics"][name]["value"] for name in figures} == figures, file.name
        assert len({row["id"] for row in report["items"]}) == len(report["items"])
        kind.items(file, report)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.variant is None], ids=_name)
def test_it_may_be_gzipped_and_is_shown_as_a_table(run: Any, kind: Kind, tmp_path: Path) -> None:
    golden()
    file = min(FOLDER.glob(kind.files))
    place = tmp_path / (file.parent.name if file.is_file() else file.name)
    place.mkdir()
    for one in file.parent.iterdir() if file.is_file() else file.iterdir():
        if one.is_file() and one.suffix != ".gz" and (one == file or not file.is_file()):
            (place / f"{one.name}.gz").write_bytes(gzip.compress(one.read_bytes(), 1))
        elif one.is_file():
            shutil.copy(one, place)  # what a file needs beside it
    packed = place if file.is_dir() else place / (file.name if file.suffix == ".gz" else f"{file.name}.gz")
    code, out, err = run(*kind.command(packed))
    assert code == (0 if kind.scored else 3), err
    plain = run(*kind.command(file))
    assert (code, out) == plain[:2]


def test_questions_are_not_mistaken_for_answers(run: Any) -> None:
    code, out, err = run("score", "mmvet", str(golden("mmvet", "llava-mm-vet.jsonl")))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "holds questions" in err


def test_no_official_file_is_left_out() -> None:
    golden()
    names = [path.relative_to(FOLDER).as_posix() for path in sorted(FOLDER.rglob("*")) if path.is_file()]
    names = [name for name in names if not name.startswith("written/")]  # ours, scored in tests of their own
    patterns = [kind.files for kind in KINDS] + list(OTHERS)
    assert [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)] == []
