"""HR-Bench: its table, its prompt, and its official figures."""

from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from airvlm.tasks import TaskDataMissing, load_task
from airvlm.tasks.answers import score_file
from airvlm.testing import check_task
from tests.fake_judge import FakeJudge
from tests.golden import DATA
from tests.tasks.conftest import judge_at

COLUMNS = ("index", "question", "answer", "category", "A", "B", "C", "D", "cycle_category", "image")
PREDICTIONS = json.loads((DATA / "hr_bench/predictions.json").read_text())


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The official table: the first order of a question has its image, the others name that row."""
    first: dict[str, Any] = {}
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, delimiter="\t", extrasaction="ignore")
        table.writeheader()
        for n, row in enumerate(rows):
            if row["question"] not in first:
                content = io.BytesIO()
                Image.new("RGB", (64, 64), (40 * n, 9, 9)).save(content, "PNG")
                first[row["question"]] = row["index"]
                table.writerow({**row, "image": base64.b64encode(content.getvalue()).decode()})
            else:
                table.writerow({**row, "image": first[row["question"]]})
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_table(tmp_path / "hr_bench_4k.tsv", PREDICTIONS["rows"])
    return tmp_path


def test_figures_are_those_of_the_official_scripts(folder: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text(
        "\n".join(json.dumps({"index": row["index"], "prediction": row["prediction"]}) for row in PREDICTIONS["rows"])
    )
    scores = score_file(load_task("hr-bench"), answers, folder)
    ours = {"all": scores.metrics["accuracy"], "single": scores.metrics["FSP"], "cross": scores.metrics["FCP"]}
    assert ours == pytest.approx({name: 100 * value for name, value in PREDICTIONS["average"].items()}, rel=1e-12)
    assert [row["parsed"] for row in scores.details] == [row["parsed"] for row in PREDICTIONS["rows"]]
    assert scores.unparsed == sum(row["parsed"] is None for row in PREDICTIONS["rows"])


def test_each_image_is_written_once_for_its_four_orders(folder: Path) -> None:
    items = load_task("hr-bench", folder).items()
    assert len(items) == 20 and len({item.image for item in items}) == len({item.group for item in items}) == 5
    assert len(list((folder / "hr_bench_4k_images").iterdir())) == 5
    assert Image.open(items[7].image).getpixel((0, 0)) == (80, 9, 9)


def test_prompts(folder: Path) -> None:
    item = load_task("hr-bench", folder).items(limit=1)[0]
    assert load_task("hr-bench").prompt(item) == (
        "Question: What color is the kite above the pier?\nOptions:\nA. red\nB. green\nC. blue\nD. white\n"
        "Please select the correct answer from the options above. \n"
    )
    assert load_task("hr-bench", variant="lmms").prompt(item).endswith("D. white\nAnswer the option letter directly.")


def test_the_judge_says_whether_an_answer_is_right(folder: Path) -> None:
    with FakeJudge(lambda prompt, n: "Yes" if "RIGHT" in prompt else "no.") as fake:
        task = load_task("hr-bench", folder, variant="judge", judge=judge_at(fake))
        scores = task.score(task.items(limit=2), ["RIGHT", "wrong"])
    assert scores.metrics["accuracy"] == 50 and scores.variant == "judge"


def test_it_keeps_the_laws(folder: Path) -> None:
    check_task(load_task("hr-bench", folder))


def test_missing_and_damaged_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(TaskDataMissing, match="hr_bench_8k"):
        load_task("hr-bench-8k", tmp_path).items()
    (tmp_path / "hr_bench_8k.tsv").write_text("index\tquestion\timage\n1\tWhat?\n")
    with pytest.raises(ValueError, match="complete"):
        load_task("hr-bench-8k", tmp_path).items()
    (tmp_path / "hr_bench_8k.tsv").write_text("index\tquestion\timage\n1\tWhat?\t5\n")
    with pytest.raises(ValueError, match="earlier row"):
        load_task("hr-bench-8k", tmp_path).items()
