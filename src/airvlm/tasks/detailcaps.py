"""DetailCaps and its metric CAPTURE: objects, attributes and relations of a description against three references.

4870 images with references by GPT-4V, GPT-4o and Gemini (Dong et al., 2024). A parser turns every sentence into a scene
graph; what two graphs have in common is counted in three steps: equal words, synonyms, and the similarity of what is
left. Each of the three has an F1, so that a description gains nothing by being short: what it leaves out lowers recall.

    CAPTURE = (0.5 object F1 + 0.5 attribute F1 + 0.2 relation F1) / 1.2

The parser is a T5 model and the similarity that of a sentence encoder (package capture_metric). Without them
`approximate=True` counts COCO's 80 objects only, found as in CHAIR's variant `exact`; it is not CAPTURE.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module, util
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from airvlm.storage.cache import cache_folder
from airvlm.storage.jsonl import JsonLines
from airvlm.tasks.answers import read_answers, score_entries, score_format
from airvlm.tasks.base import UNPARSED, Item, Metric, Ratio, Scores, Task, TaskDataMissing
from airvlm.tasks.files.reading import read_records
from airvlm.tasks.words.objects import find_mentions
from airvlm.tasks.words.tagger import load_tagger

__all__ = ["Capture", "CaptureMissing", "DetailCaps", "Graph", "compare_graphs"]

FILE = "detailcaps.jsonl"
WHERE = "huggingface.co/datasets/foundation-multimodal-models/DetailCaps-4870"
DESCRIBE = "Describe this image in detail."
PARSER = "lizhuang144/flan-t5-base-VG-factual-sg"
ENCODER = "sentence-transformers/all-mpnet-base-v2"
INSTALL = "pip install capture_metric && python -m nltk.downloader averaged_perceptron_tagger_eng punkt_tab wordnet"
PARTS = ("object", "attribute", "relation")
WEIGHTS = {"object": 0.5, "attribute": 0.5, "relation": 0.2}
GUARD = 1e-6  # what every denominator of the official script has in addition
APPROXIMATION = (
    "approximate: COCO's 80 objects only, found by rules and compared by their category; no attributes, no relations, "
    "no synonyms. This is not CAPTURE and cannot be compared with its figures"
)
Relation = tuple[str, str, str]  # subject, relation, object


class CaptureMissing(ImportError):
    """The parser or the encoder of CAPTURE is not installed; the message has the command that installs them."""


@dataclass(frozen=True)
class Graph:
    """What a text says: objects, attributes of any of them, and relations between them, each in a fixed order."""

    objects: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    relations: tuple[Relation, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {name: list(getattr(self, name)) for name in ("objects", "attributes", "relations")}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Graph:
        relations = tuple((str(a), str(b), str(c)) for a, b, c in content["relations"])
        return cls(tuple(content["objects"]), tuple(content["attributes"]), relations)


class Matcher(Protocol):
    """How words that are not equal are compared."""

    def find_synonyms(self, word: str) -> set[str]:
        """The words that mean the same; words of several parts are joined by _."""
        ...

    def compare(self, first: Sequence[str], second: Sequence[str]) -> NDArray[Any]:
        """(first, second) similarities of phrases, from -1 to 1."""
        ...


# -- the metric


def compare_graphs(own: Graph, reference: Graph, matcher: Matcher) -> dict[str, float]:
    """Precision, recall and F1 of objects, attributes and relations, and CAPTURE, from 0 to 1.

    Args:
        own: the graph of the description.
        reference: the graph of a reference.
        matcher: compares what is not equal.
    """

    def mean_same(first: Relation, second: Relation) -> bool:
        return all(_mean_same(a, b, matcher) for a, b in zip(first, second, strict=True))

    found: dict[str, float] = {}
    pairs: tuple[tuple[str, Sequence[Any], Sequence[Any], Callable[[Any, Any], bool]], ...] = (
        ("object", own.objects, reference.objects, lambda a, b: _mean_same(a, b, matcher)),
        ("attribute", own.attributes, reference.attributes, lambda a, b: _mean_same(a, b, matcher)),
        ("relation", own.relations, reference.relations, mean_same),
    )
    for name, ours, theirs, same in pairs:
        our_hits, their_hits = _count_matches(ours, theirs, same, matcher)
        precision, recall = our_hits / (len(ours) + GUARD), their_hits / (len(theirs) + GUARD)
        f1 = 2 * precision * recall / (precision + recall + GUARD)
        found |= {f"{name}_precision": precision, f"{name}_recall": recall, f"{name}_f1": f1}
    total = sum(weight * found[f"{name}_f1"] for name, weight in WEIGHTS.items())
    return {"CAPTURE": total / sum(WEIGHTS.values()), **found}


def _mean_same(first: str, second: str, matcher: Matcher) -> bool:
    """Whether one word is part of the other, or they have a synonym in common."""
    if first in second or second in first:
        return True
    synonyms = [matcher.find_synonyms("_".join(word.split())) for word in (first, second)]
    return bool(synonyms[0] & synonyms[1])


def _count_matches(
    ours: Sequence[Any], theirs: Sequence[Any], same: Callable[[Any, Any], bool], matcher: Matcher
) -> tuple[float, float]:
    """How many of ours, and of theirs, have a counterpart; what has none counts by its similarity to the nearest."""
    left, open_ = list(theirs), list(ours)
    matched = 0
    for rule in (lambda a, b: a == b, same):
        still_open = []
        for one in open_:
            partner = next((i for i, other in enumerate(left) if rule(one, other)), None)
            if partner is None:
                still_open.append(one)
            else:
                left.pop(partner)
                matched += 1
        open_ = still_open
    if not open_ or not left:
        return matched, matched
    phrases = [[one if isinstance(one, str) else " ".join(one) for one in part] for part in (open_, left)]
    similarity = matcher.compare(*phrases)
    return matched + float(similarity.max(axis=1).sum()), matched + float(similarity.max(axis=0).sum())


# -- the parser and the encoder


class Capture:
    """CAPTURE's models. Graphs are stored in the user's cache, since parsing takes seconds per text."""

    def __init__(self) -> None:
        missing = [
            name
            for name in ("capture_metric", "factual_scene_graph", "sentence_transformers")
            if not util.find_spec(name)
        ]
        if missing:
            raise CaptureMissing(
                f"CAPTURE needs a scene-graph parser and a sentence encoder ({', '.join(missing)} not installed). Run: "
                f"{INSTALL} (the models {PARSER} and {ENCODER}, about 1.5 GB, come from the hub at first use). "
                "Or count COCO's objects by rules: --approximate"
            )
        self.tagger = load_tagger()
        self.stop_words = frozenset(import_module("capture_metric.stop_words").stop_words_list)
        self._graphs: dict[str, Graph] = {}
        self._lines = JsonLines(cache_folder() / "capture.jsonl", self._add_line)
        self._mutex = threading.RLock()

    @property
    def parser(self) -> Any:
        return _load_parser()

    def parse(self, text: str) -> Graph:
        """The graph of a text, stored or parsed."""
        key = hashlib.sha256(text.encode()).hexdigest()
        with self._mutex:
            if key not in self._graphs:
                self._lines.refresh()
            if key not in self._graphs:
                graph = self._parse(text)
                self._lines.path.parent.mkdir(parents=True, exist_ok=True)
                with self._lines.lock():
                    self._lines.append([json.dumps({"key": key, **graph.to_json()}).encode()])
                self._graphs[key] = graph
            return self._graphs[key]

    def _add_line(self, line: bytes) -> None:
        record = json.loads(line)
        self._graphs.setdefault(str(record["key"]), Graph.from_json(record))

    def _parse(self, text: str) -> Graph:
        sentences = self.tagger.split_sentences(text)
        if not sentences:
            return Graph()
        parsed = self.parser.parse(sentences, beam_size=5, return_text=False, max_output_len=128)
        return merge_sentences(parsed, set(self.tagger.find_nouns(text)), self.tagger.find_lemma, self.stop_words)

    def find_synonyms(self, word: str) -> set[str]:
        return set(_find_synonyms(word))

    def compare(self, first: Sequence[str], second: Sequence[str]) -> NDArray[Any]:
        vectors = np.asarray(_load_encoder().encode([*first, *second], batch_size=4))
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors[: len(first)] @ vectors[len(first) :].T


def merge_sentences(
    parsed: Sequence[Mapping[str, Any]],
    nouns: set[str],
    find_lemma: Callable[[str, str], str],
    stop_words: frozenset[str],
) -> Graph:
    """One graph of the parser's graphs of a text's sentences.

    Args:
        parsed: per sentence, entities (head, attributes) and relations (subject, relation, object).
        nouns: the nouns of the text; what the parser says of anything else is left out.
        find_lemma: (word, "n" or "a") -> its base form.
        stop_words: objects that do not count.
    """
    objects: set[str] = set()
    attributes: dict[str, set[str]] = {}
    relations: set[Relation] = set()
    for graph in parsed:
        heads = [find_lemma(entity["head"], "n") for entity in graph["entities"]]
        objects |= set(heads)
        for head, entity in zip(heads, graph["entities"], strict=True):
            own = {find_lemma(attribute, "a") for attribute in entity["attributes"]}
            attributes.setdefault(head, set()).update(one for one in own if " of" not in one)
        for one in graph["relations"]:
            relations.add((heads[one["subject"]], one["relation"], heads[one["object"]]))

    def is_named(name: str) -> bool:
        return name in nouns or all(piece in nouns for piece in name.split(" "))

    return Graph(
        tuple(sorted(name for name in objects if name not in stop_words and is_named(name))),
        tuple(one for name in sorted(attributes) if is_named(name) for one in sorted(attributes[name])),
        tuple(sorted(one for one in relations if is_named(one[0]) and is_named(one[2]))),
    )


@lru_cache(maxsize=1)
def _load_parser() -> Any:
    module = import_module("factual_scene_graph.parser.scene_graph_parser")
    torch = import_module("torch")
    return module.SceneGraphParser(PARSER, device="cuda" if torch.cuda.is_available() else "cpu")


@lru_cache(maxsize=1)
def _load_encoder() -> Any:
    return import_module("sentence_transformers").SentenceTransformer(ENCODER)


@lru_cache(maxsize=1 << 14)
def _find_synonyms(word: str) -> frozenset[str]:
    synsets = load_tagger().wordnet.synsets(word)
    return frozenset(lemma.name() for synset in synsets for lemma in synset.lemmas())


@lru_cache(maxsize=1)
def load_capture() -> Capture:
    """CAPTURE's models; CaptureMissing where they are not installed."""
    return Capture()


# -- the task


@dataclass(frozen=True)
class DetailCaps(Task):
    """DetailCaps-4870: detailed descriptions, scored by CAPTURE."""

    approximate: bool = False  # COCO's objects by rules instead of a parser
    capture: Any = field(default=None, repr=False, compare=False)  # None: the models of `load_capture`

    name: ClassVar[str] = "detailcaps"
    kind = "caption"
    max_new_tokens: ClassVar[int] = 512
    source: ClassVar[str] = f"foundation-multimodal-models/CAPTURE; data at {WHERE}"

    def get_capture(self) -> Capture:
        found: Capture = self.capture or load_capture()
        return found

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.require_folder(f"{FILE} and images/, as `airvlm data get detailcaps` writes them ({WHERE})")
        self.check_installed()  # fails now instead of after the generation
        return _read_items(folder)[:limit]

    def check_installed(self) -> None:
        if not self.approximate:
            self.get_capture()

    @property
    def variant_name(self) -> str:
        return "approximate" if self.approximate else ""

    def settings(self) -> dict[str, Any]:
        own = {name: value for name, value in super().settings().items() if name != "capture"}
        models = "rules (approximate)" if self.approximate else f"{PARSER}, {ENCODER}"
        return own | {"parser": models}

    def parse(self, item: Item, text: str) -> Graph | None:
        if not text.strip():
            return None
        if self.approximate:
            return Graph(tuple(sorted({mention.category for mention in find_mentions(text, "exact")})))
        return self.get_capture().parse(text)

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        parts = PARTS[:1] if self.approximate else PARTS
        names = [f"{part}_{what}" for part in parts for what in ("precision", "recall", "f1")]
        names = names if self.approximate else ["CAPTURE", *names]

        def count(item: Item, answer: str) -> tuple[dict[str, float], dict[str, Any]]:
            graph = self.parse(item, answer)
            own = graph or Graph()
            results = [self._compare(own, self.parse(item, text) or Graph()) for text in item.truth]
            counts = {name: float(np.mean([result[name] for result in results])) for name in names}
            counts |= {"n": 1.0, "words": float(len(answer.split())), UNPARSED: float(graph is None)}
            return counts, {"graph": own.to_json()}

        metrics = {name: Metric(Ratio(name, "n")) for name in names}
        metrics["length"] = Metric(Ratio("words", "n", scale=1.0), "neither")
        notes = (APPROXIMATION,) if self.approximate else ()
        return Scores.of(items, answers, count, metrics, notes, self.variant_name)

    def _compare(self, own: Graph, reference: Graph) -> dict[str, float]:
        if not self.approximate:
            return compare_graphs(own, reference, self.get_capture())
        hits = len(set(own.objects) & set(reference.objects))
        precision, recall = hits / (len(own.objects) + GUARD), hits / (len(reference.objects) + GUARD)
        f1 = 2 * precision * recall / (precision + recall + GUARD)
        return {"object_precision": precision, "object_recall": recall, "object_f1": f1}


def _read_items(folder: Path) -> list[Item]:
    path = folder / FILE
    if not path.is_file():
        raise TaskDataMissing(f"detailcaps: {path} is not there; `airvlm data get detailcaps` writes it from {WHERE}")
    items = []
    for row in read_records(path):
        references = row.read_texts("references")
        if not references:
            raise row.error("references", "there is none")
        image = folder / row.read_text("image")
        items.append(Item(row.read_id("id"), image, DESCRIBE, references, {"source": row.get("source")}))
    return items


@score_format.register
def score_detailcaps_file(task: DetailCaps, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score descriptions by id; truth: detailcaps.jsonl or the folder that has it."""
    place = truth or task.data
    if place is None:
        raise TaskDataMissing(f"detailcaps: give --truth FOLDER with {FILE}; `airvlm data get detailcaps` writes it")
    folder = place if place.is_dir() else place.parent
    return score_entries(replace(task, data=folder), _read_items(folder), read_answers(path), path, lenient=lenient)
