"""Laws of the device: every method answers there as on the CPU, and seldom waits for it.

A decode step adds no read-back to the model's own; a prefill at most eight for AIR, of which three are the
transport's, and four for the others; a report is read in one go. A law that breaks names the lines. Runs on a pretend
accelerator (pretend.py), which also splits a model over two.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from airvlm import CropBlend
from airvlm.methods.air import transport
from airvlm.methods.base import Method
from airvlm.methods.evidence.transport import sinkhorn
from airvlm.models.parts import ModelParts
from airvlm.runtime import intervention
from tests import tiny_models
from tests.default_methods import METHODS, Case
from tests.device.pretend import FIRST, LAG, Log, accelerator, moved, on, split

methods = pytest.mark.parametrize("case", METHODS, ids=lambda case: case.name)
# For the families: the transport of their random tokens at a smaller eps takes a thousand updates, which show nothing
# of a family; that they are equal on the device is shown by the methods and by the transport alone.
SMOOTH = CropBlend(num_crops=3, weight=0.5, eps=0.3)


@pytest.fixture
def log() -> Iterator[Log]:
    with accelerator() as log:
        yield log


@cache
def on_cpu(family: str, method: Method | None, rows: int, options: tuple[tuple[str, Any], ...]) -> Tensor:
    return generated(*tiny_models.shared(family), method, rows, dict(options))[0]


@cache
def there(family: str) -> tuple[Any, Any]:
    model, processor = tiny_models.shared(family)
    return moved(model), processor


def generated(
    model: Any, processor: Any, method: Method | None, rows: int, options: dict[str, Any]
) -> tuple[Tensor, Any]:
    """Tokens generated for the first rows of the usual batch, and the run."""
    chosen = tiny_models.rows()[:rows]
    batch = tiny_models.inputs(processor, chosen)
    batch = on(batch) if model.device.type == "pretend" else batch
    options = {"do_sample": False, "max_new_tokens": 3, "min_new_tokens": 3, **options}
    if method is None:
        return model.generate(**batch, **options), None
    with method(model, processor, images=[list(images) for _, images in chosen]) as run:
        return model.generate(**batch, **options), run


def same(device: Tensor, cpu: Tensor) -> bool:
    return torch.equal(device.held, cpu)  # type: ignore[attr-defined]


@methods
@pytest.mark.parametrize(
    ("rows", "options"), [(1, {}), (4, {}), (4, {"num_beams": 2})], ids=["greedy", "batch", "beams"]
)
def test_every_method_answers_as_on_the_cpu(case: Case, rows: int, options: Any, log: Log) -> None:
    found, _ = generated(*there("llava"), case.on, rows, options)
    assert same(found, on_cpu("llava", case.on, rows, tuple(options.items())))


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_every_family_answers_as_on_the_cpu(family: str, log: Log) -> None:
    found, _ = generated(*there(family), SMOOTH, 4, {})
    assert same(found, on_cpu(family, SMOOTH, 4, ()))


@methods
def test_evidence_follows_the_layers_of_a_model_over_two_devices(case: Case, log: Log) -> None:
    model, processor = tiny_models.shared("llava")
    parts = ModelParts.of(model)
    halves = split(model, parts.layers, [parts.decoder.norm, model.lm_head])
    found, _ = generated(halves, processor, case.on, 4, {})
    assert same(found, on_cpu("llava", case.on, 4, ()))


def lines(log: Log) -> Counter[str]:
    """Read-backs by kind and line. Those of VCD's second stream in the model's own code are the model's."""
    told = [str(read_back).split(" < airvlm/hooks/generation.py")[0] for read_back in log.read_backs]
    return Counter(line for line in told if " < airvlm/hooks/second_stream.py" not in line)


def spent(model: Any, processor: Any, method: Method | None, rows: int, tokens: int, log: Log) -> Counter[str]:
    """Read-backs of one generation and its report, by kind and line."""
    log.clear()
    generated(model, processor, method, rows, {"max_new_tokens": tokens, "min_new_tokens": tokens})
    return lines(log)


@methods
def test_a_decode_step_adds_no_read_back(case: Case, log: Log) -> None:
    model, processor = there("llava")
    generated(model, processor, case.on, 4, {})  # what is kept per image is kept
    steps = {
        method: spent(model, processor, method, 4, 4, log) - spent(model, processor, method, 4, 2, log)
        for method in (None, case.on)
    }
    assert not steps[case.on] - steps[None]


@methods
@pytest.mark.parametrize("rows", [1, 4])
def test_a_prefill_adds_few_read_backs(case: Case, rows: int, log: Log) -> None:
    model, processor = tiny_models.shared("llava")
    fresh = moved(model)  # no image was ever seen with it
    added = spent(fresh, processor, case.on, rows, 1, log) - spent(fresh, processor, None, rows, 1, log)
    assert added.total() <= (8 if isinstance(case.on, AIR) else 4), dict(added)
    assert sum(n for line, n in added.items() if "transport.py" in line) <= 3, dict(added)


@methods
def test_a_report_is_read_in_one_go(case: Case, log: Log) -> None:
    model, processor = there("llava")
    rows = tiny_models.rows()
    batch = on(tiny_models.inputs(processor, rows))
    with case.on(model, processor, images=[list(images) for _, images in rows]) as run:
        model.generate(**batch, do_sample=False, max_new_tokens=2)
        log.clear()
    assert run.report.rows
    assert len(log.read_backs) <= 1, dict(lines(log))


# of these costs the slowest problem spends 179, 24, 10 and 6 updates
EPS = (0.003, 0.03, 0.1, 1.0)


def costs() -> Tensor:
    return torch.rand(3, 17, 23, generator=torch.Generator().manual_seed(0)) * 2


@pytest.mark.parametrize("pins", [True, False], ids=["pinned", "unpinned"])
@pytest.mark.parametrize("eps", EPS)
def test_transport_reads_back_at_most_thrice_whatever_the_updates(eps: float, pins: bool) -> None:
    C = costs()
    alone = sinkhorn(C, eps)
    with accelerator(pins) as log:
        there = C.to(FIRST)
        log.clear()
        solved = sinkhorn(there, eps)
        told = [str(read_back) for read_back in log.read_backs]
    assert len(told) <= (1 if pins else 3), told
    assert torch.equal(solved.iterations.held, alone.iterations)  # type: ignore[attr-defined]
    torch.testing.assert_close(solved.plan.held, alone.plan)  # type: ignore[attr-defined]


@pytest.mark.parametrize("eps", EPS)
def test_transport_on_a_device_ends_soon_after_its_slowest_problem(eps: float, log: Log) -> None:
    solved = sinkhorn(costs().to(FIRST), eps)
    needed = int(solved.iterations.held.max())  # type: ignore[attr-defined]
    late = transport.EVERY + LAG // 30  # until the answer is sent, and until it has arrived
    assert needed <= solved.updates <= max(transport.FIRST, needed + late)
    assert eps > EPS[0] or needed > 80  # the longest is one that no early look would see


def test_transport_on_a_device_that_pins_nothing_ends_at_a_look() -> None:
    with accelerator(pins=False):
        spent = {eps: sinkhorn(costs().to(FIRST), eps).updates for eps in EPS}
    assert spent == {0.003: 250, 0.03: 60, 0.1: 20, 1.0: 20}


@pytest.mark.parametrize(("eps", "rounding"), [(EPS[0], 1e-4), (EPS[1], 1e-6)])
def test_a_problem_on_a_device_is_solved_as_if_it_were_alone(eps: float, rounding: float, log: Log) -> None:
    """A product of three problems rounds otherwise than one of one, which tells after a hundred updates."""
    C = costs().to(FIRST)
    together = sinkhorn(C, eps)
    for m in range(3):
        alone = sinkhorn(C[m], eps)
        assert alone.updates <= together.updates and alone.converged.held  # type: ignore[attr-defined]
        torch.testing.assert_close(together.plan.held[m], alone.plan.held, atol=rounding, rtol=0)  # type: ignore[attr-defined]


@methods
def test_half_precision_is_not_widened_for_the_whole_sequence(
    case: Case, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intervention, "BLOCK", 4)  # the sequences of the tests are shorter than a block
    model, processor = tiny_models.build("llava", dtype=torch.bfloat16)
    rows = tiny_models.rows()
    batch = tiny_models.inputs(processor, rows)
    there = moved(model)

    def widened(method: Method | None, generates: bool) -> Counter[str]:
        log.clear()
        log.watch = batch["input_ids"].numel() * tiny_models.WIDTH
        if generates:
            _, run = generated(there, processor, method, len(rows), {"max_new_tokens": 1, "min_new_tokens": 1})
            assert method is None or run.report.fired
        elif method is None:
            there(**on(batch))
        else:
            with method(there, processor, images=[list(images) for _, images in rows]):
                there(**on(batch))
        wide = [(n, line) for dtype, n, line in log.allocated if dtype == torch.float32]
        ours = [(n, line) for n, line in wide if " < " not in line and "airvlm/" in line]
        # the noised pixels have the type of the given ones, and are no part of the sequence
        return Counter(f"{n} in {line}" for n, line in ours if "methods/noise.py" not in line)

    for generates in (True, False):
        assert not widened(case.on, generates) - widened(None, generates)
