"""transformers' pipeline with a method: the task "airvlm-image-text-to-text".

It takes what "image-text-to-text" takes, passes the images of each prompt to the method, and adds the method's report
to each answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import AutoModelForImageTextToText, ImageTextToTextPipeline
from transformers import pipeline as transformers_pipeline
from transformers.image_utils import load_image
from transformers.pipelines import PIPELINE_REGISTRY

from airvlm import VLM, Method, get_method

__all__ = ["TASK", "MethodPipeline", "pipeline", "register"]

TASK = "airvlm-image-text-to-text"
DEFAULT = "crop-blend"
IMAGE_KEYS = ("image", "url", "path", "base64")  # where an image part may hold its image


class MethodPipeline(ImageTextToTextPipeline):
    """image-text-to-text under a method; each answer has its report under "airvlm"."""

    def _sanitize_parameters(self, method: str | Method | None = None, **options: Any) -> tuple[Any, Any, Any]:
        before, forward, after = super()._sanitize_parameters(**options)
        if method is not None:
            forward["method"] = get_method(method) or "vanilla"
        return before, forward, after

    def preprocess(self, inputs: Any = None, **options: Any) -> Any:
        encoded = super().preprocess(inputs, **options)
        encoded["images"] = [load_image(image) for image in _images_of(inputs)]
        return encoded

    def _forward(
        self, model_inputs: Any, generate_kwargs: Any = None, method: Method | str | None = DEFAULT
    ) -> dict[str, Any]:
        images = model_inputs.pop("images")
        method = get_method(method)
        if method is None or not images:
            return {**super()._forward(model_inputs, generate_kwargs), "reports": None}
        num_rows = len(model_inputs["input_ids"])
        # a prompt is one row; several texts in one call share their images out in order
        rows = [images] if num_rows == 1 else [_as_list(image) for image in images]
        with method(self.model, self.processor, images=rows) as run:
            outputs = super()._forward(model_inputs, generate_kwargs)
        return {**outputs, "reports": list(run.report.rows) or [run.report] * num_rows}

    def postprocess(self, model_outputs: Any, **options: Any) -> list[dict[str, Any]]:
        reports = model_outputs.pop("reports")
        records: list[dict[str, Any]] = super().postprocess(model_outputs, **options)
        for i, record in enumerate(records):
            record["airvlm"] = None if reports is None else reports[i].to_json()
        return records


def register() -> None:
    """Add the task to transformers. Calling this again changes nothing."""
    if TASK not in PIPELINE_REGISTRY.supported_tasks:
        PIPELINE_REGISTRY.register_pipeline(
            TASK, MethodPipeline, pt_model=AutoModelForImageTextToText, type="multimodal"
        )


def pipeline(model: Any = None, *, method: str | Method = DEFAULT, **options: Any) -> Any:
    """A transformers pipeline that answers under a method.

    It also registers the task, so that transformers' own `pipeline("airvlm-image-text-to-text", ...)` works.

    Args:
        model: a model, a folder, or a name on the hub; None is the embedded model.
        method: a method or its spelling; a call of the pipeline may pass another.
        options: passed to `transformers.pipeline`, as `processor=` with a model.
    """
    register()
    if model is None or isinstance(model, str):
        vlm = VLM.load(model)
        model, options = vlm.model, {"processor": vlm.processor, **options}
    return transformers_pipeline(TASK, model=model, method=method, **options)


def _images_of(inputs: Any) -> Iterable[Any]:
    """The images of a prompt, in the order in which it shows them."""
    if hasattr(inputs, "messages"):
        for message in inputs.messages:
            parts = message["content"] if isinstance(message["content"], list) else []
            for part in parts:
                if part.get("type") == "image":
                    yield next(part[key] for key in IMAGE_KEYS if part.get(key) is not None)
    elif isinstance(inputs, dict):
        yield from _as_list(inputs["images"])


def _as_list(images: Any) -> list[Any]:
    return list(images) if isinstance(images, list | tuple) else [images]
