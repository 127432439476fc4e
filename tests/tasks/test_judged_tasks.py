"""The judged benchmarks end to end: data in their official layouts, a fake judge, and official verdicts rescored."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from airvlm.tasks import TaskDataMissing, load_task
from airvlm.tasks.gpt4v import GPT4V, read_aspects
from airvlm.tasks.judges.judge import Judge, NoJudge
from airvlm.tasks.llava_bench import LLaVABench, read_two_scores
from airvlm.tasks.mmhal import KINDS, MMHal, read_rating
from airvlm.tasks.mmvet import MMVet, read_grade
from tests.fake_judge import FakeJudge, Fault
from tests.golden import golden


@pytest.fixture(autouse=True)
def no_judge_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("AIRVLM_JUDGE_URL", raising=False)
    yield


def judge_at(fake: FakeJudge) -> Judge:
    return Judge(fake.url, "m", pause=0.01, attempts=2)


# -- LLaVA-Bench

REVIEWS = {"1": (64.7, 77.6, 59.3, 47.7), "2": (65.3, 78.8, 59.0, 48.5), "3": (66.3, 79.6, 59.0, 50.8)}


@pytest.mark.parametrize("run", list(REVIEWS))
def test_llava_bench_reviews_give_the_official_figures(run: str) -> None:
    path = golden("llava_bench_wild", f"llava-v1.5-7b-eval{run}.jsonl")
    ours = load_task("llava-bench").rescore(path).metrics
    assert tuple(round(ours[name], 1) for name in ("all", "complex", "conv", "detail")) == REVIEWS[run]


def test_llava_bench_a_review_that_failed_is_missing_not_minus_one(tmp_path: Path) -> None:
    lines = golden("llava_bench_wild", "llava-v1.5-7b-eval1.jsonl").read_text().splitlines()
    failed = json.dumps(json.loads(lines[0]) | {"content": "error", "tuple": [-1, -1]})
    (tmp_path / "reviews.jsonl").write_text("\n".join([failed, *lines[1:]]))
    (tmp_path / "without.jsonl").write_text("\n".join(lines[1:]))
    with_gap = load_task("llava-bench").rescore(tmp_path / "reviews.jsonl")
    assert with_gap.missing == 1
    assert with_gap.metrics == load_task("llava-bench").rescore(tmp_path / "without.jsonl").metrics


def wild(folder: Path) -> Path:
    questions = [
        {"question_id": 0, "image": "001.jpg", "category": "conv", "text": "What?"},
        {"question_id": 1, "image": "001.jpg", "category": "detail", "text": "Describe."},
    ]
    write_lines(folder / "questions.jsonl", questions)
    write_lines(folder / "answers_gpt4.jsonl", [{"question_id": i, "text": f"reference {i}"} for i in range(2)])
    write_lines(folder / "context.jsonl", [{"id": "001", "image": "001.jpg", "caption": "A dog."}])
    return folder


def write_lines(path: Path, records: list[dict[str, object]]) -> None:
    path.write_text("\n".join(json.dumps(record) for record in records))


def test_llava_bench_judges_both_orders_unless_told_the_official_one(tmp_path: Path) -> None:
    with FakeJudge("8 6\nbecause") as fake:
        task = LLaVABench(wild(tmp_path), judge=judge_at(fake))
        items = task.items()
        assert items[0].image == tmp_path / "images" / "001.jpg"
        both = task.score(items, ["mine 0", "mine 1"])
        assert len(fake.requests) == 4
        assert both.metrics["all"] == 100.0  # a judge that only looks at the place says nothing
        official = task.variant("official").score(items, ["mine 0", "mine 1"])
        assert official.metrics["all"] == 75.0
        assert "A dog." in fake.requests[0]["messages"][1]["content"]


def test_llava_bench_missing_verdicts_and_answers_are_missing(tmp_path: Path) -> None:
    with FakeJudge(lambda prompt, n: "no idea" if "mine 0" in prompt else "8 4") as fake:
        task = LLaVABench(wild(tmp_path), judge=judge_at(fake), order="official")
        scores = task.score(task.items(), ["mine 0", "mine 1"])
        assert (scores.missing, scores.metrics["all"]) == (1, 50.0)
        assert task.score(task.items(), [None, "mine 1"]).missing == 1


def test_llava_bench_coco_tells_the_judge_captions_and_boxes(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "qa90_questions.jsonl",
        [{"question_id": "7", "image": "0001.jpg", "category": "complex", "text": "Why?"}],
    )
    write_lines(tmp_path / "qa90_gpt4_answer.jsonl", [{"question_id": "7", "text": "So."}])
    boxes = [{"category": "dog", "bbox": [0, 0, 1, 1]}]
    write_lines(
        tmp_path / "caps_boxes_coco2014_val_80.jsonl",
        [{"image": "0001.jpg", "captions": ["a pet"], "instances": boxes}],
    )
    item = LLaVABench(tmp_path, which="coco").items()[0]
    assert "a pet" in item.meta["context"]
    assert "dog: [0, 0, 1, 1]" in item.meta["context"]


def test_llava_bench_real_answers_are_judged_once_data_are_given(tmp_path: Path) -> None:
    answers = golden("llava_bench_wild", "answers_llava-v1.5-7b.jsonl")
    alone = load_task("llava-bench").rescore(answers)
    assert (list(alone.metrics), alone.n) == (["length"], 60)
    assert "not judged" in alone.notes[0]
    with FakeJudge("8 8") as fake:
        scores = LLaVABench(judge=judge_at(fake)).rescore(answers, wild(tmp_path), lenient=True)
    assert scores.metrics["all"] == 100.0
    with pytest.raises(NoJudge):
        LLaVABench().rescore(answers, tmp_path, lenient=True)
    with pytest.raises(ValueError, match="an id that no item has"):
        LLaVABench().rescore(answers, tmp_path)


@pytest.mark.parametrize(
    ("verdict", "scores"),
    [
        ("8 7\nx", (8, 7)),
        ("8, 7", (8, 7)),
        ("8.5 7", (8.5, 7)),
        ("8", None),
        ("8 7 6", None),
        ("a b", None),
        ("", None),
        ("80 7", None),
    ],
)
def test_two_scores_are_the_first_line_and_nothing_else(verdict: str, scores: tuple[float, float] | None) -> None:
    assert read_two_scores(verdict) == scores


# -- MM-Vet


@pytest.mark.parametrize("runs", [1, 3])
def test_mmvet_grades_give_the_official_totals(runs: int) -> None:
    ours = load_task("mmvet").rescore(golden("mmvet", f"llava-v1.5-7b_gpt-4-grade-{runs}runs.json")).metrics
    with golden("mmvet", f"llava-v1.5-7b_gpt-4-cap-score-{runs}runs.csv").open() as file:
        official = {row[""]: row for row in csv.DictReader(file)}["llava-v1.5-7b"]
    assert round(ours["total"], 1) == float(official["total"])
    assert round(ours["std"], 1) == float(official["std"])


@pytest.mark.parametrize("kind", ["cap-score", "cap-int-score"])
@pytest.mark.parametrize("runs", [1, 3])
def test_mmvet_tables_are_read_as_printed(kind: str, runs: int) -> None:
    scores = load_task("mmvet").rescore(golden("mmvet", f"llava-v1.5-7b_gpt-4-{kind}-{runs}runs.csv"))
    assert scores.metrics["llava-v1.5-7b/total"] == {1: 31.2, 3: 31.1}[runs]
    assert len(scores.notes) == 1, "each total is the mean of its runs"


def vet(folder: Path) -> Path:
    record = {"imagename": "v1_0.png", "question": "x?", "answer": "1<AND>2", "capability": ["ocr", "math"]}
    other = {"imagename": "v1_1.png", "question": "y?", "answer": "dog", "capability": ["rec"]}
    (folder / "mm-vet.json").write_text(json.dumps({"v1_0": record, "v1_1": other}))
    return folder


def test_mmvet_scores_by_capability_and_by_combination(tmp_path: Path) -> None:
    with FakeJudge(lambda prompt, n: "0.5" if "1 <AND> 2 | good" in prompt else "1.0") as fake:
        task = MMVet(vet(tmp_path), judge=judge_at(fake))
        scores = task.score(task.items(), ["good", "dog"]).metrics
    assert scores == {
        **{"total": 75.0, "std": 0.0, "rec": 100.0, "ocr": 50.0, "math": 50.0},
        **{"int:ocr+math": 50.0, "int:rec": 100.0},
    }
    assert fake.requests[0]["max_tokens"] == 3


def test_mmvet_runs_are_separate_gradings(tmp_path: Path) -> None:
    with FakeJudge(lambda prompt, n: "1.0" if n % 3 == 0 else "0.4") as fake:
        task = MMVet(vet(tmp_path), judge=Judge(fake.url, "m", workers=1), runs=3)
        scores = task.score(task.items(), ["a", "b"])
    assert len(fake.requests) == 6
    assert scores.metrics["total"] == pytest.approx(60.0)
    assert scores.metrics["std"] > 20


def test_mmvet_a_grade_that_never_comes_is_missing_not_zero(tmp_path: Path) -> None:
    with FakeJudge(lambda prompt, n: Fault(500) if "| bad" in prompt else "1.0") as fake:
        task = MMVet(vet(tmp_path), judge=judge_at(fake))
        scores = task.score(task.items(), ["bad", "dog"])
    assert (scores.missing, scores.metrics["total"]) == (1, 100.0)


@pytest.mark.parametrize("name", ["llava-v1.5-7b.json", "llava-v1.5-7b.jsonl"])
def test_mmvet_real_answers_in_both_formats_are_graded(tmp_path: Path, name: str) -> None:
    path = golden("mmvet", name)
    alone = load_task("mmvet").rescore(path)
    assert (list(alone.metrics), alone.n) == (["length"], 218)
    assert "not judged" in alone.notes[0]
    with FakeJudge("0.3") as fake:
        scores = MMVet(judge=judge_at(fake)).rescore(path, vet(tmp_path) / "mm-vet.json", lenient=True)
    assert (scores.n, scores.metrics["total"]) == (2, pytest.approx(30.0))


@pytest.mark.parametrize(
    ("verdict", "grade"),
    [("0.7", 0.7), ("1.0\n", 1.0), ("0", 0.0), ("7", None), ("", None), ("good", None), ("-0.5", None)],
)
def test_a_grade_lies_between_nought_and_one(verdict: str, grade: float | None) -> None:
    assert read_grade(verdict) == grade


def test_mmvet_a_file_of_questions_is_not_taken_for_answers() -> None:
    with pytest.raises(ValueError, match="holds questions"):
        load_task("mmvet").rescore(golden("mmvet", "llava-mm-vet.jsonl"))


# -- MMHal-Bench


def hal(folder: Path, n: int = 16) -> Path:
    records = [
        {
            "image_src": f"https://x/{i}.jpg",
            "image_id": str(i),
            "image_content": ["dog", "cat"],
            "question": f"q{i}?",
            "gt_answer": "Two.",
        }
        for i in range(n)
    ]
    (folder / "response_template.json").write_text(json.dumps(records))
    return folder


def test_mmhal_averages_ratings_and_counts_those_below_three(tmp_path: Path) -> None:
    def rate(prompt: str, n: int) -> str:
        number = int(re.findall(r"answer (\d+)", prompt)[0])
        return f"Because.\nRating: {number % 7}" if number < 14 else "Rating: 2, or rather Rating: 5"

    with FakeJudge(rate) as fake:
        task = MMHal(hal(tmp_path), judge=judge_at(fake))
        items = task.items()
        scores = task.score(items, [f"answer {i}" for i in range(16)])
    assert [item.meta["kind"] for item in items[:8]] == list(KINDS)
    assert scores.missing == 2
    assert scores.metrics["rating"] == 3.0
    assert scores.metrics["hallucination_rate"] == pytest.approx(100 * 3 / 7)
    assert scores.metrics["attribute"] == 0.5
    assert "dog, cat" in fake.requests[0]["messages"][0]["content"]


def test_mmhal_recorded_replies_of_a_judge_are_rescored(tmp_path: Path) -> None:
    replies = [{"choices": [{"message": {"content": text}}]} for text in ("Rating: 6", "Rating: 0", "none")]
    (tmp_path / "replies.json").write_text(json.dumps(replies))
    with pytest.raises(ValueError, match="only the order says which kind"):
        load_task("mmhal").rescore(tmp_path / "replies.json")
    scores = load_task("mmhal").rescore(tmp_path / "replies.json", lenient=True)
    assert (scores.metrics["rating"], scores.missing) == (3.0, 1)


@pytest.mark.parametrize(
    ("verdict", "rating"),
    [
        ("Rating: 4", 4),
        ("**Rating:** 5, very informative", 5),
        ("rating: 7", None),
        ("Rating: 1\nRating: 2", None),
        ("4", None),
    ],
)
def test_a_rating_is_named_once_or_it_is_missing(verdict: str, rating: int | None) -> None:
    assert read_rating(verdict) == rating


# -- accuracy and detailedness


def images(folder: Path, n: int = 3) -> Path:
    for i in range(n):
        Image.new("RGB", (2000, 10), (i, 0, 0)).save(folder / f"p{i}.png")
    return folder


def prefers_long(prompt: str, n: int) -> str:
    first, second = re.findall(r"\[Assistant \d\]\n(.*?)\n\[End", prompt, re.DOTALL)
    a, b = (9, 4) if len(first) > len(second) else (5, 8)
    return f"Accuracy: {a} {b}\nReason: x\nDetailedness: {a} {b}\nReason: y"


def test_gpt4v_compares_two_methods_in_both_orders_with_the_image(tmp_path: Path) -> None:
    with FakeJudge(prefers_long) as fake:
        task = GPT4V(images(tmp_path), judge=judge_at(fake), against=tmp_path / "vanilla.jsonl")
        items = task.items()
        stored = [{"item": i.id, "fingerprint": "f", "method": None, "text": "short"} for i in items]
        others = [{"item": i.id, "fingerprint": "f", "method": {"name": "air"}, "text": "x" * 99} for i in items]
        write_lines(tmp_path / "vanilla.jsonl", stored + others)  # as in a store of ours
        scores = task.score(items, ["much longer", "much longer", None]).metrics
    assert (scores["accuracy_10"], scores["accuracy_10_other"]) == (8.5, 4.5)
    assert scores["accuracy_gain"] == scores["detailedness_gain"] == 4.0
    parts = fake.requests[0]["messages"][0]["content"]
    assert parts[1]["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert len(fake.requests) == 4


def test_gpt4v_takes_both_sides_from_one_run(tmp_path: Path) -> None:
    with FakeJudge(prefers_long) as fake:
        task = GPT4V(images(tmp_path), judge=judge_at(fake), method="air")
        said = {None: "short", "air": "much longer", "vcd": "x"}
        records = [
            {"item": i.id, "fingerprint": "f", "method": name and {"name": name}, "text": text}
            for i in task.items()
            for name, text in said.items()
        ]
        (tmp_path / "run").mkdir()
        write_lines(tmp_path / "run" / "answers.jsonl", records)
        assert task.rescore(tmp_path / "run").metrics["accuracy_gain"] == 4.0
        with pytest.raises(ValueError, match="several methods"):
            GPT4V(tmp_path, judge=judge_at(fake)).rescore(tmp_path / "run")


def test_gpt4v_without_the_other_answers_scores_nothing_and_says_how(tmp_path: Path) -> None:
    task = GPT4V(images(tmp_path))
    alone = task.score(task.items(), ["a", "b c", None])
    assert (alone.metrics, alone.missing) == ({"length": 1.5}, 1)
    assert "--set method=NAME" in alone.notes[0]
    with pytest.raises(TaskDataMissing, match="--truth"):
        write_lines(tmp_path / "a.jsonl", [{"id": "p0", "text": "a"}])
        task.rescore(tmp_path / "a.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskDataMissing, match="no images"):
        GPT4V(tmp_path / "empty").items()


@pytest.mark.parametrize(
    ("verdict", "scores"),
    [
        ("Accuracy: 8 7\nReason: x\nDetailedness: 6 5", (8, 7, 6, 5)),
        ("**Accuracy:** 8, 7\n**Detailedness:** 6, 5", (8, 7, 6, 5)),
        ("Accuracy: 8 7", None),
        ("Accuracy: 11 7\nDetailedness: 6 5", None),
    ],
)
def test_aspects_are_read_whole_or_not_at_all(verdict: str, scores: tuple[float, ...] | None) -> None:
    assert read_aspects(verdict) == scores
