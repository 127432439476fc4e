"""What the small LLaVA generates under a method, with its scores, its logits and the report."""

from typing import Any

from airvlm import Method
from tests import tiny_models

__all__ = ["GREEDY", "generated"]

GREEDY = {"max_new_tokens": 6, "do_sample": False}


def generated(method: Method | None, **options: Any) -> Any:
    model, processor = tiny_models.shared("llava")
    batch = tiny_models.inputs(processor, tiny_models.rows())
    out = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    if method is None:
        return model.generate(**batch, **GREEDY, **options, **out)
    with method(model, processor, images=[list(own) for _, own in tiny_models.rows()]) as run:
        result = model.generate(**batch, **GREEDY, **options, **out)
    result.report = run.report
    return result
