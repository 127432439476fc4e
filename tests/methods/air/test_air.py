"""AIR's three readings against their equations, evaluated in numpy, and what its report tells."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from airvlm.inputs.cache import cache_of
from airvlm.methods import AIR, AIRMemory, CropBlend
from airvlm.methods.air import default_span
from airvlm.methods.evidence.crops import crop_boxes, crops
from airvlm.methods.templates import layer_span
from airvlm.models.parts import ModelParts
from airvlm.runtime.session import MethodInactiveWarning, MethodNotApplied
from tests import tiny_models

GREEDY = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def two_layers() -> Any:
    return tiny_models.build("llava", num_hidden_layers=2)


class Passed:
    """What a feed-forward and the decoder read and wrote under a method, in one pass of one row."""

    def __init__(self, model: Any, processor: Any, method: AIR, layer: int) -> None:
        parts = ModelParts.of(model)
        self.image = tiny_models.rows()[0][1][0]
        batch = tiny_models.inputs(processor, tiny_models.rows()[:1])
        self.visual = (batch["input_ids"][0] == 4).nonzero().flatten().numpy()
        with torch.no_grad():
            self.Z = _numpy(parts.encode(parts.pixels(processor, [self.image]))[0])
            boxes = crop_boxes(self.image.size, method.patches)
            self.crops = [_numpy(tokens) for tokens in parts.encode(parts.pixels(processor, crops(self.image, boxes)))]
            with method(model, processor, images=[self.image]) as self.run:
                handles = [
                    parts.ffns[layer].register_forward_hook(self._ffn),
                    parts.decoder.register_forward_pre_hook(self._decoder, with_kwargs=True),
                ]
                try:
                    model(**batch)
                finally:
                    for handle in handles:
                        handle.remove()
            self.ffn = _numpy(parts.ffns[layer].forward(torch.tensor(self.x))[0])  # forward alone runs no hooks

    def _ffn(self, module: Any, args: Any, out: Any) -> None:
        self.x, self.y = _numpy(args[0]), _numpy(out[0])

    def _decoder(self, module: Any, args: Any, kwargs: Any) -> None:
        self.embeds = _numpy(kwargs["inputs_embeds"][0])


def _numpy(t: torch.Tensor) -> Array:
    return t.detach().float().numpy()


def cost(H: Array, X: Array) -> Array:
    return 1 - (H / np.linalg.norm(H, axis=1, keepdims=True)) @ (X / np.linalg.norm(X, axis=1, keepdims=True)).T


def plan(C: Array, eps: float) -> Array:
    T = np.exp(-C.astype(np.float64) / eps)
    for _ in range(3000):
        T /= T.sum(1, keepdims=True) * C.shape[0]
        T /= T.sum(0, keepdims=True) * C.shape[1]
    return T


def farthest(Z: Array, q: int) -> Array:
    return np.sort(np.argsort(-np.linalg.norm(Z - Z.mean(0), axis=1))[:q])


def sized(added: Array, ffn: Array, strength: float) -> Array:
    return strength * added * np.linalg.norm(ffn, axis=1, keepdims=True) / np.linalg.norm(added, axis=1, keepdims=True)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def nearest(passed: Passed, H: Array, eps: float, keep: int) -> tuple[Array, Array]:
    d = np.array([(plan(cost(H, X), eps) * cost(H, X)).sum() for X in passed.crops])
    return d, np.concatenate([passed.crops[m] for m in np.sort(np.argsort(d)[:keep])])


# -- the equations


def test_the_papers_reading_is_the_printed_equation_at_the_ratio_of_its_strength(two_layers: Any) -> None:
    passed = Passed(*two_layers, AIR(keep=2, num_prototypes=5, strength=0.3, layers=(0, 2)), 0)
    q = farthest(passed.Z, 5)
    d, memory = nearest(passed, passed.Z[q], 0.1, 2)
    rows = passed.visual[q]
    expected = passed.ffn.copy()
    expected[rows] += sized(silu(passed.x[0][rows] @ memory.T) @ memory, passed.ffn[rows], 0.3)
    np.testing.assert_allclose(passed.y, expected, rtol=1e-4, atol=1e-5)
    found = [crop.distance for crop in passed.run.report.crops[0]]
    np.testing.assert_allclose(found, d, atol=1e-4)


def test_the_lineage_adds_its_memory_at_all_rows_after_an_unsure_layer(two_layers: Any) -> None:
    method = AIRMemory(keep=2, num_prototypes=5, strength=0.3, layers=(1, 2), threshold=0.0)
    passed = Passed(*two_layers, method, 1)
    H = passed.Z[farthest(passed.Z, 5)]
    memory = np.concatenate([H, nearest(passed, H, 0.1, 2)[1]])
    expected = passed.ffn + sized(passed.x[0] @ memory.T @ memory, passed.ffn, 0.3)
    np.testing.assert_allclose(passed.y, expected, rtol=1e-4, atol=2e-5)


def test_the_transported_reading_blends_the_plans_means_into_the_decoders_input(
    two_layers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airvlm.methods.evidence.transport.TOLERANCE", 1e-6)
    passed = Passed(*two_layers, CropBlend(num_prototypes=5, eps=0.1, weight=0.4), 0)
    q = farthest(passed.Z, 5)
    H = passed.Z[q]
    images, costs = [], []
    for X in passed.crops:
        R = plan(cost(H, X), 0.1)
        R /= R.sum(1, keepdims=True)
        images.append(R @ X)
        costs.append((R * cost(H, X)).sum(1))
    mix = np.exp(-np.array(costs) / 0.1)
    carried = np.einsum("mq,mqd->qd", mix / mix.sum(0), np.array(images))
    expected = passed.Z.copy()
    expected[q] = 0.6 * H + 0.4 * carried
    np.testing.assert_allclose(passed.embeds[passed.visual], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(passed.y, passed.ffn, rtol=1e-5, atol=1e-6)  # and nothing else


def test_the_bare_sum_is_added_where_no_strength_is_given(two_layers: Any) -> None:
    passed = Passed(*two_layers, AIR(keep=1, num_prototypes=5, strength=None, layers=(0, 1), phi="identity"), 0)
    q = farthest(passed.Z, 5)
    _, memory = nearest(passed, passed.Z[q], 0.1, 1)
    rows = passed.visual[q]
    np.testing.assert_allclose(
        (passed.y - passed.ffn)[rows], passed.x[0][rows] @ memory.T @ memory, rtol=1e-3, atol=1e-3
    )


# -- presets and fields


def test_presets_take_overrides_and_another_rule_replaces_theirs() -> None:
    assert AIR().tau == 0.06
    assert (AIR(keep=3).tau, AIR(keep=3).keep) == (None, 3)
    assert AIRMemory(quantile=0.5, strength=0.2).strength == 0.2
    assert CropBlend() == CropBlend() != CropBlend(weight=0.6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reading": "aloud"}, "choose one of carry, ffn"),
        (
            {"positions": "all"},
            "no effect in the transported reading of air: it acts in air-paper and air-lineage",
        ),
        ({"patches": -1}, "patches"),
        ({"layers": (3, 2)}, "first, one after the last"),
        ({"phi": "tanh"}, "phi"),
        ({"source": "web"}, "source"),
        ({"tau": 0.1, "keep": 2}, "at most one of tau, keep and quantile"),
        ({"eps": 0.0}, "eps"),
        ({"top_q": 1.5}, "top_q"),
        ({"keep": -1}, "keep"),
        ({"quantile": 2.0}, "quantile"),
        ({"distance": "manhattan"}, "choose one of ot, cosine"),
        ({"order": "best"}, "order"),
        ({"memory": "all"}, "memory"),
        ({"carry": "bag"}, "carry"),
        ({"temperature": 0.0}, "temperature"),
        ({"noise": -1.0}, "noise"),
    ],
)
def test_fields_that_cannot_be_meant_say_what_to_give(fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CropBlend(**fields)


def test_the_default_window_is_the_last_fifth_as_the_papers() -> None:
    assert default_span(32) == range(26, 32)
    assert default_span(4) == range(2, 4)
    assert layer_span((1, 3), 4) == range(1, 3)
    with pytest.raises(ValueError, match="the decoder has 4"):
        layer_span((26, 32), 4)


def test_the_last_layer_alone_is_refused_for_visual_rows() -> None:
    model, processor = tiny_models.shared("llava")
    with pytest.raises(ValueError, match="nothing reads the visual tokens after the last layer"):
        AIR(layers=(3, 4))(model, processor)
    AIR(layers=(3, 4), positions="all")(model, processor)


# -- where the images come from


def under(family: str, method: AIR, images: Any, rows: Any = None, processor: bool = True) -> tuple[Any, Session]:
    model, own = tiny_models.shared(family)
    batch = tiny_models.inputs(own, tiny_models.rows() if rows is None else rows)
    with method(model, own if processor else None, images=images) as run:
        out = model.generate(**batch, **GREEDY, return_dict_in_generate=True, output_logits=True)
    return torch.stack(out.logits), run


def test_images_may_be_flat_nested_or_without_the_rows_that_have_none() -> None:
    rows = tiny_models.rows()
    one, two, last = rows[0][1][0], list(rows[2][1]), rows[3][1][0]
    expected, _ = under("llava", CropBlend(), [[one], [], two, [last]])
    for images in ([one, None, two, last], [one, two, last]):
        assert torch.equal(under("llava", CropBlend(), images)[0], expected)
    alone, _ = under("llava", CropBlend(), [two], rows[2:3])
    assert torch.equal(under("llava", CropBlend(), two, rows[2:3])[0], alone)


def test_images_are_told_apart_in_a_row() -> None:
    _, run = under("llava", CropBlend(), [list(own) for _, own in tiny_models.rows()])
    assert [len(row.crops) for row in run.report.rows] == [1, 0, 2, 1]


def test_a_wrong_number_of_images_says_how_to_give_them() -> None:
    with pytest.raises(ValueError, match="2 entries for a batch of 4 rows"):
        under("llava", CropBlend(), [tiny_models.sample_image(1), tiny_models.sample_image(2)])
    with pytest.raises(ValueError, match="row 2 has image tokens"):
        under("llava", CropBlend(), [tiny_models.sample_image(1), None, [], tiny_models.sample_image(2)])


def test_without_images_crops_come_from_the_pixels_of_the_input() -> None:
    _, run = under("llava", CropBlend(weight=0.5), None)
    assert [row.fired for row in run.report.rows] == [True, False, True, True]
    assert run.report.rows[0].crops[0][0].box == crop_boxes((32, 32), 12)[0]


def test_a_plain_forward_pass_sees_the_pixels_too() -> None:
    model, processor = tiny_models.shared("llava")
    with CropBlend()(model) as run, torch.no_grad():
        model(**tiny_models.inputs(processor, tiny_models.rows()[:1]))
    assert run.report.fired


def test_a_model_without_plain_pixels_needs_the_images_before_any_token() -> None:
    with pytest.raises(ValueError, match="images="):
        under("qwen2_5_vl", CropBlend(), None)


def test_images_need_the_processor() -> None:
    with pytest.raises(ValueError, match="processor"):
        under("llava", CropBlend(), [tiny_models.sample_image(1)], processor=False)


def test_many_questions_about_one_image_encode_its_crops_and_transport_them_once() -> None:
    model, processor = tiny_models.build("llava")
    image = tiny_models.sample_image(7)
    rows = [(f"USER: <image> is there a {name} ? ASSISTANT:", [image]) for name in ("dog", "cat", "fork")]
    for batch in (rows, rows[:1], rows[1:]):
        with CropBlend()(model, processor, images=[[image.copy()] for _ in batch]):
            model.generate(**tiny_models.inputs(processor, batch), **GREEDY)
    assert cache_of(model).computed == {"crops": 1, "evidence": 1}


# -- the report


def test_the_report_tells_what_was_done_row_by_row() -> None:
    images = [list(own) for _, own in tiny_models.rows()]
    _, run = under("llava", AIR(keep=3, num_prototypes=6, strength=0.3, layers=(1, 3)), images)
    report = run.report
    assert report.fired and report.layers == (1, 2)
    assert [row.tokens for row in report.rows] == [12, 0, 24, 12]  # Q rows of each image, in two layers
    assert report.tokens == 48 and report.passes == 1
    assert report.norm_ratio is not None
    assert report.norm_ratio.mean == pytest.approx(0.3, rel=1e-3)
    assert report.norm_ratio.max == pytest.approx(0.3, rel=1e-3)
    assert report.sinkhorn is not None and report.sinkhorn.converged and report.sinkhorn.iterations > 0
    assert [sum(crop.kept for crop in image) for image in report.crops] == [3, 3, 3, 3]
    assert set(report.seconds) == {"crops", "transport", "injection"}
    assert report.rows[1].reason == "there is no image in this row"
    assert report.method == AIR(keep=3, num_prototypes=6, strength=0.3, layers=(1, 3)).to_json()


def test_the_transported_report_names_the_decoders_input() -> None:
    _, run = under("llava", CropBlend(weight=0.5), [list(own) for _, own in tiny_models.rows()])
    assert run.report.layers == (-1,) and run.report.passes == 1
    assert [row.tokens for row in run.report.rows] == [16, 0, 32, 16]  # every visual token


def test_no_crop_within_tau_is_said_with_the_nearest_distance() -> None:
    with pytest.warns(MethodInactiveWarning, match="no crop is within tau = 1e-06; the nearest has d = 0"):
        _, run = under("llava", AIR(tau=1e-6), [tiny_models.rows()[0][1]], tiny_models.rows()[:1])
    nearest = min(crop.distance for crop in run.report.crops[0])
    assert f"{nearest:.4g}" in str(run.report)


def test_an_entropy_never_above_the_threshold_is_said_with_the_highest() -> None:
    with pytest.warns(MethodInactiveWarning, match="no layer's entropy passed 1; the highest was 0"):
        under("llava", AIRMemory(threshold=1.0, keep=2), [tiny_models.rows()[0][1]], tiny_models.rows()[:1])


@pytest.mark.parametrize("method", [CropBlend(weight=0.0), AIR(strength=0.0), AIRMemory(strength=0.0)])
def test_strength_0_is_no_surprise_and_encodes_nothing(method: AIR) -> None:
    model, processor = tiny_models.build("llava")
    rows = tiny_models.rows()[:1]
    with warnings.catch_warnings():
        warnings.simplefilter("error", MethodInactiveWarning)
        with method(model, processor, images=[rows[0][1]]) as run:
            model.generate(**tiny_models.inputs(processor, rows), **GREEDY)
    assert not run.report.fired and run.report.rows[0].reason == method.off
    assert not cache_of(model).computed


def test_a_second_call_in_one_block_is_reported_on_its_own() -> None:
    model, processor = tiny_models.shared("llava")
    rows = tiny_models.rows()[:1]
    batch = tiny_models.inputs(processor, rows)
    with CropBlend()(model, processor, images=[rows[0][1]]) as run:
        model.generate(**batch, **GREEDY)
        first = run.report
        model.generate(**batch, **GREEDY)
    assert first.tokens == run.report.tokens > 0


def test_a_text_only_batch_raises() -> None:
    with pytest.raises(MethodNotApplied, match="image token"):
        under("llava", CropBlend(), [None], tiny_models.rows()[1:2])


def test_no_crops_is_a_reason() -> None:
    with pytest.warns(MethodInactiveWarning, match="patches = 0"):
        under("llava", CropBlend(num_crops=0), [tiny_models.rows()[0][1]], tiny_models.rows()[:1])
