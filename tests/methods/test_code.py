"""CODE against plain passes over the image and over the description, and the formula in numpy."""

import numpy as np
import pytest
import torch
from torch import Tensor

from airvlm.inputs.prompts import prompt_text
from airvlm.methods.code import CODE, divergence
from airvlm.testing import small_models
from airvlm.testing.small_configs import BOS, END, START
from tests.methods.reference import IMAGE, TOKENS, answer, check_close, pass_over

LOWEST = np.finfo(np.float32).min
MARKS = dict.fromkeys(("qwen2_5_vl", "gemma3"), (START, END))
OPTIONS = {"tokens": 6, "instruction": "please describe this image in detail ."}


def description(family: str, row: int) -> list[int]:
    """What the model itself says of the images."""
    model, processor = small_models.shared_model(family)
    images = list(small_models.sample_rows()[row][1])
    prompt = prompt_text(processor, family, "<image>", OPTIONS["instruction"], len(images))  # type: ignore[arg-type]
    batch = processor(text=[prompt], images=[images])
    ids = model.generate(**batch, max_new_tokens=OPTIONS["tokens"], do_sample=False)
    said = ids[0, batch["input_ids"].shape[1] :].tolist()
    return [token for token in said if token not in processor.tokenizer.all_special_ids]


def replaced(ids: Tensor, said: list[int], family: str) -> Tensor:
    marks = (IMAGE, *MARKS.get(family, ()))
    first = next(i for i, token in enumerate(ids.tolist()) if token in marks)
    return torch.tensor(ids[:first].tolist() + said + [token for token in ids[first:].tolist() if token not in marks])


def contrast(l: Tensor, m: Tensor, k: float) -> Tensor:
    new = []
    for a, b in zip(l.double().numpy(), m.double().numpy(), strict=True):
        p, q = np.exp(a - a.max()) / np.exp(a - a.max()).sum(), np.exp(b - b.max()) / np.exp(b - b.max()).sum()
        D = sum(0.5 * (p[y] + q[y]) * np.log2(1 + abs(p[y] - q[y]) ** k) for y in range(len(p)))
        assert 0 <= D <= 1
        new.append(np.where(p >= D * p.max(), (2 - D) * a - (1 - D) * b, LOWEST))
    return torch.from_numpy(np.stack(new)).float()


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3", "smolvlm"])
@pytest.mark.parametrize("row", [0, 2])
def test_what_the_description_says_is_subtracted(family: str, row: int) -> None:
    ids, logits, report = answer(CODE(**OPTIONS), family, row)
    said = description(family, row)
    seen = pass_over(ids, family, row)[-TOKENS - 1 : -1]
    other = pass_over(replaced(ids, said, family), family, row)[-TOKENS - 1 : -1]
    check_close(logits, contrast(seen, other, 0.7))
    assert report.rows[0].extra["description_tokens"] == len(said) > 0


def test_faithful_begins_the_description_as_a_sequence() -> None:
    ids, logits, _ = answer(CODE(**OPTIONS, faithful=True))
    seen = pass_over(ids)[-TOKENS - 1 : -1]
    other = pass_over(replaced(ids, [BOS, *description("llava", 0)], "llava"))[-TOKENS - 1 : -1]
    check_close(logits, contrast(seen, other, 0.7))


def test_equal_streams_have_full_weight_and_no_cut_off_and_unlike_ones_the_reverse() -> None:
    l = torch.randn(1, 1, 20, generator=torch.Generator().manual_seed(0))
    assert divergence(l, l, 0.7).item() == 0
    apart = [torch.full((1, 1, 2), -50.0).index_fill(-1, torch.tensor([i]), 50.0) for i in range(2)]
    assert divergence(apart[0], apart[1], 0.7).item() == pytest.approx(1)


def test_an_image_is_described_once_per_block() -> None:
    model, processor = small_models.shared_model("llava")
    row = small_models.sample_rows()[0]
    batch = small_models.build_inputs(processor, [row])
    passes: list[int] = []
    handle = model.register_forward_pre_hook(lambda *_: passes.append(1))
    with CODE(**OPTIONS)(model, processor, images=[list(row[1])]):
        counts = []
        for _ in range(2):
            passes.clear()
            model.generate(**batch, max_new_tokens=1)
            counts.append(len(passes))
    handle.remove()
    assert counts == [6 + 2, 2]  # six tokens of description, the image's stream and the description's


def test_it_needs_the_images() -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows()[:1])
    with pytest.raises(ValueError, match="needs the original images"):
        with CODE(**OPTIONS)(model, processor):
            model.generate(**batch, max_new_tokens=1)
