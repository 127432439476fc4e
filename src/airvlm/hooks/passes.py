"""Passes: the forward passes of one model while a method is active; the only file that touches nn.Module hooks.

Each pass is handed to the method's Intervention as a Step, and counted, so that it can be proved afterwards that the
hooks ran. Knows how beams, caches and compiled graphs behave, and nothing of what a method computes.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from airvlm.hooks.generation import Blocks
from airvlm.hooks.intervention import Intervention, Step, is_aside
from airvlm.models.anatomy import Anatomy

__all__ = ["Passes"]


class Passes:
    """Hooks while they are hooked, and what was seen through them."""

    def __init__(self, anatomy: Anatomy, intervention: Intervention, name: str) -> None:
        self.anatomy = anatomy
        self.intervention = intervention
        self.name = name  # of the method, in errors
        self.steps = 0  # forward passes seen by the top-level hook
        self._since = 0  # of these, since the latest generate call began
        self._with_images = 0  # of these, passes with image tokens
        self._decoded = 0  # passes in which the decoder's own hook ran
        self._logits_seen = 0  # passes in which the hook on the model's output ran
        self._layers_seen: Counter[int] = Counter()  # passes in which a feed-forward's hook ran
        self._batch: tuple[int, int] | None = None  # rows and prompt length of the generate call under way
        self._step: Step | None = None
        self._blocks: Blocks | None = None

    def begin_call(self, rows: int, prompt: int) -> None:
        """The passes to come belong to a generate call of this many rows and prompt tokens."""
        self._since = 0
        self._batch = (rows, prompt)

    def end_call(self) -> None:
        self._batch = None

    def problem(self, *, needs_images: bool) -> str | None:
        """Why the method could not act, in what was seen of the passes so far."""
        if not self.steps:
            return (
                "no forward pass reached the hooks. Call the model (or its generate) inside the `with` block; "
                "a function compiled around the model before the block opened must be compiled again"
            )
        if needs_images and not self._with_images:
            return (
                f"no input token is the image token {self.anatomy.image_token_id}. Pass input_ids that the "
                "model's processor made with an image (a cache from an earlier turn hides its image)"
            )
        if needs_images and not self._decoded:
            return (
                f"{type(self.anatomy.decoder).__name__} ran without its hooks. Is it compiled or wrapped? Undo "
                "that, or pass an Anatomy(...) that names the module really called"
            )
        if any(self._layers_seen[i] < self._decoded for i in self.intervention.layers):
            return (
                "feed-forwards ran without their hooks in some passes. Is a layer compiled or wrapped? Undo that, "
                "or pass an Anatomy(...) that names the modules really called"
            )
        if self.intervention.changes_logits and self._logits_seen < self.steps:
            return "the model's output was not hooked in some passes. Is the model compiled or wrapped? Undo that"
        return None

    # -- the hooks

    def hook(self, blocks: Blocks, stack: ExitStack) -> None:
        """Hooks on token ids at the top, embeddings at the decoder, layers, their feed-forwards, and the logits."""
        self._blocks = blocks

        def top(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            ids = kwargs.get("input_ids", args[0] if args else None)
            if not self._skip(_length(ids)):
                self._begin_step(ids, kwargs)

        def decoder(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            embeds = kwargs.get("inputs_embeds")
            if embeds is None or self._skip(embeds.shape[1]):
                return None
            new = self._embeds(embeds)
            return None if new is None else (args, {**kwargs, "inputs_embeds": new})

        stack.callback(self._forget)
        stack.callback(self.anatomy.model.register_forward_pre_hook(top, with_kwargs=True).remove)
        stack.callback(self.anatomy.decoder.register_forward_pre_hook(decoder, with_kwargs=True).remove)
        if self.intervention.changes_logits:
            self._hook_logits(stack)
        for i in self.intervention.watched:
            self._hook_layer(i, stack)
        for i in self.intervention.layers:
            self._hook_ffn(i, stack)

    def _forget(self) -> None:
        self._step = None

    def _skip(self, length: int) -> bool:
        """Nothing to do: another stream, or a decode step being compiled that the method leaves alone."""
        if torch.compiler.is_compiling():
            return not self.intervention.decodes and length == 1
        return is_aside()

    def _hook_layer(self, i: int, stack: ExitStack) -> None:
        # A layer's output is read where the next layer takes it: it was a tuple in some versions, a tensor in others.
        def pre(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            h = args[0] if args else kwargs["hidden_states"]
            if not self._skip(h.shape[-2]):
                self._hidden(i, h)

        stack.callback(self.anatomy.layers[i + 1].register_forward_pre_hook(pre, with_kwargs=True).remove)

    def _hook_ffn(self, i: int, stack: ExitStack) -> None:
        def post(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
            x = args[0] if args else kwargs["hidden_states"]
            if self._skip(x.shape[-2]):
                return None
            y = out[0] if isinstance(out, tuple) else out  # a mixture of experts may add its router's logits
            new = self._ffn(i, x, y)
            if new is None:
                return None
            return (new, *out[1:]) if isinstance(out, tuple) else new

        stack.callback(self.anatomy.ffns[i].register_forward_hook(post, with_kwargs=True).remove)

    def _hook_logits(self, stack: ExitStack) -> None:
        def post(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            if not self._skip(_length(kwargs.get("input_ids", args[0] if args else None))):
                self._logits(out)

        stack.callback(self.anatomy.model.register_forward_hook(post, with_kwargs=True).remove)

    # -- the passes; a graph that is being compiled breaks here rather than bake our state into itself

    @torch.compiler.disable
    def _begin_step(self, ids: Any, kwargs: dict[str, Any]) -> None:
        assert self._blocks is not None
        self._blocks.check_thread()
        ids = token_ids(ids, self.name)
        B, L = ids.shape
        decode = L == 1 and self._since > 0
        visual = None if decode else ids == self.anatomy.image_token_id  # (B, L)
        visual_host = None if visual is None else visual.cpu()  # the one read-back of a pass, in prefill only
        if visual_host is None or not bool(visual_host.any()):
            visual = visual_host = None
        past = kwargs.get("past_key_values")
        fresh = not decode and (past is None or not bool(past.get_seq_length() > 0))
        rows, prompt = self._batch or (B, L)
        mask = kwargs.get("attention_mask")
        self._step = Step(
            visual=visual,
            attention_mask=mask if isinstance(mask, Tensor) and mask.dim() == 2 else None,
            length=L,
            rows=rows if B % rows == 0 else B,
            expand=B // rows if B % rows == 0 else 1,
            fresh=fresh,
            decode=decode,
            start=min(prompt, L) - 1 if fresh else 0,
            inputs=kwargs,
            generating=self._batch is not None,
            visual_host=visual_host,
        )
        self.steps += 1
        self._since += 1
        self._with_images += visual is not None
        self.intervention.start_pass(self._step)

    @torch.compiler.disable
    def _embeds(self, embeds: Tensor) -> Tensor | None:
        step = self._step
        if step is None or embeds.shape[1] != step.length:
            return None  # the decoder was called on its own, outside the model
        self._decoded += 1
        return self.intervention.embeds(step, embeds)

    @torch.compiler.disable
    def _hidden(self, i: int, h: Tensor) -> None:
        if self._step is not None:
            self.intervention.hidden(self._step, i, h)

    @torch.compiler.disable
    def _logits(self, out: Any) -> None:
        if self._step is None:
            return
        if getattr(out, "logits", None) is None:
            raise ValueError(f"{self.name} changes the model's logits: call it with return_dict=True.")
        self._logits_seen += 1
        new = self.intervention.logits(self._step, out.logits)
        if new is not None:
            out.logits = new

    @torch.compiler.disable
    def _ffn(self, i: int, x: Tensor, y: Tensor) -> Tensor | None:
        step = self._step
        if step is None:
            return None
        self._layers_seen[i] += 1
        shape = y.shape
        if y.dim() == 2:  # a mixture of experts that sees its tokens in one row: (B * L, d)
            x, y = (t.view(-1, step.length, t.shape[-1]) for t in (x, y))
        new = self.intervention.ffn(step, i, x, y)
        return None if new is None else new.view(shape)


def _length(ids: Any) -> int:
    return int(ids.shape[-1]) if isinstance(ids, Tensor) else 0


def token_ids(ids: Any, name: str) -> Tensor:
    """input_ids as (batch rows, tokens), or an error that says why they are needed."""
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        raise ValueError(
            f"{name} needs input_ids of shape (rows, tokens): inputs_embeds alone do not say which tokens are the "
            "image."
        )
    return ids
