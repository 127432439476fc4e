"""Files of answers: the documented format, other forms of it, and how ids are matched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from airvlm.tasks.answers import Entry, match_entries, read_answers, score_file
from airvlm.tasks.base import Item, Metric, Ratio, Scores, Task


@dataclass(frozen=True)
class Capitals(Task):
    name = "capitals"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        return [Item(key, None, "?", truth) for key, truth in (("fr", "Paris"), ("it", "Rome"), ("es", "Madrid"))]

    def parse(self, item: Item, text: str) -> str:
        return text

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        def count(item: Item, text: str) -> tuple[dict[str, float], dict[str, str]]:
            return {"n": 1.0, "right": float(text == item.truth)}, {}

        return Scores.of(items, answers, count, {"accuracy": Metric(Ratio("right", "n"))})


def _write(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_answers_are_scored_by_id_and_missing_ones_counted(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.jsonl", {"id": "it", "text": "Rome"}, {"id": "fr", "text": "Lyon"})
    scores = score_file(Capitals(), file)
    assert scores.metrics == {"accuracy": 50.0}
    assert (scores.coverage.expected, scores.coverage.matched, scores.coverage.missing) == (3, 2, 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"id": "it", "text": "Rome"}'),
        ("a.json", '[{"question_id": "it", "answer": "Rome"}]'),
        ("a.json", '{"it": "Rome"}'),
        ("a.csv", "index,prediction\nit,Rome\n"),
        ("a.tsv", "id\ttext\nit\tRome\n"),
        ("a.jsonl", '{"item": "it", "text": "Rome", "fingerprint": "f", "method": null}'),
    ],
)
def test_other_forms_of_the_format_are_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert [(entry.key, entry.value) for entry in read_answers(tmp_path / name)] == [("it", "Rome")]


def test_duplicate_and_unknown_ids_are_errors_unless_lenient(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"id": "it", "text": "Milan"}, {"id": "it", "text": "Rome"}]
    file = _write(tmp_path / "a.jsonl", *rows)
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: answer 'it' has a duplicate id; with --lenient the last"):
        score_file(Capitals(), file)
    scores = score_file(Capitals(), file, lenient=True)
    assert scores.metrics["accuracy"] == 100 and scores.coverage.duplicate == 1
    file = _write(tmp_path / "a.jsonl", rows[1], {"id": "uk", "text": "London"})
    with pytest.raises(ValueError, match=r"line 2: answer 'uk' has an id that no item has"):
        score_file(Capitals(), file)
    assert score_file(Capitals(), file, lenient=True).coverage.unknown == 1


def test_a_file_whose_ids_are_all_unknown_is_an_error_even_if_lenient(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.jsonl", {"id": "uk", "text": "London"})
    with pytest.raises(ValueError, match=r"ids in the file: uk; of items: fr, it"):
        score_file(Capitals(), file, lenient=True)


def test_stored_errors_are_not_answers_and_one_method_must_be_chosen(tmp_path: Path) -> None:
    stored = {"fingerprint": "f", "method": None}
    file = _write(
        tmp_path / "a.jsonl",
        {"item": "it", "text": "Rome", **stored},
        {"item": "fr", "text": None, "error": "out of memory", **stored},
        {"item": "it", "text": "Milan", "fingerprint": "f", "method": {"name": "vcd"}},
    )
    with pytest.raises(ValueError, match="several methods"):
        read_answers(file)
    kept = read_answers(file, keep=lambda record: record["method"] is None)
    assert kept == [Entry("it", "Rome", 1)]


def test_a_file_without_answers_and_a_file_of_questions_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(ValueError, match="has no answers"):
        read_answers(tmp_path / "a.json")
    with pytest.raises(ValueError, match="holds questions"):
        read_answers(_write(tmp_path / "q.jsonl", {"id": 1, "image": "a.jpg", "text": "What?"}))


def test_values_come_in_the_order_of_the_keys() -> None:
    values, coverage = match_entries(["a", "b"], [Entry("b", 2), Entry("a", 1)], Path("f"))
    assert values == [1, 2] and coverage.complete


@dataclass(frozen=True)
class CapitalsOfFolder(Capitals):
    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        assert self.data is not None
        return [Item(key, None, "?", truth) for key, truth in json.loads((self.data / "truth.json").read_text())]


def test_truth_takes_the_place_of_the_tasks_data(tmp_path: Path) -> None:
    for folder, capital in (("own", "Roma"), ("other", "Rome")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "truth.json").write_text(json.dumps([["it", capital]]))
    file = _write(tmp_path / "a.jsonl", {"id": "it", "text": "Rome"})
    task = CapitalsOfFolder(tmp_path / "own")
    assert score_file(task, file).metrics["accuracy"] == 0.0
    assert score_file(task, file, tmp_path / "other").metrics["accuracy"] == 100.0
