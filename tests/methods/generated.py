"""What the small LLaVA generates under a method, with its scores, its logits and the report."""

from typing import Any

from airvlm.methods.base import Method
from airvlm.testing import small_models

__all__ = ["GREEDY", "generate"]

GREEDY = {"max_new_tokens": 6, "do_sample": False}


def generate(method: Method | None, *, rows: Any = None, images: Any = None, **options: Any) -> Any:
    """The output of generate for the sample rows; `report` and `session` are the method's."""
    model, processor = small_models.shared_model("llava")
    rows = small_models.sample_rows() if rows is None else rows
    batch = small_models.build_inputs(processor, rows)
    out = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    options = {**GREEDY, **options, **out}
    if method is None:
        return model.generate(**batch, **options)
    images = [list(own) for _, own in rows] if images is None else images
    with method(model, processor, images=images) as session:
        result = model.generate(**batch, **options)
    result.report, result.session = session.report, session
    return result
