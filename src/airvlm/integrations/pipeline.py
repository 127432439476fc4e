"""transformers' pipeline with a method: the task "air-image-text-to-text".

It takes what "image-text-to-text" takes, hands the method the images that each prompt shows, and adds what the
method did to each answer. Knows nothing of what a method computes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import AutoModelForImageTextToText, ImageTextToTextPipeline
from transformers import pipeline as transformers_pipeline
from transformers.image_utils import load_image
from transformers.pipelines import PIPELINE_REGISTRY

from airvlm import VLM, Method
from airvlm.integrations.choice import chosen_method

__all__ = ["TASK", "AirImageTextToTextPipeline", "pipeline", "register"]

TASK = "air-image-text-to-text"
PLACES = ("image", "url", "path", "base64")  # where an image part may hold its image


class AirImageTextToTextPipeline(ImageTextToTextPipeline):
    """image-text-to-text under a method; each answer has its report under "airvlm"."""

    def _sanitize_parameters(self, method: str | Method | None = None, **options: Any) -> tuple[Any, Any, Any]:
        before, forward, after = super()._sanitize_parameters(**options)
        if method is not None:
            forward["method"] = method if isinstance(method, Method) else chosen_method(method) or "vanilla"
        return before, forward, after

    def preprocess(self, inputs: Any = None, **options: Any) -> Any:
        encoded = super().preprocess(inputs, **options)
        encoded["shown"] = [load_image(image) for image in _images(inputs)]
        return encoded

    def _forward(
        self, model_inputs: Any, generate_kwargs: Any = None, method: Method | str | None = None
    ) -> dict[str, Any]:
        shown = model_inputs.pop("shown")
        method = chosen_method("air") if method is None else method
        if not isinstance(method, Method) or not shown:
            return {**super()._forward(model_inputs, generate_kwargs), "reports": None}
        rows = len(model_inputs["input_ids"])
        # a prompt is one row; several texts in one call share their images out in order
        images = [shown] if rows == 1 else [_listed(one) for one in shown]
        with method(self.model, self.processor, images=images) as run:
            outputs = super()._forward(model_inputs, generate_kwargs)
        return {**outputs, "reports": list(run.report.rows) or [run.report] * rows}

    def postprocess(self, model_outputs: Any, **options: Any) -> list[dict[str, Any]]:
        reports = model_outputs.pop("reports")
        records: list[dict[str, Any]] = super().postprocess(model_outputs, **options)
        for i, record in enumerate(records):
            record["airvlm"] = None if reports is None else reports[i].to_json()
        return records


def register() -> None:
    """Make the task known to transformers; called again it changes nothing."""
    if TASK not in PIPELINE_REGISTRY.supported_tasks:
        PIPELINE_REGISTRY.register_pipeline(
            TASK, AirImageTextToTextPipeline, pt_model=AutoModelForImageTextToText, type="multimodal"
        )


def pipeline(model: str | None = None, *, method: str | Method = "air", **options: Any) -> Any:
    """The pipeline of a folder, a name on the model hub, or the embedded model (None).

    The task is registered, so that transformers' own `pipeline(TASK, model=..., method=...)` works from then on.
    """
    register()
    if model is None or isinstance(model, str):
        vlm = VLM.load(model)
        model, options = vlm.model, {"processor": vlm.processor, **options}
    return transformers_pipeline(TASK, model=model, method=method, **options)


def _images(inputs: Any) -> Iterable[Any]:
    """The images of a prompt, as they were given, in the order in which it shows them."""
    if hasattr(inputs, "messages"):
        for message in inputs.messages:
            parts = message["content"] if isinstance(message["content"], list) else []
            for part in parts:
                if part.get("type") == "image":
                    yield next(part[place] for place in PLACES if part.get(place) is not None)
    elif isinstance(inputs, dict):
        yield from _listed(inputs["images"])


def _listed(images: Any) -> list[Any]:
    return list(images) if isinstance(images, list | tuple) else [images]
