"""`airvlm bench methods`: every method is measured beside vanilla, and what cannot run is a row that says so."""

from typing import Any

import pytest
from PIL import Image

from airvlm.bench import methods as bench
from airvlm.methods import VAF, VCD


class FakeVLM:
    """Counts what it is asked, and takes as long as it is told."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, int, int]] = []
        self.clock = 0.0

    def batch(self, requests: Any, *, method: Any, max_new_tokens: int, min_new_tokens: int, **_: Any) -> list[Any]:
        assert min_new_tokens == max_new_tokens
        if isinstance(method, VAF):
            raise ValueError("no such layers")
        self.asked.append((method, len(requests), max_new_tokens))
        factor = 3.0 if method else 1.0
        self.clock += 2 * factor + (max_new_tokens - 1) * 0.5 * (2.0 if method else 1.0)
        report = type("Report", (), {"fired": True})() if method else None
        return [type("Answer", (), {"report": report})() for _ in requests]


def test_prefill_and_decode_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = FakeVLM()
    monkeypatch.setattr(bench.time, "perf_counter", lambda: vlm.clock)
    seen: list[int] = []

    def image(number: int) -> Image.Image:
        seen.append(number)
        return Image.new("RGB", (2, 2))

    chosen = {"vanilla": None, "vcd": VCD(), "vaf": VAF()}
    shown: list[str] = []
    costs = bench.measure_methods(
        vlm,  # type: ignore[arg-type]
        chosen,
        image,
        batches=(1, 3),
        repeats=2,
        tokens=5,
        progress=shown.append,
    )
    assert [(cost.method, cost.batch) for cost in costs] == [(name, size) for size in (1, 3) for name in chosen]
    found = {(cost.method, cost.batch): cost.to_json() for cost in costs}
    assert found["vcd", 3]["prefill"] == pytest.approx(3.0)
    assert found["vcd", 3]["decode"] == pytest.approx(2.0)
    assert found["vcd", 3]["total"] == pytest.approx((6 + 4) / (2 + 2))
    assert found["vcd", 3]["acted"] == 2
    assert found["vaf", 1]["problem"] == "ValueError: no such layers"
    assert len(set(seen)) == len(seen)  # every image is new
    assert len(shown) <= bench.count_batches(chosen, 2, (1, 3))


def test_vanilla_must_be_among_the_methods() -> None:
    with pytest.raises(ValueError, match="need vanilla"):
        bench.measure_methods(FakeVLM(), {"vcd": VCD()}, lambda _: Image.new("RGB", (2, 2)))  # type: ignore[arg-type]
