"""CropBlend against its equation, evaluated in numpy, and what its report tells."""

from typing import Any

import numpy as np
import pytest
import torch

from airvlm.methods import CropBlend
from airvlm.testing import small_models
from tests.methods.generated import generate
from tests.methods.two_layers import EXACT, M, Q, TwoLayers, check_same


@pytest.fixture(scope="module")
def two_layers() -> TwoLayers:
    return TwoLayers()


@pytest.mark.parametrize("eps", [CropBlend().eps, 0.3])
@pytest.mark.parametrize("weight", [CropBlend().weight, 1.0])
def test_what_the_crops_say_of_each_prototype_is_blended_into_it(
    two_layers: TwoLayers, eps: float, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*EXACT)
    vanilla, _ = two_layers.run(None)
    seen, report = two_layers.run(CropBlend(num_prototypes=Q, num_crops=M, eps=eps, weight=weight))
    C, T, _ = two_layers.transport(eps, report)
    R = T / T.sum(2, keepdims=True)  # row k: how crop tokens share prototype k
    images = R @ two_layers.crops  # (M, Q, d): their barycentric images
    share = np.exp(-(R * C).sum(2) / eps)  # (M, Q): crops are mixed by softmax of each prototype's own cost
    share /= share.sum(0)
    projected = (share[:, :, None] * images).sum(0)  # (Q, d)
    expected = vanilla.embeds[0].copy()
    at = two_layers.positions
    expected[at] += weight * (projected - expected[at])
    check_same(seen.embeds[0], expected)
    for layer in range(2):  # and nothing is added anywhere else
        check_same(seen.out[layer], two_layers.ffn(layer, seen.x[layer]))


def test_the_defaults_are_four_crops_and_every_visual_token() -> None:
    method = CropBlend()
    assert (method.num_crops, method.num_prototypes, method.keep, method.match) == (4, None, None, "transport")
    assert method.paper is None and method.label == "crop-blend"


def test_the_report_names_the_decoders_input_and_every_visual_token() -> None:
    report = generate(CropBlend(weight=0.5)).report
    assert report.layers == (-1,) and report.passes == 1
    assert [row.tokens for row in report.rows] == [16, 0, 32, 16]
    assert [len(row.crops) for row in report.rows] == [1, 0, 2, 1]
    assert report.kept == 16 and report.method["name"] == "crop-blend"


@pytest.mark.parametrize("match", ["softmax", "geometry"])
def test_other_matches_blend_other_tokens(match: Any) -> None:
    one, other = generate(CropBlend(weight=0.8, match=match)), generate(CropBlend(weight=0.8))
    assert one.report.fired and not torch.equal(torch.stack(one.logits), torch.stack(other.logits))


def test_geometry_changes_only_places_that_a_kept_crop_shows() -> None:
    report = generate(CropBlend(match="geometry", num_crops=4, keep=1)).report
    assert 0 < report.rows[0].tokens < 16


def test_few_prototypes_change_few_tokens() -> None:
    report = generate(CropBlend(num_prototypes=3)).report
    assert [row.tokens for row in report.rows] == [3, 0, 6, 3]


@pytest.mark.parametrize("keep", [0, 1, 4, 9])
def test_keep_uses_that_many_nearest_crops(keep: int) -> None:
    if keep == 0:
        with pytest.warns(match="keep = 0: no crop is kept; the nearest has distance"):
            report = generate(CropBlend(keep=0)).report
    else:
        report = generate(CropBlend(keep=keep)).report
    for crops in report.crops:
        assert sum(crop.kept for crop in crops) == min(keep, 4)
        kept = sorted(crop.distance for crop in crops)[: min(keep, 4)]
        assert sorted(crop.distance for crop in crops if crop.kept) == kept


def test_bits_do_not_depend_on_whether_the_cache_had_the_crops() -> None:
    model, processor = small_models.build("llava")
    rows = small_models.sample_rows()
    batch = small_models.build_inputs(processor, rows)
    found = []
    for _ in range(2):
        with CropBlend()(model, processor, images=[list(own) for _, own in rows]), torch.no_grad():
            found.append(model(**batch).logits)
    assert torch.equal(*found)
