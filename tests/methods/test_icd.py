"""ICD against plain passes with and without the disturbing sentence."""

import pytest
import torch
from torch import Tensor

from airvlm.methods.icd import ICD
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.testing import small_models
from airvlm.testing.small_configs import BOS, END
from tests.methods.reference import IMAGE, TOKENS, answer, check_close, pass_over

ROLE = "please describe a small red boat ."
LOWEST = torch.finfo(torch.float32).min
# families whose configs name the token after an image, behind which the question begins
AFTER_END = ("qwen2_5_vl", "gemma3", "glm4v")


def disturbed(ids: Tensor, place: str, family: str = "llava") -> Tensor:
    """The same ids with the sentence before the question or after the first token."""
    words = small_models.build_tokenizer()(f"{ROLE}\n", add_special_tokens=False)["input_ids"]
    at = 1
    if place == "question":
        at = int((ids == IMAGE).nonzero()[-1]) + 1
        at += family in AFTER_END and int(ids[at]) == END
    assert ids[0] == BOS
    return torch.cat([ids[:at], torch.tensor(words), ids[at:]])


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3", "smolvlm", "internvl", "paligemma", "glm4v"])
@pytest.mark.parametrize("place", ["question", "system"])
def test_what_the_disturbed_prompt_says_is_subtracted(family: str, place: str) -> None:
    ids, logits, report = answer(ICD(alpha=0.8, beta=0.02, role=ROLE, place=place), family)  # type: ignore[arg-type]
    seen = pass_over(ids, family)[-TOKENS - 1 : -1]
    other = pass_over(disturbed(ids, place, family), family)[-TOKENS - 1 : -1]
    expected = 1.8 * seen - 0.8 * other
    p = seen.softmax(-1)
    check_close(logits, expected.masked_fill(p < 0.02 * p.amax(-1, keepdim=True), LOWEST))
    assert report.passes == TOKENS


@pytest.mark.parametrize("options", [{"row": 2}, {"use_cache": False}], ids=["two images", "no cache"])
def test_the_sentence_comes_after_the_last_image(options: dict[str, int]) -> None:
    ids, logits, _ = answer(ICD(beta=0.0, role=ROLE), **options)
    row = options.get("row", 0)
    seen, other = (pass_over(x, row=row)[-TOKENS - 1 : -1] for x in (ids, disturbed(ids, "question")))
    check_close(logits, 2 * seen - other)


def test_faithful_acts_at_the_start_of_the_prompt_and_only_when_sampling() -> None:
    with pytest.warns(MethodInactiveWarning, match="not sampled"):
        ids, logits, _ = answer(ICD(role=ROLE, faithful=True))
    assert torch.equal(ids, answer(None)[0]) and torch.equal(logits, answer(None)[1])
    torch.manual_seed(0)
    ids, logits, report = answer(ICD(role=ROLE, beta=0.0, faithful=True), do_sample=True)
    seen, other = (pass_over(x)[-TOKENS - 1 : -1] for x in (ids, disturbed(ids, "system")))
    check_close(logits, 2 * seen - other)
    assert report.fired


def test_it_needs_a_sentence_and_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="role is empty"):
        ICD(role=" ")
    model, _ = small_models.shared_model("llava")
    with pytest.raises(ValueError, match="pass the model's processor"):
        ICD()(model)
