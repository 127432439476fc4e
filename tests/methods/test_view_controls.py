"""Test-time augmentation and crop voting against plain passes on every view."""

from typing import Any

import pytest
import torch
from torch import Tensor

from airvlm.inputs.images import content_key
from airvlm.methods.view_controls import CropVote, TestTimeAugmentation
from airvlm.methods.views import quadrants
from airvlm.testing import check_method, small_models
from tests.methods.direct import forward, rows_with_images
from tests.methods.families import ALL


def last_logits(family: str, rows: Any) -> Tensor:
    model, processor = small_models.shared_model(family)
    return forward(model, small_models.build_inputs(processor, rows))[:, -1]


def under(method: Any, family: str, rows: Any) -> Tensor:
    model, processor = small_models.shared_model(family)
    batch = small_models.build_inputs(processor, rows)
    with method(model, processor, images=[images for _, images in rows]), torch.no_grad():
        out: Tensor = model(**batch).logits[:, -1]
    return out


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "idefics3"])
def test_augmentation_is_the_mean_of_log_probabilities(family: str) -> None:
    rows = rows_with_images()
    tta = TestTimeAugmentation(views=2, seed=7)
    views = [last_logits(family, rows)]
    for number in range(2):
        seen = [(text, [tta.transform_image(i, content_key(i), number) for i in images]) for text, images in rows]
        views.append(last_logits(family, seen))
    expected = torch.stack([one.log_softmax(-1) for one in views]).mean(0)
    torch.testing.assert_close(under(tta, family, rows), expected, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("family", ["llava", "gemma3"])
def test_the_likeliest_tokens_of_image_and_quadrants_vote(family: str) -> None:
    rows = rows_with_images()
    views = [last_logits(family, rows)]
    for q in range(4):
        views.append(last_logits(family, [(text, [quadrants(i)[q] for i in images]) for text, images in rows]))
    found = under(CropVote(), family, rows)
    for r in range(len(rows)):
        choices = [int(one[r].argmax()) for one in views]
        most = max(choices.count(token) for token in choices)
        winners = {token for token in choices if choices.count(token) == most}
        expected = max(winners, key=lambda token: views[0][r, token])
        assert int(found[r].argmax()) == expected
        assert set((found[r] > torch.finfo(torch.float32).min).nonzero().flatten().tolist()) == winners


def test_voting_is_for_greedy_decoding() -> None:
    model, processor = small_models.shared_model("llava")
    rows = rows_with_images()[:1]
    batch = small_models.build_inputs(processor, rows)
    with CropVote()(model, processor, images=[rows[0][1]]), pytest.raises(ValueError, match=r"crop-vote .*sampling"):
        model.generate(**batch, max_new_tokens=2, do_sample=True)


@pytest.mark.parametrize("family", ALL)
def test_laws(family: str) -> None:
    check_method(TestTimeAugmentation(views=2), [family])


def test_laws_of_voting() -> None:
    check_method(CropVote(), ["llava", "qwen2_5_vl"])
