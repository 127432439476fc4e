"""Calibration finds what helps, measures it where it was not searched, and says when there are too few images."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import airvlm.methods.names
from airvlm import AIR, VLM, AIRMemory, CropBlend, EOSBias, MemVR, Method, cli, get_method
from airvlm.evaluation import calibration
from airvlm.evaluation.calibration import (
    SEARCHED,
    SMALLEST,
    SURVIVORS,
    Budget,
    Calibration,
    Candidate,
    Measured,
    Price,
    Search,
    Stage,
    choose_survivors,
    list_candidates,
    searched_options,
    split_task,
)
from airvlm.evaluation.evaluate import curve_methods
from airvlm.evaluation.plan import Batch, EvalItem, ModelInfo, TaskSpec
from airvlm.evaluation.spread import Runner
from airvlm.evaluation.statistics import FEW, Estimate
from airvlm.evaluation.store import Record, Store
from airvlm.evaluation.trade_off import TradeOff
from airvlm.evaluation.workers import Shard
from airvlm.tasks import load_task

TASK = load_task("tiny-chair")
SECONDS = 0.25  # that an answer of the speaker below says it took
BIASES = 5  # of the curve


@pytest.fixture(autouse=True)
def real_methods(fake_names: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluation's fakes replace the parser; here the real one is needed."""
    monkeypatch.setattr(airvlm.methods.names, "parse_method", fake_names)


def _splits(limit: int = 120) -> list[tuple[TaskSpec, TaskSpec]]:
    first, second, own = split_task(TaskSpec.of("tiny-chair", limit=limit))
    assert own
    return [(first, second)]


def _bias(label: str) -> float:
    """Of the control in a label, alone or beside a method."""
    return float(label.rpartition("eos-bias:bias=")[2]) if "eos-bias:bias=" in label else 0.0


class Speaker:
    """Answers from the truth: every method names the true objects and some wrong ones, by a rule of its own."""

    def __init__(self, wrong: dict[str, float] | None = None) -> None:
        self.wrong = wrong or {}  # method's label -> share of images with a wrong object
        self.asked = 0

    def text(self, label: str, item: Any) -> str:
        words = list(item.truth)
        if (sum(map(ord, item.id)) * 7919 + len(label)) % 100 < 100 * self.wrong.get(label, 0.5):
            words.append("dog" if "dog" not in words else "cat" if "cat" not in words else "bus")
        if _bias(label) > 0:
            words = words[: max(1, len(words) - int(_bias(label)))]
        return "There is a " + " and a ".join(words) + "."

    def record(self, batch: Batch, asked: EvalItem, item: Any) -> Record:
        report = None if batch.method is None else {"fired": True}
        text = self.text(batch.label, item)
        return Record(asked.key, text=text, tokens=9, finished=True, report=report, seconds=SECONDS)

    def __call__(self, todo: Sequence[Batch], store: Store, done: Any) -> None:
        items = {item.id: item for split in ("calibration", "validation") for item in TASK.items(split=split)}
        for batch in todo:
            self.asked += len(batch.items)
            store.extend([self.record(batch, asked, items[asked.key.item]) for asked in batch.items])
            done(batch)


def _settings(count: int) -> list[Candidate]:
    return list_candidates(["crop-blend"], count, 6)


def _run(
    folder: Path, speaker: Speaker, count: int, shard: Shard = Shard(), limit: int = 120, **more: Any
) -> Calibration:
    runner = Runner(speaker, ModelInfo("m", "f"), 6, folder, shard, 16, progress=False)
    return Search(_splits(limit), ["crop-blend"], count, **more).run(runner)


@pytest.mark.slow
def test_the_setting_that_helps_is_found_and_measured_on_the_validation_split(tmp_path: Path) -> None:
    best = _settings(12)[5].label
    found = _run(tmp_path, Speaker({best: 0.1}), 12)
    assert found.recommended is not None
    assert found.recommended.label == found.verdict == best
    assert found.result is not None and found.result.gain.low > 0 and found.images_needed is None
    assert found.validation is not None and found.validation.split == "validation"
    assert best in found.reason
    assert found.settings_tried == 12
    change = found.result.to_json()["recall_change"]
    assert found.result.recall_change is not None and change["value"] == round(found.result.recall_change.value, 4)


def test_a_setting_that_names_nothing_is_never_the_best(tmp_path: Path) -> None:
    settings = _settings(4)
    silent = settings[0].label

    class Silent(Speaker):
        def text(self, label: str, item: Any) -> str:
            return "Nothing." if label == silent else super().text(label, item)

    wrong = {setting.label: 0.9 for setting in settings[1:]}  # worse than saying less
    found = _run(tmp_path, Silent(wrong), 4, validate=False)
    assert all(m.gain.value < 0 for m in found.stages[-1].measured if m.candidate.label != silent)
    assert math.isnan(next(m for m in found.stages[-1].measured if m.candidate.label == silent).gain.value)
    assert found.best.candidate.label != silent


@pytest.mark.parametrize("idle", [True, False])
def test_without_validation_what_is_found_beats_the_method_as_given_on_the_same_images(
    tmp_path: Path, idle: bool
) -> None:
    settings = _settings(12)
    given = settings[0].label

    class Fickle(Speaker):
        """Settings that promise something on the first images and do harm on the others."""

        def text(self, label: str, item: Any) -> str:
            if idle and label == given:
                label = "vanilla"  # changes nothing: a gain of 0 without an interval
            first = item.id in {i.id for i in spec.items[:32]}
            self.wrong = {s.label: 0.4 if first else 0.9 for s in settings[1:]}
            return super().text(label, item)

    [(spec, _)] = _splits(120)
    found = _run(tmp_path, Fickle(), 12, validate=False)
    assert len(found.stages) > 1
    for stage in found.stages:
        assert any(m.candidate.is_default for m in stage.measured)
    assert found.best.candidate.label == given


def test_without_validation_the_whole_budget_goes_into_the_search(tmp_path: Path) -> None:
    budget = Budget(answers=1400)
    found = _run(tmp_path / "1", Speaker(), 12, budget=budget, validate=False)
    validated = _run(tmp_path / "2", Speaker(), 12, budget=budget)
    assert found.validation is None and found.recommended is None
    assert sum(found.stages[-1].items.values()) > sum(validated.stages[-1].items.values())
    assert found.answers <= 1400


class Same(Speaker):
    """No setting changes vanilla's answers."""

    def text(self, label: str, item: Any) -> str:
        return super().text(label if _bias(label) else "vanilla", item)


@pytest.mark.slow
def test_where_nothing_helps_vanilla_is_recommended(tmp_path: Path) -> None:
    found = _run(tmp_path, Same(), 8)
    assert found.recommended is None and found.verdict == "vanilla" and found.images_needed is None
    assert found.to_json()["verdict"] == "vanilla" and found.to_json()["method"] is None
    assert "no setting gains anything" in found.reason


class Slightly(Speaker):
    """The settings differ from vanilla by little, in either direction."""

    def text(self, label: str, item: Any) -> str:
        words = list(item.truth)
        lucky = random.Random(f"{'' if _bias(label) else label} {item.id}").random()
        if lucky < (0.52 if label == "vanilla" or _bias(label) else 0.44):
            words.append(next(w for w in ("dog", "cat", "bus") if w not in words))
        return "There is a " + " and a ".join(words) + "."


def test_with_too_few_images_to_tell_it_says_so_and_how_many_are_needed(tmp_path: Path) -> None:
    found = _run(tmp_path, Slightly(), 4, limit=40)
    assert found.recommended is None and found.verdict == "undecided"
    assert found.images_needed is not None and found.images_needed > 40
    assert f"too few images to tell: about {found.images_needed} are needed" in found.reason
    assert found.to_json()["images_needed"] == found.images_needed


def test_without_any_interval_at_least_ten_images_are_asked_for(tmp_path: Path) -> None:
    found = _run(tmp_path, Speaker(), 3, limit=6)
    assert found.verdict == "undecided" and found.images_needed == FEW


class Shuffled(Speaker):
    """Every method answers as vanilla does, but about another image: a shuffle of its own for each method."""

    def __call__(self, todo: Sequence[Batch], store: Store, done: Any) -> None:
        known = [list(TASK.items(split=split)) for split in ("calibration", "validation")]
        for batch in todo:
            draw = random.Random(batch.label)
            others = {}
            for items in known:
                others |= {i.id: other for i, other in zip(items, draw.sample(items, len(items)), strict=True)}
            store.extend([self.record(batch, asked, others[asked.key.item]) for asked in batch.items])
            done(batch)

    def text(self, label: str, item: Any) -> str:
        return "There is a " + " and a ".join(item.truth)


def test_with_answers_shuffled_among_images_nothing_is_recommended(tmp_path: Path) -> None:
    found = _run(tmp_path, Shuffled(), 12)
    assert found.recommended is None
    assert found.to_json()["method"] is None


@pytest.mark.slow
def test_stages_halve_the_settings_and_double_the_items(tmp_path: Path) -> None:
    found = _run(tmp_path, Speaker(), 12)
    counts = [len(stage.measured) for stage in found.stages]
    sizes = [stage.items["tiny-chair"] for stage in found.stages]
    assert counts[0] == 12
    assert all(b <= max(3, -(-a // 2)) for a, b in pairwise(counts))
    assert all(b == min(120, 2 * a) for a, b in pairwise(sizes))


def test_a_second_search_asks_nothing_twice(tmp_path: Path) -> None:
    first = Speaker()
    _run(tmp_path, first, 6)
    again = Speaker()
    found = _run(tmp_path, again, 6)
    assert first.asked > 0
    assert again.asked == 0
    assert found.answers == 0


# -- the budget


@pytest.mark.slow
@pytest.mark.parametrize("answers", [1000, 1400, 2500])
def test_a_budget_of_answers_is_kept_and_well_used(tmp_path: Path, answers: int) -> None:
    found = _run(tmp_path, speaker := Speaker(), 12, budget=Budget(answers=answers))
    assert found.validation is not None
    assert found.answers == speaker.asked <= answers
    assert found.answers > 0.7 * answers


def test_a_budget_of_answers_that_is_too_small_is_refused_with_the_smallest_one(tmp_path: Path) -> None:
    traced = SMALLEST * (12 + 1) + SMALLEST * (SURVIVORS + 1)
    with pytest.raises(ValueError, match=rf"a budget of 5 is too small.*need at least {traced};.*fewer --settings"):
        _run(tmp_path, Speaker(), 12, budget=Budget(answers=5))
    smallest = traced + 2 * SMALLEST * BIASES  # a model whose margins cannot be recorded
    with pytest.raises(ValueError, match=rf"need at least {smallest};"):
        _run(tmp_path, speaker := Speaker(), 12, budget=Budget(answers=smallest - 1))
    assert speaker.asked == 0
    found = _run(tmp_path, speaker := Speaker(), 12, budget=Budget(answers=smallest))
    assert 0 < speaker.asked == found.answers <= smallest


@pytest.mark.slow
def test_a_budget_of_time_is_kept_and_shared_by_processes_that_help_each_other(tmp_path: Path) -> None:
    budget = Budget(seconds=500)
    alone = _run(tmp_path / "1", Speaker(), 12, budget=budget)
    helped = _run(tmp_path / "2", Speaker(), 12, budget=budget, shard=Shard(0, 2, helps=True))
    assert 250 < SECONDS * alone.answers <= 500
    assert 500 < SECONDS * helped.answers <= 1000


def test_a_time_that_is_too_short_is_refused_after_one_batch_with_the_shortest_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a budget of 5s is too small.*need at least (\d+)s") as refused:
        _run(tmp_path, speaker := Speaker(), 12, budget=Budget(seconds=5))
    assert speaker.asked == 2 * 16  # vanilla and one setting
    shortest = int(str(refused.value).partition("at least ")[2].partition("s;")[0])
    found = _run(tmp_path, speaker := Speaker(), 12, budget=Budget(seconds=shortest))
    assert SECONDS * (32 + found.answers) <= shortest


@pytest.mark.slow
def test_a_search_that_was_stopped_goes_on_and_finds_the_same(tmp_path: Path) -> None:
    """What was answered before counts as spent, so every decision is the same."""
    budget, wrong = Budget(answers=2000), {_settings(12)[4].label: 0.1}
    whole = _run(tmp_path / "whole", Speaker(wrong), 12, budget=budget)

    class Stopped(Speaker):
        def __call__(self, todo: Sequence[Batch], store: Store, done: Any) -> None:
            super().__call__(todo[: len(todo) // 2], store, done)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "halves", stopped := Stopped(wrong), 12, budget=budget)
    rest = _run(tmp_path / "halves", speaker := Speaker(wrong), 12, budget=budget)
    assert stopped.asked > 0 and stopped.asked + speaker.asked == whole.answers
    assert rest.to_json()["calibration"] == whole.to_json()["calibration"]
    assert rest.to_json()["validation"] == whole.to_json()["validation"]


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("20000", Budget(answers=20000)),
        ("90s", Budget(seconds=90)),
        ("20m", Budget(seconds=1200)),
        ("20min", Budget(seconds=1200)),
        ("1.5h", Budget(seconds=5400)),
    ],
)
def test_a_budget_is_answers_or_time(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["", "0", "-1", "m", "infh", "nans", "2 days", "1e3", "0s"])
def test_a_budget_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a budget of"):
        Budget.parse(text)


def test_a_setting_that_is_dropped_saves_its_answers_and_not_what_all_share() -> None:
    price = Price(shared=0.4, each=0.02)
    assert math.isclose(price.item(10), 0.6) and math.isclose(price.item(4), 0.48)
    assert price.item(0) == 0  # without a setting nothing is asked


def test_what_is_left_buys_no_more_than_it_pays() -> None:
    price = Price(shared=0.2, each=0.1)
    assert price.items(10.0, 3, most=100) == 20
    assert all(price.items(n * price.item(5), 5, most=n) == n for n in range(1, 200))  # exactly what all cost
    assert price.items(math.inf, 3, most=100) == 100
    assert price.items(-1.0, 3, most=100) == 0
    assert Price(0.0, 0.0).items(1.0, 3, most=7) == 7


# -- which settings stay


def _stage(gains: Sequence[float], spread: float) -> Stage:
    """Settings with these gains on few items, the default last."""
    settings = [*_settings(len(gains))[1:], _settings(1)[0]]
    noise = np.random.default_rng(0).normal(0, spread, (len(gains), 400))
    measured = [
        Measured(c, Estimate.of(gain, gain + own, 40, images=40), gain + own, {}, None, 0.5, 1.0)
        for c, gain, own in zip(settings, gains, noise, strict=True)
    ]
    return Stage("calibration", {"tiny-chair": 40}, tuple(measured), {})


def test_a_default_is_dropped_for_evidence_and_not_for_lack_of_it() -> None:
    gains = [5.0, 4.0, 3.5, 3.0, 2.0, 1.0, 0.5, -1.0]
    unlucky, worse = (choose_survivors(_stage(gains, spread), 1.0) for spread in (4.0, 0.5))
    assert [c.is_default for c in unlucky] == [False] * 4 + [True]
    assert not any(c.is_default for c in worse)


def test_without_validation_the_mildest_of_harmful_settings_is_the_best(tmp_path: Path) -> None:
    settings = _settings(6)
    harm = {setting.label: 0.8 if i == 3 else 1.0 for i, setting in enumerate(settings)}
    found = _run(tmp_path, Speaker(harm), 6, validate=False)
    assert all(m.gain.high < 0 for m in found.stages[-1].measured)
    assert found.best.candidate.label == settings[3].label


def test_a_setting_that_hardly_names_anything_is_not_the_mildest(tmp_path: Path) -> None:
    settings = _settings(4)
    terse = settings[2].label

    class Terse(Speaker):
        def text(self, label: str, item: Any) -> str:
            rare = label == terse and sum(map(ord, item.id)) % 20
            return "Nothing." if rare else super().text(label, item)

    found = _run(tmp_path, Terse({setting.label: 1.0 for setting in settings}), 4, validate=False)
    gains = {m.candidate.label: m.gain.value for m in found.stages[-1].measured}
    assert gains[terse] == max(gains.values()) and found.stages[-1].measured[-1].candidate.label == terse


def test_a_default_that_is_kept_stays_whatever_it_is_worth() -> None:
    gains = [5.0, 4.0, 3.5, 3.0, 2.0, 1.0, 0.5, -1.0]
    kept = choose_survivors(_stage(gains, 0.5), 1.0, keep_default=True)
    assert kept == [*choose_survivors(_stage(gains, 0.5), 1.0), kept[-1]] and kept[-1].is_default


def test_what_names_less_than_any_bias_does_not_go_on_beside_a_kept_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_add_companion", lambda *_: None)
    stage = _stage([5.0, 4.0, 3.0], 4.0)
    lost = Estimate.of(-70.0, np.linspace(-90.0, 10.0, 400), 40, images=40)  # perhaps not: it may go on alone
    silent = replace(stage.measured[0], recall_change=lost, on_curve=False)
    stage = replace(stage, measured=(silent, *stage.measured[1:]))
    both = [m.candidate for m in stage.measured]
    assert choose_survivors(stage, 1.0) == both
    assert choose_survivors(stage, 1.0, keep_default=True) == both[1:]


def test_what_changes_nothing_leaves_its_place_to_what_may_still_gain() -> None:
    stage = _stage([0.0] * 6 + [-0.5, -1.0], 3.0)
    idle = replace(stage.measured[0], gain=Estimate.of(0.0, np.zeros(400), 40, images=40), draws=np.zeros(400))
    found = tuple(replace(idle, candidate=m.candidate) for m in stage.measured[:6]) + stage.measured[6:]
    assert choose_survivors(replace(stage, measured=found), 1.0) == [m.candidate for m in found[6:]]


@pytest.mark.parametrize(
    ("gain", "spread", "validated", "needs_more"),
    [
        (5.0, 1.0, True, False),
        (-5.0, 2.0, True, False),  # surely worse
        (1.0, 4.0, True, True),
        (1.0, 4.0, False, True),
        (-5.0, 2.0, False, False),
    ],
)
def test_more_images_are_asked_for_where_the_interval_tells_nothing(
    gain: float, spread: float, validated: bool, needs_more: bool
) -> None:
    stage = _stage([gain] * 2, spread)
    stage = replace(stage, measured=tuple(replace(m, images=40) for m in stage.measured))
    found = Calibration(ModelInfo("m", "f"), (stage,), stage if validated else None, 1.0, 0, 0.0)
    assert found.images_needed is None or found.images_needed > 40
    assert (found.images_needed is not None) is needs_more


class Terse(Speaker):
    """The good setting also leaves out an object, and a negative EOS bias gives it back."""

    def __init__(self, good: str) -> None:
        super().__init__()
        self.good = good

    def text(self, label: str, item: Any) -> str:
        at = sum(map(ord, item.id)) * 7919 % 100
        good = label.startswith(self.good)
        # of 100 descriptions this many lack their first object: bias moves the number, the setting adds 20
        words = list(item.truth)[at < 50 + 10 * _bias(label) + 20 * good :]
        if (at * 37) % 100 < (15 if good else 60):
            words.append(next(w for w in ("dog", "cat", "bus", "car") if w not in item.truth))
        return "There is a " + " and a ".join(words) + "."


@pytest.mark.slow
def test_a_good_setting_that_loses_recall_goes_on_beside_what_gives_it_back(tmp_path: Path) -> None:
    good = _settings(12)[5]
    found = _run(tmp_path, Terse(good.label), 12)
    chosen = found.recommended
    assert chosen is not None and chosen.label.startswith(good.label + "+eos-bias:bias=-")
    assert get_method(chosen.label) == chosen.applied
    assert found.result is not None and found.result.recall_change is not None
    assert found.result.recall_change.value >= -1
    assert found.settings_tried > 12


def test_a_default_that_may_lose_recall_stays_and_its_companion_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_companion(measured: Measured, stage: Stage) -> Candidate:
        return replace(measured.candidate, companion=EOSBias(-1.0))

    monkeypatch.setattr(calibration, "_add_companion", add_companion)
    stage = _stage([5.0, 4.0], 2.0)
    default = stage.measured[1]
    loss = Estimate.of(-2.0, np.linspace(-4.0, 0.0, 400), 40, images=40)  # more than a point, perhaps
    helped = replace(stage.measured[0], candidate=add_companion(default, stage))
    stage = replace(stage, measured=(helped, replace(default, recall_change=loss)))
    assert choose_survivors(stage, 1.0) == [helped.candidate, default.candidate]


@pytest.mark.parametrize(
    ("x", "slope", "companion", "bias"),
    [
        ("Cover", 0.5, None, -4.0),  # two points of recall at half a point per bias
        ("Cover", 4.0, None, -0.5),
        ("Cover", 0.0, None, None),  # the control restores nothing
        ("yes_ratio", 0.5, None, None),
        ("Cover", 0.5, EOSBias(-1.0), None),  # it has one
    ],
)
def test_a_companion_gives_back_the_recall_that_a_setting_loses(
    x: str, slope: float, companion: EOSBias | None, bias: float | None
) -> None:
    trade = TradeOff(x, ("CHAIR",), "eos-bias", (-1.0, 1.0))
    low, high = (next(iter(curve_methods(trade, [one]))) for one in trade.biases)
    values = {low: 50 + slope, high: 50 - slope}
    task = SimpleNamespace(trade_off=trade, sample=lambda label: SimpleNamespace(value=lambda name: values[label]))
    candidate = Candidate(CropBlend(), CropBlend(weight=0.5), companion)
    measured: Any = SimpleNamespace(candidate=candidate, recall_change=Estimate(-2.0, -3.0, -1.0, 0.5, 9))
    stage: Any = SimpleNamespace(tasks={"t": task})
    found = calibration._add_companion(measured, stage)
    assert found == (None if bias is None else replace(candidate, companion=EOSBias(bias)))


def test_the_result_is_a_method_that_loads_again(tmp_path: Path) -> None:
    good = _settings(6)[2]
    found = _run(tmp_path, Speaker({good.label: 0.05}), 6)
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(found.to_json(), allow_nan=False))
    assert Method.load(path) == get_method(f"@{path}") == good.method
    assert Method.load(path).calibrated_on == "f"


# -- the settings


def test_a_larger_search_begins_with_the_smaller_ones_settings() -> None:
    few, many = (list_candidates(["crop-blend", "vcd"], n, 32) for n in (7, 40))
    assert [c.label for c in few] == [c.label for c in many][:7]
    assert len({c.method for c in many}) == len(many) == 40


def test_each_method_begins_as_it_is_given_and_one_given_twice_has_two_turns() -> None:
    found = list_candidates([*SEARCHED, "memvr"], 24, 32)
    assert [c.method for c in found[:4]] == [CropBlend(), AIR(), AIRMemory(), MemVR()]
    names = [c.base.name for c in found]
    assert names.count("crop-blend") > 1.5 * names.count("air")


@pytest.mark.parametrize("count", [1, 5, 30])
def test_every_methods_default_is_among_them_however_few_are_wanted(count: int) -> None:
    names = ("vaf", "crop-blend", "air", "memvr")
    found = [c.method for c in list_candidates(names, count, 32) if c.is_default]
    assert found == [get_method(name) for name in names]


def test_the_strength_always_differs_and_other_options_keep_their_default_in_half() -> None:
    drawn = [c.changed for c in list_candidates(["crop-blend"], 41, 32)[1:]]
    weights = [options["weight"] for options in drawn]
    assert min(weights[:8]) < 0.2 and max(weights[:8]) > 0.6  # from the first ones on
    for option in ("eps", "keep", "match"):
        assert 14 <= sum(option in options for options in drawn) <= 26
    assert {options["match"] for options in drawn if "match" in options} == {"softmax", "geometry"}


def test_an_option_that_is_given_is_not_searched() -> None:
    for candidate in list_candidates(["air:keep=3"], 12, 32):
        assert candidate.method.keep == 3 and "keep" not in candidate.changed


def test_a_setting_beside_a_companion_is_a_method() -> None:
    for candidate in list_candidates(["crop-blend"], 4, 6):
        beside = replace(candidate, companion=EOSBias(-1.5))
        assert get_method(beside.label) == beside.applied != candidate.applied
        assert beside.is_default == candidate.is_default


def test_a_label_spells_its_method() -> None:
    for candidate in list_candidates(["crop-blend", "air", "memvr", "vaf", "vcd"], 60, 6):
        assert get_method(candidate.label) == candidate.method


@pytest.mark.parametrize("name", ["crop-blend", "air", "air-memory", "memvr", "vaf", "vcd"])
def test_values_lie_in_the_ranges_that_the_options_declare(name: str) -> None:
    default = get_method(name)
    assert default is not None
    ranges = searched_options(default)
    assert ranges, "the method declares nothing worth searching"
    for candidate in list_candidates([name], 30, 32):
        for option, value in candidate.changed.items():
            low, high = ranges[option][0], ranges[option][-1]
            if not isinstance(value, tuple | str):
                assert low <= value <= high
                assert type(value) is not bool


def test_points_follow_the_golden_ratio_and_its_generalization() -> None:
    golden, plastic = (1 + 5**0.5) / 2, 1.3247179572447460  # the roots of x^2 = x + 1 and of x^3 = x + 1
    for i in range(5):
        assert calibration._point(i, 1) == pytest.approx([(0.5 + i / golden) % 1])
        assert calibration._point(i, 2) == pytest.approx([(0.5 + i / plastic) % 1, (0.5 + i / plastic**2) % 1])


def test_a_range_is_of_whole_numbers_if_both_of_its_ends_are() -> None:
    assert [calibration._value((0, 3), t, "x", 4) for t in (0.0, 0.5, 0.99)] == [0, 2, 3]
    assert [calibration._value((0, 1.5), t, "x", 4) for t in (0.0, 0.5)] == [0, 0.75]


def test_vanilla_cannot_be_searched() -> None:
    with pytest.raises(ValueError, match="no setting to search"):
        list_candidates(["vanilla"], 3, 32)


def test_a_task_without_splits_is_divided_by_its_images() -> None:
    class Plain(type(TASK)):  # type: ignore[misc]
        def items(self, limit: int | None = None, split: str = "test") -> Any:
            return TASK.items(limit, "test")

    spec = TaskSpec.of(Plain(), name="plain", limit=200)
    first, second, own = split_task(spec)
    assert not own
    assert {i.id for i in first.items}.isdisjoint(i.id for i in second.items)
    assert len(first.items) + len(second.items) == 200
    assert len(first.items) > len(second.items) > 40
    assert split_task(replace(spec, task=TASK, name="tiny-chair"))[2]


# -- the command


@pytest.mark.slow
def test_the_command_calibrates_the_embedded_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["calibrate", "tiny-chair", "--model", "tiny", "--settings", "3", "--limit", "12", "--workers", "1"]
    command += ["--budget", "2000", "--output", str(tmp_path)]
    assert cli.run([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings_tried"] == 3
    assert found["model"]["fingerprint"] == VLM.load("tiny").fingerprint
    assert (tmp_path / "calibration.json").is_file()
    assert (tmp_path / "calibration-tiny-chair.png").stat().st_size > 10_000
    assert found["method"] is None or isinstance(Method.load(tmp_path / "calibration.json"), Method)
    assert cli.run([*command, "--no-plot"]) == 0
    printed = capsys.readouterr().out
    shown = found["validation"] or found["calibration"][-1]
    assert all(setting["method"] in printed for setting in shown["settings"])  # names are not cut
    assert "recommended: " in printed and "…" not in printed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing"], "nothing"),
        (["tiny-chair", "--budget", "soon"], "a budget of 'soon'"),
        (["tiny-chair", "--budget", "5"], "need at least"),
        (["tiny-chair", "--method", "vanilla"], "vanilla has no setting"),
        (["tiny-chair", "--split", "validation"], "--split"),
        (["tiny-chair", "--shard", "5/2"], "0/4"),
        (["tiny-chair", "--split", "test"], "--split"),
        (["tiny-chair", "--budget", "5", "--settings", "4"], "need at least 288"),
        (["tiny-chair", "--shard", "0/2", "--workers", "2"], "not two of them"),
        (["tiny-chair", "--ray", "2", "--shard", "0/2"], "not two of them"),
    ],
)
def test_bad_input_ends_in_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["calibrate", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and says in said


SMALL = ["calibrate", "tiny-chair", "--model", "tiny", "--settings", "2", "--limit", "12", "--budget", "300"]


@pytest.mark.slow
def test_parts_on_one_folder_help_each_other_and_find_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SMALL, "--method", "crop-blend", "--no-plot", "--json", "--output", str(tmp_path / "run")]
    assert cli.run([*words, "--shard", "0/2"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert cli.run([*words, "--shard", "1/2"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert first["answers"] > 0 and second["answers"] == 0
    for key in ("verdict", "calibration", "validation", "reason"):
        assert first[key] == second[key]


@pytest.mark.slow
def test_a_ray_cluster_calibrates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster is faked by one worker in this process: what Ray itself does is test_ray_cluster's."""
    from airvlm.evaluation import ray_cluster
    from airvlm.evaluation.run import run_batches

    class Here:
        def __init__(self, load: Any, workers: int, address: str | None) -> None:
            self.vlm, self.workers = load(), workers

        def model(self) -> ModelInfo:
            return ModelInfo.of(self.vlm)

        def depth(self) -> int:
            return len(self.vlm.parts.layers)

        def run_batches(self, todo: Sequence[Batch], store: Store, done: Any) -> None:
            run_batches(self.vlm, todo, store, done)

        def __enter__(self) -> Here:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(ray_cluster, "Cluster", Here)
    words = [*SMALL, "--method", "crop-blend", "--no-plot", "--json", "--output", str(tmp_path)]
    assert cli.run([*words, "--ray", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings_tried"] == 2 and found["answers"] > 0
