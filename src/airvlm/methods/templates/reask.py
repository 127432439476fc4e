"""ReAskMethod: looks at an image first, and then asks with other images or another prompt.

A method writes `reask`: from the images and the prompt of a row, and whatever its probes find, the images and the
prompt that are answered instead. The output of `generate` keeps the caller's own prompt in front of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor

from airvlm.inputs.prompts import image_token
from airvlm.methods.base import Method
from airvlm.runtime.intervention import Context, GenerateCall, Intervention
from airvlm.runtime.row_images import RowImage, split_positions

__all__ = ["ReAskMethod", "RowPrompt"]


@dataclass(frozen=True)
class RowPrompt:
    """The images and the prompt of one row."""

    images: tuple[Image.Image, ...]
    prompt: str  # with one placeholder per image
    facts: dict[str, Any] = field(default_factory=dict)  # for the report: boxes, scores


@dataclass(frozen=True)
class ReAskMethod(Method):
    """Asks again with other images or another prompt."""

    site: ClassVar[str] = "input"
    exclusive: ClassVar[tuple[str, ...]] = ("re-ask",)
    needs_pixels: ClassVar[bool] = True
    unchanged_reason: ClassVar[str] = "the whole image is asked about as it is"  # for the report of a row left as it is

    def reask(self, rows: Sequence[RowPrompt], call: GenerateCall, context: Context) -> list[RowPrompt | None]:
        """What is answered instead of each row; None leaves a row as it is.

        Args:
            rows: images and prompt of each row.
            call: the generate call, whose arguments probes may run.
            context: the model's parts, its processor and the images.
        """
        raise NotImplementedError

    def start(self, context: Context) -> Intervention:
        return _ReAsk(self, context)


class _ReAsk(Intervention):
    method: ReAskMethod

    def __init__(self, method: ReAskMethod, context: Context) -> None:
        super().__init__(method, context)
        if context.processor is None:
            raise ValueError(f"{method.name} makes new inputs: pass the model's processor as the second argument")
        self._before: Tensor | None = None  # (batch_size, L) the caller's prompt
        self._after = 0  # tokens of the new prompt
        self._facts: list[dict[str, Any] | None] = []

    @torch.no_grad()
    def on_call(self, call: GenerateCall) -> None:
        self._before, self._facts = None, []
        if call.option("num_return_sequences", 1) != 1:
            raise ValueError(f"{self.method.name} does not support num_return_sequences")
        images = self.context.images
        images.start_call(call.arguments)
        given = images.given
        if given is None:
            raise ValueError(f"{self.method.name} needs the original images: method(model, processor, images=...)")
        shown = images.rows_for(call.input_ids)
        rows = [
            RowPrompt(tuple(image.pixels for image in own), prompt)  # type: ignore[misc]  # originals, not tensors
            for own, prompt in zip(shown, self._prompts(call, shown), strict=True)
        ]
        answers = self.method.reask(rows, call, self.context)
        self._facts = [None if one is None else one.facts for one in answers]
        if any(one is not None for one in answers):
            self._replace(call, [new or old for new, old in zip(answers, rows, strict=True)])

    def _prompts(self, call: GenerateCall, rows: list[list[RowImage]]) -> list[str]:
        """Each row's prompt with one placeholder per image."""
        given = self.context.prompts
        if given is not None:
            return list(given)
        if self.context.parts.layout == "tiles":
            raise ValueError(
                f"{self.method.name}: the prompt of {self.context.parts.family} cannot be read back from token ids. "
                "Use VLM.ask, or pass prompts=[...] with one placeholder per image"
            )
        processor, token = self.context.processor, self.context.parts.image_token_id
        mask = call.arguments.get("attention_mask", torch.ones_like(call.input_ids))
        prompts = []
        for ids, real, images in zip(call.input_ids, mask, rows, strict=True):
            ids = ids[real.bool()].cpu()
            shown = (ids == token).nonzero().flatten()
            parts = split_positions(shown, [image.pixels for image in images]) if len(shown) else []
            if parts is None:
                raise ValueError(f"{self.method.name}: the image tokens of several images cannot be told apart")
            kept = torch.ones(len(ids), dtype=torch.bool)
            for part in parts:
                kept[part[1:]] = False  # one placeholder per image
            text = processor.tokenizer.decode(ids[kept])
            mark = image_token(processor, token)
            prompts.append(text.replace(str(processor.tokenizer.convert_ids_to_tokens(token)), mark))
        return prompts

    def _replace(self, call: GenerateCall, rows: list[RowPrompt]) -> None:
        """Put the inputs of the new images and prompts into the call."""
        bos = getattr(self.context.processor.tokenizer, "bos_token", None)
        options: dict[str, Any] = {"padding": True, "padding_side": "left", "return_tensors": "pt"}
        if bos and all(row.prompt.startswith(str(bos)) for row in rows):
            options["add_special_tokens"] = False
        images = [list(row.images) for row in rows]
        inputs = self.context.processor(
            text=[row.prompt for row in rows], images=images if any(images) else None, **options
        )
        model: Any = call.model
        self._before = call.input_ids
        for name in ("inputs", "mm_encoder_outputs", *inputs):
            call.arguments.pop(name, None)
        for name, value in inputs.items():
            if isinstance(value, Tensor):
                value = value.to(model.device, model.dtype) if value.is_floating_point() else value.to(model.device)
            call.arguments[name] = value
        self._after = int(inputs["input_ids"].shape[1])

    def finish_call(self, out: Any) -> Any:
        """Put the caller's own prompt in front of the answer."""
        if self._before is None:
            return out
        ids = out if isinstance(out, Tensor) else out.sequences
        joined = torch.cat([self._before.to(ids.device), ids[:, self._after :]], 1)
        if isinstance(out, Tensor):
            return joined
        out.sequences = joined
        return out

    def on_pass(self, fp: Any) -> None:
        if fp.is_prefill and self._facts:
            acted = [one is not None for one in self._facts]
            self.stats.count(torch.tensor([int(one) for one in acted]))

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        facts = [one for one in self._facts if one] if row is None else [self._facts[row] or {}] if self._facts else []
        return {"extra": facts[0] if len(facts) == 1 else {"rows": facts} if facts else {}}

    def inactive_reason(self, row: int | None) -> str:
        return self.method.unchanged_reason
