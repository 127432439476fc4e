"""Answers that join a batch while it is decoded are those of the model asked alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from airvlm import AIR, VAF, VCD, VLM, CropBlend, EOSBias, MemVR, Method, get_method, tiny
from airvlm.inputs.prompts import DESCRIBE
from airvlm.methods.composed import Composed
from airvlm.methods.vicrop import ViCrop
from airvlm.runtime.text_stream import PartialText
from airvlm.serve import decoding
from airvlm.serve.decoding import DecodingBatch, decodes_as_vanilla, rows_can_join
from airvlm.serve.jobs import Delta, Event, Failed, Finished, Job
from airvlm.serve.scheduler import Scheduler

TOKENS = 32


def make_job(vlm: VLM, scene: Any, method: Method | None, question: str = DESCRIBE, **options: Any) -> Job:
    events: list[Event] = []
    text = PartialText(vlm.processor.tokenizer, options.pop("stops", ()))
    job = Job(vlm.builder.read(scene.path, question), method, text, TOKENS, events.append, threading.Event(), **options)
    job.events = events  # type: ignore[attr-defined]
    return job


def end_of(job: Any) -> Finished:
    assert isinstance(job.events[-1], Finished), job.events
    return job.events[-1]


@pytest.fixture
def start(vlm: VLM) -> Iterator[Callable[..., Scheduler]]:
    started: list[Scheduler] = []

    def make(batch: int = 8) -> Scheduler:
        scheduler = Scheduler(vlm, batch=batch, queue=256, window=0)
        started.append(scheduler)
        scheduler.start()
        return scheduler

    yield make
    for scheduler in started:
        scheduler.close(60)


def test_answers_that_join_a_running_batch_equal_those_alone(vlm: VLM) -> None:
    running = DecodingBatch(vlm)
    scenes = tiny.scenes("test")[:18]
    methods = [None, CropBlend(), AIR(keep=3)]
    questions = [DESCRIBE, "Is there a dog in the image?", "Describe this image in detail, and name everything in it."]
    jobs = [make_job(vlm, scene, methods[i % 3], questions[i // 3 % 3]) for i, scene in enumerate(scenes)]
    sizes = []
    for i in range(0, len(jobs), 3):  # one job of each method joins every four steps: short and long prompts mix
        for job in jobs[i : i + 3]:
            running.join([job])
        for _ in range(4):
            sizes.append(len(running))
            if len(running):
                running.step()
    while len(running):
        running.step()
    assert max(sizes) > 4
    for i, (scene, job) in enumerate(zip(scenes, jobs, strict=True)):
        alone = vlm.ask(scene.path, questions[i // 3 % 3], method=job.method, max_new_tokens=TOKENS)
        end = end_of(job)
        assert (end.text, end.tokens, end.finish_reason) == (
            alone.text,
            alone.tokens,
            "stop" if alone.finished else "length",
        )
        if alone.report is not None:
            assert end.report is not None
            assert (end.report.fired, end.report.kept, end.report.tokens) == (
                True,
                alone.report.kept,
                alone.report.tokens,
            )


def test_only_what_acts_in_the_prefill_alone_is_joined(vlm: VLM) -> None:
    assert rows_can_join(vlm)
    joined = {method: decodes_as_vanilla(method, vlm) for method in (None, CropBlend(), VCD(), VAF(), AIR(), MemVR())}
    assert [name for name, joins in joined.items() if joins] == [None, CropBlend(), AIR()]
    for method in (AIR(positions="all"), ViCrop()):  # ViCrop's whole call has another prompt
        assert not decodes_as_vanilla(method, vlm)
    assert not decodes_as_vanilla(EOSBias(bias=1.0), vlm)
    assert not decodes_as_vanilla(Composed(CropBlend(), VCD()), vlm)


@pytest.mark.parametrize("setting", [{"repetition_penalty": 1.2}, {"no_repeat_ngram_size": 2}, {"use_cache": False}])
def test_settings_of_a_checkpoint_that_change_the_choice_are_left_to_generate(
    vlm: VLM, setting: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in setting.items():
        monkeypatch.setattr(vlm.model.generation_config, name, value)
    assert not rows_can_join(vlm)


def test_new_requests_do_not_wait_for_the_end_of_a_batch(
    vlm: VLM, start: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = tiny.scenes("test")[:12]
    first = [make_job(vlm, scene, None) for scene in scenes[:4]]
    later = [make_job(vlm, scene, CropBlend(), "Is there a dog in the image?") for scene in scenes[4:]]
    seen: list[int] = []
    step = DecodingBatch.step

    def watch(self: DecodingBatch) -> None:
        if not seen:
            scheduler.submit(later)
        seen.append(len(self))
        step(self)

    monkeypatch.setattr(DecodingBatch, "step", watch)
    scheduler = start()
    scheduler.submit(first)
    deadline = time.monotonic() + 120
    while not all(job.events for job in first + later) and time.monotonic() < deadline:  # type: ignore[attr-defined]
        time.sleep(0.01)
    for job, scene in zip(first + later, scenes, strict=True):
        question = DESCRIBE if job in first else "Is there a dog in the image?"
        assert end_of(job).text == vlm.ask(scene.path, question, method=job.method, max_new_tokens=TOKENS).text
    assert len(seen) < sum(end_of(job).tokens for job in first + later)


def test_a_stream_a_stop_string_and_a_client_that_leaves(vlm: VLM) -> None:
    scene = tiny.scenes("test")[0]
    whole = vlm.ask(scene.path, DESCRIBE, max_new_tokens=TOKENS).text
    word = whole.split()[3]
    streamed, stopped, left = (
        make_job(vlm, scene, None, stream=True),
        make_job(vlm, scene, None, stops=(word,)),
        make_job(vlm, scene, None),
    )
    running = DecodingBatch(vlm)
    running.join([streamed, stopped, left])
    running.step()
    left.cancelled.set()
    running.step()
    assert left not in running.jobs and not left.events  # type: ignore[attr-defined]
    while len(running):
        running.step()
    pieces = [event.text for event in streamed.events if isinstance(event, Delta)]  # type: ignore[attr-defined]
    assert "".join(pieces) == end_of(streamed).text == whole and len(pieces) > 3
    assert end_of(stopped).text == whole.partition(word)[0].rstrip()


def test_a_request_that_cannot_be_prefilled_harms_no_other(
    vlm: VLM, start: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = tiny.scenes("test")[:3]
    good, bad, also = jobs = [make_job(vlm, scene, None) for scene in scenes]
    build, generate = vlm.builder.build, Scheduler._generate

    def fail(rows: Any, **options: Any) -> Any:
        if any(row is bad.row for row in rows):
            raise ValueError("this row is bad")
        return build(rows, **options)

    monkeypatch.setattr(vlm.builder, "build", fail)
    alone: list[Any] = []
    monkeypatch.setattr(Scheduler, "_generate", lambda self, jobs: (alone.append(jobs), generate(self, jobs)))
    scheduler = start()
    scheduler.submit(jobs)
    deadline = time.monotonic() + 60
    while not all(job.events for job in jobs) and time.monotonic() < deadline:  # type: ignore[attr-defined]
        time.sleep(0.01)
    assert isinstance(bad.events[-1], Failed)  # type: ignore[attr-defined]
    assert alone == [[bad]]  # the others are decoded together
    monkeypatch.undo()
    for job, scene in ((good, scenes[0]), (also, scenes[2])):
        assert end_of(job).text == vlm.ask(scene.path, DESCRIBE, max_new_tokens=TOKENS).text


def test_where_caches_cannot_be_joined_requests_run_in_batches_of_their_own(
    vlm: VLM, start: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "DynamicLayer", type("AnotherLayer", (), {}))
    scenes = tiny.scenes("test")[:3]
    jobs = [make_job(vlm, scene, None) for scene in scenes]
    scheduler, sizes = start(), []
    scheduler.on_batch = sizes.append
    scheduler.submit(jobs)
    deadline = time.monotonic() + 60
    while not all(job.events for job in jobs) and time.monotonic() < deadline:  # type: ignore[attr-defined]
        time.sleep(0.01)
    assert sizes == [3, 3]  # tried once, then as ever
    for job, scene in zip(jobs, scenes, strict=True):
        assert end_of(job).text == vlm.ask(scene.path, DESCRIBE, max_new_tokens=TOKENS).text


def test_log_probabilities_and_methods_that_do_not_suit_the_model_run_apart(
    vlm: VLM, start: Callable[..., Scheduler]
) -> None:
    scene = tiny.scenes("test")[0]
    plain, wanted = make_job(vlm, scene, None), make_job(vlm, scene, None, top_logprobs=2)
    unfit = make_job(vlm, scene, get_method("ad-hh"))
    scheduler = start()
    scheduler.submit([plain, wanted, unfit, again := make_job(vlm, scene, None)])
    deadline = time.monotonic() + 60
    while not all(job.events for job in (plain, wanted, unfit, again)) and time.monotonic() < deadline:  # type: ignore[attr-defined]
        time.sleep(0.01)
    assert isinstance(unfit.events[-1], Failed)  # type: ignore[attr-defined]
    assert end_of(plain).text == end_of(wanted).text == end_of(again).text
    assert len(end_of(wanted).logprobs) == end_of(wanted).tokens and not end_of(plain).logprobs
    assert scheduler.alive


def test_a_step_that_fails_is_repeated_row_by_row(
    vlm: VLM, start: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = tiny.scenes("test")[:3]
    jobs = [make_job(vlm, scene, None, stream=True) for scene in scenes]
    step, steps = DecodingBatch.step, []

    def fail(self: DecodingBatch) -> None:
        steps.append(1)
        if len(steps) == 5:
            raise torch.OutOfMemoryError("too many rows")
        step(self)

    monkeypatch.setattr(DecodingBatch, "step", fail)
    scheduler = start()
    scheduler.submit(jobs)
    deadline = time.monotonic() + 60
    ended = lambda job: any(isinstance(event, Finished) for event in job.events)  # noqa: E731
    while not all(map(ended, jobs)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for job, scene in zip(jobs, scenes, strict=True):
        pieces = [event.text for event in job.events if isinstance(event, Delta)]  # type: ignore[attr-defined]
        assert "".join(pieces) == end_of(job).text == vlm.ask(scene.path, DESCRIBE, max_new_tokens=TOKENS).text


def test_what_still_waits_when_the_time_to_stop_is_over_is_dropped(
    vlm: VLM, start: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = threading.Event(), threading.Event()
    monkeypatch.setattr(Scheduler, "_run", lambda self, jobs, joins: (begun.set(), released.wait(60)))
    running, waiting = (make_job(vlm, scene, None) for scene in tiny.scenes("test")[:2])
    scheduler = start(batch=1)
    scheduler.submit([running, waiting])
    assert begun.wait(60)
    scheduler.close(0.0)
    released.set()
    assert waiting.cancelled.is_set() and not running.cancelled.is_set()
