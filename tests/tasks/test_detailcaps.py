"""DetailCaps: CAPTURE's official figures, and what is said where its models are missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from airvlm.storage.cache import cache_folder
from airvlm.tasks import load_task
from airvlm.tasks.answers import score_file
from airvlm.tasks.detailcaps import Capture, CaptureMissing, Graph, compare_graphs, merge_sentences
from airvlm.testing import check_task
from tests.golden import DATA

TEXTS = json.loads((DATA / "detailcaps/texts.json").read_text())
SYNONYMS = json.loads((DATA / "detailcaps/synonyms.json").read_text())
EXPECTED = json.loads((DATA / "detailcaps/expected.json").read_text())


class Words:
    """The stand-ins for WordNet and the sentence encoder that the official script was run with."""

    def find_synonyms(self, word: str) -> set[str]:
        return set(SYNONYMS.get(word, []))

    def compare(self, first: Any, second: Any) -> Any:
        def encode(phrase: str) -> Any:
            vector = np.zeros(97)
            for i in range(len(phrase) - 1):
                vector[sum(map(ord, phrase[i : i + 2])) % 97] += 1
            return vector / np.linalg.norm(vector)

        return np.array([encode(one) for one in first]) @ np.array([encode(one) for one in second]).T


def cut_plural(word: str, pos: str) -> str:
    return word[:-1] if pos == "n" and word.endswith("s") and not word.endswith("ss") else word


class FakeCapture(Words):
    """Parses the texts of tests/data, and nothing in any other."""

    def parse(self, text: str) -> Graph:
        case = next((case for case in TEXTS.values() if case["text"] == text), None)
        stop_words = frozenset({"background", "scene", "image"})
        return Graph() if case is None else merge_sentences(case["parsed"], set(case["nouns"]), cut_plural, stop_words)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        {
            "id": name,
            "image": f"{name}.jpg",
            "source": "own",
            "references": [TEXTS["long"]["text"], TEXTS["other"]["text"]],
        }
        for name in TEXTS
    ]
    (tmp_path / "detailcaps.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in TEXTS:
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.jpg")
    return tmp_path


def test_graphs_are_those_of_the_official_script() -> None:
    for name, case in TEXTS.items():
        assert FakeCapture().parse(case["text"]) == Graph.from_json(EXPECTED["graphs"][name]), name


def test_figures_are_those_of_the_official_script() -> None:
    graphs = {name: Graph.from_json(content) for name, content in EXPECTED["graphs"].items()}
    assert len(EXPECTED["pairs"]) == 25
    for pair in EXPECTED["pairs"]:
        expected = {name: value for name, value in pair.items() if name not in ("own", "reference")}
        found = compare_graphs(graphs[pair["own"]], graphs[pair["reference"]], Words())
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), pair


def test_a_score_is_the_mean_over_references(folder: Path) -> None:
    task = load_task("detailcaps", folder, capture=FakeCapture())
    items = task.items()
    scores = task.score(items, [TEXTS[item.id]["text"] for item in items])
    by_pair = {(pair["own"], pair["reference"]): pair for pair in EXPECTED["pairs"]}
    mean = np.mean([by_pair[name, reference]["CAPTURE"] for name in TEXTS for reference in ("long", "other")])
    assert scores.metrics["CAPTURE"] == pytest.approx(100 * mean)
    assert scores.metrics["length"] == pytest.approx(np.mean([len(case["text"].split()) for case in TEXTS.values()]))


def test_shortening_a_description_lowers_recall(folder: Path) -> None:
    task = load_task("detailcaps", folder, approximate=True)
    item = task.items()[:1]
    whole, short = (task.score(item, [text]).metrics for text in ("A car, a couch and a traffic light.", "A car."))
    assert short["object_recall"] < whole["object_recall"] and short["object_f1"] < whole["object_f1"]


def test_without_its_models_the_task_stops_before_a_model_answers(folder: Path) -> None:
    with pytest.raises(CaptureMissing, match="pip install capture_metric"):
        load_task("detailcaps", folder).items()


def test_the_approximation_is_marked(folder: Path, tmp_path: Path) -> None:
    task = load_task("detailcaps", folder, approximate=True)
    answers = tmp_path / "answers.jsonl"
    answers.write_text("\n".join(json.dumps({"id": name, "text": case["text"]}) for name, case in TEXTS.items()))
    scores = score_file(task, answers, folder)
    assert scores.variant == "approximate" and scores.notes[0].startswith("approximate")
    assert set(scores.metrics) == {"object_precision", "object_recall", "object_f1", "length"}
    assert task.settings()["parser"] == "rules (approximate)"


@pytest.mark.parametrize("options", [{"approximate": True}, {"capture": FakeCapture()}])
def test_it_keeps_the_laws(options: dict[str, Any], folder: Path) -> None:
    check_task(load_task("detailcaps", folder, **options))


def test_a_text_is_parsed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRVLM_CACHE", str(tmp_path))
    parsed: list[str] = []

    class Tagger:
        def split_sentences(self, text: str) -> list[str]:
            return [text]

        def find_nouns(self, text: str) -> list[str]:
            return ["dog"]

        def find_lemma(self, word: str, pos: str) -> str:
            return word

    class Parser:
        def parse(self, sentences: list[str], **options: Any) -> Any:
            parsed.extend(sentences)
            return [{"entities": [{"head": "dog", "attributes": ["brown"]}], "relations": []}]

    monkeypatch.setattr("airvlm.tasks.detailcaps.util.find_spec", lambda name: True)
    monkeypatch.setattr("airvlm.tasks.detailcaps.load_tagger", Tagger)
    monkeypatch.setattr("airvlm.tasks.detailcaps._load_parser", Parser)
    module = type("stop_words", (), {"stop_words_list": ["image"]})
    monkeypatch.setattr("airvlm.tasks.detailcaps.import_module", lambda name: module)
    expected = Graph(("dog",), ("brown",), ())
    assert Capture().parse("A brown dog.") == Capture().parse("A brown dog.") == expected
    assert parsed == ["A brown dog."] and (cache_folder() / "capture.jsonl").is_file()


def test_a_file_is_scored_with_the_tasks_own_data_or_those_given(folder: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text("\n".join(json.dumps({"id": name, "text": "A car."}) for name in TEXTS))
    own = score_file(load_task("detailcaps", folder, approximate=True), answers)
    given = score_file(load_task("detailcaps", approximate=True), answers, folder / "detailcaps.jsonl")
    assert own.coverage.complete and own.metrics == given.metrics
