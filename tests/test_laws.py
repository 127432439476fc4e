"""The laws that hold for every method on every family of models, seen through the real `generate`.

Off means off; strength 0 is vanilla; a batch is its rows; the cache changes nothing; every way of decoding works.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from airvlm.methods.base import Method
from airvlm.runtime.session import Session
from tests import tiny_models
from tests.default_methods import METHODS, Case

TOKENS = 3  # prefill and two decode steps: the second begins from what the first kept

families = pytest.mark.parametrize("family", tiny_models.FAMILIES)
methods = pytest.mark.parametrize("case", METHODS, ids=lambda case: case.name)
with_strength = pytest.mark.parametrize("case", [c for c in METHODS if c.off], ids=lambda case: case.name)


@cache
def batch(family: str, dtype: torch.dtype = torch.float32, row: int | None = None) -> Any:
    """The inputs of all rows, or of one of them alone."""
    _, processor = tiny_models.shared(family, dtype=dtype)
    rows = tiny_models.rows()
    inputs = tiny_models.inputs(processor, rows if row is None else rows[row : row + 1])
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}


def images(row: int | None = None) -> list[Any]:
    """The images of every row, as `images=` takes them."""
    rows = [list(own) for _, own in tiny_models.rows()]
    return rows if row is None else rows[row : row + 1]


@contextmanager
def acting(family: str, method: Method | None, dtype: torch.dtype, row: int | None) -> Iterator[Session | None]:
    model, processor = tiny_models.shared(family, dtype=dtype)
    if method is None:
        yield None
        return
    with method(model, processor, images=images(row)) as run:
        yield run


class Said:
    """What was generated: token ids (B, TOKENS) and raw logits (TOKENS, B, V)."""

    def __init__(self, out: Any, run: Session | None = None) -> None:
        self.ids: Tensor = out.sequences[:, -TOKENS:]
        self.logits: Tensor = torch.stack(out.logits)
        self.run = run


def generate(
    family: str,
    method: Method | None = None,
    *,
    row: int | None = None,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Said:
    model, _ = tiny_models.shared(family, dtype=dtype)
    options = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False} | options
    with acting(family, method, dtype, row) as run:
        out = model.generate(**batch(family, dtype, row), **options, return_dict_in_generate=True, output_logits=True)
    return Said(out, run)


@cache
def vanilla(family: str) -> Said:
    return generate(family)


@cache
def acted(family: str, method: Method) -> Said:
    """Greedy, with a cache, in fp32: what the other ways of generating are compared with."""
    return generate(family, method)


def same(one: Said, other: Said, *, rows: slice = slice(None), atol: float = 2e-3) -> None:
    """The same tokens from the same logits, up to the order of summation."""
    assert one.ids.tolist() == other.ids[rows].tolist()
    torch.testing.assert_close(one.logits, other.logits[:, rows], rtol=1e-3, atol=atol)


def hooks(model: torch.nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@torch.no_grad()
def logits(family: str) -> Tensor:
    model, _ = tiny_models.shared(family)
    out: Tensor = model(**batch(family)).logits
    return out


@families
@methods
def test_off_is_vanilla_also_after_an_exception_and_nested(family: str, case: Case) -> None:
    model, _ = tiny_models.shared(family)
    before = logits(family)  # transformers adds hooks of its own in a model's first pass
    state = dict(vars(model)), hooks(model), model.config.to_dict(), model.config._attn_implementation
    with pytest.raises(KeyError, match="on purpose"):
        with acting(family, case.on, torch.float32, None):
            logits(family)
            raise KeyError("on purpose")
    assert torch.equal(logits(family), before)
    with acting(family, case.on, torch.float32, None):
        inside = logits(family)
        with acting(family, case.on, torch.float32, None):
            logits(family)
        assert torch.equal(logits(family), inside)
    assert torch.equal(logits(family), before)
    assert (
        dict(vars(model)),
        hooks(model),
        model.config.to_dict(),
        model.config._attn_implementation,
    ) == state


@families
@with_strength
def test_strength_0_is_vanilla_bit_for_bit(family: str, case: Case) -> None:
    assert case.off is not None
    off = generate(family, case.off)
    assert torch.equal(off.ids, vanilla(family).ids)
    assert torch.equal(off.logits, vanilla(family).logits)


@families
@methods
def test_something_changes_and_the_report_says_so(family: str, case: Case) -> None:
    said = acted(family, case.on)
    assert said.run is not None
    assert said.run.report.fired
    assert not torch.equal(said.logits, vanilla(family).logits)
    assert torch.isfinite(said.logits).all()
    for row, report in enumerate(said.run.report.rows):
        # a mixture of experts sums in another order when its neighbours change: that is no change of ours
        changed = not torch.allclose(said.logits[:, row], vanilla(family).logits[:, row], atol=1e-3)
        assert changed == report.fired, f"row {row}: {report}"


@families
@methods
def test_a_batch_of_unlike_prompts_is_its_rows_alone(family: str, case: Case) -> None:
    for row, own in enumerate(images()):
        if own:  # a text-only row alone is no input for a method that needs images
            same(generate(family, case.on, row=row), acted(family, case.on), rows=slice(row, row + 1))


@families
@methods
def test_a_text_only_row_is_left_alone(family: str, case: Case) -> None:
    text = [row for row, own in enumerate(images()) if not own]
    if case.images_only:
        assert torch.equal(acted(family, case.on).ids[text], vanilla(family).ids[text])
        torch.testing.assert_close(acted(family, case.on).logits[:, text], vanilla(family).logits[:, text])


@families
@methods
def test_the_cache_changes_nothing(family: str, case: Case) -> None:
    same(generate(family, case.on, use_cache=False), acted(family, case.on))


@families
@methods
def test_a_static_cache_changes_nothing(family: str, case: Case) -> None:
    same(generate(family, case.on, cache_implementation="static"), acted(family, case.on))


@families
@methods
def test_sampling_follows_its_seed(family: str, case: Case) -> None:
    one = sampled(family, case.on)
    assert torch.equal(one.ids, sampled(family, case.on).ids)
    torch.testing.assert_close(one.logits[0], acted(family, case.on).logits[0], rtol=1e-3, atol=2e-3)
    assert not torch.equal(one.logits, sampled_vanilla(family).logits)


def sampled(family: str, method: Method | None) -> Said:
    torch.manual_seed(5)
    return generate(family, method, do_sample=True, temperature=2.0)


@cache
def sampled_vanilla(family: str) -> Said:
    return sampled(family, None)


@families
@methods
def test_rows_follow_their_beams(family: str, case: Case) -> None:
    together = generate(family, case.on, num_beams=2)
    row = 2  # the one with two images: a wrong expansion of images shows here
    alone = generate(family, case.on, row=row, num_beams=2)
    assert alone.ids.tolist() == together.ids[row : row + 1].tolist()
    beams = slice(2 * row, 2 * row + 2)
    torch.testing.assert_close(alone.logits, together.logits[:, beams], rtol=1e-3, atol=2e-3)


@families
@methods
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_half_precision_acts_and_is_off_at_strength_0(family: str, case: Case, dtype: torch.dtype) -> None:
    on = half(family, case.on, dtype)
    assert torch.isfinite(on).all()
    assert not torch.equal(on, half_vanilla(family, dtype))
    if case.off is not None:
        assert torch.equal(half(family, case.off, dtype), half_vanilla(family, dtype))


def half(family: str, method: Method | None, dtype: torch.dtype) -> Tensor:
    """Logits (2, 1, V) of the prefill and a decode step of the row with two images: half precision is slow on a CPU."""
    return generate(family, method, dtype=dtype, row=2, max_new_tokens=2, min_new_tokens=2).logits


@cache
def half_vanilla(family: str, dtype: torch.dtype) -> Tensor:
    return half(family, None, dtype)
