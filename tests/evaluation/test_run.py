"""The loop over batches, with a real (small, random) model."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeCaptions, FakeQuestions, FakeVLM

from airvlm.evaluation import run
from airvlm.evaluation.evaluate import evaluate
from airvlm.evaluation.plan import Batch, ModelInfo, TaskSpec, plan_batches
from airvlm.evaluation.run import generate_batch, run_batches
from airvlm.evaluation.store import Store
from airvlm.inputs.cache import cache_of
from airvlm.methods import AIR, Composed, EOSBias
from airvlm.tasks.base import Item
from airvlm.testing import small_models
from airvlm.vlm import VLM
from tests.checkpoints import save_llava

AIR_HERE = AIR(keep=2, num_crops=4, num_prototypes=4, strength=2.0, layers=(0, 3))


@pytest.fixture(scope="module")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> VLM:
    return VLM.load(save_llava(tmp_path_factory.mktemp("llava")))


def batches(spec: TaskSpec, label: str, method: Any, model: ModelInfo, size: int) -> list[Batch]:
    return [batch for [batch] in plan_batches(spec, {label: method}, model, size)]


def make_spec(n: int = 7) -> TaskSpec:
    words = [
        "is there a fork ?",
        "describe this image",
        "what color is the table near the dog in the image ?",
    ]
    items = [Item(str(i), small_models.sample_image(i // 2), words[i % 3]) for i in range(n)]
    return TaskSpec("seen", FakeCaptions(), items, generation={"max_new_tokens": 6, "do_sample": False})


@pytest.mark.parametrize("method", [None, AIR_HERE, EOSBias(0.5)], ids=["vanilla", "air", "eos-bias"])
def test_batches_give_the_answers_of_one_at_a_time(vlm, method, tmp_path):
    facts = ModelInfo.of(vlm)
    for size in (1, 7):
        with Store(tmp_path / str(size)) as store:
            run_batches(vlm, batches(make_spec(), "method", method, facts, size), store)
    one, many = (
        {r.key.item: (r.text, r.tokens, r.finished, (r.report or {}).get("fired")) for r in Store(tmp_path / size)}
        for size in ("1", "7")
    )
    assert one == many and len(one) == 7
    alone = [vlm.ask(i.image, i.question, method=method, max_new_tokens=6).text for i in make_spec().items]
    assert [one[str(i)][0] for i in range(7)] == alone


@pytest.mark.slow
def test_crops_are_encoded_once_for_all_methods_and_answers_stay_the_same(vlm, tmp_path):
    methods = {"one": AIR_HERE, "two": replace(AIR_HERE, strength=1.0), "three": replace(AIR_HERE, keep=1)}
    cache = cache_of(vlm.parts.model)
    cache.clear()
    before = cache.computed["crops"]
    run = evaluate(vlm, [make_spec()], methods, out=tmp_path / "all", batch_size=2, curve=False, progress=False)
    assert cache.computed["crops"] - before == len({i.image.tobytes() for i in make_spec().items})
    for label, method in methods.items():
        cache.clear()
        alone = evaluate(
            vlm, [make_spec()], {label: method}, out=tmp_path / label, batch_size=2, curve=False, progress=False
        )
        assert alone.tasks["seen"].texts(label) == run.tasks["seen"].texts(label)


def test_a_record_says_what_the_method_did_and_who_answered(vlm):
    [batch] = batches(make_spec(2), "air", AIR_HERE, ModelInfo.of(vlm), 8)
    record = generate_batch(vlm, batch)[0]
    assert record.key.method == AIR_HERE.to_json() and record.key.fingerprint == vlm.fingerprint
    assert record.report["fired"] and len(record.report["crops"][0]) == 4
    assert record.extra["model"] == vlm.name and record.key.versions["torch"]
    assert type(record).from_line(record.to_line()).to_line() == record.to_line()


def test_an_image_that_cannot_be_read_is_an_error_of_its_item_alone(vlm):
    task = make_spec(4)
    task.items[2] = dataclasses.replace(task.items[2], image=Path("nowhere.png"))
    [batch] = batches(task, "vanilla", None, ModelInfo.of(vlm), 8)
    records = {record.key.item: record for record in generate_batch(vlm, batch)}
    assert records["2"].text is None and "nowhere.png" in records["2"].error
    assert all(records[i].error is None and records[i].text is not None for i in "013")


def test_noise_reaches_the_model(vlm):
    plain, noisy = make_spec(2), make_spec(2)
    noisy.generation["noise"] = 0.5
    texts = []
    for task in (plain, noisy):
        [batch] = batches(task, "vanilla", None, ModelInfo.of(vlm), 8)
        texts.append([record.text for record in generate_batch(vlm, batch)])
    assert texts[0] != texts[1]


def test_likelihoods_are_the_answer_where_the_task_compares_options(vlm):
    item = Item("0", small_models.sample_image(0), "is there a dog ?", meta={"options": ["yes", "no"]})
    task = TaskSpec("options", FakeQuestions(), [item], generation={"protocol": "likelihood"})
    [batch] = batches(task, "vanilla", None, ModelInfo.of(vlm), 8)
    [record] = generate_batch(vlm, batch)
    expected = vlm.likelihood(item.image, item.question, ["yes", "no"])
    assert record.text == str([round(value, 6) for value in expected])


def test_a_question_that_several_items_ask_is_answered_once():
    image, other = small_models.sample_image(0), small_models.sample_image(1)
    items = [
        Item("random-1", image, "Is there a dog?"),
        Item("random-2", other, "Is there a dog?"),
        Item("popular-1", image, "Is there a cat?"),
        Item("popular-2", other, "Is there a dog?"),
        Item("adversarial-1", image, "Is there a dog?"),
    ]
    spec = TaskSpec("pope", FakeQuestions(), items, generation={"max_new_tokens": 6, "do_sample": False})
    vlm = FakeVLM()
    (batch,) = batches(spec, "vanilla", None, ModelInfo.of(vlm), size=8)
    records = generate_batch(vlm, batch)
    assert vlm.sizes == [3]
    assert [record.key.item for record in records] == [item.id for item in items]
    given = {record.key.item: record.text for record in records}
    alone = {
        item.id: generate_batch(FakeVLM(), one)[0].text
        for item in items
        for one in batches(replace(spec, items=[item]), "vanilla", None, ModelInfo.of(vlm), size=1)
    }
    assert given == alone and len({record.key.digest for record in records}) == 5


def test_a_composed_method_is_stored_part_by_part_without_times(vlm):
    method = Composed(AIR_HERE, EOSBias(0.5))
    [batch] = batches(make_spec(2), "both", method, ModelInfo.of(vlm), 8)
    record = generate_batch(vlm, batch)[0]
    assert [part["name"] for part in record.report["parts"]] == ["air", "eos-bias"]
    assert all("seconds" not in part and "method" not in part for part in record.report["parts"])
    assert len(record.report["parts"][0]["crops"][0]) == 4


def test_a_file_that_the_next_batch_asks_about_is_not_read_again(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(run, "load_image", lambda path: opened.append(Path(path).name) or Path(path).name)
    for name in "ab":
        (tmp_path / name).touch()

    def batch(names):
        items = [SimpleNamespace(image=tmp_path / name, key=SimpleNamespace(image=name)) for name in names]
        return SimpleNamespace(items=items)

    before: dict[str, Any] = {}
    assert [run._read_images(batch(names), before) for names in ("aa", "ab", "b")] == [["a", "a"], ["a", "b"], ["b"]]
    assert opened == ["a", "b"]


def test_a_stored_report_leaves_out_what_is_empty():
    report = {"tokens": 3, "ratio": 0.0, "note": "", "layers": (), "notes": [], "extra": {}, "why": None, "cut": False}
    assert run._shorten(report) == {"tokens": 3, "note": "", "fired": False}
