"""ProjectAway against its formula: objects read by plain passes, visual tokens changed by the test's own hook."""

import pytest
import torch
from torch import Tensor

from airvlm.methods.project_away import ProjectAway
from airvlm.testing import check_method, small_models
from tests.methods.direct import forward, read, rows_with_images
from tests.methods.families import ALL, FEW


@pytest.mark.parametrize("family", FEW)
def test_visual_tokens_lose_their_positive_share_of_each_object(family: str) -> None:
    model, processor = small_models.shared_model(family)
    batch = small_models.build_inputs(processor, rows_with_images())
    vectors = []
    for word in ("dog", "table fork"):
        ids = torch.tensor([processor.tokenizer(word)["input_ids"]])
        vectors.append(read(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, "residual")[2][0, -1])
    visual = batch["input_ids"] == small_models.IMAGE

    def erase(i: int, r: Tensor) -> Tensor:
        if i != 1:
            return r
        new = r.clone()
        for b, k in visual.nonzero().tolist():
            for o in vectors:
                p = (new[b, k] @ o) / (o @ o)
                if p > 0:
                    new[b, k] = new[b, k] - 2.0 * p * o
        return new

    method = ProjectAway(objects="dog/table fork", alpha=2.0, image_layer=1, text_layer=2)
    with method(model, processor) as run, torch.no_grad():
        found = model(**batch).logits
    torch.testing.assert_close(found, forward(model, batch, residual=erase), rtol=1e-3, atol=2e-3)
    assert run.report.layers == (1,)


def test_objects_must_be_named() -> None:
    model, processor = small_models.shared_model("llava")
    with pytest.raises(ValueError, match="needs objects"):
        ProjectAway()(model, processor)
    with pytest.raises(ValueError, match="processor"):
        ProjectAway(objects="dog")(model)
    with pytest.raises(ValueError, match="the decoder has 4 layers"):
        ProjectAway(objects="dog", image_layer=7)(model, processor)


@pytest.mark.parametrize("family", ALL)
def test_laws(family: str) -> None:
    check_method(ProjectAway(objects="dog/red car"), [family])
