"""AD-HH against the decoder written out."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from airvlm.methods.adhh import ADHH, PUBLISHED, find_heads
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.testing import small_models
from tests.methods.generated import generate
from tests.methods.reference import IMAGE, TOKENS, Written, answer, check_close

HEADS = ((1, 0), (1, 3), (2, 1))


def deactivated(ids: Tensor, method: ADHH, row: int = 0) -> tuple[Tensor, int]:
    """Logits (L, V), and how many rows of heads were deactivated."""
    image = ids == IMAGE
    text = (image.cumsum(0) > 0) & ~image  # after the first image
    hits = 0

    def edit(layer: int, p: Tensor) -> Tensor:
        nonlocal hits
        p = p.clone()
        for number, head in HEADS:
            for q in range(len(ids) - TOKENS - 1, len(ids) - 1):
                if number == layer and p[head, q, text].sum() >= method.tau:
                    p[head, q, text] *= method.scale
                    hits += 1
        return p

    return Written(row, probabilities=edit).run(ids), hits


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize(("tau", "scale"), [(0.4, 0.0), (0.2, 0.5)])
def test_attention_on_the_text_is_removed_from_listed_heads(
    row: int, use_cache: bool, tau: float, scale: float
) -> None:
    method = ADHH(heads=HEADS, tau=tau, scale=scale)
    ids, logits, report = answer(method, row=row, use_cache=use_cache)
    expected, hits = deactivated(ids, method, row)
    check_close(logits, expected[-TOKENS - 1 : -1])
    assert 0 < hits < len(HEADS) * TOKENS, "some heads must be deactivated and some not"
    assert report.layers == (1, 2) and report.fired


def test_a_threshold_that_no_head_reaches_is_reported_with_the_nearest_value() -> None:
    with pytest.warns(MethodInactiveWarning, match=r"no listed head had 1 of its attention.*the highest had 0\.\d+"):
        _, logits, _ = answer(ADHH(heads=HEADS, tau=1.0))
    check_close(logits, answer(None)[1])


def test_an_unknown_model_is_refused_and_a_known_one_has_its_list() -> None:
    model, processor = small_models.shared_model("llava")
    with pytest.raises(ValueError, match=r"no list of heads for .*only for llava-1\.5-7b.*give heads="):
        ADHH()(model, processor)
    with pytest.raises(ValueError, match="no head 9 in a layer 1"):
        ADHH(heads=((1, 9),))(model, processor)

    def known(name: str, layers: int, heads: int) -> object:
        config = SimpleNamespace(_name_or_path=name)
        parts = SimpleNamespace(
            model=SimpleNamespace(config=config), layers=range(layers), num_heads=lambda layer: heads
        )
        return find_heads(ADHH(), SimpleNamespace(parts=parts))  # type: ignore[arg-type]

    assert known("llava-hf/llava-1.5-7b-hf", 32, 32)[0] == (16, 29)  # type: ignore[index]
    assert len(known("liuhaotian/llava-v1.5-13b", 40, 40)) == 35  # type: ignore[arg-type]
    assert len(known("llava-hf/llava-v1.6-34b-hf", 60, 56)) == 10  # type: ignore[arg-type]
    assert [len(heads) for heads in PUBLISHED.values()] == [20, 35, 10]


def test_a_scale_of_1_is_off() -> None:
    assert ADHH(scale=1.0).disabled_reason == "its scale is 1"
    assert torch.equal(answer(ADHH(scale=1.0, heads=HEADS))[1], answer(None)[1])


def test_a_batch_in_which_no_head_acts_is_reported_with_its_highest_value() -> None:
    with pytest.warns(MethodInactiveWarning):
        report = generate(ADHH(tau=1.0, heads=HEADS)).report
    highest = [re.findall(r"the highest had (\d\.\d+)", row.reason) for row in report.rows]
    assert [len(found) for found in highest] == [1, 0, 1, 1]  # the second row has no image
    assert f"the highest had {max(found[0] for found in highest if found)}" in report.reason
