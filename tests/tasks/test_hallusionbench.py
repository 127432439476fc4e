"""HallusionBench: the official aggregation to the last printed digit, and both ways of grading."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from airvlm.tasks import TaskDataMissing, load_task
from airvlm.tasks.answers import score_file
from airvlm.tasks.hallusionbench import HallusionBench
from airvlm.tasks.judges.judge import Judge, NoJudge
from tests.fake_judge import FakeJudge
from tests.golden import golden


def printed(path: Path) -> list[float]:
    """The figures of the two tables, row by row."""
    rows = [line for line in path.read_text().splitlines() if line.startswith("| GPT Eval")]
    return [float(cell) for row in rows for cell in row.split("|")[2:-1]]


def test_official_verdicts_aggregate_as_the_official_script_prints() -> None:
    ours = score_file(load_task("hallusionbench"), golden("hallusionbench", "judged_seed0.json")).metrics
    names = ("qAcc", "fAcc", "easy", "hard", "aAcc")
    rest = ("fAcc", "figure_inconsistent", "figure_wrong", "LH", "VI", "Mixed")
    official = printed(golden("hallusionbench", "judged_seed0.expected.txt"))
    assert [round(ours[name], 4) for name in names] == official[:5]
    assert [round(ours[name], 4) for name in rest] == official[7:]
    assert ours["yes_difference"] == pytest.approx(100 * official[5], abs=1e-9)
    assert ours["false_yes"] == pytest.approx(100 * official[6], abs=1e-9)


def record(
    visual: str, figure: str, question: str = "0", category: str = "VS", truth: str = "1", **more: str
) -> dict[str, str]:
    keys = {
        "category": category,
        "subcategory": "chart",
        "set_id": "0",
        "figure_id": figure,
        "question_id": question,
    }
    return (
        keys | {"visual_input": visual, "gt_answer": truth, "question": "Is it?", "gt_answer_details": "It is."} | more
    )


RECORDS = [
    record("0", "0"),
    record("1", "1", filename="./VS/chart/0_1.png"),
    record("2", "2", truth="0", filename="./VS/chart/0_2.png"),
]


def data(folder: Path) -> Path:
    (folder / "HallusionBench.json").write_text(json.dumps(RECORDS))
    return folder


def test_questions_without_an_image_are_asked_without_one(tmp_path: Path) -> None:
    items = HallusionBench(data(tmp_path)).items()
    assert [item.image for item in items] == [
        None,
        tmp_path / "hallusion_bench/VS/chart/0_1.png",
        tmp_path / "hallusion_bench/VS/chart/0_2.png",
    ]
    assert [item.truth for item in items] == ["yes", "yes", "no"]
    assert len(HallusionBench(tmp_path, images_only=True).items()) == 2


def test_an_unclear_answer_is_right_only_without_an_image(tmp_path: Path) -> None:
    task = HallusionBench(data(tmp_path), grading="string")
    scores = task.score(task.items(), ["It is hard to tell.", "Hard to tell.", "No."])
    assert scores.metrics["aAcc"] == pytest.approx(200 / 3)
    assert scores.unparsed == 1
    assert (scores.metrics["easy"], scores.metrics["hard"], scores.metrics["qAcc"]) == (0.0, 100.0, 0.0)


def test_an_unreadable_verdict_is_missing(tmp_path: Path) -> None:
    said = {"alpha": "Correct.", "beta": "incorrect", "gamma": "hm"}
    with FakeJudge(lambda prompt, n: next(v for k, v in said.items() if k in prompt)) as fake:
        task = HallusionBench(data(tmp_path), judge=Judge(fake.url, "m", pause=0.01))
        scores = task.score(task.items(), ["alpha", "beta", "gamma"])
    assert (scores.n, scores.missing) == (2, 1)
    assert scores.metrics["aAcc"] == 50.0
    assert scores.details[2]["verdict"] == "hm"
    assert task.settings()["judge_model"] == "m"


def test_the_official_prompt_is_used_if_the_user_has_it(tmp_path: Path) -> None:
    ours = HallusionBench(data(tmp_path)).settings()["judge_prompt"]
    (tmp_path / "judge_prompt.txt").write_text("Official: {question} {reference} {prediction}")
    with FakeJudge("correct") as fake:
        task = HallusionBench(tmp_path, judge=Judge(fake.url, "m"))
        task.score(task.items(1), ["{question} is not a placeholder"])
    assert fake.requests[0]["messages"][-1]["content"] == "Official: Is it? It is. {question} is not a placeholder"
    assert task.settings()["judge_prompt"] != ours


def test_without_a_judge_the_error_says_so(tmp_path: Path) -> None:
    task = HallusionBench(data(tmp_path))
    with pytest.raises(NoJudge, match="AIRVLM_JUDGE_URL"):
        task.score(task.items(), ["yes", "yes", "no"])


def test_predictions_of_others_are_graded_by_words(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps([r | {"model_prediction": "Yes."} for r in RECORDS]))
    assert score_file(load_task("hallusionbench", variant="string"), path).metrics["aAcc"] == pytest.approx(200 / 3)


def test_missing_data_are_named_with_their_source(tmp_path: Path) -> None:
    with pytest.raises(TaskDataMissing, match=r"HallusionBench\.json.*tianyi-lab"):
        HallusionBench(tmp_path).items()


def test_verdicts_that_lack_a_question_of_the_data_are_incomplete(tmp_path: Path) -> None:
    path = tmp_path / "judged.json"
    path.write_text(json.dumps([r | {"gpt4v_output_gpt_check": "1"} for r in RECORDS[:2]]))
    scores = score_file(load_task("hallusionbench"), path, data(tmp_path))
    assert (scores.coverage.expected, scores.coverage.missing, scores.n) == (3, 1, 2)
    assert scores.metrics["aAcc"] == 100.0 and scores.metrics["easy"] == 100.0
    assert np.isnan(scores.metrics["hard"])  # the only altered figure has no verdict
    alone = score_file(load_task("hallusionbench"), path)
    assert (alone.coverage.expected, alone.coverage.matched) == (1129, 2) and "the file itself" in alone.notes[0]
    with_images = score_file(load_task("hallusionbench", images_only=True), path, lenient=True)
    assert (with_images.coverage.expected, with_images.coverage.matched) == (951, 1)


def test_more_questions_than_the_benchmark_has_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "judged.json"
    path.write_text(json.dumps([RECORDS[0] | {"set_id": str(n), "gpt4v_output_gpt_check": "1"} for n in range(1130)]))
    with pytest.raises(ValueError, match="1130 questions, the benchmark 1129"):
        score_file(load_task("hallusionbench"), path)


def test_a_verdict_on_an_unknown_question_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "judged.json"
    other = RECORDS[0] | {"set_id": "9"}
    path.write_text(json.dumps([r | {"gpt4v_output_gpt_check": "1"} for r in (*RECORDS, other)]))
    with pytest.raises(ValueError, match="an id that no item has"):
        score_file(load_task("hallusionbench"), path, data(tmp_path))
    assert score_file(load_task("hallusionbench"), path, tmp_path, lenient=True).coverage.unknown == 1


def test_answers_in_the_documented_format_are_graded(tmp_path: Path) -> None:
    task = HallusionBench(data(tmp_path), grading="string")
    lines = [json.dumps({"id": item.id, "text": "Yes"}) for item in task.items()]
    (tmp_path / "answers.jsonl").write_text("\n".join(lines))
    assert score_file(task, tmp_path / "answers.jsonl").metrics["aAcc"] == pytest.approx(200 / 3)


@pytest.mark.parametrize(
    ("answers", "right", "inconsistent", "wrong"),
    [(["Yes", "No"], 100, 0, 0), (["Yes", "Yes"], 0, 100, 0), (["No", "Yes"], 0, 0, 100)],
)
def test_a_figure_is_right_inconsistent_or_wrong(
    tmp_path: Path, answers: list[str], right: int, inconsistent: int, wrong: int
) -> None:
    both = [record("1", "1", str(i), truth=truth, filename="./VS/chart/0_1.png") for i, truth in enumerate("10")]
    (tmp_path / "HallusionBench.json").write_text(json.dumps(both))
    task = HallusionBench(tmp_path, grading="string")
    found = task.score(task.items(), answers).metrics
    assert [found[name] for name in ("fAcc", "figure_inconsistent", "figure_wrong")] == [right, inconsistent, wrong]
