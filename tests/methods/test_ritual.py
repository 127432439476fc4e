"""RITUAL and ED against their formulas, evaluated by plain passes on every view."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from airvlm.inputs.images import content_key
from airvlm.methods.ritual import ED, RITUAL
from airvlm.methods.views import SAFE, VIEWS, find_grid, quadrants, view
from airvlm.models.parts import ModelParts
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.testing import check_method, small_models
from tests.methods.direct import finished, forward, rows_with_images
from tests.methods.families import ALL

TOKENS = 3
GRIDS = ["llava", "qwen2_5_vl", "gemma3"]


def generate(model: Any, batch: Any, **options: Any) -> Any:
    return model.generate(
        **batch,
        **{"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, **options},
        return_dict_in_generate=True,
        output_logits=True,
    )


def logits_of(model: Any, processor: Any, rows: Any, ids: Tensor, change: Any) -> Tensor:
    """Plain logits of the generated positions, with other views of the images."""
    seen = [(text, [change(image) for image in images]) for text, images in rows]
    batch = small_models.build_inputs(processor, seen)
    prompt = batch["input_ids"].shape[1]
    return forward(model, finished(batch, ids))[:, prompt - 1 : -1]


@pytest.mark.parametrize("family", ["llava", "llava_next", "qwen2_5_vl", "idefics3", "gemma3"])
@pytest.mark.parametrize(
    "ritual",
    [RITUAL(transform="mirror"), RITUAL(transform="rotate", alpha=0.7, normalize=False)],
    ids=lambda m: m.label,
)
def test_every_step_is_the_sum_of_two_plain_passes(ritual: RITUAL, family: str) -> None:
    model, processor = small_models.shared_model(family)
    rows = rows_with_images()[:2]
    batch = small_models.build_inputs(processor, rows)
    with ritual(model, processor, images=[images for _, images in rows]):
        out = generate(model, batch)
    l = logits_of(model, processor, rows, out.sequences, lambda image: image).double().numpy()
    other = (
        logits_of(
            model, processor, rows, out.sequences, lambda image: ritual.transform_image(image, content_key(image))
        )
        .double()
        .numpy()
    )
    total = 1 + ritual.alpha if ritual.normalize else 1
    expected = (l + ritual.alpha * other) / total
    floor = l.max(-1, keepdims=True) + np.log(ritual.beta)
    expected = np.where(l >= floor, expected, np.finfo(np.float32).min)
    sure = np.abs(l - floor) > 1e-2  # not at the edge of the cut
    found = torch.stack(out.logits, 1).numpy()
    np.testing.assert_allclose(found[sure], expected.astype(np.float32)[sure], rtol=1e-3, atol=5e-3)


def test_the_same_image_again_changes_nothing_but_the_temperature() -> None:
    model, processor = small_models.shared_model("llava")
    rows = rows_with_images()
    batch = small_models.build_inputs(processor, rows)
    images = [own for _, own in rows]
    plain = generate(model, batch)
    for normalize, factor in ((True, 1), (False, 4)):
        with RITUAL(transform="identity", beta=0.0, normalize=normalize)(model, processor, images=images):
            same = generate(model, batch)
        torch.testing.assert_close(torch.stack(same.logits), factor * torch.stack(plain.logits), rtol=1e-3, atol=1e-3)


def test_faithful_is_unnormalized_unseeded_and_only_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor = small_models.shared_model("llava")
    rows = rows_with_images()[:1]
    batch = small_models.build_inputs(processor, rows)
    images = [own for _, own in rows]
    plain = generate(model, batch)
    with pytest.warns(MethodInactiveWarning, match="not sampled"):
        with RITUAL(faithful=True)(model, processor, images=images):
            assert torch.equal(generate(model, batch).sequences, plain.sequences)
    assert RITUAL(faithful=True).weights(None, [], None) == (1, 3)  # type: ignore[arg-type]
    assert RITUAL().weights(None, [], None) == (0.25, 0.75)  # type: ignore[arg-type]
    image = rows[0][1][0]
    assert RITUAL().transform_image(image, "a").tobytes() == RITUAL().transform_image(image, "a").tobytes()
    random.seed(0)
    seen = {RITUAL(faithful=True).transform_image(image, "a").tobytes() for _ in range(8)}
    assert len(seen) > 4


@pytest.mark.parametrize(
    ("ritual", "kinds"),
    [
        (RITUAL(), SAFE),
        (RITUAL(transform="all"), VIEWS[1:]),
        (RITUAL(faithful=True), VIEWS[1:]),
        (RITUAL(transform="crop"), ("crop",)),
    ],
)
def test_views_are_drawn_from_those_that_are_asked_for(
    ritual: RITUAL, kinds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    monkeypatch.setattr("airvlm.methods.ritual.view", lambda image, kind, draw: seen.add(kind))
    random.seed(0)
    for key in range(100):
        ritual.transform_image(Image.new("RGB", (4, 4)), str(key))
    assert seen == set(kinds)


@pytest.mark.parametrize("kind", VIEWS)
def test_views_have_the_size_of_the_image_and_follow_the_generator(kind: Any) -> None:
    image = small_models.sample_image(3)
    one, again = (view(image, kind, random.Random(5)) for _ in range(2))
    assert one.size == image.size and one.mode == "RGB"
    assert one.tobytes() == again.tobytes()
    assert (one.tobytes() == image.tobytes()) == (kind == "identity")
    if kind in ("rotate", *SAFE):
        assert view(image, kind, random.Random(6)).tobytes() != one.tobytes()


def test_quadrants_and_grids() -> None:
    image = Image.new("RGB", (4, 4))
    for x in range(4):
        for y in range(4):
            image.putpixel((x, y), (100 * (x // 2) + 50 * (y // 2), 0, 0))
    assert [q.getpixel((1, 2))[0] for q in quadrants(image)] == [0, 100, 50, 150]
    parts = {f: ModelParts.of(small_models.shared_model(f)[0]) for f in ("llava", "qwen2_vl", "llava_next")}
    assert find_grid(parts["llava"], 16, (9, 5)) == (4, 4)
    assert find_grid(parts["llava"], 15, (5, 3)) is None
    assert find_grid(parts["qwen2_vl"], 24, (60, 40)) == (4, 6)
    assert find_grid(parts["llava_next"], 16, (4, 4)) is None


@pytest.mark.parametrize("family", GRIDS)
@pytest.mark.parametrize("ed", [ED(tau=2.0, beta=0.2), ED(uniform=True, alpha=0.8, beta=0.0)], ids=lambda m: m.label)
def test_ed_is_the_weighted_sum_of_five_plain_passes(ed: ED, family: str) -> None:
    model, processor = small_models.build(family)
    rows = rows_with_images()[:1]
    batch = small_models.build_inputs(processor, rows)
    with ed(model, processor, images=[images for _, images in rows]):
        out = generate(model, batch)
    ids, prompt = out.sequences, batch["input_ids"].shape[1]
    l = logits_of(model, processor, rows, ids, lambda image: image)[0]
    quarters = torch.stack(
        [logits_of(model, processor, rows, ids, lambda i, q=q: quadrants(i)[q])[0] for q in range(4)]
    )
    w = torch.full((TOKENS, 4), 0.25)
    if not ed.uniform:
        model.set_attn_implementation("eager")
        with torch.no_grad():
            seen = torch.stack(model(**finished(batch, ids), output_attentions=True).attentions)[:, 0]  # (n, H, L, L)
        model.set_attn_implementation("sdpa")
        visual = (ids[0] == small_models.IMAGE).nonzero().flatten()
        grid = find_grid(ModelParts.of(model), len(visual), rows[0][1][0].size)
        assert grid is not None
        for t in range(TOKENS):
            a = seen[:, :, prompt - 1 + t][:, :, visual]  # (n, H, K)
            top = a.sort(0).values[-3:].mean(0).sort(0).values[-3:].mean(0).view(grid)
            r, c = (-(-side // 2) for side in grid)
            s = torch.stack([top[:r, :c].sum(), top[:r, c:].sum(), top[r:, :c].sum(), top[r:, c:].sum()])
            w[t] = (s * 10**ed.tau).softmax(-1)
    e = (quarters * w.T[:, :, None]).sum(0)
    expected = (1 - ed.alpha) * l + ed.alpha * e
    floor = e.amax(-1, keepdim=True) + (np.log(ed.beta) if ed.beta else -np.inf)
    expected = expected.masked_fill(e < floor, torch.finfo(torch.float32).min)
    sure = (e - floor).abs() > 2e-2
    found = torch.stack(out.logits, 1)[0]
    torch.testing.assert_close(found[sure], expected[sure], rtol=2e-3, atol=1e-2)


def test_ed_refuses_families_without_a_grid_by_name() -> None:
    model, processor = small_models.shared_model("llava_next")
    rows = rows_with_images()[:1]
    batch = small_models.build_inputs(processor, rows)
    with pytest.raises(ValueError, match="ed: the visual tokens of llava_next form no grid"):
        with ED()(model, processor, images=[images for _, images in rows]):
            generate(model, batch)


@pytest.mark.parametrize("family", ALL)
def test_laws(family: str) -> None:
    check_method(RITUAL(alpha=1.0, beta=0.0), [family])


@pytest.mark.parametrize(
    "family",
    [*GRIDS[:2], *(pytest.param(family, marks=pytest.mark.exhaustive) for family in ("gemma3", "glm4v", "paligemma"))],
)
def test_laws_of_ed(family: str) -> None:
    check_method(ED(beta=0.0, tau=1.0), [family])
