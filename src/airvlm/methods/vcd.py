"""VCD: visual contrastive decoding (CVPR 2024). What a noised image also makes likely is held against the answer.

Every pass runs twice, with the image and with a noised one; the logits become (1 + alpha) l - alpha l' where l is
plausible, l >= max l + log beta, and nothing elsewhere. The second stream has a cache of its own, follows beams, and
is seen by no other method. Rows without an image are left alone.

`faithful=True` computes what the published code does, its flaws included: noise from the global generator, so that
results depend on the order of the questions, and nothing at all unless tokens are sampled.
"""

from __future__ import annotations

import inspect
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from airvlm.hooks.fields import setting
from airvlm.hooks.intervention import Call, Context, Intervention, Step, aside
from airvlm.hooks.method import Method
from airvlm.methods.noise import noised

__all__ = ["VCD", "contrast"]


def contrast(l: Tensor, noisy: Tensor, alpha: float, beta: float) -> Tensor:
    """(1 + alpha) l - alpha l' where l >= max l + log beta, the lowest finite value elsewhere: (..., V)."""
    low, high = torch.finfo(l.dtype).min, torch.finfo(l.dtype).max
    mixed = ((1 + alpha) * l.float() - alpha * noisy.float()).clamp(low, high).to(l.dtype)
    if beta == 0:
        return mixed
    # The lowest value and not -inf: beam search adds scores, and must not meet inf - inf.
    return mixed.masked_fill(l < l.amax(-1, keepdim=True) + math.log(beta), low)


@dataclass(frozen=True)
class VCD(Method):
    """Visual contrastive decoding."""

    name: ClassVar[str] = "vcd"
    publication: ClassVar[str] = (
        "Mitigating object hallucinations by visual contrastive decoding (CVPR 2024, arXiv 2311.16922)"
    )
    mechanism: ClassVar[str] = "subtracts what the model would say of a noised image"
    forwards: ClassVar[str] = "2 for every pass"
    needs_pixels: ClassVar[bool] = True

    alpha: float = setting(
        1.0,
        "weight of the contrast; 0 is off, the plausibility cut included",
        low=0,
        off=0,
        search=(0.25, 2.0),
    )
    beta: float = setting(
        0.1,
        "tokens less likely than beta times the likeliest are never said; 0 cuts nothing",
        low=0,
        high=1,
        search=(0.01, 0.5),
    )
    noise_step: int = setting(
        500,
        "step of the noise schedule, 0 to 999; 500 keeps 0.86 of the image and adds 0.51 noise",
        low=0,
        high=999,
        search=(200, 900),
    )
    seed: int = setting(0, "of the noise, together with each image's pixels")
    faithful: bool = setting(
        False, "noise from the global generator, and only when sampling, as the published code"
    )

    def start(self, context: Context) -> Intervention:
        return Contrasting(self, context)


class Contrasting(Intervention):
    """One run of VCD."""

    method: VCD
    changes_logits = decodes = True

    def __init__(self, method: VCD, context: Context) -> None:
        super().__init__(method, context)
        self.flips: Tensor | None = None  # (rows,) positions whose likeliest token changed
        self.sampling = True  # or a plain pass
        self._image_inputs: dict[str, Any] = {}  # of the generate call under way
        self._noised: dict[str, Any] = {}
        self._padding: Tensor | None = None  # (rows, prompt) attention mask of the generate call
        self._total = 0  # tokens of the sequence so far
        self._cache: Any = None  # of the second stream
        self._followed: list[Any] = []  # caches of generate whose reordering the second one follows
        model = context.anatomy.model
        base: Any = getattr(model, "base_model", model)
        self._base = base
        self._names = [n for n in inspect.signature(base.get_image_features).parameters if n != "kwargs"]

    def open(self, stack: ExitStack) -> None:
        stack.callback(self._unfollow)

    def on_call(self, call: Call) -> None:
        self.flips = self._cache = None
        self.seconds = {"contrast": 0.0}
        self._unfollow()
        self.sampling = bool(call.option("do_sample", False))
        for name in ("assistant_model", "prompt_lookup_num_tokens"):
            if call.option(name) is not None:
                raise ValueError(
                    f"vcd cannot act with {name}: tokens are then taken back from a cache that is not its own."
                )
        self._image_inputs = self._noised = {}
        self._take(call.arguments)
        ids: Any = call.arguments.get("input_ids", call.arguments.get("inputs"))
        self._padding = call.arguments.get("attention_mask", torch.ones_like(ids))

    def on_pass(self, step: Step) -> None:
        self._total = step.length if step.fresh else self._total + step.length
        # a plain pass brings its own pixels; generate encodes them before the first pass
        self._take(step.inputs)

    def _take(self, arguments: Any) -> None:
        given = {n: arguments[n] for n in self._names if arguments.get(n) is not None}
        if "pixel_values" in given:
            self._image_inputs, self._noised = given, {}

    @torch.no_grad()
    def logits(self, step: Step, logits: Tensor) -> Tensor | None:
        if self.with_image is None or (self.method.faithful and not self.sampling):
            return None
        started = time.perf_counter()
        other = self._second(step).to(logits)
        mixed = contrast(logits, other, self.method.alpha, self.method.beta)
        shows = self.with_image.to(logits.device)
        new = torch.where(shows.repeat_interleave(step.expand)[:, None, None], mixed, logits)
        flips = (new.argmax(-1) != logits.argmax(-1)).view(step.rows, -1).sum(-1)
        self.flips = flips if self.flips is None else self.flips + flips.to(self.flips.device)
        self.changes.count(shows.long() * logits.shape[1] * step.expand)
        self.seconds["contrast"] = self.seconds.get("contrast", 0.0) + time.perf_counter() - started
        return new

    def reason(self, row: int | None) -> str:
        return "tokens are not sampled, where the published code does nothing (faithful=True)"

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        flips = 0 if self.flips is None else int(self.flips.sum() if row is None else self.flips[row])
        return {"extra": {"likeliest_changed": flips}}

    # -- the second stream

    def _second(self, step: Step) -> Tensor:
        """Logits of the same pass with the noised image."""
        given = {
            k: v for k, v in step.inputs.items() if k not in ("mm_encoder_outputs", "labels", *self._names)
        }
        given["return_dict"] = True
        if (
            given.get("attention_mask") is not None
            and step.attention_mask is None
            and self._padding is not None
        ):
            given["attention_mask"] = self._mask(step, self._padding)
        main = given.pop("past_key_values", None)
        cached = given.get("use_cache") is not False
        if not step.fresh:
            if self._cache is None:
                raise ValueError(
                    "vcd cannot go on from a cache it has not seen: give the whole conversation again."
                )
            return self._pass({**given, "past_key_values": self._cache}).logits
        if not self._image_inputs:
            raise ValueError(
                "vcd noises the image's pixels: give pixel_values, not features encoded beforehand."
            )
        if not self._noised:
            self._noised = noised(
                self._image_inputs, self.method.noise_step, None if self.method.faithful else self.method.seed
            )
        if not cached:
            # Each copy of the rows in turn, as the images are given once a row.
            copies = [
                self._pass({**_every(given, step, j), **self._noised, "use_cache": False}).logits
                for j in range(step.expand)
            ]
            return torch.stack(copies, 1).flatten(0, 1)  # (B, L, V)
        # In the first pass of a call all copies of a row are alike.
        out = self._pass({**_every(given, step, 0), **self._noised, "use_cache": True})
        self._cache = out.past_key_values
        if step.expand > 1:
            self._cache.batch_repeat_interleave(step.expand)
        if main is not None:
            self._follow(main)
        return out.logits.repeat_interleave(step.expand, 0)

    def _mask(self, step: Step, padding: Tensor) -> Tensor:
        """Padding as (B, tokens so far). For a static cache generate has made masks of the cache's length."""
        mask = padding.repeat_interleave(step.expand, 0)
        return torch.nn.functional.pad(mask, (0, self._total - mask.shape[-1]), value=1)

    def _pass(self, arguments: dict[str, Any]) -> Any:
        # Qwen and GLM keep the positions of the image on the module; both streams have the same, and the first
        # one's stays in place whatever the second does.
        kept = vars(self._base).get("rope_deltas")
        try:
            with aside():
                return self.context.anatomy.model(**arguments)
        finally:
            if "rope_deltas" in vars(self._base):
                self._base.rope_deltas = kept

    def _follow(self, main: Any) -> None:
        """Beam search reorders its cache; reorder ours with it."""
        reorder = getattr(type(main), "reorder_cache", None)
        if reorder is None or "reorder_cache" in vars(main):
            return

        def both(beam_idx: Tensor) -> None:
            reorder(main, beam_idx)
            if self._cache is not None:
                self._cache.reorder_cache(beam_idx)

        main.reorder_cache = both
        self._followed.append(main)

    def _unfollow(self) -> None:
        for main in self._followed:
            vars(main).pop("reorder_cache", None)
        self._followed.clear()
        self._cache = None


def _every(arguments: dict[str, Any], step: Step, j: int) -> dict[str, Any]:
    """Copy j of every row: tensors whose rows are the batch's."""
    if step.expand == 1:
        return arguments
    B = step.rows * step.expand

    def rows(name: str, value: Any) -> Any:
        if name == "position_ids" and value is not None and value.dim() == 3:  # (3 or 4, B, L): several axes
            return value[:, j :: step.expand]
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == B:
            return value[j :: step.expand]
        return value

    return {name: rows(name, value) for name, value in arguments.items()}
