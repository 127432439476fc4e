"""Laws of the device: every method answers there as on the CPU, and rarely waits for it.

A decode step adds neither a read-back nor an upload to the model's own; a prefill adds at most eight read-backs for
methods that use crops, three of them for the transport, and four for others; a report is read back at once. A law that
breaks names the lines. Runs on a pretend accelerator (pretend.py), which also splits a model over two devices.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from airvlm import CropBlend
from airvlm.methods.base import Method
from airvlm.methods.evidence import transport
from airvlm.methods.evidence.base import CropMethod
from airvlm.methods.evidence.transport import sinkhorn
from airvlm.models.parts import ModelParts
from airvlm.runtime import intervention
from airvlm.testing import small_models
from airvlm.testing.acting import build_method, list_checked
from tests.all_families import FAMILIES
from tests.default_methods import METHODS
from tests.device.pretend import FIRST, LAG, Log, accelerator, moved, on, split

methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
# For the families: the transport of their random tokens at a smaller eps takes a thousand updates, which show nothing
# of a family; that they are equal on the device is shown by the methods and by the transport alone.
SMOOTH = CropBlend(num_crops=3, weight=0.5, eps=0.3)


@pytest.fixture
def log() -> Iterator[Log]:
    with accelerator() as log:
        yield log


@cache
def on_cpu(family: str, method: Method | None, rows: int, options: tuple[tuple[str, Any], ...]) -> Tensor:
    return generate(*small_models.shared_model(family), method, rows, dict(options))[0]


@cache
def there(family: str) -> tuple[Any, Any]:
    model, processor = small_models.shared_model(family)
    return moved(model), processor


def generate(
    model: Any, processor: Any, method: Method | None, rows: int, options: dict[str, Any]
) -> tuple[Tensor, Any]:
    """Tokens generated for the first rows of the usual batch, and the run."""
    chosen = small_models.sample_rows()[:rows]
    batch = small_models.build_inputs(processor, chosen)
    batch = on(batch) if model.device.type == "pretend" else batch
    options = {"do_sample": False, "max_new_tokens": 3, "min_new_tokens": 3, **options}
    if method is None:
        return model.generate(**batch, **options), None
    with method(model, processor, images=[list(images) for _, images in chosen]) as run:
        return model.generate(**batch, **options), run


def is_same(device: Tensor, cpu: Tensor) -> bool:
    return torch.equal(device.held, cpu)  # type: ignore[attr-defined]


@methods
@pytest.mark.parametrize(
    ("rows", "options"), [(1, {}), (4, {}), (4, {"num_beams": 2})], ids=["greedy", "batch", "beams"]
)
def test_every_method_answers_as_on_the_cpu(method: Method, rows: int, options: Any, log: Log) -> None:
    found, _ = generate(*there("llava"), method, rows, options)
    assert is_same(found, on_cpu("llava", method, rows, tuple(options.items())))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_answers_as_on_the_cpu(family: str, log: Log) -> None:
    found, _ = generate(*there(family), SMOOTH, 4, {})
    assert is_same(found, on_cpu(family, SMOOTH, 4, ()))


@methods
def test_a_model_over_two_devices_answers_as_on_the_cpu(method: Method, log: Log) -> None:
    model, processor = small_models.shared_model("llava")
    parts = ModelParts.of(model)
    halves = split(model, parts.layers, [parts.decoder.norm, model.lm_head])
    found, _ = generate(halves, processor, method, 4, {})
    assert is_same(found, on_cpu("llava", method, 4, ()))


def lines(log: Log) -> Counter[str]:
    """Read-backs by kind and line. Those of VCD's second stream in the model's own code are the model's."""
    told = [str(read_back).split(" < airvlm/runtime/contexts.py")[0] for read_back in log.read_backs]
    return Counter(line for line in told if " < airvlm/runtime/streams.py" not in line)


def count(model: Any, processor: Any, method: Method | None, rows: int, tokens: int, log: Log) -> Counter[str]:
    """Read-backs of one generation and its report, by kind and line."""
    log.clear()
    generate(model, processor, method, rows, {"max_new_tokens": tokens, "min_new_tokens": tokens})
    return lines(log)


# What a decode step of a method waits for, per row with an image, and why
WAITS = {"hulluedit": {"linalg.svd": 2}}  # two decompositions, of whose success torch asks


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", list_checked())
def test_a_decode_step_waits_for_nothing(name: str, rows: int, log: Log, tmp_path: Path) -> None:
    model, processor = there("llava")
    method = build_method(name, small_models.shared_model("llava")[0], tmp_path)
    sampling = name in ("cut-off", "temperature")  # which leave greedy decoding alone

    def step(one: Method | None) -> Counter[str]:
        """By kind; the masks of padded rows are read by transformers in every pass, the model's own included."""
        told: list[Counter[str]] = []
        for tokens in (2, 5, 3):  # after the first, what is cached per image is cached
            log.clear()
            options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": sampling}
            generate(model, processor, one, rows, options)
            waits = [*log.read_backs, *log.uploads]
            told.append(Counter(wait.kind for wait in waits if rows == 1 or "masking_utils.py" not in wait.line))
        return told[1] - told[2]

    shown = sum(bool(images) for _, images in small_models.sample_rows()[:rows])
    allowed = {kind: 2 * shown * count for kind, count in WAITS.get(name, {}).items()}
    assert step(method) - step(None) == Counter(allowed)


@methods
@pytest.mark.parametrize("rows", [1, 4])
def test_a_prefill_adds_few_read_backs(method: Method, rows: int, log: Log) -> None:
    model, processor = small_models.shared_model("llava")
    fresh = moved(model)  # no image was ever seen with it
    added = count(fresh, processor, method, rows, 1, log) - count(fresh, processor, None, rows, 1, log)
    assert added.total() <= (8 if isinstance(method, CropMethod) else 4), dict(added)
    assert sum(n for line, n in added.items() if "transport.py" in line) <= 3, dict(added)


@methods
def test_a_report_is_read_back_at_once(method: Method, log: Log) -> None:
    model, processor = there("llava")
    rows = small_models.sample_rows()
    batch = on(small_models.build_inputs(processor, rows))
    with method(model, processor, images=[list(images) for _, images in rows]) as run:
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
def test_transport_reads_back_at_most_three_times(eps: float, pins: bool) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize(("eps", "rounding"), [(EPS[0], 1e-4), (EPS[1], 1e-6)])
def test_a_problem_on_a_device_is_solved_as_if_it_were_alone(eps: float, rounding: float, log: Log) -> None:
    """A product of three problems rounds otherwise than one of one, which tells after a hundred updates."""
    C = costs().to(FIRST)
    together = sinkhorn(C, eps)
    for m in range(3):
        alone = sinkhorn(C[m], eps)
        assert alone.updates <= together.updates and alone.converged.held  # type: ignore[attr-defined]
        torch.testing.assert_close(together.plan.held[m], alone.plan.held, atol=rounding, rtol=0)  # type: ignore[attr-defined]


@pytest.mark.slow
@methods
def test_half_precision_is_not_widened_for_the_whole_sequence(
    method: Method, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intervention, "CHUNK", 4)  # the sequences of the tests are shorter than a chunk
    model, processor = small_models.build("llava", dtype=torch.bfloat16)
    rows = small_models.sample_rows()
    batch = small_models.build_inputs(processor, rows)
    there = moved(model)

    def widen(method: Method | None, generates: bool) -> Counter[str]:
        log.clear()
        log.watch = batch["input_ids"].numel() * small_models.WIDTH
        if generates:
            _, run = generate(there, processor, method, len(rows), {"max_new_tokens": 1, "min_new_tokens": 1})
            assert method is None or run.report.fired
        elif method is None:
            there(**on(batch))
        else:
            with method(there, processor, images=[list(images) for _, images in rows]):
                there(**on(batch))
        wide = [(n, line) for dtype, n, line in log.allocated if dtype == torch.float32]
        ours = [(n, line) for n, line in wide if " < " not in line and "airvlm/" in line]
        # noisy pixels have the type of the given ones, and are not part of the sequence
        return Counter(f"{n} in {line}" for n, line in ours if "methods/noise.py" not in line)

    for generates in (True, False):
        assert not widen(method, generates) - widen(None, generates)
