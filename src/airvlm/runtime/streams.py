"""A second stream: every pass of a model run again with other images, seen by no method.

It has a cache of its own, follows beams as `generate` reorders them, and leaves the state that some families keep on
the module as the first stream had it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from airvlm.runtime.intervention import ForwardPass, GenerateCall, without_methods

__all__ = ["SecondStream"]


class SecondStream:
    """The passes of one session, again, with other image inputs.

    Args:
        name: of the method, for errors.
        model: the model.
        other: image inputs of the first stream -> those of the second.
    """

    def __init__(self, name: str, model: nn.Module, other: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.name = name
        self.model: Any = model
        self.other = other
        self._images: dict[str, Any] = {}  # image inputs of the current call
        self._other: dict[str, Any] = {}
        self._padding: Tensor | None = None  # (rows, prompt) attention mask of the generate call
        self._total = 0  # tokens of the sequence so far
        self._cache: Any = None
        self._followed: list[Any] = []  # caches of generate whose reordering ours follows
        self._base: Any = getattr(model, "base_model", model)
        self._names = [n for n in inspect.signature(self._base.get_image_features).parameters if n != "kwargs"]

    def start_call(self, call: GenerateCall) -> None:
        """A `generate` call begins."""
        self.end()
        for name in ("assistant_model", "prompt_lookup_num_tokens"):
            if call.option(name) is not None:
                raise ValueError(
                    f"{self.name} does not support {name}: it would have to take tokens back from its own cache too."
                )
        self._images = self._other = {}
        self._keep_images(call.arguments)
        ids: Any = call.arguments.get("input_ids", call.arguments.get("inputs"))
        self._padding = call.arguments.get("attention_mask", torch.ones_like(ids))

    def start_pass(self, fp: ForwardPass) -> None:
        """A pass begins. A plain one brings its own pixels; generate encodes them before the first."""
        self._total = fp.length if fp.is_prefill else self._total + fp.length
        self._keep_images(fp.inputs)

    def _keep_images(self, arguments: Any) -> None:
        given = {n: arguments[n] for n in self._names if arguments.get(n) is not None}
        if "pixel_values" in given:
            self._images, self._other = given, {}

    def logits(self, fp: ForwardPass) -> Tensor:
        """Logits of the same pass with the other images: (B, L or fewer, V)."""
        given = {k: v for k, v in fp.inputs.items() if k not in ("mm_encoder_outputs", "labels", *self._names)}
        given["return_dict"] = True
        if given.get("attention_mask") is not None and fp.attention_mask is None and self._padding is not None:
            given["attention_mask"] = self._mask(fp, self._padding)
        main = given.pop("past_key_values", None)
        cached = given.get("use_cache") is not False
        if not fp.is_prefill:
            if self._cache is None:
                raise ValueError(
                    f"{self.name} cannot go on from a cache it has not seen: give the whole conversation again."
                )
            return self._pass({**given, "past_key_values": self._cache}).logits
        if not self._images:
            raise ValueError(
                f"{self.name} changes the image's pixels: give pixel_values, not features encoded beforehand."
            )
        if not self._other:
            self._other = self.other(self._images)
        if not cached:
            # One copy of the rows after the other, as the images are given once per row.
            copies = [
                self._pass({**_select(given, fp, j), **self._other, "use_cache": False}).logits for j in range(fp.beams)
            ]
            return torch.stack(copies, 1).flatten(0, 1)  # (B, L, V)
        # In the first pass of a call all copies of a row are equal.
        out = self._pass({**_select(given, fp, 0), **self._other, "use_cache": True})
        self._cache = out.past_key_values
        if fp.beams > 1:
            self._cache.batch_repeat_interleave(fp.beams)
        if main is not None:
            self._follow(main)
        return out.logits.repeat_interleave(fp.beams, 0)

    def _mask(self, fp: ForwardPass, padding: Tensor) -> Tensor:
        """Padding as (B, tokens so far). For a static cache generate has made masks of the cache's length."""
        mask = padding.repeat_interleave(fp.beams, 0)
        return torch.nn.functional.pad(mask, (0, self._total - mask.shape[-1]), value=1)

    def _pass(self, arguments: dict[str, Any]) -> Any:
        # Qwen and GLM keep the positions of the image on the module; both streams have the same, and the first
        # one's stays in place whatever the second does.
        kept = vars(self._base).get("rope_deltas")
        try:
            with without_methods():
                return self.model(**arguments)
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

    def end(self) -> None:
        """Drop the caches."""
        for main in self._followed:
            vars(main).pop("reorder_cache", None)
        self._followed.clear()
        self._cache = None


def _select(arguments: dict[str, Any], fp: ForwardPass, j: int) -> dict[str, Any]:
    """Copy j of every row: tensors whose rows are the batch's."""
    if fp.beams == 1:
        return arguments
    B = fp.batch_size * fp.beams

    def rows(name: str, value: Any) -> Any:
        if name == "position_ids" and value is not None and value.dim() == 3:  # (3 or 4, B, L): several axes
            return value[:, j :: fp.beams]
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == B:
            return value[j :: fp.beams]
        return value

    return {name: rows(name, value) for name, value in arguments.items()}
