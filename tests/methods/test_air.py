"""AIR and AIRMemory against their equations, evaluated in numpy, and what their reports tell."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from airvlm.methods import AIR, AIRMemory
from airvlm.methods.air import find_activation, reinforce
from airvlm.methods.templates.memory_term import identity
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.testing import small_models
from tests.methods.generated import generate
from tests.methods.two_layers import EXACT, KEEP, STRENGTH, M, Q, TwoLayers, check_same
from tests.methods.two_layers import silu as silu_in_numpy


@pytest.fixture(scope="module")
def two_layers() -> TwoLayers:
    return TwoLayers()


# -- the equations


def test_air_is_the_printed_equation(two_layers: TwoLayers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*EXACT)
    method = AIR(layers=(0, 2), num_prototypes=Q, keep=KEEP, num_crops=M, strength=STRENGTH)
    seen, report = two_layers.run(method)
    _, _, d = two_layers.transport(method.eps, report)
    kept = np.sort(np.argsort(d)[:KEEP])
    assert [i for i, crop in enumerate(report.rows[0].crops[0]) if crop.kept] == kept.tolist()
    memory = np.concatenate(list(two_layers.crops[kept]))  # Z~ (S, d)
    at = two_layers.positions
    for layer in range(2):
        expected = two_layers.ffn(layer, seen.x[layer])
        term = silu_in_numpy(seen.x[layer][at] @ memory.T) @ memory  # phi(H' Z~') Z~
        size = np.linalg.norm(expected[at], axis=1) / np.linalg.norm(term, axis=1)
        expected[at] += STRENGTH * size[:, None] * term
        check_same(seen.out[layer], expected)


@pytest.mark.parametrize(("activation", "phi"), [("decoder", silu_in_numpy), ("identity", lambda s: s)])
def test_without_a_strength_the_bare_sum_is_added(two_layers: TwoLayers, activation: Any, phi: Any) -> None:
    method = AIR(layers=(0, 1), num_prototypes=Q, keep=M, num_crops=M, strength=None, activation=activation)
    seen, _ = two_layers.run(method)
    memory = np.concatenate(list(two_layers.crops))
    at = two_layers.positions
    expected = two_layers.ffn(0, seen.x[0])
    expected[at] += phi(seen.x[0][at] @ memory.T) @ memory
    check_same(seen.out[0], expected)


def test_at_all_positions_the_term_is_added_to_every_token(two_layers: TwoLayers) -> None:
    method = AIR(layers=(1, 2), num_prototypes=Q, keep=M, num_crops=M, strength=STRENGTH, positions="all")
    seen, report = two_layers.run(method)
    memory = np.concatenate(list(two_layers.crops))
    expected = two_layers.ffn(1, seen.x[1])
    term = silu_in_numpy(seen.x[1] @ memory.T) @ memory
    size = np.linalg.norm(expected, axis=1) / np.linalg.norm(term, axis=1)
    check_same(seen.out[1], expected + STRENGTH * size[:, None] * term)
    assert report.tokens == len(expected)


@pytest.mark.parametrize("positions", ["visual", "all"])
def test_only_at_all_positions_do_generated_tokens_get_the_term(positions: Any) -> None:
    method = AIR(layers=(1, 2), num_prototypes=4, keep=1, num_crops=2, strength=STRENGTH, positions=positions)
    rows = small_models.sample_rows()[:1]
    short, long = (
        generate(method, rows=rows, max_new_tokens=n, min_new_tokens=n).report.rows[0].tokens for n in (1, 4)
    )
    assert long - short == (3 if positions == "all" else 0)


@pytest.mark.parametrize("threshold", [0.0, 1.0], ids=["fires", "never fires"])
def test_air_memory_adds_its_memory_at_all_positions_after_an_unsure_layer(
    two_layers: TwoLayers, threshold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*EXACT)
    method = AIRMemory(layers=(0, 2), num_prototypes=Q, keep=KEEP, num_crops=M, strength=STRENGTH, threshold=threshold)
    if threshold == 1:
        with pytest.warns(match="entropy"):
            seen, report = two_layers.run(method)
    else:
        seen, report = two_layers.run(method)
    _, _, d = two_layers.transport(method.eps, report)
    H = two_layers.Z[two_layers.prototypes]
    memory = np.concatenate([H, *two_layers.crops[np.sort(np.argsort(d)[:KEEP])]])
    assert report.fired == (threshold == 0)
    first, second = (two_layers.ffn(layer, seen.x[layer]) for layer in range(2))
    check_same(seen.out[0], first)  # the layer that decides is left alone
    if report.fired:
        term = seen.x[1] @ memory.T @ memory
        size = np.linalg.norm(second, axis=1) / np.linalg.norm(term, axis=1)
        second = second + STRENGTH * size[:, None] * term
    check_same(seen.out[1], second)


# -- options


def test_the_defaults_are_the_papers() -> None:
    air = AIR()
    assert (air.num_prototypes, air.num_crops, air.tau, air.keep, air.quantile) == (100, 12, 0.06, None, None)
    assert (air.activation, air.positions, air.distance) == ("decoder", "visual", "ot")
    assert air.layer_range(32) == range(26, 32)
    assert air.paper is not None and "2602.24041" in air.paper
    assert AIRMemory.paper is None and AIRMemory().activation == "identity"


def test_keep_and_quantile_take_the_place_of_tau() -> None:
    assert (AIR(keep=3).evidence_spec().tau, AIR(keep=3).evidence_spec().keep) == (None, 3)
    assert (AIR(quantile=0.5).evidence_spec().tau, AIR(quantile=0.5).evidence_spec().quantile) == (None, 0.5)
    assert AIR().evidence_spec().tau == 0.06


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_crops": -1}, "num_crops"),
        ({"crop_layout": "grid"}, "choose one of windows, random"),
        ({"layers": (3, 2)}, "first, one after the last"),
        ({"activation": "tanh"}, "activation"),
        ({"tau": 0.1, "keep": 2}, "keep and tau are both set: give one of tau, keep and quantile"),
        ({"quantile": 0.5, "keep": 2}, "keep and quantile are both set"),
        ({"tau": None}, "tau = None: give a number"),
        ({"eps": 0.0}, "eps"),
        ({"num_prototypes": 0.5}, "num_prototypes"),
        ({"keep": -1}, "keep"),
        ({"quantile": 2.0}, "quantile"),
        ({"distance": "manhattan"}, "choose one of ot, cosine"),
        ({"positions": "some"}, "choose one of visual, all"),
    ],
)
def test_a_wrong_option_says_what_to_give(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AIR(**options)


def test_by_default_the_last_fifth_of_the_layers_is_changed_and_at_least_two() -> None:
    assert AIR().layer_range(32) == AIR(layers=(26, 32)).layer_range(32) == range(26, 32)
    assert AIR().layer_range(40) == range(32, 40)
    assert AIR().layer_range(4) == range(2, 4)
    assert AIR(layers=(1, 3)).layer_range(4) == range(1, 3)
    with pytest.raises(ValueError, match="the decoder has 4"):
        AIR(layers=(26, 32)).layer_range(4)


def test_the_last_layer_alone_is_refused_for_visual_positions() -> None:
    model, processor = small_models.shared_model("llava")
    with pytest.raises(ValueError, match="nothing reads the visual tokens after the last layer"):
        AIR(layers=(3, 4))(model, processor)
    AIR(layers=(3, 4), positions="all")(model, processor)


def test_the_decoders_own_activation_is_found() -> None:
    x = torch.linspace(-2, 2, 9)
    torch.testing.assert_close(find_activation("decoder", small_models.shared_model("llava")[0])(x), silu(x))
    gemma = find_activation("decoder", small_models.shared_model("gemma3")[0])
    torch.testing.assert_close(gemma(x), torch.nn.functional.gelu(x, approximate="tanh"))
    assert find_activation("identity", torch.nn.Linear(1, 1)) is identity


# -- reports


def test_the_report_tells_what_was_done_in_each_row() -> None:
    method = AIR(keep=3, num_prototypes=6, strength=0.3, layers=(1, 3))
    report = generate(method).report
    assert report.fired and report.layers == (1, 2)
    assert [row.tokens for row in report.rows] == [12, 0, 24, 12]  # Q tokens of each image, in two layers
    assert report.tokens == 48 and report.passes == 1
    assert report.norm_ratio is not None
    assert report.norm_ratio.mean == pytest.approx(0.3, rel=1e-3)
    assert report.norm_ratio.max == pytest.approx(0.3, rel=1e-3)
    assert report.sinkhorn is not None and report.sinkhorn.converged and report.sinkhorn.iterations > 0
    assert [sum(crop.kept for crop in image) for image in report.crops] == [3, 3, 3, 3]
    assert set(report.seconds) == {"crops", "transport", "injection"}
    assert report.rows[1].reason == "there is no image in this row"
    assert report.method == method.to_json()


def test_where_no_crop_is_within_tau_the_report_names_the_nearest_distance_and_settings_that_act() -> None:
    rows = small_models.sample_rows()[:1]
    with pytest.warns(MethodInactiveWarning, match=r"air did not act: no crop is within tau = 0\.06"):
        report = generate(AIR(), rows=rows).report
    nearest = min(crop.distance for crop in report.crops[0])
    assert f"the nearest has distance {nearest:.4g}" in report.reason and str(report.reason) in str(report)
    assert "keep=3 would use the three nearest crops" in report.reason
    tau = float(report.reason.split("tau=")[1].split(" ")[0])
    assert 0 <= tau - nearest < 0.011
    acting = generate(AIR(tau=tau), rows=rows).report
    assert acting.fired and acting.kept >= 1
    assert generate(AIR(keep=3), rows=rows).report.kept == 3


def test_where_no_layer_is_unsure_the_report_names_the_highest_entropy() -> None:
    with pytest.warns(MethodInactiveWarning, match=r"no layer's entropy exceeded 1; the highest was 0\."):
        generate(AIRMemory(threshold=1.0, keep=2), rows=small_models.sample_rows()[:1])


def test_air_memory_acts_without_crops_on_its_prototypes() -> None:
    report = generate(AIRMemory(num_crops=0, threshold=0.0), rows=small_models.sample_rows()[:1]).report
    assert report.fired and report.kept == 0


# -- the term


B, T, S, d = 2, 6, 5, 16


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture
def parts() -> Any:
    return draw(B, T, d), draw(B, T, d, seed=1), draw(B, S, d, seed=2)


def numpy_silu(s: Any) -> Any:
    return s / (1 + np.exp(-s))


@pytest.mark.parametrize(("phi", "numpy_phi"), [(identity, lambda s: s), (silu, numpy_silu)])
def test_the_term_is_added_at_the_ratio_of_its_strength(parts: Any, phi: Any, numpy_phi: Any) -> None:
    ffn, x, Z = parts
    out = reinforce(ffn, x, Z, phi=phi, strength=0.2).out
    for b in range(B):
        f, added = ffn[b].numpy(), numpy_phi(x[b].numpy() @ Z[b].numpy().T) @ Z[b].numpy()
        ratio = 0.2 * np.linalg.norm(f, axis=1) / np.linalg.norm(added, axis=1)
        np.testing.assert_allclose(out[b], f + ratio[:, None] * added, atol=1e-5)


def test_without_a_strength_the_literal_sum_is_added(parts: Any) -> None:
    ffn, x, Z = parts
    out = reinforce(ffn, x, Z, phi=silu, strength=None).out
    expected = ffn.numpy() + numpy_silu(x.numpy() @ Z.mT.numpy()) @ Z.numpy()
    np.testing.assert_allclose(out, expected, atol=1e-4)


def test_strength_is_the_ratio_of_norms(parts: Any) -> None:
    ffn, x, Z = parts
    done = reinforce(ffn, x, Z, phi=silu, strength=0.3)
    torch.testing.assert_close(done.ratio, torch.full((B, T), 0.3))
    torch.testing.assert_close((done.out - ffn).norm(dim=-1) / ffn.norm(dim=-1), done.ratio)


def test_strength_zero_is_bit_equal(parts: Any) -> None:
    ffn, x, Z = parts
    done = reinforce(ffn, x, Z, strength=0.0)
    assert done.out is ffn and done.ratio.eq(0).all()


def test_only_the_given_positions_change_and_padding_changes_nothing(parts: Any) -> None:
    ffn, x, Z = parts
    rows = torch.tensor([[1, 4, 1], [0, 0, 0]])  # the last entries are padding that repeats a real position
    mask = torch.tensor([[True, True, False], [True, False, False]])
    done = reinforce(ffn, x, Z, strength=0.2, positions=rows, positions_mask=mask)
    whole = reinforce(ffn, x, Z, strength=0.2).out
    expected = ffn.clone()
    for b, t in ((0, 1), (0, 4), (1, 0)):
        expected[b, t] = whole[b, t]
    torch.testing.assert_close(done.out, expected)
    untouched = [(0, 0), (0, 2), (0, 3), (0, 5), (1, 1), (1, 5)]
    assert all(torch.equal(done.out[b, t], ffn[b, t]) for b, t in untouched)
    assert torch.equal(done.ratio > 0, mask)


def test_positions_that_did_not_fire_stay_bit_equal(parts: Any) -> None:
    ffn, x, Z = parts
    done = reinforce(ffn, x, Z, strength=0.2, positions_mask=torch.tensor([[True] * T, [False] * T]))
    assert torch.equal(done.out[1], ffn[1]) and not torch.equal(done.out[0], ffn[0])
    assert done.ratio[1].eq(0).all()


def test_masked_tokens_of_the_memory_add_nothing(parts: Any) -> None:
    ffn, x, Z = parts
    mask = torch.tensor([[True] * S, [True, True, False, False, False]])
    phi = torch.sigmoid  # phi(0) is not 0
    done = reinforce(ffn, x, Z, phi=phi, strength=0.2, memory_mask=mask).out
    alone = reinforce(ffn[1:], x[1:], Z[1:, :2], phi=phi, strength=0.2).out
    torch.testing.assert_close(done[1:], alone)


def test_an_empty_or_masked_memory_adds_nothing(parts: Any) -> None:
    ffn, x, Z = parts
    assert torch.equal(reinforce(ffn, x, Z[:, :0], strength=0.2).out, ffn)
    assert torch.equal(reinforce(ffn, x, Z, strength=0.2, memory_mask=torch.zeros(B, S).bool()).out, ffn)


def test_zero_vectors_give_no_nan(parts: Any) -> None:
    ffn, x, Z = parts
    for done in (
        reinforce(ffn, torch.zeros_like(x), Z, strength=0.2),
        reinforce(ffn, x, torch.zeros_like(Z), strength=0.2),
        reinforce(torch.zeros_like(ffn), x, Z, strength=0.2),
    ):
        assert done.out.isfinite().all() and done.ratio.isfinite().all()


def test_one_memory_may_be_shared_by_the_batch(parts: Any) -> None:
    ffn, x, Z = parts
    shared = reinforce(ffn, x, Z[0], strength=0.2).out
    torch.testing.assert_close(shared, reinforce(ffn, x, Z[:1].expand(B, S, d), strength=0.2).out)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("phi", [identity, silu])
def test_half_precision_neither_overflows_nor_loses_the_direction(dtype: torch.dtype, phi: Any) -> None:
    ffn, x = draw(1, 3, 512, dtype=dtype), (20 + draw(1, 3, 512, seed=1)).to(dtype)
    Z = (20 + draw(700, 512, seed=2)).to(dtype)  # x Z' is about 200000, the literal sum a billion
    done = reinforce(ffn, x, Z, phi=phi, strength=0.2)
    exact = reinforce(ffn.float(), x.float(), Z.float(), phi=phi, strength=0.2)
    assert done.out.dtype == dtype and done.out.isfinite().all()
    torch.testing.assert_close(done.out.float(), exact.out, atol=0.05, rtol=0.02)
    torch.testing.assert_close(done.ratio, exact.ratio, atol=0.01, rtol=0)


def test_long_sequences_are_added_to_in_chunks(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ffn, x, Z = parts
    mask = torch.rand(B, T, generator=torch.Generator().manual_seed(3)) > 0.5
    whole = reinforce(ffn, x, Z, strength=0.2, positions_mask=mask)
    monkeypatch.setattr("airvlm.runtime.intervention.CHUNK", 4)
    chunks = reinforce(ffn, x, Z, strength=0.2, positions_mask=mask)
    torch.testing.assert_close((chunks.out, chunks.ratio), (whole.out, whole.ratio))


def test_of_a_long_sequence_only_the_given_positions_change(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ffn, x, Z = parts
    positions = torch.tensor([[0, T - 1]]).expand(B, 2)
    whole = reinforce(ffn, x, Z, strength=0.2, positions=positions)
    monkeypatch.setattr("airvlm.runtime.intervention.CHUNK", 4)
    chunks = reinforce(ffn, x, Z, strength=0.2, positions=positions)
    torch.testing.assert_close((chunks.out, chunks.ratio), (whole.out, whole.ratio))
    assert torch.equal(chunks.out[:, 1 : T - 1], ffn[:, 1 : T - 1])
