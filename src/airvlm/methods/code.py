"""CODE: contrasting self-generated descriptions (NeurIPS 2024). What the model's own description makes likely is
subtracted.

The model first describes the image, greedily. In a second stream the description stands where the image was. With
p and q the distributions of the two streams, D = 1/2 sum (p + q) log2(1 + |p - q|^k), which is 0 where they agree and
at most 1:

l* = (1 + a) l - a l_description with a = alpha (1 - D), where p >= D max p: both weight and cut-off follow D.

`faithful=True` puts a begin-of-sequence token before the description, as the published code's tokenizer does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from airvlm.inputs.prompts import image_token, prompt_text
from airvlm.methods.base import option
from airvlm.methods.templates.contrastive import ContrastiveIntervention, ContrastiveMethod
from airvlm.methods.views import original_images
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention, without_methods
from airvlm.runtime.streams import Stream, image_marks

__all__ = ["CODE"]

INSTRUCTION = "Describe the image in detail: everything that can be seen, and how it belongs together."


@dataclass(frozen=True)
class CODE(ContrastiveMethod):
    """Contrasting self-generated descriptions."""

    name: ClassVar[str] = "code"
    paper: ClassVar[str | None] = "CODE: contrasting self-generated description (NeurIPS 2024, arXiv 2406.01920)"
    summary: ClassVar[str] = "subtracts what the model would say of its own description in place of the image"
    site: ClassVar[str] = "logits"
    cost: ClassVar[str] = "2 passes, and one description per image"

    alpha: float = option(
        1.0, "scales the contrast's weight; 0 is off, the cut-off included", low=0, high=2, off=0, search=(0.1, 2.0)
    )
    k: float = option(0.7, "exponent of the difference between the two distributions", above=0)
    tokens: int = option(256, "longest description, in tokens", low=1)
    instruction: str = option(INSTRUCTION, "what the model is asked for the description")
    faithful: bool = option(False, "a begin-of-sequence token before the description, as the published code")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.instruction.strip():
            raise ValueError("instruction is empty: the model is asked for a description with it")

    def streams(self, context: Context) -> Sequence[Stream]:
        return [Stream(self.name, context.parts)]  # its prompt is known when the image has been described

    def weights(self, l: Tensor, others: Sequence[Tensor], fp: ForwardPass) -> Sequence[Tensor]:
        a = self.alpha * (1 - divergence(l, others[0], self.k))  # (B, L, 1)
        return 1 + a, -a

    def cut(self, l: Tensor, others: Sequence[Tensor]) -> Tensor:
        p = l.softmax(-1)
        return p < divergence(l, others[0], self.k) * p.amax(-1, keepdim=True)

    def start(self, context: Context) -> Intervention:
        return _Describe(self, context)


def divergence(l: Tensor, other: Tensor, k: float) -> Tensor:
    """D of two logits (B, L, V), in 0..1: (B, L, 1)."""
    p, q = l.softmax(-1), other.softmax(-1)
    return 0.5 * ((p + q) * torch.log2(1 + (p - q).abs() ** k)).sum(-1, keepdim=True)


class _Describe(ContrastiveIntervention):
    method: CODE

    def __init__(self, method: CODE, context: Context) -> None:
        super().__init__(method, context)
        self.extra[0].edit_ids = self._replace
        self._marks = image_marks(context.parts, context.processor)
        self._described: dict[tuple[str, ...], list[int]] = {}  # keys of a row's images -> tokens
        self._rows: list[list[int]] = []  # the description of each row of the current call

    def on_call(self, call: GenerateCall) -> None:
        super().on_call(call)
        self._describe_rows(call.input_ids)

    def on_pass(self, fp: ForwardPass) -> None:
        super().on_pass(fp)
        if fp.is_prefill and not fp.generating:  # a plain pass: no call was seen
            self._describe_rows(fp.inputs["input_ids"])

    def _describe_rows(self, input_ids: Tensor) -> None:
        original_images(self.context, self.method.name)  # raises if they are not known
        rows = self.context.images.rows_for(input_ids)
        self._rows = []
        for row in rows:
            key = tuple(image.key for image in row)
            if row and key not in self._described:
                self._described[key] = self._describe([image.pixels for image in row])
            self._rows.append(self._described.get(key, []))

    @torch.no_grad()
    def _describe(self, images: list[Any]) -> list[int]:
        """The tokens of a description of one row's images; rows are described alone, so that a batch is its rows."""
        parts, processor, model = self.context.parts, self.context.processor, self.context.parts.model
        mark = image_token(processor, parts.image_token_id)
        prompt = prompt_text(processor, parts.family, mark, self.method.instruction, len(images))
        options: dict[str, Any] = {"return_tensors": "pt"}
        begin = getattr(processor.tokenizer, "bos_token", None)
        if begin and prompt.startswith(str(begin)):
            options["add_special_tokens"] = False
        inputs: Mapping[str, Any] = processor(text=[prompt], images=[images], **options)
        own: Any = model
        moved = {
            name: value.to(own.device, own.dtype) if value.is_floating_point() else value.to(own.device)
            for name, value in inputs.items()
            if isinstance(value, Tensor)
        }
        with without_methods():
            ids = own.generate(**moved, max_new_tokens=self.method.tokens, do_sample=False, num_beams=1)
        said: list[int] = ids[0, moved["input_ids"].shape[1] :].tolist()
        special = set(processor.tokenizer.all_special_ids) | self._marks
        said = [token for token in said if token not in special]
        first = [processor.tokenizer.bos_token_id] if self.method.faithful else []
        return [token for token in first if token is not None] + said

    def _replace(self, ids: list[int], row: int) -> list[int]:
        """The description in the place of the first image; the marks around images are removed."""
        shown = [i for i, token in enumerate(ids) if token in self._marks]
        if self.context.parts.image_token_id not in ids:
            return ids
        kept = [token for token in ids[shown[0] :] if token not in self._marks]
        return ids[: shown[0]] + self._rows[row] + kept

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        details = super().details(row, acted)
        if row is not None and row < len(self._rows):
            details["extra"]["description_tokens"] = len(self._rows[row])
        return details
