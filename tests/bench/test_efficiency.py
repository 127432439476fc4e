"""What methods cost: methods take turns, ratios are to the first, and memory is measured."""

from typing import Any

import pytest
import torch
from PIL import Image

from airvlm.bench import efficiency
from airvlm.bench.efficiency import Subject, measure, wide_subject
from airvlm.bench.wide import K, WideLlava, wide_llava
from airvlm.methods.base import Method
from airvlm.methods.memvr import MemVR
from airvlm.methods.vaf import VAF
from airvlm.methods.vcd import VCD
from airvlm.report import Report


class FakeModel:
    """A subject whose methods take a known time, by a clock of its own, and a known memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, memory: int = 0) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.now, self.memory = 0.0, memory
        monkeypatch.setattr(efficiency.time, "perf_counter", lambda: self.now)

    def ask(self, method: Method | None, image: Image.Image, tokens: int) -> Report | None:
        self.asked.append(("vanilla" if method is None else method.name, image.getpixel((0, 0))))
        self.now += 0.5 if method is None else 1.5
        if method is not None and self.memory:
            torch.ones(self.memory // 4)  # and gone again
        return None if method is None else Report(method.to_json(), fired=True)

    def subject(self) -> Subject:
        return Subject("fake", "", self.ask, lambda i: Image.new("L", (1, 1), i), torch.device("cpu"))


@pytest.mark.slow
def test_ratios_are_to_the_first_method_of_the_same_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = FakeModel(monkeypatch).subject()
    vanilla, memvr = measure(subject, {"vanilla": None, "memvr": MemVR()}, repeats=3, tokens=9)
    assert vanilla.ratios == [1.0, 1.0, 1.0] and vanilla.acted == 0 and memvr.acted == 3
    row = memvr.to_json()
    assert (row["ratio"], row["seconds"], row["tokens_per_second"]) == (3.0, 1.5, 6.0)


@pytest.mark.slow
def test_peak_memory_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = FakeModel(monkeypatch, memory=40 * 2**20).subject()
    vanilla, memvr = measure(subject, {"vanilla": None, "memvr": MemVR()}, repeats=1)
    if vanilla.memory is None or memvr.memory is None:
        pytest.skip("this system does not say what a process holds at most")
    assert memvr.memory - vanilla.memory > 30 * 2**20


@pytest.mark.slow
def test_methods_take_turns_and_no_image_is_shown_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, methods, told = FakeModel(monkeypatch), {"vanilla": None, "memvr": MemVR(), "vaf": VAF()}, []
    measure(fake.subject(), methods, repeats=2, progress=told.append)
    assert len(told) == len(fake.asked) == efficiency.count_answers(methods, 2)  # as long as a progress bar is
    names, images = zip(*fake.asked[1:], strict=True)  # the first answer is not measured
    turns = [names[i : i + 3] for i in range(0, 9, 3)]
    assert all(sorted(turn) == ["memvr", "vaf", "vanilla"] for turn in turns)
    assert [turn[0] for turn in turns] == ["vanilla", "memvr", "vaf"]  # another begins each time
    assert len(set(images)) == 9


@pytest.mark.parametrize("method", [None, MemVR(), VAF(), VAF(faithful=True), VCD()], ids=str)
def test_every_method_runs_on_the_wide_model(method: Any) -> None:
    wide = WideLlava(layers=2, tower_layers=1, scale=32)
    subject = wide_subject(wide, "")
    report = subject.ask(method, subject.image(0), 2)
    assert (report is None) is (method is None)
    assert report is None or report.fired


def test_the_wide_model_has_the_widths_of_llava_7b() -> None:
    with torch.device("meta"):
        config = wide_llava(layers=2, tower_layers=1).config
    assert (config.text_config.hidden_size, config.text_config.intermediate_size, K) == (4096, 11008, 576)
    assert config.vision_config.hidden_size == 1024
