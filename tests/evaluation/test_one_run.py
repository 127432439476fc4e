"""Evaluations whose curve is read from the runs of vanilla and the methods: what is asked, stored and scored."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest
from fakes import FakeAnswer, FakeCaptions, FakeVLM

from airvlm.evaluation import recorder
from airvlm.evaluation.evaluate import evaluate
from airvlm.evaluation.plan import ModelInfo, TaskSpec, plan_phases, plan_traces
from airvlm.evaluation.results import VANILLA, Results
from airvlm.evaluation.store import FILE, Record, RecordKey, Store
from airvlm.evaluation.traces import end_trace, yes_trace
from airvlm.evaluation.workers import Shard
from airvlm.methods import VAF, Composed, EOSBias, YesBias
from airvlm.report import Report
from airvlm.reporting.tables import keeping_columns, task_table

LIMIT = 12
SMALLER = 1.3


class WordsVLM(FakeVLM):
    """Names things until the end token's margin is below the bias; under VAF all margins are smaller by SMALLER."""

    def __init__(self, refuses: str = "", fails: tuple[str, ...] = ()) -> None:
        super().__init__(fails)
        self.refuses = refuses
        self.asked: list[tuple[str, int]] = []  # what was run on how many rows

    answer_rows = None  # its margins can be recorded

    def words(self, image: str, method: Any) -> tuple[list[str], list[float]]:
        """Its longest answer, and the margin of each step."""
        number = int(image.split("/")[1].split(".")[0])
        seen = 8 - number % 3
        # after the third and sixth word it may stop
        margins = [9.0, 8.0, 7.0, 2.0 - number % 2, 7.5, 6.5, 0.5 if number % 4 else -0.5, 5.0]
        smaller = SMALLER if isinstance(method, VAF) else 0.0
        return [f"thing{i}" for i in range(seen)], [margin - smaller for margin in (*margins[:seen], -1.5)]

    def batch(self, requests, *, method, batch_size, progress, max_new_tokens=64, **generation):
        rows = list(requests)
        parts = list(method.methods) if isinstance(method, Composed) else [method]
        bias = parts[-1].bias if isinstance(parts[-1], EOSBias) else 0.0
        self.asked.append(("vanilla" if method is None else method.label, len(rows)))
        for image, question in rows:
            if str(image) in self.fails:
                raise ValueError(f"cannot see {image}")
            words, margins = self.words(str(image), parts[0])
            n = next((i for i, margin in enumerate(margins) if margin <= bias), len(words))
            finished, n = n < max_new_tokens, min(n, max_new_tokens)
            report = None if method is None else Report(method.to_json(), True)
            yield FakeAnswer(" ".join(words[:n]), report, question, n, finished, 0.01)


def answer_traced(vlm, rows, method, request, *, max_new_tokens, **generation):
    label = "vanilla" if method is None else method.label
    vlm.asked.append((f"{label} down to {min(request.biases):g}", len(rows)))
    found = []
    for image, question in rows:
        if str(image) in vlm.fails:
            raise ValueError(f"cannot see {image}")
        words, margins = vlm.words(str(image), method)
        texts = [" ".join(words[:n]) for n in range(len(words) + 1)]
        report = None if method is None else Report(method.to_json(), True)
        answer = FakeAnswer(texts[-1], report, question, len(words), True, 0.01)
        trace = {"refused": vlm.refuses} if vlm.refuses == label else None
        low = min(request.biases)
        n = next((i for i, margin in enumerate(margins) if margin <= low), len(words))
        trace = trace or end_trace(low, max_new_tokens, texts[: min(n, max_new_tokens) + 1], margins[: n + 1])
        found.append(recorder.Traced(answer, trace))
    return found


@pytest.fixture(autouse=True)
def fake_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "answer_traced", answer_traced)


def run(folder, vlm, **options) -> Results:
    methods = options.pop("methods", [VAF()])
    given = {"out": folder, "limit": LIMIT, "batch_size": 5, "progress": False, **options}
    return evaluate(vlm, FakeCaptions(), methods, **given)


def texts(results: Results, *labels: str) -> dict[str, list[str | None]]:
    [task] = results.tasks.values()
    return {label: task.texts(label) for label in labels or (*task.methods, *task.curve)}


def untraced(folder, monkeypatch, **options) -> Results:
    """The same with every bias as a run of its own."""
    with monkeypatch.context() as patch:
        patch.delattr(WordsVLM, "answer_rows")
        return run(folder, WordsVLM(), **options)


def test_twelve_images_under_two_methods_are_24_answers_with_the_curve(tmp_path):
    vlm = WordsVLM()
    run(tmp_path, vlm)
    assert sum(n for _, n in vlm.asked) == 2 * LIMIT == len(Store(tmp_path, readonly=True))
    assert {what for what, _ in vlm.asked} == {"vanilla down to -1", "vaf down to -1"}


def test_answers_and_figures_are_those_of_separate_runs(tmp_path, monkeypatch):
    one, many = run(tmp_path / "one", WordsVLM()), untraced(tmp_path / "many", monkeypatch)
    assert texts(one) == texts(many) and len(texts(one)) == 7
    [a], [b] = one.tasks.values(), many.tasks.values()
    assert a.figures("vaf") == b.figures("vaf") and "CHAIR_S_at_equal_recall" in a.figures("vaf")
    for label in a.curve:
        pairs = zip(a.records(label), b.records(label))
        assert all((r.tokens, r.finished, r.report["fired"]) == (s.tokens, s.finished, True) for r, s in pairs)


def test_a_finished_run_asks_nothing_and_is_read_back_without_a_model(tmp_path):
    first = run(tmp_path, WordsVLM())
    again = WordsVLM()
    second = run(tmp_path, again)
    loaded = Results.load(tmp_path, specs=[first.tasks["fake-captions"].spec])
    assert again.asked == [] and texts(first) == texts(second) == texts(loaded)


def test_a_method_that_is_vanilla_with_a_bias_costs_nothing(tmp_path):
    vlm = WordsVLM()
    found = run(tmp_path, vlm, methods={"stop": EOSBias(bias=2.5), "both": Composed(VAF(), EOSBias(bias=1.5))})
    assert sum(n for _, n in vlm.asked) == 2 * LIMIT  # vanilla and vaf
    alone = WordsVLM()
    for label, method in {"stop": EOSBias(bias=2.5), "both": Composed(VAF(), EOSBias(bias=1.5))}.items():
        rows = [(item.image, item.question) for item in found.tasks["fake-captions"].items]
        given = alone.batch(rows, method=method, batch_size=5, progress=False)
        assert texts(found, label)[label] == [answer.text for answer in given]


def test_a_more_negative_bias_runs_once_more_and_replaces_the_trace(tmp_path, monkeypatch):
    run(tmp_path, WordsVLM())
    vlm = WordsVLM()
    found = run(tmp_path, vlm, methods={"long": EOSBias(bias=-2.0)})
    assert vlm.asked and {what for what, _ in vlm.asked} == {"vanilla down to -2"}
    assert len(Store(tmp_path, readonly=True)) == 2 * LIMIT
    assert texts(found, "long") == texts(untraced(tmp_path / "x", monkeypatch, methods={"long": EOSBias(-2.0)}), "long")


def test_without_the_curve_every_method_is_asked_as_it_is(tmp_path):
    vlm = WordsVLM()
    run(tmp_path, vlm, curve=False)
    assert {what for what, _ in vlm.asked} == {"vanilla", "vaf"} and b'"trace"' not in (tmp_path / FILE).read_bytes()


def test_a_run_without_margins_is_completed_by_one_more(tmp_path):
    before = run(tmp_path, WordsVLM(), curve=False)
    vlm = WordsVLM()
    after = run(tmp_path, vlm)
    assert sum(n for _, n in vlm.asked) == 2 * LIMIT
    assert texts(before, VANILLA, "vaf") == texts(after, VANILLA, "vaf")
    again = WordsVLM()
    run(tmp_path, again)
    assert again.asked == []


def test_shorter_caps_are_read_from_the_longest_run(tmp_path, monkeypatch):
    caps = {"sweep": ["max_new_tokens=2,4,20"], "curve": False}
    vlm = WordsVLM()
    found = run(tmp_path / "one", vlm, **caps)
    assert sum(n for _, n in vlm.asked) == 2 * LIMIT and len(found.tasks) == 3
    other = untraced(tmp_path / "many", monkeypatch, **caps)
    for key, task in found.tasks.items():
        own = other.tasks[key]
        for label in task.methods:
            assert task.texts(label) == own.texts(label)
            assert [r.finished for r in task.records(label)] == [r.finished for r in own.records(label)]
    assert len({tuple(task.texts("vaf")) for task in found.tasks.values()}) == 3


def test_a_method_whose_margins_cannot_be_recorded_is_asked_as_it_is(tmp_path, monkeypatch):
    vlm = WordsVLM(refuses="vanilla")
    found = run(tmp_path / "one", vlm)
    asked = [what for what, _ in vlm.asked]
    assert asked.count("vanilla") == 3 and "eos-bias:bias=4.0" in asked and "vaf" not in asked
    assert texts(found) == texts(untraced(tmp_path / "many", monkeypatch))
    again = WordsVLM(refuses="vanilla")
    run(tmp_path / "one", again)
    assert again.asked == []


def test_a_failed_image_is_an_error_of_every_bias_and_is_tried_again(tmp_path):
    vlm = WordsVLM()
    spec = TaskSpec.of(FakeCaptions(), limit=LIMIT)
    bad = spec.items[3]
    vlm.fails = {str(bad.image)}
    [task] = run(tmp_path, vlm).tasks.values()
    assert {label: task.count_failed(label) for label in (*task.methods, *task.curve)} == dict.fromkeys(
        (*task.methods, *task.curve), 1
    )
    assert task.count_unanswered("eos-bias:bias=1") == 0 and len(task.curve_labels()) == 6
    assert not any(what in ("vanilla", "eos-bias:bias=1.0") for what, _ in vlm.asked)  # not asked bias by bias
    better = WordsVLM()
    [task] = run(tmp_path, better).tasks.values()
    assert task.count_failed(VANILLA) == task.count_failed("eos-bias:bias=1") == 0 and better.asked


@pytest.mark.parametrize("count", [2, 3])
def test_shards_share_the_traces(tmp_path, count):
    for index in range(count):
        run(tmp_path / "parts", WordsVLM(), shard=Shard(index, count))
    whole = run(tmp_path / "whole", WordsVLM())
    last = WordsVLM()
    assert texts(run(tmp_path / "parts", last)) == texts(whole) and last.asked == []


def test_it_says_that_the_curve_comes_from_the_same_runs(tmp_path, capsys, monkeypatch):
    run(tmp_path / "one", WordsVLM(), progress=True)
    said = capsys.readouterr().err
    assert "12 items on 12 images (28 of 40 images left out by limit=12)" in said
    assert "12 items x 2 runs (vanilla, vaf) = 24 answers" in said
    assert "the eos-bias curve is read from the same runs (eos-bias:bias=-1, " in said
    assert "24 answers to generate, 0 of 24 are stored" in said
    assert "10 of 24 answers, about " in said  # after two batches
    untraced(tmp_path / "many", monkeypatch, progress=True)
    said = capsys.readouterr().err
    assert "every bias of the curve is a run of its own: " in said and "84 answers to generate" in said


def test_beams_go_the_old_way_and_say_so(tmp_path, capsys):
    spec = replace(
        TaskSpec.of(FakeCaptions(), limit=4), generation={"max_new_tokens": 9, "num_beams": 3, "do_sample": False}
    )
    vlm = WordsVLM()
    evaluate(vlm, spec, [VAF()], out=tmp_path)
    assert "run of its own: beam search compares whole answers" in capsys.readouterr().err
    assert not any("down to" in what for what, _ in vlm.asked) and sum(n for _, n in vlm.asked) == 7 * 4


# -- what the curves show


def test_a_methods_own_curve_ends_where_vanillas_does(tmp_path):
    [task] = run(tmp_path, WordsVLM()).tasks.values()
    assert list(task.own_curve("vaf")) == list(task.own_curve(VANILLA)) == [-1.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    recalls = [sample.value("recall") for sample in task.own_curve("vaf").values()]
    assert recalls == sorted(recalls, reverse=True) and recalls[0] > recalls[-1]


def test_the_bias_at_which_a_method_keeps_vanillas_recall(tmp_path):
    [task] = run(tmp_path, WordsVLM()).tasks.values()
    bias = task.keeping_bias("vaf")
    assert bias == pytest.approx(-0.3, abs=0.06) and bias < -0.3  # where odd images go on after the third word
    goal = task.sample(VANILLA).value("recall")
    assert task.sample("vaf").value("recall") < goal
    assert task.sample_at("vaf", bias).value("recall") >= goal > task.sample_at("vaf", bias + 0.06).value("recall")
    assert task.keeping_bias(VANILLA) is None
    row = next(row for row in task.rows() if row["method"] == "vaf")
    assert row["keeping_bias"] == bias


def test_without_a_trace_there_is_no_curve_of_its_own(tmp_path, monkeypatch):
    [task] = untraced(tmp_path, monkeypatch).tasks.values()
    assert task.own_curve("vaf") == {} and task.keeping_bias("vaf") is None and len(task.own_curve(VANILLA)) == 6


def test_the_table_has_the_bias_and_what_is_left_there(tmp_path):
    [task] = run(tmp_path, WordsVLM()).tasks.values()
    table = task_table(task)
    at = [column.full_title for column in table.columns].index("bias that keeps vanilla's recall, with eos-bias")
    cells = {label: row[at] for label, row in table.rows}
    assert cells["vaf"].text == f"{task.keeping_bias('vaf'):+.2f}".replace("-", "−")
    assert cells["vaf"].note.startswith("CHAIR_S ") and cells[VANILLA].text == ""


def test_a_method_whose_trace_does_not_reach_vanillas_recall_says_where_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SMALLER", 3.0)
    [task] = run(tmp_path, WordsVLM()).tasks.values()
    assert task.keeping_bias("vaf") is None
    [(column, cells)] = keeping_columns(task).items()
    assert column.title == "bias that keeps vanilla's recall"
    assert cells["vaf"].text == "below −1"


def test_every_methods_curve_is_drawn_beside_vanillas(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    from airvlm.reporting import figures

    drawn = []
    scatter = figures.scatter
    monkeypatch.setattr(figures, "scatter", lambda *args: (drawn.append(args[3]), scatter(*args))[1])
    [task] = run(tmp_path, WordsVLM()).tasks.values()
    assert figures.draw_curves(task, tmp_path / "plots/curve.png") == tmp_path / "plots/curve.png"
    assert (tmp_path / "plots/curve.png").read_bytes().startswith(b"\x89PNG")
    lines = {series.name: series.points for series in drawn[0] if series.line}
    assert list(lines) == ["EOS-bias baseline", "vaf with EOS bias"]
    recalls = [sample.value("recall") for sample in task.own_curve("vaf").values()]
    assert [point.x for point in lines["vaf with EOS bias"]] == recalls


# -- the plan


def names(plan, **more) -> list[list[tuple[str, tuple[float, ...], bool]]]:
    runs = plan_traces(plan, ModelInfo("m", "f", traces=True, **more))
    return [[(run.label, run.request.biases, run.asked) for run in own] for own in runs]


def test_methods_that_differ_in_a_bias_are_one_run():
    spec = TaskSpec.of(FakeCaptions())
    plan = {VANILLA: None, "a": EOSBias(1.0), "b": EOSBias(-1.0), "vaf": VAF(), "c": Composed(VAF(), EOSBias(3.0))}
    wanted = (-1.0, 0.0, 1.0, 3.0)
    assert names([(spec, plan)]) == [[(VANILLA, wanted, True), ("vaf", wanted, True)]]
    assert names([(spec, {VANILLA: None, "vaf": VAF()})]) == [[]]  # one way each
    assert plan_traces([(spec, plan)], ModelInfo("m", "f")) == [[]]  # a model without margins


def test_a_bias_on_yes_is_traced_for_the_method_that_has_it():
    spec = TaskSpec.of(FakeCaptions())
    plan = {VANILLA: None, "a": YesBias(1.0), "vaf": VAF(), "eos": EOSBias(1.0)}
    assert names([(spec, plan)]) == [[(VANILLA, (0.0, 1.0), True)]]


def test_what_needs_no_trace_runs_beside_the_traces_and_only_biases_come_after():
    """So that the methods find an image's features, and the time that is left is that of all answers."""
    spec = TaskSpec.of(FakeCaptions())
    plan = [(spec, {VANILLA: None, "a": YesBias(1.0), "vaf": VAF()})]
    first, then = plan_phases(plan, ModelInfo("m", "f", traces=True), 4)
    assert all([batch.label for batch in chunk] == [VANILLA, "vaf"] for chunk in first)
    assert all([batch.trace is not None for batch in chunk] == [True, False] for chunk in first)
    assert {batch.label for chunk in then for batch in chunk} == {VANILLA, "a"}
    assert all(batch.traced for chunk in then for batch in chunk)


def test_a_bias_that_acts_before_another_method_is_a_method_of_its_own():
    spec = TaskSpec.of(FakeCaptions())
    plan = {VANILLA: None, "a": EOSBias(1.0), "first": Composed(EOSBias(1.0), VAF())}
    assert [label for label, _, _ in names([(spec, plan)])[0]] == [VANILLA, "first"]


# -- the store


def key(method: Any = None, cap: int = 8) -> RecordKey:
    return RecordKey("task", "1", "", "p", "f", method, {"max_new_tokens": cap, "do_sample": False}, {})


def traced(low: float) -> Record:
    return Record(key(), "a b", 2, True, trace=end_trace(low, 8, ["", "a", "a b"], [5.0, 1.0, -3.0]))


def test_a_stored_trace_answers_other_keys(tmp_path):
    with Store(tmp_path) as store:
        store.extend([traced(-1.0)])
    with Store(tmp_path) as store:
        biased = key({"name": "eos-bias", "bias": 1.0})
        found = store.find(biased)
        assert found is not None and (found.text, found.tokens, found.key) == ("a", 1, biased)
        assert found.source == key().digest and found.report == {"fired": True}
        assert biased in store and biased.digest not in store and key(cap=1) in store and key(cap=9) not in store
        assert key({"name": "eos-bias", "bias": -1.5}) not in store
        assert key({"name": "yes-bias", "bias": 1.0}) not in store
        assert replace(key(), prompt="q") not in store


def test_a_longer_trace_replaces_a_shorter_one_and_never_the_reverse(tmp_path):
    with Store(tmp_path) as store:
        assert [store.extend([traced(low)]) for low in (0.0, -1.0, -1.0, -0.5)] == [1, 1, 0, 0]
        assert len(store) == 1
    with Store(tmp_path) as store:
        assert store.get(key().digest).trace["low"] == -1.0


def test_lines_without_a_trace_are_as_they_were(tmp_path):
    assert "trace" not in json.loads(Record(key(), "a").to_line()) and "source" not in json.loads(traced(0).to_line())


def test_the_report_of_a_method_stays_its_own_beside_the_control(tmp_path):
    record = replace(traced(-1.0), key=key({"name": "vaf"}), report={"fired": True, "tokens": 7})
    joined = key({"name": "composed", "methods": [{"name": "vaf"}, {"name": "eos-bias", "bias": 1.0}]})
    found = record.derive(joined)
    assert found is not None and found.report is not None
    assert [part["name"] for part in found.report["parts"]] == ["vaf", "eos-bias"]
    assert found.report["parts"][0]["tokens"] == 7


def test_an_answer_to_yes_or_no_holds_for_its_range(tmp_path):
    from airvlm.evaluation.traces import Derived

    trace = yes_trace([(-4.0, 0.5, Derived("No", 1, True)), (0.5, 9.0, Derived("Yes", 1, True))])
    record = Record(key(), "No", 1, True, trace=trace)
    answers = {bias: record.derive(key({"name": "yes-bias", "bias": bias})) for bias in (-2.0, 0.25, 1.0, 20.0)}
    assert [None if a is None else a.text for a in answers.values()] == ["No", "No", "Yes", None]
