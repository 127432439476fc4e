"""NLTK's tagger, tokenizer and WordNet are used as NLTK 3.8 did; the tests build small models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airvlm.tasks import load_task
from airvlm.tasks.words import tagger as module
from airvlm.tasks.words.tagger import DOWNLOAD, TaggerMissing, describe_tagger, find_tagger, load_tagger

nltk = pytest.importorskip("nltk")

SENTENCES = [
    [("a", "DT"), ("duck", "NN"), ("swims", "VBZ"), (".", ".")],
    [("they", "PRP"), ("duck", "VBP"), (".", ".")],
    [("two", "CD"), ("ducks", "NNS"), ("swim", "VBP"), (".", ".")],
    [("people", "NNS"), ("seated", "VBN"), ("there", "RB"), (".", ".")],
    [("the", "DT"), ("skiing", "VBG"), ("men", "NNS"), (".", ".")],
]
LICENSE = "".join(f"  {n} a line of license\n" for n in range(1, 3))
# WordNet's lemmas of the small world: part of speech -> words
WORDS = {"noun": ["dog", "duck", "man", "men", "person", "seat"], "verb": ["duck", "seat", "ski", "swim"]}
EXCEPTIONS = {"noun": "geese goose\n", "verb": "skiing ski\nswam swim\n"}


def _wordnet(folder: Path) -> None:
    """A WordNet of ten words, in the format of its own files."""
    folder.mkdir(parents=True)
    (folder / "index.sense").write_text("")
    (folder / "lexnames").write_text("00\tnoun.Tops\t1\n01\tverb.body\t2\n")
    for kind, mark in (("noun", "n"), ("verb", "v"), ("adj", "a"), ("adv", "r")):
        lines = [f"{word} {mark} 1 0 1 0 {8 * n:08d}  \n" for n, word in enumerate(WORDS.get(kind, []), 1)]
        (folder / f"index.{kind}").write_text(LICENSE + "".join(lines))
        (folder / f"data.{kind}").write_text(LICENSE)
        (folder / f"{kind}.exc").write_text(EXCEPTIONS.get(kind, ""))


def _punkt(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "abbrev_types.txt").write_text("mr\nst\n")
    for name in ("collocations.tab", "sent_starters.txt", "ortho_context.tab"):
        (folder / name).write_text("")


def _model(folder: Path) -> None:
    from nltk.tag.perceptron import PerceptronTagger

    folder.mkdir(parents=True)
    trained = PerceptronTagger(load=False)
    trained.train(SENTENCES, nr_iter=8)
    parts = {"weights": trained.model.weights, "tagdict": trained.tagdict, "classes": sorted(trained.classes)}
    for name, content in parts.items():
        (folder / f"averaged_perceptron_tagger_eng.{name}.json").write_text(json.dumps(content))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    _wordnet(tmp_path / "corpora/wordnet")
    _punkt(tmp_path / "tokenizers/punkt_tab/english")
    _model(tmp_path / "taggers/averaged_perceptron_tagger_eng")
    yield from _with_data(tmp_path, monkeypatch)


def _with_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    import nltk.corpus
    from nltk.corpus.reader import WordNetCorpusReader
    from nltk.corpus.util import LazyCorpusLoader

    fresh = LazyCorpusLoader("wordnet", WordNetCorpusReader, None)
    monkeypatch.setattr(nltk.data, "path", [str(folder)])
    monkeypatch.setattr(nltk.corpus, "wordnet", fresh)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)  # NLTK reads no file that others may write
    module._load.cache_clear()
    yield folder
    module._load.cache_clear()


def test_words_are_lemmatized_by_their_tag(data: Path) -> None:
    tagger = load_tagger()
    assert tagger.lemmatize("two ducks swim . people seated there .") == "two duck swim . people seat there .".split()
    assert tagger.find_nouns("a duck swims .") == ["duck"] and "duck" not in tagger.find_nouns("they duck .")


def test_endings_are_removed_until_wordnet_has_the_rest(data: Path) -> None:
    tagger = load_tagger()
    assert tagger.find_lemma("dogss", "n") == "dog" and tagger.find_lemma("zebras", "n") == "zebras"
    assert tagger.find_lemma("skiing", "v") == "ski" and tagger.find_lemma("men", "n") == "men"


def test_tokens_are_those_of_nltk_3_8(data: Path) -> None:
    tagger = load_tagger()
    assert tagger.tokenize("a collie–pug mix — one 'x day") == [
        "a",
        "collie–pug",
        "mix",
        "—",
        "one",
        "'",
        "x",
        "day",
    ]


def test_chair_and_amber_use_the_tagger_and_record_it(data: Path) -> None:
    chair: Any = load_task("chair", variant="wordnet")
    assert chair.settings()["tagger"].startswith("nltk ")
    assert [m.word for m in chair.parse(None, "People seated there. Skiing men.")] == [
        "people",
        "seat",
        "ski",
    ]
    by_rules: Any = load_task("chair", variant="wordnet", approximate=True)
    assert by_rules.settings()["tagger"] == "rules (approximate)"
    amber: Any = load_task("amber")
    assert amber.parse(None, "they duck . a duck swims .") == ["duck"]


def test_without_the_data_the_error_names_the_command_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in _with_data(tmp_path, monkeypatch):
        assert find_tagger() is None and describe_tagger(approximate=False) == "nltk (not installed)"
        amber: Any = load_task("amber")
        with pytest.raises(TaggerMissing) as missing:
            amber.parse(None, "a duck swims .")
        assert DOWNLOAD in str(missing.value) and "\n" not in str(missing.value)
        assert load_task("amber", approximate=True).parse(None, "a duck swims .") == ["a", "duck", "swim", "."]  # type: ignore[arg-type]


def test_without_nltk_the_error_names_both_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.util, "find_spec", lambda name: None)
    module._load.cache_clear()
    with pytest.raises(TaggerMissing, match=r"pip install 'airvlm\[nltk\]' && python -m nltk\.downloader"):
        load_tagger()
    module._load.cache_clear()
