"""A whole evaluation: what is asked, among which others, and what survives interruptions."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
from fakes import FakeCaptions, FakeMethod, FakeVLM

import airvlm
from airvlm.evaluation import spread
from airvlm.evaluation.evaluate import (
    LARGEST_BIAS,
    ROUNDS,
    evaluate,
    find_trade_off,
    label_methods,
    missing_biases,
)
from airvlm.evaluation.plan import ModelInfo, TaskSpec, plan_batches
from airvlm.evaluation.resources import Resources
from airvlm.evaluation.results import VANILLA, Results
from airvlm.evaluation.run import generate_batch
from airvlm.evaluation.spread import Runner
from airvlm.evaluation.store import FILE, Store, StoreError
from airvlm.evaluation.trade_off import TRADE_OFFS
from airvlm.evaluation.workers import Shard
from airvlm.methods import EOSBias, MemVR
from airvlm.tasks import TASKS as REGISTRY
from airvlm.tasks.base import Item

TASKS = ["fake-captions", "fake-questions"]
METHODS = {"better": FakeMethod("better", 0.7)}
FORK = multiprocessing.get_context("fork")  # torch is imported once, not once a worker


def run(folder, vlm=None, tasks=TASKS, methods=METHODS, **options) -> Results:
    return evaluate(vlm or FakeVLM(), tasks, methods, out=folder, **{"progress": False, "batch_size": 16, **options})


def lines(folder) -> dict[str, dict]:
    """The records by key, without the clock; every line parses and no key comes twice."""
    found = [json.loads(line) for line in (folder / FILE).read_bytes().splitlines()]
    assert len({record["key"] for record in found}) == len(found)
    return {record["key"]: {k: v for k, v in record.items() if k != "seconds"} for record in found}


@pytest.fixture(scope="module")
def undisturbed(fake_names, tmp_path_factory) -> dict[str, dict]:
    folder = tmp_path_factory.mktemp("undisturbed")
    run(folder)
    return lines(folder)


@pytest.mark.parametrize(
    ("by_name", "workers", "fixed"), [(True, 0, None), (True, None, 1), (True, 1, 1), (True, 3, 3), (False, 0, 1)]
)
def test_the_number_of_workers_is_free_only_where_0_are_asked_for_by_the_name_of_a_model(
    tmp_path, monkeypatch, by_name, workers, fixed
):
    seen = []

    def choose(vlm, answers, *, workers, batch_size):
        seen.append(workers)
        return Resources(1, None, 4)

    monkeypatch.setattr(spread, "choose_resources", choose)
    monkeypatch.setattr(spread, "_loader", lambda name: lambda device: FakeVLM())
    model = "name" if by_name else FakeVLM()
    assert spread.run_spread(lambda runner: "done", model, out=tmp_path, answers=1, workers=workers) == "done"
    assert seen == [fixed]


def test_vanilla_runs_beside_the_methods_without_being_asked_for(tmp_path):
    task = run(tmp_path).tasks["fake-captions"]
    assert list(task.methods) == [VANILLA, "better"]
    assert task.count_unanswered(VANILLA) == task.count_unanswered("better") == 0


def test_the_bar_counts_what_other_processes_answer_meanwhile(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(spread.tqdm, "update", lambda bar, n=1: (shown.append(n), setattr(bar, "n", bar.n + n)))
    monkeypatch.setattr(spread.sys.stderr, "isatty", lambda: True)
    vlm, spec = FakeVLM(), TaskSpec.of("fake-captions")
    with Store(tmp_path) as store, Store(tmp_path) as theirs:

        def worker(left, store, done):
            theirs.extend(record for batch in left[2:] for record in generate_batch(vlm, batch))
            for batch in left:
                store.extend(generate_batch(vlm, batch))
                done(batch)

        Runner(worker, ModelInfo.of(vlm), 6, tmp_path, batch_size=2).run([(spec, {VANILLA: None})], store)
    items = len(spec.items)
    assert shown[:2] == [items - 2, 2] and sum(shown) == items


def test_a_finished_run_asks_the_model_nothing_more(tmp_path, undisturbed):
    run(tmp_path)
    again = FakeVLM()
    run(tmp_path, again)
    assert again.sizes == [] and lines(tmp_path) == undisturbed


def test_a_further_method_costs_only_its_own_answers(tmp_path):
    run(tmp_path, tasks=["fake-captions"])
    vlm = FakeVLM()
    both = run(tmp_path, vlm, tasks=["fake-captions"], methods={**METHODS, "other": FakeMethod("other", 0.5)})
    assert sum(vlm.sizes) == 40 and list(both.tasks["fake-captions"].methods) == [VANILLA, "better", "other"]


@pytest.mark.slow
def test_the_batch_size_changes_no_answer(tmp_path, undisturbed):
    run(tmp_path, batch_size=1)
    assert lines(tmp_path) == undisturbed


@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_number_of_shards_changes_nothing(tmp_path, undisturbed, count):
    for index in range(count):
        run(tmp_path, shard=Shard(index, count))
    run(tmp_path)  # gathers, and reaches for what lies beyond the curve
    assert lines(tmp_path) == undisturbed


def test_a_launched_worker_takes_over_what_a_dead_one_left(tmp_path, undisturbed):
    run(tmp_path, shard=Shard(0, 3, helps=True))  # ranks 1 and 2 never came
    assert lines(tmp_path) == undisturbed


def test_batches_do_not_depend_on_what_is_answered_already(tmp_path):
    spec = TaskSpec.of("fake-captions")
    before = plan_batches(spec, METHODS, ModelInfo("fake", "fake-1"), 16)
    run(tmp_path, tasks=["fake-captions"], methods={})
    assert plan_batches(spec, METHODS, ModelInfo("fake", "fake-1"), 16) == before


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_moments_it_ends_with_the_records_of_an_undisturbed_run(tmp_path, undisturbed, seed):
    rng = random.Random(seed)
    for _ in range(5):
        worker = FORK.Process(target=run, args=(tmp_path, FakeVLM(seconds=0.0003)))
        worker.start()
        time.sleep(rng.uniform(0.01, 0.15))
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        if (tmp_path / FILE).exists() and rng.random() < 0.7:  # the kill tore the last line, or several
            size = (tmp_path / FILE).stat().st_size
            os.truncate(tmp_path / FILE, max(0, size - rng.randrange(2000)))
    run(tmp_path)
    assert lines(tmp_path) == undisturbed


@pytest.mark.slow
def test_processes_that_share_a_folder_neither_lose_nor_double_an_answer(tmp_path, undisturbed):
    workers = [FORK.Process(target=run, args=(tmp_path, FakeVLM(seconds=0.0002))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert lines(tmp_path) == undisturbed


def test_a_failing_item_is_an_error_of_its_own_and_its_neighbours_are_answered(tmp_path):
    task = run(tmp_path, FakeVLM(fails=["test/5.png"]), tasks=["fake-captions"]).tasks["fake-captions"]
    [failed] = [record for record in task.records("better") if record.error]
    assert failed.text is None and failed.error == "ValueError: cannot see test/5.png"
    assert task.count_failed("better") == 1 and task.scores("better").n == 39
    assert any("1 of 40 answers failed, the first with ValueError" in problem for problem in task.problems())


def test_a_failed_item_is_tried_again_by_the_next_run(tmp_path, undisturbed):
    run(tmp_path, FakeVLM(fails=["test/5.png"]))
    healed = run(tmp_path)
    assert healed.problems() == [] and healed.tasks["fake-captions"].count_failed("better") == 0


def test_one_failure_in_more_than_a_hundred_is_tolerated_and_counted(tmp_path, monkeypatch):
    monkeypatch.setitem(REGISTRY, "many", lambda data=None: FakeCaptions(n=200))
    found = run(tmp_path, FakeVLM(fails=["test/5.png"]), tasks=["many"], curve=False)
    assert found.problems() == [] and found.tasks["many"].count_failed("better") == 1


def test_answers_that_cannot_be_read_are_a_problem(tmp_path):
    class Mumbling(FakeVLM):
        def speak(self, image, question, bias):
            return "Perhaps."

    found = run(tmp_path, Mumbling(), tasks=["fake-questions"], curve=False).problems()
    assert any("better: 60 of 60 answers could not be parsed" in problem for problem in found)


def test_a_method_that_never_acted_is_a_problem_that_says_why(tmp_path):
    found = run(tmp_path, tasks=["fake-captions"], methods={"idle": FakeMethod("idle", fires=False)}, curve=False)
    assert found.problems() == ["fake-captions, idle: the method never acted (too far)"]


def test_another_model_is_not_mixed_into_a_folder(tmp_path):
    run(tmp_path)
    other = FakeVLM()
    other.fingerprint = "other-2"
    with pytest.raises(StoreError, match=r"has answers of fake.*--output"):
        run(tmp_path, other)


def test_the_curve_is_drawn_once_and_a_method_is_compared_at_its_own_recall(tmp_path):
    task = run(tmp_path).tasks["fake-captions"]
    at = task.at_equal("better")["CHAIR_S"]
    assert at.inside and at.at == task.sample("better").value("recall")
    assert at.difference.low <= 0 <= at.difference.high  # the fake method is itself but a shorter caption
    assert task.at_equal(VANILLA) == {}
    assert run(tmp_path).tasks["fake-questions"].at_equal("better")["accuracy"].x == "yes_ratio"


def test_vanilla_and_one_control_are_a_curve_and_vanilla_alone_is_none(tmp_path):
    task = run(tmp_path, tasks=["fake-captions"]).tasks["fake-captions"]
    one = dict(list(task.curve.items())[:1])
    assert "CHAIR_S" in replace(task, curve=one).at_equal("better")
    assert replace(task, curve={}).at_equal("better") == {}


def test_the_curve_reaches_for_a_method_beyond_its_end(tmp_path):
    task = run(tmp_path, tasks=["fake-captions"], methods={"terse": FakeMethod("terse", 8.0)}).tasks["fake-captions"]
    assert task.at_equal("terse")["CHAIR_S"].inside
    assert "eos-bias:bias=9" in task.curve


def test_a_curve_whose_weakest_bias_changed_nothing_is_extended_all_the_same():
    recalls = {VANILLA: 40.0, "eos-bias:bias=-1": 40.0, "eos-bias:bias=1": 30.0, "longer": 45.0}
    task = SimpleNamespace(
        trade_off=TRADE_OFFS[0],
        curve={label: {"bias": float(label.split("=")[1])} for label in recalls if "=" in label},
        others=["longer"],
        count_unanswered=lambda label: 0,
        sample=lambda label: SimpleNamespace(value=lambda metric: recalls[label]),
    )
    assert missing_biases(task) == [-1.5]


@pytest.mark.parametrize("task", ["tiny-chair", "tiny-pope"])
def test_one_run_extends_a_curve_as_far_as_a_second_one_would(task: str) -> None:
    trade = find_trade_off(TaskSpec.of(task, limit=1))
    assert trade is not None
    for end in (min(trade.biases), max(trade.biases)):
        steps = math.floor(math.log(LARGEST_BIAS / abs(end), 1.5))
        assert steps > 1
        assert steps < ROUNDS  # and one round that finds nothing missing


def test_a_curve_that_was_drawn_on_fewer_items_is_finished_on_more(tmp_path):
    methods = {"terse": FakeMethod("terse", 8.0)}
    few = TaskSpec.of("fake-captions", limit=12)
    assert "eos-bias:bias=9" in run(tmp_path, tasks=[few], methods=methods).tasks["fake-captions"].curve
    task = run(tmp_path, tasks=["fake-captions"], methods=methods).tasks["fake-captions"]
    assert "eos-bias:bias=9" in task.curve
    assert [task.count_unanswered(label) for label in task.curve] == [0] * len(task.curve)


def test_a_run_is_read_back_from_its_folder_alone(tmp_path):
    made = run(tmp_path)
    read = Results.load(tmp_path)
    for name, task in made.tasks.items():
        assert read.tasks[name].scores("better").metrics == task.scores("better").metrics
        assert read.tasks[name].count_changed("better") == task.count_changed("better") > 0
        assert read.tasks[name].count_fired("better") == len(task.items)


@dataclass(frozen=True)
class Own(FakeCaptions):
    """Somebody's own task: known nowhere by name."""

    name: ClassVar[str] = "own-task"


def test_a_task_of_ones_own_is_answered_and_scored_to_the_end(tmp_path):
    task = run(tmp_path, tasks=[Own(n=12), "fake-questions"]).tasks["own-task"]
    assert task.scores("better").n == 12 and task.at_equal("better")
    assert list(Results.load(tmp_path, specs=[TaskSpec.of(Own(n=12))]).tasks) == ["own-task"]
    with pytest.raises(StoreError, match=r"run\.json: task 'own-task' is not installed here"):
        Results.load(tmp_path)
    with pytest.raises(TypeError, match="is not a task"):
        run(tmp_path, tasks=[7])


def test_answers_to_another_split_whose_items_are_counted_alike_are_not_mixed_in(tmp_path):
    class Alike(FakeCaptions):
        def items(self, limit=None, split="test"):
            return [Item(str(i), f"{split} {i}".encode(), "Describe.") for i in range(12)][:limit]

    def texts(folder: str, split: str) -> list[str]:
        spec = TaskSpec.of(Alike(), name="alike", split=split)
        return run(tmp_path / folder, tasks=[spec], curve=False).tasks[spec.key].texts("better")

    expected = {split: texts(split, split) for split in ("test", "calibration")}
    assert expected["test"] != expected["calibration"]
    for split in ("test", "calibration", "test"):
        assert texts("both", split) == expected[split]


def test_an_image_that_is_no_longer_there_keeps_its_answer(tmp_path):
    made = run(tmp_path, tasks=["fake-captions"], curve=False).tasks["fake-captions"]
    moved = [replace(item, image=f"elsewhere/{item.id}.png") for item in made.items]
    found = Results.load(tmp_path, specs=[replace(made.spec, items=moved)]).tasks["fake-captions"]
    assert found.texts("better") == made.texts("better")


def test_a_published_method_or_control_that_never_acts_is_a_note_and_a_method_under_test_a_problem(tmp_path):
    idle = {name: FakeMethod(name, fires=False) for name in ("memvr", "mine", "random-crops")}
    found = run(tmp_path, methods=idle, curve=False, tasks=["fake-captions"])
    said = "the method never acted (too far)"
    assert found.notes() == [f"fake-captions, memvr: {said}", f"fake-captions, random-crops: {said}"]
    assert found.problems() == [f"fake-captions, mine: {said}"]
    assert len(found.problems(require_acting=True)) == 3


def test_a_method_that_acted_in_another_task_has_a_null_result_here(tmp_path):
    class Half(FakeVLM):
        def batch(self, requests, *, method, **options):
            requests = list(requests)
            idle = method is not None and requests[0][1].startswith("Is")
            return super().batch(requests, method=replace(method, fires=False) if idle else method, **options)

    found = run(tmp_path, Half(), methods={"mine": FakeMethod("mine", 0.5)}, curve=False)
    assert found.problems() == []
    assert found.notes() == ["fake-questions, mine: the method never acted (too far)"]


@pytest.mark.slow
def test_workers_that_help_also_draw_the_further_curve_together(tmp_path, undisturbed):
    vlms = [FakeVLM(), FakeVLM()]
    for index in (1, 0):
        run(tmp_path, vlms[index], shard=Shard(index, 2, helps=True))
    assert lines(tmp_path) == undisturbed and vlms[0].sizes == []


def test_methods_answer_a_chunk_of_images_in_turn(tmp_path):
    class Listening(FakeVLM):
        seen: ClassVar[list] = []

        def batch(self, requests, *, method, **options):
            requests = list(requests)
            self.seen.append((requests[0][0], None if method is None else method.kind))
            return super().batch(requests, method=method, **options)

    run(tmp_path, Listening(), tasks=["fake-captions"], curve=False)
    assert Listening.seen[:4] == [
        ("test/0.png", None),
        ("test/0.png", "better"),
        ("test/16.png", None),
        ("test/16.png", "better"),
    ]


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"run\.json is missing"):
        Results.load(tmp_path)


def test_limit_split_and_token_cap_are_part_of_what_is_asked(tmp_path):
    options = {"split": "validation", "limit": 7, "max_new_tokens": 5}
    found = run(tmp_path, tasks=["fake-captions"], curve=False, **options).tasks["fake-captions, validation"]
    record = found.records("better")[0]
    assert len(found.items) == 7 and record.key.item == found.items[0].id
    assert record.key.generation == {"max_new_tokens": 5, "do_sample": False}
    assert record.extra["settings"] == found.spec.task.settings()


# -- the function that `airvlm` exports


def test_methods_are_objects_or_spellings_as_a_list_or_with_labels(fake_names, monkeypatch):
    monkeypatch.setattr(airvlm.methods.names, "parse_method", fake_names)
    assert label_methods("vanilla") == {VANILLA: None} and label_methods(None) == {VANILLA: None}
    assert label_methods(MemVR()) == {"memvr": MemVR()}
    assert label_methods(["eos-bias:bias=2.0", EOSBias(bias=3.0)]) == {
        "eos-bias:bias=2.0": EOSBias(bias=2.0),
        "eos-bias:bias=3.0": EOSBias(bias=3.0),
    }
    assert label_methods({"mine": "memvr", "none": None}) == {"mine": MemVR(), "none": None}
    with pytest.raises(TypeError, match=r"pass an object: MemVR\(\)"):
        label_methods([MemVR])


def test_one_import_evaluates_and_returns_a_frame(tmp_path):
    pytest.importorskip("pandas", reason="needs the frame extra")
    results = airvlm.evaluate(FakeVLM(), TASKS, ["better:bias=0.7"], out=tmp_path, limit=30, progress=False)
    assert isinstance(results, airvlm.Results)
    frame = results.to_frame()
    assert len(frame) == 2 * 3 + 2 * 2  # methods x metrics of each task
    assert not frame.duplicated(["task", "method", "metric"]).any()
    chair = frame.set_index(["task", "method", "metric"]).loc[("fake-captions", "better:bias=0.7", "CHAIR_S")]
    task = results.tasks["fake-captions"]
    assert chair["value"] == task.scores("better:bias=0.7").metrics["CHAIR_S"] and chair["n"] == chair["images"] == 30
    assert chair["low"] <= chair["value"] <= chair["high"]
    difference = task.difference("better:bias=0.7", "CHAIR_S")
    assert (chair["difference"], chair["difference_high"]) == (difference.value, difference.high)
    at = task.at_equal("better:bias=0.7")["CHAIR_S"]
    assert (chair["at_equal"], chair["held_equal"]) == (at.difference.value, "recall")
    assert chair["fired"] == 30 and chair["changed"] == task.count_changed("better:bias=0.7") > 0
    assert json.loads(chair["method_json"]) == {"name": "better", "bias": 0.7, "fires": True}
    assert (chair["model"], chair["fingerprint"], chair["split"], chair["limit"]) == ("fake", "fake-1", "test", 30)
    assert chair["tokens"] > 0 and chair["variant"] == ""
    vanilla = frame[(frame.method == VANILLA) & (frame.metric == "recall")].iloc[0]
    assert vanilla.isna()[["difference", "at_equal", "method_json", "fired"]].all()
    again = Results.load(tmp_path).to_frame()
    assert again.equals(frame)


def test_samples_are_one_file_per_task_and_method(tmp_path):
    results = run(tmp_path, methods={"better: a/b": FakeMethod("better", 0.7)}, curve=False, limit=9)
    files = results.write_samples()
    assert len(files) == len(set(files)) == 4 and all(file.parent == tmp_path / "samples" for file in files)
    task = results.tasks["fake-questions"]
    [file] = [file for file in files if file.name.startswith("fake-questions--better")]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["id"] for line in lines] == [item.id for item in task.items] and len(lines) == 18
    assert [line["answer"] for line in lines] == task.texts("better: a/b")
    first, item = lines[0], task.items[0]
    assert (first["question"], first["target"], first["image"]) == (item.question, item.truth, item.image)
    assert first["score"] == task.scores("better: a/b").per_item[0]
    assert (first["task"], first["method"], first["model"]) == ("fake-questions", "better: a/b", "fake")
    assert results.write_samples(tmp_path / "other")[0].parent == tmp_path / "other"


def test_results_are_written_as_csv_markdown_and_latex(tmp_path):
    results = run(tmp_path, tasks=["fake-captions"], methods={"=2+3": FakeMethod("better", 0.7)})
    rows = results.to_csv(tmp_path / "a.csv").splitlines()
    assert (tmp_path / "a.csv").read_text().splitlines() == rows and len(rows) == 1 + 2 * 3
    assert any(",'=2+3," in row for row in rows) and not any(",=2+3" in row for row in rows)
    assert any(",-" in row for row in rows)  # a negative number is no formula
    assert "| =2+3 |" in results.to_markdown() and "\\toprule" in results.to_latex(tmp_path / "a.tex")


def test_before_it_starts_it_says_how_many_answers_it_asks_for(tmp_path, capsys):
    run(tmp_path, tasks=["fake-captions"], progress=True)
    said = capsys.readouterr().err
    assert "fake-captions: 40 items on 40 images\n" in said
    assert "40 items x 7 runs (vanilla, better, eos-bias:bias=-1, " in said and "= 280 answers" in said
    assert "every bias of the curve is a run of its own: the model's margins cannot be recorded" in said
    assert "280 answers to generate, 0 of 280 are stored" in said
    vlm = FakeVLM()
    run(tmp_path, vlm, tasks=["fake-captions"], methods={**METHODS, "more": FakeMethod("more", 0.2)}, progress=True)
    said = capsys.readouterr().err
    assert "40 answers to generate, 280 of 320 are stored" in said and sum(vlm.sizes) == 40


def test_no_progress_bar_is_written_into_a_file(tmp_path, capsys):
    run(tmp_path, progress=True)
    said = capsys.readouterr().err
    assert "\r" not in said and "it/s" not in said and "answer/s" not in said


def test_a_model_is_given_by_a_function_that_loads_it(tmp_path):
    devices = []
    found = run(tmp_path, lambda device: (devices.append(device), FakeVLM())[1], tasks=["fake-captions"], curve=False)
    assert devices == [None] and found.tasks["fake-captions"].count_unanswered("better") == 0


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (FakeVLM(), {"workers": 2}, "other processes must load the model themselves"),
        (FakeVLM, {"workers": 2, "shard": "0/2"}, "not two of them"),
        (FakeVLM, {"ray": 2, "shard": "0/2"}, "not two of them"),
        (FakeVLM(), {"shard": "5/2"}, "as in 0/4"),
        (FakeVLM(), {"tasks": ["fake-captions", "fake-captions"]}, "given twice"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_asked(tmp_path, model, options, says):
    with pytest.raises(ValueError, match=says):
        run(tmp_path, model, **options)
    assert not (tmp_path / FILE).exists()


def test_without_a_folder_answers_go_to_one_of_the_models_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run(None, tasks=["fake-captions"], curve=False, limit=2)
    assert str(found.folder) == "airvlm-runs/fake-fake-1" and (found.folder / FILE).is_file()


def test_progress_in_a_file_says_what_is_left_unless_nothing_is(capsys):
    batches = [SimpleNamespace(items=["a"])] * 2
    for total, says in ((batches * 2, "2 of 4 answers, about"), (batches, "2 of 2 answers\n")):
        with spread._show_progress(total, [], True) as done:
            for batch in batches:
                done(batch)
        assert says in capsys.readouterr().err


def test_a_curve_is_extended_together_with_the_points_that_it_has(tmp_path, monkeypatch):
    asked = []
    plan = Runner.run

    def watch(self, tasks, store):
        asked.append({label for _, methods in tasks for label in methods})
        plan(self, tasks, store)

    monkeypatch.setattr(Runner, "run", watch)
    task = run(tmp_path, tasks=["fake-captions"], methods={"terse": FakeMethod("terse", 8.0)}).tasks["fake-captions"]
    first, *others = asked
    # the trace of an extension takes the place of the first one, and holds only what it was asked for
    assert others and all(first - {VANILLA, "terse"} <= labels for labels in others)
    assert not any(task.count_unanswered(label) for label in task.curve)
