"""Evidence against its definitions, evaluated crop by crop."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from airvlm import AIR, CropBlend
from airvlm.methods.crop_blend import landing, project
from airvlm.methods.evidence.crops import Box, CropTokens
from airvlm.methods.evidence.match import Evidence, gather, kept_crops
from airvlm.methods.evidence.prototypes import prototypes
from airvlm.methods.evidence.transport import cosine_cost, sinkhorn

K, M, N, D = 9, 5, 4, 6
TRANSPORTED = CropBlend(num_prototypes=4, eps=0.1)
PAPER = AIR(num_prototypes=4, eps=0.1, tau=None)
BOXES = tuple(Box(m, 0, m + 4, 8) for m in range(M))


def tokens(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + 0.5


def crops(seed: int = 1, mask: Tensor | None = None, n: int = N) -> CropTokens:
    return CropTokens(BOXES, (8, 8), tokens(seed, M, n, D), mask)


def evidence(air: AIR = PAPER, **changes: Any) -> Evidence:
    [found] = gathered([tokens(0, K, D)], [crops()], replace(air, **changes))
    return found


def gathered(Z: list[Tensor], own: list[CropTokens], air: AIR) -> list[Evidence]:
    return gather(Z, own, air, project if air.reading == "carry" else None)


def prototype_tokens() -> Tensor:
    Z = tokens(0, K, D)
    return prototypes(Z, 4).gather(Z)


def test_distances_are_the_transport_costs_of_each_crop_alone() -> None:
    costs = [sinkhorn(cosine_cost(prototype_tokens(), x), 0.1).cost for x in crops().tokens]
    torch.testing.assert_close(evidence().distances, torch.stack(costs), rtol=0, atol=1e-6)


def test_cosine_distance_is_the_mean_cost() -> None:
    costs = [cosine_cost(prototype_tokens(), x).mean() for x in crops().tokens]
    torch.testing.assert_close(evidence(distance="cosine").distances, torch.stack(costs))


def test_a_batch_of_unlike_images_gives_what_each_gives_alone() -> None:
    Z = [tokens(0, K, D), tokens(2, K + 2, D), tokens(3, K, D)]
    short = torch.tensor([[True] * N] * (M - 1) + [[True, True, False, False]])
    given = [crops(), crops(5), crops(6, short)]
    for air in (PAPER, TRANSPORTED):
        together = gathered(Z, given, air)
        for i, own in enumerate(together):
            [alone] = gathered([Z[i]], [given[i]], air)
            torch.testing.assert_close(own.distances, alone.distances)
            torch.testing.assert_close((own.projected, own.memory), (alone.projected, alone.memory))


def test_a_crop_with_fewer_tokens_is_the_crop_without_its_padding() -> None:
    mask = torch.tensor([[True] * N] * (M - 1) + [[True, True, False, False]])
    [found] = gathered([tokens(0, K, D)], [crops(1, mask)], PAPER)
    alone = sinkhorn(cosine_cost(prototype_tokens(), crops().tokens[-1, :2]), 0.1).cost
    torch.testing.assert_close(found.distances[-1], alone)
    assert found.memory is not None
    assert len(found.memory) == M * N - 2


@pytest.mark.parametrize(
    ("rule", "count"), [({"keep": 2}, 2), ({"keep": 9}, M), ({"quantile": 0.5}, 3), ({}, M), ({"keep": 0}, 0)]
)
def test_the_rule_says_how_many_crops_are_kept_and_they_are_the_nearest(rule: Any, count: int) -> None:
    found = evidence(**rule)
    assert found.count == count == int(found.kept.sum())
    if 0 < count < M:
        assert found.distances[found.kept].max() < found.distances[~found.kept].min()


def test_tau_keeps_the_crops_within_it() -> None:
    d = evidence().distances.sort().values
    assert evidence(tau=float(d[1]) + 1e-6).count == 2
    assert evidence(tau=float(d[0]) - 1e-3).count == 0


def test_controls_keep_as_many_crops_but_others() -> None:
    near, far, drawn = (evidence(keep=2, order=order) for order in ("nearest", "farthest", "random"))
    assert near.count == far.count == drawn.count == 2
    assert far.distances[far.kept].min() > far.distances[~far.kept].max()
    assert not torch.equal(near.kept, far.kept)
    assert any(not torch.equal(evidence(keep=2, order="random", seed=s).kept, drawn.kept) for s in range(1, 6))


def test_memory_is_the_kept_crops_tokens_and_the_prototypes_before_them() -> None:
    found = evidence(keep=2)
    kept = crops().tokens[found.kept].reshape(-1, D)
    assert found.memory is not None and torch.equal(found.memory, kept)
    both = evidence(keep=2, memory="prototypes+crops").memory
    assert both is not None and torch.equal(both, torch.cat([prototype_tokens(), kept]))


def test_the_averaged_control_is_the_mean_visual_token() -> None:
    mean = tokens(0, K, D).mean(0, keepdim=True)
    torch.testing.assert_close(evidence(memory="average").memory, mean)
    torch.testing.assert_close(evidence(TRANSPORTED, memory="average").projected, mean.expand(4, D))


def test_noise_changes_the_memory_and_follows_the_seed() -> None:
    clean, noised, again = evidence(keep=2), evidence(keep=2, noise=1.0), evidence(keep=2, noise=1.0)
    assert noised.memory is not None and again.memory is not None and clean.memory is not None
    assert torch.equal(noised.memory, again.memory)
    ratio = (noised.memory - clean.memory).std() / clean.memory.std()
    assert 0.6 < ratio < 1.5


def direct_projection(carry: str, temperature: float) -> Tensor:
    """The barycentric image of each prototype, by loops."""
    H, X = prototype_tokens(), crops().tokens
    images, costs = [], []
    for x in X:
        C = cosine_cost(H, x)
        R = sinkhorn(C, 0.1).plan if carry == "plan" else torch.exp(-C / 0.1)
        R = R / R.sum(1, keepdim=True)
        images.append(R @ x)
        costs.append((R * C).sum(1))
    projected = torch.zeros_like(H)
    for k in range(len(H)):
        weights = torch.softmax(torch.stack([-cost[k] / temperature for cost in costs]), 0)
        projected[k] = sum(w * image[k] for w, image in zip(weights, images, strict=True))  # type: ignore[assignment]
    return projected


@pytest.mark.parametrize("carry", ["plan", "softmax"])
@pytest.mark.parametrize("temperature", [None, 0.5])
def test_projected_tokens_are_the_plans_means_mixed_by_each_rows_own_cost(
    carry: str, temperature: float | None
) -> None:
    found = evidence(TRANSPORTED, match=carry, temperature=temperature)
    expected = direct_projection(carry, temperature or 0.1)
    torch.testing.assert_close(found.projected, expected, rtol=1e-4, atol=1e-5)


def test_only_kept_crops_are_projected() -> None:
    near = int(evidence().distances.argmin())
    given = crops()
    [found] = gathered([tokens(0, K, D)], [given], replace(TRANSPORTED, keep=1))
    own = replace(given, boxes=given.boxes[:1], tokens=given.tokens[near : near + 1])
    [alone] = gathered([tokens(0, K, D)], [own], TRANSPORTED)
    torch.testing.assert_close(found.projected, alone.projected)


def test_nothing_kept_projects_nothing() -> None:
    found = evidence(TRANSPORTED, tau=0.0)
    assert found.projected is None and found.count == 0


def test_geometry_brings_a_crop_of_the_whole_image_back_to_its_places() -> None:
    whole = CropTokens((Box(0, 0, 8, 8),), (8, 8), tokens(1, 1, K, D), None)
    [found] = gathered([tokens(0, K, D)], [whole], replace(TRANSPORTED, match="geometry"))
    torch.testing.assert_close(found.projected, whole.tokens[0][found.prototypes])


def test_geometry_leaves_places_that_no_crop_shows() -> None:
    corner = CropTokens((Box(0, 0, 4, 4),), (8, 8), tokens(1, 1, 4, D), None)
    [found] = gathered([tokens(0, 16, D)], [corner], CropBlend(match="geometry"))
    assert found.covered is not None
    assert found.covered.nonzero().flatten().tolist() == [0, 1, 4, 5]


def test_geometry_needs_square_grids() -> None:
    with pytest.raises(ValueError, match="square grids"):
        landing(crops(), 8, 4)


def test_no_crops_at_all_is_defined() -> None:
    nothing = CropTokens((), (8, 8), torch.zeros(0, 0, D), None)
    for air in (PAPER, TRANSPORTED):
        [found] = gathered([tokens(0, K, D)], [nothing], air)
        assert found.count == 0 and found.projected is None
        assert found.distances.shape == (0,)


DISTANCES = torch.tensor([[0.3, 0.1, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, ["1111", "1111"]),
        ({"tau": 0.15}, ["0101", "1000"]),
        ({"keep": 1}, ["0100", "1000"]),  # of equals the first
        ({"keep": 3, "order": "farthest"}, ["1110", "0111"]),
        ({"quantile": 0.5}, ["0101", "1100"]),
        ({"keep": 9}, ["1111", "1111"]),
    ],
)
def test_each_image_keeps_crops_by_its_own_distances(fields: dict[str, Any], kept: list[str]) -> None:
    assert ["".join(map(str, row)) for row in kept_crops(DISTANCES, CropBlend(**fields)).int().tolist()] == kept
