"""MARINE against plain passes with and without the list of objects."""

import pytest
import torch
from torch import Tensor

from airvlm.methods.marine import MARINE
from airvlm.methods.names import parse_method
from airvlm.testing import small_models
from airvlm.testing.small_configs import END
from tests.methods.reference import IMAGE, TOKENS, answer, check_close, pass_over

TEMPLATE = "object in the picture : {objects} . "


def guided(ids: Tensor, objects: str, family: str = "llava") -> Tensor:
    words = small_models.build_tokenizer()(TEMPLATE.format(objects=objects), add_special_tokens=False)["input_ids"]
    at = int((ids == IMAGE).nonzero()[-1]) + 1
    at += family in ("qwen2_5_vl", "gemma3") and int(ids[at]) == END
    return torch.cat([ids[:at], torch.tensor(words), ids[at:]])


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3", "smolvlm", "paligemma"])
@pytest.mark.parametrize("weight", [0.7, 1.0, 1.5])
def test_the_guided_prompt_is_mixed_in(family: str, weight: float) -> None:
    ids, logits, report = answer(MARINE(weight=weight, objects=("dog and cat",), template=TEMPLATE), family)
    seen = pass_over(ids, family)[-TOKENS - 1 : -1]
    other = pass_over(guided(ids, "dog and cat", family), family)[-TOKENS - 1 : -1]
    check_close(logits, weight * (other - seen) + seen)
    assert report.passes == TOKENS and report.extra["cut_off_share"] == 0


def test_every_row_can_have_objects_of_its_own() -> None:
    model, processor = small_models.shared_model("llava")
    rows = [row for row in small_models.sample_rows() if row[1]]
    batch = small_models.build_inputs(processor, rows)
    objects = ("dog", "cat and boat", "red fork")
    with MARINE(objects=objects, template=TEMPLATE)(model, processor):
        out = model.generate(**batch, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
    for index, row in enumerate((0, 2, 3)):
        alone = answer(MARINE(objects=(objects[index],), template=TEMPLATE), row=row)[0]
        assert out[index, -TOKENS:].tolist() == alone[-TOKENS:].tolist()
    with pytest.raises(ValueError, match="objects has 2 texts"):
        with MARINE(objects=("dog", "cat"), template=TEMPLATE)(model, processor):
            model.generate(**batch, max_new_tokens=1)


def test_it_needs_objects() -> None:
    model, processor = small_models.shared_model("llava")
    with pytest.raises(ValueError, match="needs the detected objects"):
        MARINE()(model, processor)
    with pytest.raises(ValueError, match="empty text"):
        MARINE(objects=("dog", " "))
    with pytest.raises(ValueError, match="must contain"):
        MARINE(template="Look: ")


def test_texts_with_commas_and_quotes_are_spelled_so_that_they_can_be_read() -> None:
    method = MARINE(objects=("a dog, a cat", "the boat's mast"))
    assert parse_method(method.label) == method
