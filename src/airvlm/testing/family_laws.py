"""The laws that every model family keeps: its parts are found, images become tokens, and methods reach its layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from airvlm.methods.base import Method, option
from airvlm.methods.crop_blend import CropBlend
from airvlm.models.families import FAMILIES
from airvlm.models.parts import ModelParts
from airvlm.runtime.intervention import Context, ForwardPass, Intervention
from airvlm.testing import small_models
from airvlm.testing.laws import Law, check_laws
from airvlm.testing.small_models import sample_image
from airvlm.vlm import VLM

__all__ = ["FAMILY_LAWS", "ModelWithProcessor", "check_family"]

QUESTION = "is there a fork in the image ?"
SITES = ("embeds", "residual", "attention", "heads", "ffn", "logits")


def check_family(model: Any, processor: Any = None, *, verbose: bool = False) -> list[str]:
    """Check every law of a model family.

    Args:
        model: a model of the family, or its model type, for which `small_models` builds one (see `add_family` there).
        processor: of the model.
        verbose: print a line per law.

    Returns:
        The names of the laws that hold.

    Raises:
        AssertionError: naming the family and the first law that does not hold.
    """
    if isinstance(model, str):
        model, processor = small_models.build(model)
    elif processor is None:
        raise ValueError("give the model's processor as well: check_family(model, processor)")
    name = str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))
    return check_laws(name, FAMILY_LAWS, ModelWithProcessor(model, processor), verbose=verbose)


@dataclass
class ModelWithProcessor:
    """A model of the family that is checked."""

    model: Any
    processor: Any

    @cached_property
    def parts(self) -> ModelParts:
        """Found by transformers' accessors, or by the family's own function."""
        return ModelParts.of(self.model)

    @cached_property
    def vlm(self) -> VLM:
        """To build inputs and ask questions."""
        return VLM(self.model, self.processor, parts=self.parts)

    def inputs(self, *images: Any) -> dict[str, Any]:
        """The model's inputs for a question about these images, with pixels."""
        row = self.vlm.builder.read(list(images), QUESTION)
        return self.vlm.builder.build([row], pixels=True)

    @torch.no_grad()
    def logits(self) -> Tensor:
        """Of a question about one image, (1, L, V)."""
        out: Tensor = self.model(**self.inputs(sample_image(1))).logits
        return out


def check_parts(subject: ModelWithProcessor) -> None:
    """Layers, feed-forwards and head fit together, and the image token is one that the processor writes."""
    parts = subject.parts
    assert parts.family in FAMILIES, f"{parts.family} is not in the registry: add an entry point of airvlm.families"
    assert len(parts.layers) == len(parts.ffns) > 0, f"{len(parts.layers)} layers, {len(parts.ffns)} feed-forwards"
    ids = subject.inputs(sample_image(1))["input_ids"]
    assert bool((ids == parts.image_token_id).any()), f"the processor writes no image token {parts.image_token_id}"


def check_encoder(subject: ModelWithProcessor) -> None:
    """What `encode` makes of an image is what the decoder reads at its image tokens."""
    parts, seen = subject.parts, []

    def keep(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        seen.append(kwargs["inputs_embeds"].clone())

    inputs = subject.inputs(sample_image(1))
    handle = parts.decoder.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with torch.no_grad():
            subject.model(**inputs)
    finally:
        handle.remove()
    read = seen[0][inputs["input_ids"] == parts.image_token_id]
    encoded = torch.cat(parts.encode({name: value for name, value in inputs.items() if "ids" not in name}))
    assert encoded.shape == read.shape, f"encode gives {tuple(encoded.shape)}, the decoder reads {tuple(read.shape)}"
    torch.testing.assert_close(encoded, read.to(encoded.device))


def check_images_alone(subject: ModelWithProcessor) -> None:
    """Several images are encoded into one tensor each, as if each were alone."""
    parts = subject.parts
    images = [sample_image(seed, size) for seed, size in enumerate([(48, 40), (20, 30), (40, 64)])]
    together = parts.encode(parts.pixels(subject.processor, images))
    shapes = [tuple(z.shape) for z in together]
    assert len(together) == 3 and {s[1:] for s in shapes} == {(parts.hidden_size,)}, f"encode gives {shapes}"
    for image, z in zip(images, together, strict=True):
        (alone,) = parts.encode(parts.pixels(subject.processor, [image]))
        torch.testing.assert_close(z, alone, rtol=1e-3, atol=1e-3)


def check_layout(subject: ModelWithProcessor) -> None:
    """The pixels have the layout that the family declares."""
    inputs, parts = subject.inputs(sample_image(1)), subject.parts
    pixels = inputs["pixel_values"]
    has_grid = "image_grid_thw" in inputs
    assert has_grid == (parts.layout == "patches"), f"layout is {parts.layout}, image_grid_thw is given: {has_grid}"
    if parts.layout == "images":
        assert pixels.dim() == 4 and len(pixels) == 1, f"layout is images, pixels are {tuple(pixels.shape)}"
    if parts.plain_pixels:
        assert pixels.dim() == 4 and pixels.shape[1] == 3, f"plain_pixels is set, pixels are {tuple(pixels.shape)}"


def check_sites(subject: ModelWithProcessor) -> None:
    """A method can change the decoder's input, each part of a layer, and the logits; off is vanilla."""
    before = subject.logits()
    for site in SITES:
        with _Probe(site)(subject.model, subject.processor, parts=subject.parts) as session:
            changed = subject.logits()
            assert session.report.fired
        assert not torch.equal(changed, before), f"changing the {site} changes no logits"
        assert torch.equal(subject.logits(), before), f"after a block that changed the {site}, the logits differ"


def check_answers(subject: ModelWithProcessor) -> None:
    """Questions are answered alone as in a batch, with and without an image."""
    requests = [(sample_image(1), QUESTION), (None, "how many ?"), (sample_image(2, (40, 64)), "what is left ?")]
    together = list(subject.vlm.batch(requests, max_new_tokens=3, progress=False))
    for (image, question), answer in zip(requests, together, strict=True):
        alone = subject.vlm.ask(image, question, max_new_tokens=3)
        assert alone.text == answer.text, f"{question!r}: {alone.text!r} alone, {answer.text!r} in a batch"


def check_crops(subject: ModelWithProcessor) -> None:
    """A method that encodes crops acts."""
    answer = subject.vlm.ask(sample_image(1), QUESTION, method=CropBlend(), max_new_tokens=2)
    assert answer.report is not None and answer.report.fired, str(answer.report)
    assert answer.report.kept == 4, str(answer.report)


FAMILY_LAWS: list[Law[ModelWithProcessor]] = [
    Law("its parts are found", check_parts),
    Law("the encoder gives what the decoder reads", check_encoder),
    Law("images are encoded as if each were alone", check_images_alone),
    Law("pixels have the declared layout", check_layout),
    Law("every site can be changed, and off is vanilla", check_sites),
    Law("questions are answered alone as in a batch", check_answers),
    Law("crops can be encoded", check_crops),
]


@dataclass(frozen=True)
class _Probe(Method):
    """Changes the values at one site of the first layer."""

    name: ClassVar[str] = "probe"

    where: str = option("ffn", "the site")

    def start(self, context: Context) -> Intervention:
        return _ProbeIntervention(self, context)


class _ProbeIntervention(Intervention):
    method: _Probe
    acts_in_decode = True

    def __init__(self, method: _Probe, context: Context) -> None:
        super().__init__(method, context)
        layers = {"ffn": "ffn_layers", "attention": "attention_layers", "heads": "head_layers"}
        layers["residual"] = "residual_layers"
        if method.where in layers:
            setattr(self, layers[method.where], [0])
        self.changes_logits = method.where == "logits"

    def _change(self, fp: ForwardPass, value: Tensor) -> Tensor:
        self.stats.count(torch.ones(fp.batch_size))
        return value * 1.5 + 0.1

    def embeds(self, fp: ForwardPass, inputs_embeds: Tensor) -> Tensor | None:
        return self._change(fp, inputs_embeds) if self.method.where == "embeds" else None

    def residual(self, fp: ForwardPass, layer: int, h: Tensor) -> Tensor:
        return self._change(fp, h)

    def attention(self, fp: ForwardPass, layer: int, y: Tensor) -> Tensor:
        return self._change(fp, y)

    def heads(self, fp: ForwardPass, layer: int, o: Tensor) -> Tensor:
        return self._change(fp, o)

    def ffn(self, fp: ForwardPass, layer: int, x: Tensor, y: Tensor) -> Tensor:
        return self._change(fp, y)

    def logits(self, fp: ForwardPass, logits: Tensor) -> Tensor:
        return self._change(fp, logits)
