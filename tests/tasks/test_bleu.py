"""BLEU equals that of the COCO caption evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airvlm.tasks.answers import score_file
from airvlm.tasks.base import TaskDataMissing
from airvlm.tasks.bleu import Bleu
from airvlm.tasks.words.ptb import tokenize_ptb
from tests.golden import golden

PARTS = ["full", "first_sentence"]


def _inputs(part: str) -> Path:
    return golden("bleu", f"llava-1.5_greedy_{part}_inputs.json")


@pytest.mark.parametrize("part", PARTS)
def test_tokens_are_those_of_the_official_tokenizer(part: str) -> None:
    content = json.loads(_inputs(part).read_text())
    for image, texts in content["refs"].items():
        raw = [*texts, content["hyp"][image]]
        official = [*content["ptb_refs"][image], *content["ptb_hyp"][image]]
        assert [" ".join(tokenize_ptb(text)) for text in raw] == official


@pytest.mark.parametrize("part", PARTS)
def test_scores_are_the_official_ones(part: str) -> None:
    official = json.loads(golden("bleu", "bleu_scores.json").read_text())[f"llava-1.5_greedy/{part}"]
    scores = score_file(Bleu(), _inputs(part))
    metrics = scores.metrics
    assert [metrics[f"BLEU-{n}"] / 100 for n in range(1, 5)] == pytest.approx(official["corpus_bleu1..4"], rel=1e-9)
    means = [metrics[f"BLEU-{n}-image"] / 100 for n in range(1, 5)]
    assert means == pytest.approx(official["mean_sentence_bleu1..4"], rel=1e-9)
    assert metrics["BLEU"] / 100 == pytest.approx(official["halc_bleu"], rel=1e-9)
    for image, counts in zip(scores.groups, scores.per_item, strict=True):
        own = [counts[f"bleu_own_{n}"] for n in range(1, 5)]
        assert own == pytest.approx(official["per_image"][image], rel=1e-6)


def test_references_may_come_from_another_file(tmp_path: Path) -> None:
    captions, references = tmp_path / "captions.jsonl", tmp_path / "references.json"
    captions.write_text('{"image_id": 7, "caption": "A dog on a bench."}\n')
    with pytest.raises(ValueError, match="no reference captions"):
        score_file(Bleu(), captions)
    references.write_text(json.dumps({"annotations": [{"image_id": 7, "caption": "a dog on a bench"}]}))
    assert score_file(Bleu(), captions, references).metrics["BLEU-4"] == pytest.approx(100)


def test_an_empty_description_scores_zero(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_text(json.dumps({"hyp": {"1": "", "2": "a cat"}, "refs": {"1": ["a dog"], "2": ["a cat"]}}))
    scores = score_file(Bleu(), file)
    assert scores.details[0]["BLEU-1"] == pytest.approx(0, abs=1e-6) and scores.coverage.unreadable == 1
    file.write_text(json.dumps({"hyp": {"1": ""}, "refs": {"1": ["a dog"]}}))
    with pytest.raises(ValueError, match="all 1 descriptions are empty"):
        score_file(Bleu(), file)


def test_bleu_alone_cannot_be_evaluated_and_the_error_says_what_can() -> None:
    with pytest.raises(TaskDataMissing, match="evaluate chair"):
        Bleu().items()
