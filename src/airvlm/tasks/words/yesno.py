"""Answers to yes/no questions: parsers by name, and the counts and metrics that follow.

Knows nothing about benchmarks. The named parsers do what the scripts of the field do, traps included, so that their
figures can be recomputed; `strict` is ours and the default: it looks for words, and an answer that says neither is
unparsed. It is never turned into "yes".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from airvlm.tasks.base import Counts, Formula, Item, Metric, Ratio, Scores

__all__ = ["PARSERS", "Parser", "YesBias", "read_yes_no", "yes_no_scores"]

YesBias = Literal["yes", "no"]


@dataclass(frozen=True)
class Parser:
    """A rule for reading an answer. Some scripts look at the right answer first: they take it as `label`."""

    rule: Callable[[str, YesBias], YesBias | None]
    about: str
    sees_label: bool = False
    unparsed_is_miss: bool = True  # an unparsed answer to a "yes" question lowers recall

    def __call__(self, text: str, label: YesBias) -> YesBias | None:
        return self.rule(text, label)


_DENIAL = re.compile(r"\bthere (?:is|are)(?: not|n't)\b|\b(?:do|does|can|could)(?: ?not|n't) (?:see|appear|contain)\b")


def _strict(text: str, label: YesBias) -> YesBias | None:
    lowered = text.lower().replace("’", "'")
    words = re.findall(r"[a-z']+", lowered)
    if not words or re.search(r"\byes (?:and|or) no\b", lowered):
        return None
    if words[0] in {"yes", "yeah", "yep"}:
        return "yes"
    if words[0] in {"no", "nope"}:
        return "no"
    yes = "yes" in words
    no = bool({"no", "none", "nope"} & set(words)) or _DENIAL.search(lowered) is not None
    return None if yes == no else "yes" if yes else "no"


def _rucaibox(text: str, label: YesBias) -> YesBias | None:
    words = text.split(".")[0].replace(",", "").split(" ")
    return "no" if {"No", "not", "no"} & set(words) else "yes"


def _opera(text: str, label: YesBias) -> YesBias | None:
    words = text.replace(".", "").replace(",", "").split(" ")
    denied = {"No", "not", "no", "NO"} & set(words) or any(word.endswith("n't") for word in words)
    return "no" if denied else "yes"


def _vcd(text: str, label: YesBias) -> YesBias | None:
    if label == "yes":
        return "yes" if "yes" in text.lower() else "no"
    return "no" if "no" in text.lower() else "yes"


def _lmms(text: str, label: YesBias) -> YesBias | None:
    return _exact(text.lower().strip())


def _exact(text: str) -> YesBias | None:
    return "yes" if text == "yes" else "no" if text == "no" else None


def _first_four(text: str) -> YesBias | None:
    start = text[:4]
    return "yes" if "yes" in start else "no" if "no" in start else None


def _mme(text: str, label: YesBias) -> YesBias | None:
    if "\n" in text:  # one line of the official results file is one answer
        return None
    return _exact(text.lower()) or _first_four(text.lower())


def _lmms_mme(text: str, label: YesBias) -> YesBias | None:
    plain = text.lower().strip().replace(".", "")
    letters: dict[str, YesBias] = {"y": "yes", "n": "no"}
    return letters.get(plain) or _exact(plain) or _first_four(plain)


_MARKS = ';/[]"{}()=+\\_-><@`,?!'
_COMMA_IN_NUMBER = re.compile(r"\d,\d")
_FULL_STOP = re.compile(r"\.(?!\d)")


def _vlmevalkit(text: str, label: YesBias) -> YesBias | None:
    lowered, plain = text.lower(), text.lower()
    for mark in _MARKS:  # a mark that stands beside a space anywhere vanishes everywhere, else it parts words
        beside = f"{mark} " in lowered or f" {mark}" in lowered or _COMMA_IN_NUMBER.search(lowered)
        plain = plain.replace(mark, "" if beside else " ")
    words = _FULL_STOP.sub("", plain).split()  # a colon is no mark: "yes:" is no yes
    yes, no = "yes" in words, "no" in words
    return None if yes == no else "yes" if yes else "no"


PARSERS: dict[str, Parser] = {
    "strict": Parser(_strict, "words that say yes or no; anything else is unparsed and counts as wrong"),
    "rucaibox": Parser(_rucaibox, "POPE's script: No/not/no in the first sentence, else yes (also the empty answer)"),
    "llava": Parser(_rucaibox, "LLaVA's script, the same rule as rucaibox"),
    "opera": Parser(_opera, "No/not/no/NO or a word in n't anywhere, else yes (also the empty answer)"),
    "vcd": Parser(_vcd, "right if the letters of the label occur anywhere ('no' in 'snowboard')", sees_label=True),
    "clearsight": Parser(_vcd, "as vcd", sees_label=True),
    "lmms-eval": Parser(_lmms, "the whole answer is yes or no ('Yes.' is wrong)", unparsed_is_miss=False),
    "mme": Parser(_mme, "MME's script: yes, then no, in the first four letters"),
    "lmms-eval-mme": Parser(_lmms_mme, "as mme, after stripping and dropping full stops; y and n count"),
    "vlmevalkit": Parser(_vlmevalkit, "exactly one of the words yes and no, without its judge"),
}


def read_yes_no(text: str, label: YesBias, parser: str = "strict") -> YesBias | None:
    """What an answer says under a named parser."""
    if parser not in PARSERS:
        raise ValueError(f"no parser {parser!r} of yes/no answers; there are: {', '.join(PARSERS)}")
    return PARSERS[parser](text, label)


def yes_no_counts(said: YesBias | None, label: YesBias, unparsed_is_miss: bool = True) -> dict[str, float]:
    """What one answer contributes; the positive class is yes."""
    counts = {
        "n": 1,
        "correct": said == label,
        "tp": said == "yes" and label == "yes",
        "fp": said == "yes" and label == "no",
        "tn": said == "no" and label == "no",
        "fn": label == "yes" and (said == "no" or (said is None and unparsed_is_miss)),
        "yes": said == "yes",
        "unparsed": said is None,
    }
    return {name: float(value) for name, value in counts.items()}


@dataclass(frozen=True)
class F1:
    """Harmonic mean of precision and recall, from counts of one group."""

    prefix: str = ""

    def __call__(self, counts: Counts) -> Any:
        tp, fp, fn = (np.asarray(counts[self.prefix + name], dtype=float) for name in ("tp", "fp", "fn"))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(2 * tp + fp + fn > 0, 200 * tp / (2 * tp + fp + fn), np.nan)


@dataclass(frozen=True)
class Mean:
    """The plain mean of other metrics, e.g. over POPE's three settings."""

    parts: tuple[Formula, ...]

    def __call__(self, counts: Counts) -> Any:
        return np.mean([part(counts) for part in self.parts], axis=0)


@dataclass(frozen=True)
class Precision:
    """tp / (tp + fp), in percent."""

    wrong: str = "fp"
    prefix: str = ""

    def __call__(self, counts: Counts) -> Any:
        tp = np.asarray(counts[self.prefix + "tp"], dtype=float)
        other = np.asarray(counts[self.prefix + self.wrong], dtype=float)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(tp + other > 0, 100 * tp / (tp + other), np.nan)


def yes_no_metrics(groups: Collection[str] = ()) -> dict[str, Metric]:
    """Accuracy, precision, recall, F1 and yes-ratio; with groups, accuracy and F1 of each and the mean F1."""
    metrics = {
        "accuracy": Metric(Ratio("correct", "n")),
        "precision": Metric(Precision()),
        "recall": Metric(Precision(wrong="fn")),
        "f1": Metric(F1()),
        "yes_ratio": Metric(Ratio("yes", "n"), "neither"),
    }
    if len(groups) > 1:
        for group in groups:
            metrics[f"accuracy-{group}"] = Metric(Ratio(f"{group}.correct", f"{group}.n"))
            metrics[f"f1-{group}"] = Metric(F1(f"{group}."))
        metrics["f1-mean"] = Metric(Mean(tuple(F1(f"{group}.") for group in groups)))
    return metrics


def yes_no_scores(
    items: Sequence[Item], answers: Sequence[str | None], parser: str, group: str | None = None
) -> Scores:
    """Scores of yes/no answers; each item's truth is "yes" or "no", `group` names a key of its meta."""
    groups = list(dict.fromkeys(str(item.meta[group]) for item in items)) if group else []

    def count(item: Item, answer: str) -> tuple[dict[str, float], dict[str, Any]]:
        said = read_yes_no(answer, item.truth, parser)
        counts = yes_no_counts(said, item.truth, PARSERS[parser].unparsed_is_miss)
        if len(groups) > 1 and group:
            of = str(item.meta[group])
            counts |= {f"{of}.{name}": counts[name] for name in ("n", "correct", "tp", "fp", "fn")}
        return counts, {"parsed": said, "correct": said == item.truth}

    scores = Scores.of(items, answers, count, yes_no_metrics(groups))
    return replace(scores, details=[{**row, "label": item.truth} for item, row in zip(items, scores.details)])
