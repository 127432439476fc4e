"""Evidence against its definitions, evaluated crop by crop."""

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from airvlm.methods.evidence.crops import Box, CropTokens
from airvlm.methods.evidence.matching import Evidence, EvidenceSpec, gather_evidence, locate_cells, select_crops
from airvlm.methods.evidence.prototypes import select_prototypes
from airvlm.methods.evidence.transport import cosine_cost, sinkhorn

K, M, N, D = 9, 5, 4, 6
MEMORY = EvidenceSpec(num_prototypes=4, eps=0.1)
PROJECTED = EvidenceSpec(num_prototypes=4, eps=0.1, match="transport")
BOXES = tuple(Box(m, 0, m + 4, 8) for m in range(M))


def tokens(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + 0.5


def crops(seed: int = 1, mask: Tensor | None = None, n: int = N) -> CropTokens:
    return CropTokens(BOXES, (8, 8), tokens(seed, M, n, D), mask)


def evidence(spec: EvidenceSpec = MEMORY, **changes: Any) -> Evidence:
    [found] = gather_evidence([tokens(0, K, D)], [crops()], replace(spec, **changes))
    return found


def prototype_tokens() -> Tensor:
    Z = tokens(0, K, D)
    return select_prototypes(Z, 4).gather(Z)


def test_distances_are_the_transport_costs_of_each_crop_alone() -> None:
    costs = [sinkhorn(cosine_cost(prototype_tokens(), x), 0.1).cost for x in crops().tokens]
    torch.testing.assert_close(evidence().distances, torch.stack(costs), rtol=0, atol=1e-6)


def test_evidence_tells_how_the_transport_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = evidence()
    assert solved.converged and solved.iterations > 1
    once = functools.partial(sinkhorn, max_iterations=1)
    monkeypatch.setattr("airvlm.methods.evidence.matching.sinkhorn", once)
    stopped = evidence()
    assert not stopped.converged and stopped.iterations == 1
    without = evidence(mean_token=True)  # nothing is solved, so nothing failed
    assert without.converged and without.iterations == 0


def test_the_cosine_distance_is_the_mean_cost() -> None:
    costs = [cosine_cost(prototype_tokens(), x).mean() for x in crops().tokens]
    torch.testing.assert_close(evidence(distance="cosine").distances, torch.stack(costs))


@pytest.mark.parametrize("spec", [MEMORY, PROJECTED, replace(PROJECTED, match="softmax")])
def test_images_of_different_shapes_give_together_what_each_gives_alone(spec: EvidenceSpec) -> None:
    Z = [tokens(0, K, D), tokens(2, K + 2, D), tokens(3, K, D)]
    short = torch.tensor([[True] * N] * (M - 1) + [[True, True, False, False]])
    given = [crops(), crops(5), crops(6, short)]
    together = gather_evidence(Z, given, spec)
    for i, own in enumerate(together):
        [alone] = gather_evidence([Z[i]], [given[i]], spec)
        torch.testing.assert_close(own.distances, alone.distances)
        torch.testing.assert_close((own.projected, own.memory), (alone.projected, alone.memory))


def test_few_costs_at_once_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    Z = [tokens(seed, K, D) for seed in range(4)]
    given = [crops(seed) for seed in range(4)]
    together = gather_evidence(Z, given, PROJECTED)
    monkeypatch.setattr("airvlm.methods.evidence.matching.MAX_COSTS", 1)
    for one, other in zip(gather_evidence(Z, given, PROJECTED), together, strict=True):
        torch.testing.assert_close(one.projected, other.projected)


def test_a_crop_with_fewer_tokens_is_the_crop_without_its_padding() -> None:
    mask = torch.tensor([[True] * N] * (M - 1) + [[True, True, False, False]])
    [found] = gather_evidence([tokens(0, K, D)], [crops(1, mask)], MEMORY)
    alone = sinkhorn(cosine_cost(prototype_tokens(), crops().tokens[-1, :2]), 0.1).cost
    torch.testing.assert_close(found.distances[-1], alone)
    assert found.memory is not None
    assert len(found.memory) == M * N - 2


# -- which crops are kept


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
    found = select_crops(DISTANCES, replace(MEMORY, **fields))
    assert ["".join(map(str, row)) for row in found.int().tolist()] == kept


def test_other_orders_keep_as_many_crops_but_others() -> None:
    near, far, drawn = (evidence(keep=2, order=order) for order in ("nearest", "farthest", "random"))
    assert near.count == far.count == drawn.count == 2
    assert far.distances[far.kept].min() > far.distances[~far.kept].max()
    assert not torch.equal(near.kept, far.kept)
    assert any(not torch.equal(evidence(keep=2, order="random", seed=s).kept, drawn.kept) for s in range(1, 6))


# -- the memory


def test_the_memory_is_the_tokens_of_the_kept_crops_after_the_prototypes_if_they_belong_to_it() -> None:
    found = evidence(keep=2)
    kept = crops().tokens[found.kept].reshape(-1, D)
    assert found.memory is not None and torch.equal(found.memory, kept)
    both = evidence(keep=2, memory_prototypes=True).memory
    assert both is not None and torch.equal(both, torch.cat([prototype_tokens(), kept]))


def test_the_mean_token_takes_the_place_of_the_crops() -> None:
    mean = tokens(0, K, D).mean(0, keepdim=True)
    torch.testing.assert_close(evidence(mean_token=True).memory, mean)
    torch.testing.assert_close(evidence(PROJECTED, mean_token=True).projected, mean.expand(4, D))


def test_noise_changes_the_memory_and_follows_its_seed() -> None:
    clean, noisy, again = evidence(keep=2), evidence(keep=2, noise=1.0), evidence(keep=2, noise=1.0)
    assert noisy.memory is not None and again.memory is not None and clean.memory is not None
    assert torch.equal(noisy.memory, again.memory)
    ratio = (noisy.memory - clean.memory).std() / clean.memory.std()
    assert 0.6 < ratio < 1.5


@pytest.mark.parametrize("match", ["transport", "softmax"])
def test_noise_changes_what_the_crops_say_and_follows_its_seed(match: Any) -> None:
    spec = replace(PROJECTED, match=match, keep=2)
    clean, noisy, again = (evidence(spec, noise=noise).projected for noise in (0.0, 1.0, 1.0))
    assert clean is not None and noisy is not None and again is not None
    assert torch.equal(noisy, again) and not torch.allclose(noisy, clean, atol=0.1)


# -- projection onto the prototypes


def project_by_loops(match: str) -> Tensor:
    """The barycentric image of each prototype."""
    H, X = prototype_tokens(), crops().tokens
    images, costs = [], []
    for x in X:
        C = cosine_cost(H, x)
        R = sinkhorn(C, 0.1).plan if match == "transport" else torch.exp(-C / 0.1)
        R = R / R.sum(1, keepdim=True)
        images.append(R @ x)
        costs.append((R * C).sum(1))
    projected = torch.zeros_like(H)
    for k in range(len(H)):
        weights = torch.softmax(torch.stack([-cost[k] / 0.1 for cost in costs]), 0)
        projected[k] = sum(w * image[k] for w, image in zip(weights, images, strict=True))  # type: ignore[assignment]
    return projected


@pytest.mark.parametrize("match", ["transport", "softmax"])
def test_projected_tokens_are_means_over_crops_mixed_by_each_prototypes_own_cost(match: str) -> None:
    found = evidence(PROJECTED, match=match)
    torch.testing.assert_close(found.projected, project_by_loops(match), rtol=1e-4, atol=1e-5)


def test_only_kept_crops_are_projected() -> None:
    near = int(evidence().distances.argmin())
    given = crops()
    [found] = gather_evidence([tokens(0, K, D)], [given], replace(PROJECTED, keep=1))
    own = replace(given, boxes=given.boxes[:1], tokens=given.tokens[near : near + 1])
    [alone] = gather_evidence([tokens(0, K, D)], [own], PROJECTED)
    torch.testing.assert_close(found.projected, alone.projected)


def test_where_no_crop_is_kept_nothing_is_projected() -> None:
    found = evidence(PROJECTED, tau=0.0)
    assert found.projected is None and found.count == 0


def test_geometry_brings_a_crop_of_the_whole_image_back_to_its_places() -> None:
    whole = CropTokens((Box(0, 0, 8, 8),), (8, 8), tokens(1, 1, K, D), None)
    [found] = gather_evidence([tokens(0, K, D)], [whole], replace(PROJECTED, match="geometry"))
    torch.testing.assert_close(found.projected, whole.tokens[0][found.prototypes])


def test_geometry_of_several_images_is_that_of_each_alone() -> None:
    boxes = (Box(0, 0, 8, 8), Box(0, 0, 4, 4), Box(4, 4, 8, 8))
    others = (Box(4, 0, 8, 4), *boxes[:2])  # as many, elsewhere
    given = [CropTokens(own, (8, 8), tokens(i, 3, 4, D), None) for i, own in enumerate((boxes, boxes, others))]
    Z = [tokens(seed, 16, D) for seed in (3, 4, 5)]
    spec = replace(PROJECTED, match="geometry")
    for own, z, crop in zip(gather_evidence(Z, given, spec), Z, given, strict=True):
        [alone] = gather_evidence([z], [crop], spec)
        torch.testing.assert_close(own.projected, alone.projected)


def test_geometry_leaves_places_that_no_crop_shows() -> None:
    corner = CropTokens((Box(0, 0, 4, 4),), (8, 8), tokens(1, 1, 4, D), None)
    spec = EvidenceSpec(None, 0.1, match="geometry")
    [found] = gather_evidence([tokens(0, 16, D)], [corner], spec)
    assert found.covered is not None
    assert found.covered.nonzero().flatten().tolist() == [0, 1, 4, 5]


def test_geometry_needs_square_grids() -> None:
    with pytest.raises(ValueError, match="square grids"):
        locate_cells(crops(), 8, 4)


def test_no_crops_at_all_is_defined() -> None:
    nothing = CropTokens((), (8, 8), torch.zeros(0, 0, D), None)
    for spec in (MEMORY, PROJECTED):
        [found] = gather_evidence([tokens(0, K, D)], [nothing], spec)
        assert found.count == 0 and found.projected is None
        assert found.distances.shape == (0,)


@pytest.mark.parametrize(("wanted", "K", "Q"), [(100, 576, 100), (100, 64, 64), (None, 7, 7), (1, 7, 1), (0, 7, 0)])
def test_the_number_of_prototypes_is_at_most_that_of_the_tokens(wanted: int | None, K: int, Q: int) -> None:
    assert EvidenceSpec(wanted, 0.1).count_prototypes(K) == Q
