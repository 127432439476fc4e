"""ViCrop: its boxes against a brute-force search, and its answers against asking with both images by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from airvlm.inputs.prompts import prompt_text
from airvlm.methods import vicrop
from airvlm.methods.composed import Composed
from airvlm.methods.crop_blend import CropBlend
from airvlm.methods.vicrop import SCALES, ViCrop, find_box, object_relevance
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.testing import check_method, small_models
from tests.methods.direct import rows_with_images

GRIDS = {"llava": (4, 4), "qwen2_5_vl": (3, 4)}  # rows and columns of visual tokens of the first sample image


def brute_force(attention: np.ndarray[Any, Any], size: tuple[int, int], side: int) -> tuple[int, ...]:
    """Every window of every scale, cell by cell."""
    rows, columns = attention.shape
    cw, ch = size[0] / columns, size[1] / rows
    found = []
    for scale in SCALES:
        w, h = min(int(side * scale / cw), columns), min(int(side * scale / ch), rows)
        if (w, h) == (columns, rows):
            continue
        sums = {
            (x, y): attention[y : y + h, x : x + w].sum() for x in range(columns - w + 1) for y in range(rows - h + 1)
        }
        best = max(sums, key=lambda at: sums[at])
        near = [
            sums[at] for dx, dy in ((-1, 0), (1, 0), (0, -1), (0, 1)) if (at := (best[0] + dx, best[1] + dy)) in sums
        ]
        found.append(((sums[best] - np.mean(near)) / (w * h), scale, best, (w, h)))
    _, scale, (x, y), (w, h) = max(found, key=lambda one: one[0])
    half = side * scale // 2
    cx = min(max(int(x * cw + cw * w / 2), half), max(half, size[0] - half))
    cy = min(max(int(y * ch + ch * h / 2), half), max(half, size[1] - half))
    return int(max(0, cx - half)), int(max(0, cy - half)), int(min(size[0], cx + half)), int(min(size[1], cy + half))


@pytest.mark.parametrize("seed", range(20))
def test_the_box_is_that_of_a_search_over_all_windows(seed: int) -> None:
    draw = np.random.default_rng(seed)
    size = int(draw.integers(300, 900)), int(draw.integers(300, 900))
    attention = draw.random((int(draw.integers(8, 25)), int(draw.integers(8, 25))))
    assert find_box(attention, size, 120) == brute_force(attention, size, 120)


@pytest.mark.parametrize(("row", "column"), [(2, 3), (0, 0), (11, 7)])
def test_a_planted_peak_is_inside_the_box(row: int, column: int) -> None:
    attention = np.full((12, 12), 0.1)
    attention[row, column] = 5
    box = find_box(attention, (720, 720), 150)
    assert box is not None
    left, top, right, bottom = box
    assert left <= 60 * column and right >= 60 * (column + 1)
    assert top <= 60 * row and bottom >= 60 * (row + 1)
    assert 0 <= left < right <= 720 and 0 <= top < bottom <= 720


@pytest.mark.parametrize("size", [(900, 100), (100, 900), (200, 180)])
def test_a_window_may_be_as_large_as_the_image(size: tuple[int, int]) -> None:
    attention = np.random.default_rng(0).random((12, 12))
    assert find_box(attention, size, 120) == brute_force(attention, size, 120)


def test_a_small_image_is_used_whole() -> None:
    assert find_box(np.ones((4, 4)), (300, 200), 336) is None
    model, processor = small_models.shared_model("llava")
    rows = rows_with_images()[:1]
    batch = small_models.build_inputs(processor, rows)
    with pytest.warns(MethodInactiveWarning, match="whole image"):
        with ViCrop()(model, processor, images=[rows[0][1]]):
            model.generate(**batch, max_new_tokens=2)


@pytest.mark.parametrize("family", GRIDS)
@pytest.mark.parametrize("relative", [True, False])
def test_the_answer_is_that_of_image_and_crop(family: str, relative: bool) -> None:
    model, processor = small_models.build(family)
    text, [image] = rows_with_images()[0]
    batch = small_models.build_inputs(processor, [(text, [image])])
    with ViCrop(size=16, layer=1, relative=relative)(model, processor, images=[[image]], prompts=[text]) as run:
        out = model.generate(
            **batch, max_new_tokens=4, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
    [box] = run.report.extra["boxes"]
    # by hand: the maps from eager attention
    model.set_attn_implementation("eager")
    maps = []
    for asked in (text, prompt_text(processor, family, "<image>", "Write a general description of the image.", 1)):
        inputs = small_models.build_inputs(processor, [(asked, [image])])
        with torch.no_grad():
            seen = model(**inputs, output_attentions=True).attentions[1][0].mean(0)[-1]
        values = seen[inputs["input_ids"][0] == small_models.IMAGE]
        maps.append(values.view(GRIDS[family]).double().numpy())
    assert tuple(box) == find_box(maps[0] / maps[1] if relative else maps[0], image.size, 16)
    model.set_attn_implementation("sdpa")
    both = small_models.build_inputs(
        processor, [(text.replace("<image>", "<image> <image>"), [image, image.crop(tuple(box))])]
    )
    plain = model.generate(**both, max_new_tokens=4, do_sample=False, return_dict_in_generate=True, output_logits=True)
    torch.testing.assert_close(torch.stack(out.logits), torch.stack(plain.logits))
    assert torch.equal(out.sequences[:, : batch["input_ids"].shape[1]], batch["input_ids"])
    assert torch.equal(out.sequences[:, -4:], plain.sequences[:, -4:])


def relevance_by_hand(model: Any, inputs: Any, target: list[int]) -> np.ndarray[Any, Any]:
    """FOCUS's map as its pseudocode writes it: from the cache, all pairs of tokens, one target after the other."""
    with torch.no_grad():
        cache = model(**inputs, use_cache=True).past_key_values
    visual = np.flatnonzero(inputs["input_ids"][0].numpy() == small_models.IMAGE)
    product = np.ones(len(visual))
    for token in target:
        total = np.zeros(len(visual))
        for layer in range(1, len(cache.layers)):
            v = cache.layers[layer].values[0].double().numpy()  # (H, N, D)
            unit = v / np.linalg.norm(v, axis=-1, keepdims=True)
            x = unit.transpose(1, 0, 2).reshape(v.shape[1], -1)
            pairs = (x @ x.T + np.eye(len(x))) / 2
            pairs /= pairs.sum(-1, keepdims=True)
            total += pairs[token, visual]
        product *= total / total.sum()
    return product


@pytest.mark.parametrize("family", GRIDS)
@pytest.mark.parametrize(("target", "words"), [("", "fork"), ("left fork", "left fork")])
def test_focus_searches_the_similarity_of_value_features(family: str, target: str, words: str) -> None:
    model, processor = small_models.shared_model(family)
    text, [image] = rows_with_images()[0]
    asked = prompt_text(processor, family, "<image>", f"Is there a {words} in the image?", 1)
    inputs = small_models.build_inputs(processor, [(asked, [image])])
    tokens = processor.tokenizer(words, add_special_tokens=False)["input_ids"]
    ids = inputs["input_ids"][0].tolist()
    at = next(i for i in range(len(ids)) if ids[i : i + len(tokens)] == tokens)
    relevance = relevance_by_hand(model, inputs, list(range(at, at + len(tokens))))
    expected = find_box(relevance.reshape(GRIDS[family]), image.size, 16)
    batch = small_models.build_inputs(processor, [(text, [image])])
    method = ViCrop(map="focus", size=16, layer=1, target=target)
    with method(model, processor, images=[[image]], prompts=[text]) as run:
        model.generate(**batch, max_new_tokens=2, do_sample=False)
    assert tuple(run.report.extra["boxes"][0]) == expected


def test_focus_is_its_pseudocode_on_random_features() -> None:
    draw = torch.Generator().manual_seed(3)
    values = {layer: torch.randn(2, 9, 4, generator=draw) + 1 for layer in (0, 1, 2)}
    visual = torch.tensor([False, True, True, True, True, False, False, False, False])
    real = torch.tensor([True] * 8 + [False])
    found = object_relevance(values, [6, 7], visual, real).numpy()
    product = np.ones(4)
    for token in (6, 7):
        total = np.zeros(4)
        for v in values.values():
            unit = (v / v.norm(dim=-1, keepdim=True)).double().numpy()[:, :8]
            row = np.array([sum(unit[h, token] @ unit[h, j] for h in range(2)) + (j == token) for j in range(8)]) / 2
            total += (row / row.sum())[1:5]
        product *= total / total.sum()
    np.testing.assert_allclose(found[1:5], product, rtol=1e-5)
    assert not found[[0, 5, 6, 7, 8]].any()


def test_a_question_without_an_object_is_asked_as_it_is_with_focus() -> None:
    model, processor = small_models.shared_model("llava")
    rows = [row for row in rows_with_images() if "describe" in row[0]]
    batch = small_models.build_inputs(processor, rows)
    with pytest.warns(MethodInactiveWarning, match=r"names no object \(target=\)"):
        with ViCrop(map="focus", size=16)(model, processor, images=[rows[0][1]]):
            model.generate(**batch, max_new_tokens=2)
    with pytest.raises(ValueError, match="target has no effect"):
        ViCrop(target="dog")
    with pytest.raises(ValueError, match="relative has no effect"):
        ViCrop(map="focus", relative=False)


def test_what_cannot_be_cropped_or_combined_is_refused() -> None:
    model, processor = small_models.shared_model("llava_next")
    rows = rows_with_images()[:1]
    batch = small_models.build_inputs(processor, rows)
    with pytest.raises(ValueError, match="vicrop: the visual tokens of llava_next form no grid"):
        with ViCrop(size=16)(model, processor, images=[rows[0][1]], prompts=[rows[0][0]]):
            model.generate(**batch, max_new_tokens=2)
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, rows)
    with pytest.raises(ValueError, match="the prompt has 0 times '<image>', but 1 images: 'USER: what"):
        with ViCrop(size=16)(model, processor, images=[rows[0][1]], prompts=["USER: what is left"]):
            model.generate(**batch, max_new_tokens=2)
    with pytest.raises(ValueError, match="cannot be combined"):
        Composed(ViCrop(), CropBlend())


@pytest.mark.parametrize(
    "family",
    [
        "llava",
        "qwen2_5_vl",
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("vipllava", "paligemma", "gemma3", "qwen2_vl", "qwen3_vl")),
        *(pytest.param(f, marks=pytest.mark.exhaustive) for f in ("qwen3_vl_moe", "glm4v", "glm46v", "glm4v_moe")),
    ],
)
@pytest.mark.parametrize(
    "method", [ViCrop(size=16), ViCrop(size=16, map="focus", target="cup")], ids=["attention", "focus"]
)
def test_laws(family: str, method: ViCrop) -> None:
    check_method(method, [family])


@pytest.mark.parametrize(
    ("template", "unit"),
    [
        ("USER: {} say ASSISTANT:", "<image>"),
        ("USER: {} say ASSISTANT:", "<s><image></s>"),
        ("{}\nsay\n", "<image>\n"),
    ],
)
def test_an_image_is_repeated_with_the_marks_around_it(
    template: str, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = SimpleNamespace(family="any", image_token_id=1)
    processor = SimpleNamespace(image_token="<image>")
    monkeypatch.setattr(vicrop, "prompt_text", lambda *given: template.format(unit * given[-1]))
    assert vicrop._placeholder(SimpleNamespace(processor=processor, parts=parts)) == unit  # type: ignore[arg-type]
