"""Answers to yes/no questions: parsers by name, counts and metrics.

The named parsers do what the scripts of the field do, including their errors, so that published figures can be
recomputed. `strict` is our own and the default: it looks for words, and an answer that says neither yes nor no is
unparsed. It is never counted as "yes".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from airvlm.tasks.base import Counts, Formula, Item, Metric, Ratio, Scores

__all__ = ["PARSERS", "Parser", "YesNo", "parse_opening", "parse_yes_no", "score_yes_no"]

YesNo = Literal["yes", "no"]


@dataclass(frozen=True)
class Parser:
    """A rule that parses an answer.

    Args:
        rule: (answer, label) -> yes, no or None. Some scripts look at the right answer, the label, first.
        sees_label: whether the rule depends on the label.
        unparsed_is_miss: whether an unparsed answer to a "yes" question lowers recall.
        unparsed_is_wrong: whether an unparsed answer counts in accuracy and yes-ratio; otherwise it counts nowhere.
    """

    rule: Callable[[str, YesNo], YesNo | None]
    sees_label: bool = False
    unparsed_is_miss: bool = True
    unparsed_is_wrong: bool = True


_DENIAL = re.compile(r"\bthere (?:is|are)(?: not|n't)\b|\b(?:do|does|can|could)(?: ?not|n't) (?:see|appear|contain)\b")


def _parse_strict(text: str, label: YesNo) -> YesNo | None:
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


def _parse_rucaibox(text: str, label: YesNo) -> YesNo | None:
    words = text.split(".")[0].replace(",", "").split(" ")
    return "no" if {"No", "not", "no"} & set(words) else "yes"


def _parse_opera(text: str, label: YesNo) -> YesNo | None:
    words = text.replace(".", "").replace(",", "").split(" ")
    denied = {"No", "not", "no", "NO"} & set(words) or any(word.endswith("n't") for word in words)
    return "no" if denied else "yes"


def _parse_vcd(text: str, label: YesNo) -> YesNo | None:
    if label == "yes":
        return "yes" if "yes" in text.lower() else "no"
    return "no" if "no" in text.lower() else "yes"


def _parse_letters(text: str, label: YesNo) -> YesNo | None:
    lowered = text.lower()
    return "yes" if "yes" in lowered else "no" if "no" in lowered else None


def _parse_exactly(text: str) -> YesNo | None:
    return "yes" if text == "yes" else "no" if text == "no" else None


def parse_opening(text: str) -> YesNo | None:
    """MME's rule on a lower-cased answer: the whole answer, or else yes, then no, in its first four characters."""
    start = text[:4]
    return _parse_exactly(text) or ("yes" if "yes" in start else "no" if "no" in start else None)


def _parse_mme(text: str, label: YesNo) -> YesNo | None:
    # an answer is one line of the official results file
    return None if "\n" in text else parse_opening(text.lower())


def _parse_lmms_mme(text: str, label: YesNo) -> YesNo | None:
    plain = text.lower().strip().replace(".", "")
    return parse_opening({"y": "yes", "n": "no"}.get(plain, plain))


_MARKS = ';/[]"{}()=+\\_-><@`,?!'
_COMMA_IN_NUMBER = re.compile(r"\d,\d")
_PERIOD = re.compile(r"\.(?!\d)")


def _parse_vlmevalkit(text: str, label: YesNo) -> YesNo | None:
    lowered = plain = text.lower()
    for mark in _MARKS:
        # a mark next to a space anywhere is removed everywhere; otherwise it separates words
        beside_space = f"{mark} " in lowered or f" {mark}" in lowered or _COMMA_IN_NUMBER.search(lowered)
        plain = plain.replace(mark, "" if beside_space else " ")
    # a colon is not among the marks: "yes:" is not a yes
    words = _PERIOD.sub("", plain).split()
    yes, no = "yes" in words, "no" in words
    return None if yes == no else "yes" if yes else "no"


PARSERS: dict[str, Parser] = {
    # words that say yes or no; anything else is unparsed and counts as wrong
    "strict": Parser(_parse_strict),
    # POPE's and LLaVA's scripts: No/not/no in the first sentence, else yes (even if empty)
    "rucaibox": Parser(_parse_rucaibox),
    "llava": Parser(_parse_rucaibox),
    # No/not/no/NO or a word ending in n't anywhere, else yes (even if empty)
    "opera": Parser(_parse_opera),
    # right if the letters of the label occur anywhere ('no' in 'snowboard')
    "vcd": Parser(_parse_vcd, sees_label=True),
    "clearsight": Parser(_parse_vcd, sees_label=True),
    # the whole answer is yes or no ('Yes.' is wrong)
    "lmms-eval": Parser(lambda text, label: _parse_exactly(text.lower().strip()), unparsed_is_miss=False),
    # MME's script: yes, then no, in the first four characters
    "mme": Parser(_parse_mme),
    # the same after stripping and removing periods; y and n count
    "lmms-eval-mme": Parser(_parse_lmms_mme),
    # exactly one of the words yes and no, without its judge
    "vlmevalkit": Parser(_parse_vlmevalkit),
    # the letters yes, then the letters no, anywhere ('I do not know' is no); neither is wrong
    "dash-b": Parser(_parse_letters),
    # the same, but an answer with neither counts nowhere
    "repope": Parser(_parse_letters, unparsed_is_miss=False, unparsed_is_wrong=False),
}


def parse_yes_no(text: str, label: YesNo, parser: str = "strict") -> YesNo | None:
    """What an answer says under a named parser; None if it says neither yes nor no.

    Args:
        text: the answer.
        label: the right answer, for parsers that look at it.
        parser: a key of PARSERS.
    """
    if parser not in PARSERS:
        raise ValueError(f"unknown yes/no parser {parser!r}. Known: {', '.join(PARSERS)}")
    return PARSERS[parser].rule(text, label)


def _count_answer(parsed: YesNo | None, label: YesNo, parser: Parser) -> dict[str, float]:
    """What one answer contributes; the positive class is yes."""
    counts = {
        "n": parsed is not None or parser.unparsed_is_wrong,
        "correct": parsed == label,
        "tp": parsed == "yes" and label == "yes",
        "fp": parsed == "yes" and label == "no",
        "tn": parsed == "no" and label == "no",
        "fn": label == "yes" and (parsed == "no" or (parsed is None and parser.unparsed_is_miss)),
        "yes": parsed == "yes",
        "unparsed": parsed is None,
    }
    return {name: float(value) for name, value in counts.items()}


@dataclass(frozen=True)
class TruePositiveRate:
    """Percentage of true positives: precision with "fp", recall with "fn", F1 with both (hits count twice)."""

    errors: tuple[str, ...]
    prefix: str = ""

    def __call__(self, counts: Counts) -> Any:
        hits = len(self.errors) * np.asarray(counts[self.prefix + "tp"], dtype=float)
        total = hits + sum(np.asarray(counts[self.prefix + name], dtype=float) for name in self.errors)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(total > 0, 100 * hits / total, np.nan)


@dataclass(frozen=True)
class Mean:
    """The mean of other metrics, e.g. over POPE's three settings."""

    parts: tuple[Formula, ...]

    def __call__(self, counts: Counts) -> Any:
        return np.mean([part(counts) for part in self.parts], axis=0)


def _define_metrics(groups: Collection[str] = ()) -> dict[str, Metric]:
    """Accuracy, precision, recall, F1 and yes-ratio; with groups, some of them for each, and the mean F1."""
    metrics = {
        "accuracy": Metric(Ratio("correct", "n")),
        "precision": Metric(TruePositiveRate(("fp",))),
        "recall": Metric(TruePositiveRate(("fn",))),
        "f1": Metric(TruePositiveRate(("fp", "fn"))),
        "yes_ratio": Metric(Ratio("yes", "n"), "neither"),
    }
    if len(groups) > 1:
        f1 = {group: TruePositiveRate(("fp", "fn"), f"{group}.") for group in groups}
        for group in groups:
            metrics[f"accuracy-{group}"] = Metric(Ratio(f"{group}.correct", f"{group}.n"))
            metrics[f"f1-{group}"] = Metric(f1[group])
            metrics[f"yes_ratio-{group}"] = Metric(Ratio(f"{group}.yes", f"{group}.n"), "neither")
        metrics["f1-mean"] = Metric(Mean(tuple(f1.values())))
    return metrics


def score_yes_no(
    items: Sequence[Item], answers: Sequence[str | None], parser: str, group: str | None = None, variant: str = ""
) -> Scores:
    """Score yes/no answers.

    Args:
        items: their truth is "yes" or "no".
        answers: one per item, None if there is none.
        parser: a key of PARSERS.
        group: a key of the items' meta whose values are also scored one by one.
        variant: the variant that the scores name.
    """
    groups = list(dict.fromkeys(str(item.meta[group]) for item in items)) if group else []

    def count(item: Item, answer: str) -> tuple[dict[str, float], dict[str, Any]]:
        parsed = parse_yes_no(answer, item.truth, parser)
        counts = _count_answer(parsed, item.truth, PARSERS[parser])
        if len(groups) > 1 and group:
            counts |= {f"{item.meta[group]}.{name}": counts[name] for name in ("n", "correct", "tp", "fp", "fn", "yes")}
        return counts, {"parsed": parsed, "correct": parsed == item.truth}

    labels = [{"label": item.truth} for item in items]
    return Scores.of(items, answers, count, _define_metrics(groups), variant=variant, more_details=labels)
