"""Official figures on the files of tests/data, which are part of the repository."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from airvlm.tasks import Scores, load_task
from airvlm.tasks.answers import score_file
from airvlm.tasks.bleu import Bleu
from airvlm.tasks.words.ptb import tokenize_ptb
from airvlm.tasks.words.tagger import find_tagger
from airvlm.tasks.words.yesno import parse_yes_no
from tests.golden import DATA, YESNO_COLUMNS

needs_tagger = pytest.mark.skipif(find_tagger() is None, reason="NLTK's data are not installed")


def _json(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def _chair(variant: str, **options: Any) -> Scores:
    task = load_task("chair", variant=variant, **options)
    return score_file(task, DATA / "chair/captions.jsonl", DATA / "chair/gt_objects.json")


def _check_chair(scores: Scores, official: str) -> None:
    totals = _json("chair/scores.json")[official]
    names = {"CHAIRs": "CHAIR_S", "CHAIRi": "CHAIR_I", "Recall": "recall", "Len": "length"}
    assert {names[k]: 100 * v for k, v in totals.items()} == pytest.approx(
        {names[k]: scores.metrics[names[k]] for k in totals}, rel=1e-12
    )
    rows = [(row["objects"], row["hallucinated"]) for row in scores.details]
    assert rows == [(row[1], row[2]) for row in _json("chair/per_caption.json")[official]]
    assert [row["words"] for row in scores.details] == _json("chair/words.json")[official]


def test_chair_pattern_equals_the_official_script_in_every_caption() -> None:
    _check_chair(_chair("pattern"), "maxlinn_pattern")


@needs_tagger
def test_chair_wordnet_equals_the_official_script_in_every_caption() -> None:
    scores = _chair("wordnet")
    _check_chair(scores, "opera_wordnet")
    assert not any("approximate" in note for note in scores.notes)


def test_approximate_chair_notes_its_distance_from_the_official_script() -> None:
    scores = _chair("wordnet", approximate=True)
    assert any(note.startswith("approximate") and "0.00, 0.01 and 0.00" in note for note in scores.notes)
    official = _json("chair/scores.json")["opera_wordnet"]
    off = [
        abs(scores.metrics[ours] - 100 * official[theirs])
        for ours, theirs in (("CHAIR_S", "CHAIRs"), ("CHAIR_I", "CHAIRi"), ("recall", "Recall"))
    ]
    assert [f"{value:.2f}" for value in off] == ["0.00", "0.01", "0.00"]
    words = _json("chair/words.json")["opera_wordnet"]
    others = sum(row["words"] != theirs for row, theirs in zip(scores.details, words, strict=True))
    assert f"{100 * others / len(words):.1f}" == "2.1"


def test_ptb_tokens_are_those_of_the_java_program() -> None:
    cases = _json("bleu/ptb_tokens.json")
    assert len(cases) == 78
    assert [" ".join(tokenize_ptb(case["raw"])) for case in cases] == [case["tokens"] for case in cases]


@pytest.mark.parametrize("part", ["full", "first_six_words"])
def test_bleu_equals_the_official_script_in_every_image(part: str) -> None:
    content = _json(f"bleu/{part}_inputs.json")
    for image, texts in content["refs"].items() if "ptb_refs" in content else ():
        official = [*content["ptb_refs"][image], *content["ptb_hyp"][image]]
        assert [" ".join(tokenize_ptb(t)) for t in [*texts, content["hyp"][image]]] == official
    official = _json("bleu/bleu_scores.json")[f"written/{part}"]
    scores = score_file(Bleu(), DATA / f"bleu/{part}_inputs.json")
    corpus = [scores.metrics[f"BLEU-{n}"] / 100 for n in range(1, 5)]
    assert corpus == pytest.approx(official["corpus_bleu1..4"], rel=1e-9)
    means = [scores.metrics[f"BLEU-{n}-image"] / 100 for n in range(1, 5)]
    assert means == pytest.approx(official["mean_sentence_bleu1..4"], rel=1e-9)
    assert scores.metrics["BLEU"] / 100 == pytest.approx(official["halc_bleu"], rel=1e-9)
    assert len(scores.details) == 40
    for row in scores.details:
        own = [row[f"BLEU-{n}"] / 100 for n in range(1, 5)]
        assert own == pytest.approx(official["per_image"][row["id"]], rel=1e-6)


def _printed(name: str) -> list[tuple[str, str]]:
    return re.findall(r"(\w+):\t+ ?([\d.]+)", (DATA / name).read_text())


@needs_tagger
def test_amber_descriptions_score_as_the_official_script_prints() -> None:
    scores = score_file(load_task("amber"), DATA / "amber/generative.json", DATA / "amber/data")
    ours = [(name, f"{value:.1f}") for name, value in scores.metrics.items() if name != "length"]
    assert ours == _printed("amber/generative.expected.txt")


def test_approximate_amber_notes_its_distance_from_the_official_script() -> None:
    scores = score_file(load_task("amber", approximate=True), DATA / "amber/generative.json", DATA / "amber/data")
    official = [float(value) for _, value in _printed("amber/generative.expected.txt")]
    off = [f"{abs(v - o):.1f}" for v, o in zip(list(scores.metrics.values())[:4], official, strict=True)]
    assert any(f"off by {off[0]}, {off[1]}, {off[2]} and {off[3]} points" in note for note in scores.notes), off


def test_amber_questions_give_all_28_official_figures() -> None:
    task = load_task("amber-yesno", variant="official")
    metrics = score_file(task, DATA / "amber/discriminative.json", DATA / "amber/data").metrics
    official = [value for name, value in metrics.items() if not name.startswith("yes_ratio")]
    assert len(metrics) - len(official) == 7  # the yes-ratio beside each accuracy is ours
    assert [f"{value:.1f}" for value in official] == [
        value for _, value in _printed("amber/discriminative.expected.txt")
    ]
    assert len(official) == 28 and {"f1-state", "recall-number", "accuracy-action"} <= set(metrics)


@pytest.mark.parametrize(("parser", "column", "nothing"), YESNO_COLUMNS)
def test_every_answer_is_parsed_as_by_the_official_script(parser: str, column: str, nothing: str) -> None:
    for case in _json("pope/yesno_parsers.json"):
        official = str(case[column]).lower()
        if "\n" not in case["answer"] or column != "mme_official":
            assert (parse_yes_no(case["answer"], "yes", parser) or nothing) == official, case["answer"]


@pytest.mark.parametrize(
    ("variant", "official"),
    [("rucaibox", "rucaibox_pope"), ("opera", "opera"), ("vcd", "vcd"), ("vlmevalkit",) * 2],
)
def test_pope_scores_as_the_official_script_prints(variant: str, official: str) -> None:
    task = load_task("pope", variant=variant)
    metrics = score_file(task, DATA / "pope/answers.jsonl", DATA / "pope/questions.jsonl").metrics
    expected = _json("pope/scores.json")[official]
    scale = 1 if variant == "vlmevalkit" else 100
    for name in ("accuracy", "precision", "recall", "f1"):
        assert metrics[name] == pytest.approx(scale * expected[name]), name


def test_mme_scores_as_the_official_script_prints() -> None:
    metrics = score_file(load_task("mme"), DATA / "mme/results").metrics
    printed = re.findall(r"\t (\w+)  score: ([\d.]+)", (DATA / "mme/results.expected.txt").read_text())
    assert {name: float(value) for name, value in printed} == pytest.approx(
        {name: metrics[name] for name, _ in printed}, rel=1e-12
    )


def test_mmbench_scores_as_the_official_script_reports() -> None:
    scores = score_file(load_task("mmbench"), DATA / "mmbench/predictions.tsv")
    expected = _json("mmbench/expected.json")
    accuracies = expected["report_acc"]
    assert scores.metrics["accuracy"] == pytest.approx(100 * accuracies["Overall"])
    for ability in ("AR", "CP", "FP-C", "FP-S", "LR", "RR"):
        assert scores.metrics[ability] == pytest.approx(100 * accuracies[ability])
    first = expected["vanilla_of_the_first_rows"].values()
    assert scores.metrics["vanilla"] == pytest.approx(100 * sum(first) / len(first))
    read = {row["id"]: row["parsed"] for row in scores.details}
    assert {key: read[key] or False for key in read} == {
        str(row["index"]): row["can_infer"] for row in expected["options_read"]
    }


def test_hallusionbench_scores_as_the_official_script_prints() -> None:
    metrics = score_file(load_task("hallusionbench"), DATA / "hallusionbench/judged.json").metrics
    text = (DATA / "hallusionbench/judged.expected.txt").read_text()
    rows = [re.findall(r"-?[\d.]+", line) for line in text.splitlines() if line.startswith("| GPT Eval")]
    first = dict(zip(("qAcc", "fAcc", "easy", "hard", "aAcc"), map(float, rows[0]), strict=True))
    assert {name: metrics[name] for name in first} == pytest.approx(first, abs=5e-5)
    names = (
        "yes_difference",
        "false_yes",
        "fAcc",
        "figure_inconsistent",
        "figure_wrong",
        "LH",
        "VI",
        "Mixed",
    )
    second = dict(zip(names, map(float, rows[1]), strict=True))
    second |= {name: 100 * second[name] for name in ("yes_difference", "false_yes")}
    assert {name: metrics[name] for name in second} == pytest.approx(second, abs=5e-5)


def test_the_readme_names_every_file() -> None:
    readme = (DATA / "README.md").read_text()
    folders = {path.name for path in DATA.iterdir() if path.is_dir()}
    assert all(f"{folder}/" in readme for folder in folders), Path(DATA)
