"""VAR against the decoder written out."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from airvlm.methods.var import VAR, find_dimensions
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.testing import small_models
from tests.methods.generated import generate
from tests.methods.reference import IMAGE, TOKENS, Written, answer, check_close

OPTIONS = {"dims": (3, 17), "tau": 1.6, "min_image": 0.3}


def redistributed(ids: Tensor, method: VAR, layers: range, row: int = 0) -> tuple[Tensor, int, int]:
    """Logits (L, V), how many rows of heads were changed, and how many were not."""
    image = (ids == IMAGE).numpy()
    prompt = len(ids) - TOKENS
    after = np.flatnonzero((image.cumsum() > 0) & ~image)
    counts = [0, 0]

    def edit(layer: int, p: Tensor) -> Tensor:
        if layer not in layers:
            return p
        h = written.inputs[layer].double().numpy()
        normed = np.abs(h / np.sqrt((h**2).mean(-1, keepdims=True) + 1e-6))
        sink = normed[:, list(method.dims or ())].max(-1) > method.tau
        sink[prompt:] = False
        new = p.clone().double().numpy()
        for head in range(len(p)):
            for q in after:
                a = p[head, q].double().numpy()
                share = a[image & sink].sum() / (a[image] + 1e-6).sum()
                if not (image & sink).any() or share > method.rho or a[image].sum() < method.min_image:
                    counts[1] += 1
                    continue
                counts[0] += 1
                new[head, q, sink] = a[sink] * method.keep
                free = image & ~sink
                new[head, q, free] += (1 - method.keep) * a[sink].sum() * a[free] / a[free].sum()
        np.testing.assert_allclose(new.sum(-1), 1, atol=1e-5)
        return torch.from_numpy(new).float()

    written = Written(row, probabilities=edit)
    return written.run(ids), *counts


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("keep", [0.6, 0.0])
def test_attention_to_sinks_is_given_to_the_image(row: int, use_cache: bool, keep: float) -> None:
    method = VAR(**OPTIONS, keep=keep, layers=(1, 4))
    ids, logits, report = answer(method, row=row, use_cache=use_cache)
    expected, changed, unchanged = redistributed(ids, method, range(1, 4), row)
    check_close(logits, expected[-TOKENS - 1 : -1])
    assert changed and unchanged and report.fired


def test_by_default_the_first_two_layers_and_the_last_are_left_alone() -> None:
    method = VAR(**OPTIONS)
    ids, logits, report = answer(method)
    check_close(logits, redistributed(ids, method, range(2, 3))[0][-TOKENS - 1 : -1])
    assert report.layers == (2,)


def test_a_prompt_without_sinks_is_reported_with_the_nearest_value() -> None:
    with pytest.warns(MethodInactiveWarning, match=r"no visual token is a sink: the largest value is \d\.\d+"):
        _, logits, _ = answer(VAR(dims=(3, 17)))
    check_close(logits, answer(None)[1])


def test_unknown_language_models_are_refused() -> None:
    model, processor = small_models.shared_model("llava")
    with pytest.raises(ValueError, match="does not know the massive dimensions of llava's language model"):
        VAR()(model, processor)
    with pytest.raises(ValueError, match="hidden states have 32 dimensions"):
        VAR(dims=(40,))(model, processor)
    with pytest.raises(ValueError, match="begin at 1"):
        VAR(dims=(4,), layers=(0, 2))(model, processor)


@pytest.mark.parametrize(
    ("kind", "size", "depth", "vocabulary", "expected"),
    [
        ("llama", 4096, 32, 32064, [1415, 2533]),
        ("llama", 5120, 40, 32000, [2100, 4743]),
        ("llama", 4096, 32, 128256, None),  # Llama 3
        ("mistral", 4096, 32, 32064, None),
    ],
)
def test_known_language_models(kind: str, size: int, depth: int, vocabulary: int, expected: list[int] | None) -> None:
    text = SimpleNamespace(model_type=kind, vocab_size=vocabulary)
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))
    parts = SimpleNamespace(model=model, hidden_size=size, layers=range(depth), family="llava")
    context = SimpleNamespace(parts=parts)
    if expected is None:
        with pytest.raises(ValueError, match="give dims="):
            find_dimensions(VAR(), context)  # type: ignore[arg-type]
    else:
        assert find_dimensions(VAR(), context) == expected  # type: ignore[arg-type]


@torch.no_grad()
def test_sinks_of_a_cached_turn_are_those_of_the_same_layer() -> None:
    model, processor = small_models.shared_model("llava")
    images = [small_models.sample_image(seed) for seed in (1, 2)]
    text = "USER: <image> is there a fork ? ASSISTANT: two . <image> how many ASSISTANT:"
    batch = small_models.build_inputs(processor, [(text, images)])
    ids, pixels = batch["input_ids"], batch["pixel_values"]
    visual = ids[0] == IMAGE
    split = int((visual[1:] & ~visual[:-1]).nonzero()[-1]) + 1  # the second image begins
    method = VAR(**OPTIONS, layers=(1, 4))
    with method(model):
        expected = model(input_ids=ids, pixel_values=pixels).logits[:, split:]
    assert (model(input_ids=ids, pixel_values=pixels).logits[:, split:] - expected).abs().max() > 1e-3
    with method(model):
        cache = model(input_ids=ids[:, :split], pixel_values=pixels[:1], use_cache=True).past_key_values
        found = model(input_ids=ids[:, split:], pixel_values=pixels[1:], past_key_values=cache).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_batch_without_sinks_is_reported_with_its_largest_value() -> None:
    with pytest.warns(MethodInactiveWarning):
        report = generate(VAR(dims=(3, 17), tau=100.0)).report
    largest = [re.findall(r"the largest value is (\d+\.\d+)", row.reason) for row in report.rows]
    assert [len(found) for found in largest] == [1, 0, 1, 1]  # the second row has no image
    assert f"the largest value is {max(found[0] for found in largest if found)}," in report.reason
