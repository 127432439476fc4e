"""Extra streams: every pass of a model run again with other inputs, beside its own and seen by no method.

A stream has a cache, mask and positions of its own, follows beams as `generate` reorders them, and leaves the state
that some families keep on the module as it was. What is different in it is one of:

* `images`: other image inputs (noisy, flipped, another image), with the same token ids;
* `edit_ids`: other token ids, of another length (no image, another prompt, a caption in the image's place);
* `edit_embeds`: other visual tokens at the decoder's input;
* `attention`: an editor that hides keys or changes scores in the stream's passes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from airvlm.models.parts import ModelParts
from airvlm.runtime.attention import AttentionEditor, editing_stream
from airvlm.runtime.intervention import ForwardPass, GenerateCall, without_methods

__all__ = [
    "EditEmbeds",
    "EditIds",
    "EditImages",
    "EditRowIds",
    "Stream",
    "StreamAttention",
    "edit_prompts",
    "image_marks",
    "insert_text",
    "remove_images",
]


class StreamAttention(AttentionEditor, Protocol):
    """An attention editor that follows the passes of a stream with the model's own ids (`AttentionIntervention`).

    One that also has `start_stream_pass(mask, new, first)` follows a stream with other ids: `mask` (B, tokens so far)
    is 1 at its real tokens, `new` of which are read in this pass, and `first` is the first of these whose next token is
    generated.
    """

    def find_layers(self) -> None: ...

    def start_pass(self, fp: ForwardPass) -> None: ...


EditImages = Callable[[dict[str, Any]], dict[str, Any]]  # image inputs -> those of the stream
EditIds = Callable[[list[int]], list[int]]  # the token ids of one row, without padding -> those of the stream
EditRowIds = Callable[[list[int], int], list[int]]  # the same, given the row of the caller's batch
EditEmbeds = Callable[[Tensor, Tensor], Tensor]  # decoder input (B, L, d), image tokens (B, L) -> decoder input

# tokens around an image that mean nothing without it, as configs and processors name them
MARKERS = (
    "vision_start_token_id",
    "vision_end_token_id",
    "image_start_token_id",
    "image_end_token_id",
    "boi_token_index",
    "eoi_token_index",
)
MARKER_TEXTS = (
    "start_image_token",
    "end_image_token",
    "image_break_token",
    "image_end_token",
    "fake_image_token",
    "global_image_tag",
    "global_image_token",
)
TILE = re.compile(r"<row_\d+_col_\d+>")


def image_marks(parts: ModelParts, processor: Any = None) -> set[int]:
    """The image token and the tokens around and between images, which mean nothing without them.

    Args:
        parts: of the model.
        processor: the model's; some families name their marks only there.
    """
    config: Any = getattr(parts.model, "config", None)
    marks = {parts.image_token_id, *(getattr(config, name, None) for name in MARKERS)}
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is not None:
        texts = [text for name in MARKER_TEXTS if isinstance(text := getattr(processor, name, None), str)]
        known = tokenizer.get_added_vocab()
        marks |= {number for text, number in known.items() if text in texts or TILE.fullmatch(text)}
    return {int(mark) for mark in marks if mark is not None}


def remove_images(parts: ModelParts, processor: Any = None) -> EditIds:
    """An edit that removes the image tokens, and the marks around them, from a prompt."""
    removed = image_marks(parts, processor)
    return lambda ids: [token for token in ids if token not in removed]


def insert_text(
    parts: ModelParts, processor: Any, text: str, place: Literal["question", "system"] = "question"
) -> EditIds:
    """An edit that puts a text into a prompt with an image; a prompt without one stays as it is.

    Args:
        parts: of the model.
        processor: the model's, for its tokenizer.
        text: what is inserted.
        place: after the last image, where the question begins; or at the start of the prompt, after the token that
            begins a sequence.
    """
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None:
        raise ValueError("a text is put into the prompt: pass the model's processor as the second argument")
    new = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    marks, begin = image_marks(parts, processor), tokenizer.bos_token_id

    def insert(ids: list[int]) -> list[int]:
        shown = [i for i, token in enumerate(ids) if token == parts.image_token_id]
        if not shown:
            return ids
        at = shown[-1] + 1 if place == "question" else 0
        while at < len(ids) and (ids[at] == begin or (place == "question" and ids[at] in marks)):
            at += 1
        return ids[:at] + new + ids[at:]

    return insert


class Stream:
    """The passes of one session again, with other inputs.

    Args:
        name: the method's name, for errors.
        parts: of the model.
        images: other image inputs; needs pixels.
        edit_ids: other token ids.
        edit_row_ids: other token ids that depend on the batch row.
        edit_embeds: other visual tokens at the decoder's input, in prefill.
        attention: changes attention in the stream.
    """

    def __init__(
        self,
        name: str,
        parts: ModelParts,
        *,
        images: EditImages | None = None,
        edit_ids: EditIds | None = None,
        edit_row_ids: EditRowIds | None = None,
        edit_embeds: EditEmbeds | None = None,
        attention: StreamAttention | None = None,
    ) -> None:
        self.name = name
        self.parts = parts
        if edit_ids is not None:
            edit_row_ids = lambda ids, row: edit_ids(ids)  # noqa: E731 - one line
        self.images, self.edit_ids, self.edit_embeds, self.attention = images, edit_row_ids, edit_embeds, attention
        self.model: Any = parts.model
        self._base: Any = getattr(self.model, "base_model", self.model)
        self._image_names = [n for n in inspect.signature(self._base.get_image_features).parameters if n != "kwargs"]
        self.reset()

    def reset(self) -> None:
        """Drop caches and state."""
        for main in getattr(self, "_followed", ()):
            vars(main).pop("reorder_cache", None)
        self._followed: list[Any] = []  # caches of generate whose reordering ours follows
        self._cache: Any = None
        self._given: dict[str, Any] = {}  # image inputs of the current call
        self._other: dict[str, Any] = {}  # those of the stream
        self._sizes: dict[str, Any] = {}  # image inputs without pixels: what positions of image tokens depend on
        self._padding: Tensor | None = None  # (batch_size, prompt) attention mask of the generate call
        self._total = 0  # tokens of the main sequence so far
        self._prompt = 0  # of these, prompt tokens
        self._mask: Tensor | None = None  # (B, tokens so far) of a stream with other ids
        self._padded = True  # whether that mask hides anything
        self._positions: Tensor | None = None  # (..., B, 1) position of its latest token
        self._suffix: Tensor | None = None  # (B,) tokens at the end that both streams have in common

    def start_call(self, call: GenerateCall) -> None:
        """A `generate` call begins."""
        self.reset()
        for name in ("assistant_model", "prompt_lookup_num_tokens"):
            if call.option(name) is not None:
                raise ValueError(f"{self.name} does not support {name}: its second stream cannot take tokens back.")
        self._take_images(call.arguments)
        self._padding = call.arguments.get("attention_mask", torch.ones_like(call.input_ids))

    def start_pass(self, fp: ForwardPass) -> None:
        """A pass begins. A plain one brings its own pixels; generate encodes them before the first pass."""
        self._total = fp.length if fp.is_prefill else self._total + fp.length
        if fp.is_prefill:
            self._prompt = fp.first_generated + 1 if fp.generating else fp.length
        self._take_images(fp.inputs)

    def _take_images(self, arguments: Any) -> None:
        given = {n: arguments[n] for n in self._image_names if arguments.get(n) is not None}
        if "pixel_values" in given:
            self._given, self._other = given, {}
        if sizes := {n: v for n, v in given.items() if n != "pixel_values"}:
            self._sizes = sizes

    def logits(self, fp: ForwardPass) -> Tensor:
        """The stream's logits of this pass, (B, L', V): aligned with the model's at the end."""
        if not fp.is_prefill and self._cache is None:
            raise ValueError(f"{self.name} cannot continue a cache that it has not seen: give the whole conversation.")
        if self.edit_ids is not None:
            return self._pass_other_ids(fp)
        given = {k: v for k, v in fp.inputs.items() if k not in ("labels", "past_key_values")}
        given["return_dict"] = True
        mask = given.get("attention_mask")
        if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 2) and self._padding is not None:
            given["attention_mask"] = self._plain_mask(fp, self._padding)
        if not fp.is_prefill:
            return self._run({**given, "past_key_values": self._cache}).logits
        return self._pass_other_images(fp, given) if self.images is not None else self._prefill(fp, given)

    def common_suffix(self, fp: ForwardPass) -> Tensor | None:
        """(B,) tokens at the end of a plain pass that both streams share; None: all positions correspond."""
        return self._suffix if self.edit_ids is not None and fp.is_prefill and not fp.generating else None

    # -- the same ids

    def _pass_other_images(self, fp: ForwardPass, given: dict[str, Any]) -> Tensor:
        if not self._given:
            raise ValueError(f"{self.name} changes the image's pixels: give pixel_values, not encoded features.")
        if not self._other:
            assert self.images is not None
            self._other = self.images(self._given)
        cached = given.get("use_cache") is not False
        given = {k: v for k, v in given.items() if k not in ("mm_encoder_outputs", *self._image_names)}
        if not cached:
            # Each copy of the rows in turn, because images are given once per row.
            copies = [
                self._run({**_beam(given, fp, j), **self._other, "use_cache": False}).logits for j in range(fp.beams)
            ]
            return torch.stack(copies, 1).flatten(0, 1)  # (B, L, V)
        # In the first pass of a call all copies of a row are alike.
        out = self._run({**_beam(given, fp, 0), **self._other, "use_cache": True})
        self._cache = out.past_key_values
        if fp.beams > 1:
            self._cache.batch_repeat_interleave(fp.beams)
        self._follow(fp)
        return out.logits.repeat_interleave(fp.beams, 0)

    def _prefill(self, fp: ForwardPass, given: dict[str, Any]) -> Tensor:
        cached = given.get("use_cache") is not False
        out = self._run({**given, "use_cache": cached}, fp.visual)
        if cached:
            self._cache = out.past_key_values
            self._follow(fp)
        logits: Tensor = out.logits
        return logits

    def _plain_mask(self, fp: ForwardPass, padding: Tensor) -> Tensor:
        """Padding as (B, tokens so far): for a static cache generate makes masks of the cache's length."""
        mask = padding.repeat_interleave(fp.beams, 0)
        return nn.functional.pad(mask, (0, self._total - mask.shape[-1]), value=1)

    # -- other ids

    def _pass_other_ids(self, fp: ForwardPass) -> Tensor:
        ids: Tensor = fp.inputs["input_ids"]
        more = {k: fp.inputs[k] for k in ("logits_to_keep",) if fp.inputs.get(k) is not None}
        if not fp.is_prefill:
            assert self._mask is not None and self._positions is not None
            new = ids.shape[1]
            self._mask = nn.functional.pad(self._mask, (0, new), value=1)
            steps = torch.arange(1, new + 1, device=self._positions.device)
            positions, self._positions = self._positions + steps, self._positions + new
            # A mask that hides nothing is left out: transformers would wait for the device to see that.
            mask = self._mask if self._padded else None
            arguments = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **more}
            self._start_other_pass(self._mask, new, 0)
            out = self._run({**arguments, "past_key_values": self._cache, "use_cache": True})
            logits: Tensor = out.logits
            return logits
        inputs = self._edit_inputs(fp)
        positions = self._first_positions(inputs, fp)
        cached = fp.inputs.get("use_cache") is not False
        visual = inputs["input_ids"] == self.parts.image_token_id
        length = int(visual.shape[1])
        self._start_other_pass(inputs["attention_mask"], length, length - 1 - (fp.length - self._prompt))
        out = self._run({**inputs, "position_ids": positions, "use_cache": cached, **more}, visual)
        mask = inputs["attention_mask"]
        if cached:
            self._cache, self._mask, self._positions = out.past_key_values, mask, positions[..., -1:]
            self._follow(fp)
        logits = out.logits
        return logits

    def _start_other_pass(self, mask: Tensor, new: int, first: int) -> None:
        follow = getattr(self.attention, "start_stream_pass", None)
        if follow is not None:
            follow(mask, new, first)

    def _edit_inputs(self, fp: ForwardPass) -> dict[str, Any]:
        """The inputs of a first pass with other ids; what was generated so far stays at the end."""
        assert self.edit_ids is not None
        mask = fp.attention_mask
        names = ("input_ids", "mm_encoder_outputs", "token_type_ids", "mm_token_type_ids", *self._image_names)
        inputs = {name: fp.inputs[name] for name in names if fp.inputs.get(name) is not None}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"]) if mask is None else mask
        answer, beams = fp.length - self._prompt, fp.beams
        edited, self._padded = _edit_rows(self.parts, inputs, self.edit_ids, answer=answer, who=self.name, beams=beams)
        self._suffix = edited.pop("common_suffix")
        return edited

    def _first_positions(self, inputs: dict[str, Any], fp: ForwardPass) -> Tensor:
        """Positions of a prompt as generate computes them, for every family; its state on the module is put back."""
        # Encoded images come without their sizes, and sizes are given once per row: copies of a row are placed alike.
        own = {**self._sizes, **_beam(inputs, fp, 0)} if self._sizes else inputs
        kept = vars(self._base).get("rope_deltas")
        try:
            positions: Tensor = self.model._prepare_position_ids_for_generation(own["input_ids"], dict(own))
        finally:
            if "rope_deltas" in vars(self._base):
                self._base.rope_deltas = kept
        return positions.repeat_interleave(len(inputs["input_ids"]) // positions.shape[-2], -2)

    # -- running

    def _run(self, arguments: dict[str, Any], visual: Tensor | None = None) -> Any:
        # Qwen and GLM keep the positions of the image on the module: the main stream's stay in place.
        kept = vars(self._base).get("rope_deltas")
        try:
            with ExitStack() as stack, torch.no_grad():
                stack.enter_context(without_methods())
                stack.enter_context(editing_stream(self.attention))
                if self.edit_embeds is not None and visual is not None:
                    self._hook_embeds(visual, stack)
                return self.model(**{"return_dict": True, **arguments})
        finally:
            if "rope_deltas" in vars(self._base):
                self._base.rope_deltas = kept

    def _hook_embeds(self, visual: Tensor, stack: ExitStack) -> None:
        def decoder_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            assert self.edit_embeds is not None
            embeds = kwargs["inputs_embeds"]
            changed: dict[str, Any] = {"inputs_embeds": self.edit_embeds(embeds, visual)}
            if (later := kwargs.get("deepstack_visual_embeds")) is not None:  # added to the same tokens in later layers
                wide = [torch.zeros_like(embeds).masked_scatter(visual[..., None], one.to(embeds)) for one in later]
                changed["deepstack_visual_embeds"] = [self.edit_embeds(one, visual)[visual] for one in wide]
            return args, {**kwargs, **changed}

        stack.callback(self.parts.decoder.register_forward_pre_hook(decoder_input, with_kwargs=True).remove)

    def _follow(self, fp: ForwardPass) -> None:
        """Beam search reorders its cache; reorder ours with it."""
        main = fp.inputs.get("past_key_values")
        reorder = getattr(type(main), "reorder_cache", None)
        if main is None or reorder is None:
            return
        before = vars(main).get("reorder_cache")  # of another stream

        def both(beam_idx: Tensor) -> None:
            if before is not None:
                before(beam_idx)
            else:
                reorder(main, beam_idx)
            self._reorder(beam_idx)

        main.reorder_cache = both
        self._followed.append(main)

    def _reorder(self, beam_idx: Tensor) -> None:
        if self._cache is not None:
            self._cache.reorder_cache(beam_idx)
        if self._mask is not None and self._positions is not None:
            self._mask = self._mask[beam_idx]
            self._positions = self._positions.index_select(self._positions.dim() - 2, beam_idx)


def edit_prompts(
    parts: ModelParts, inputs: dict[str, Any], edit_ids: EditIds, *, answer: int = 0, who: str = "the method"
) -> dict[str, Any]:
    """The inputs of a first pass with every row's token ids edited, left-padded again.

    Args:
        parts: of the model.
        inputs: of the model, with attention_mask.
        edit_ids: the token ids of one row, without padding -> other ones, with as many image tokens or none.
        answer: tokens at the end of every row that were generated, and stay as they are.
        who: the method's name, for errors.

    Returns:
        The inputs; `common_suffix` (B,) counts the tokens at the end that a row shares with its original.
    """
    return _edit_rows(parts, inputs, lambda ids, row: edit_ids(ids), answer=answer, who=who)[0]


def _edit_rows(
    parts: ModelParts, inputs: dict[str, Any], edit: EditRowIds, *, answer: int, who: str, beams: int = 1
) -> tuple[dict[str, Any], bool]:
    """What `edit_prompts` returns, and whether a row is padded."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    rows, suffixes = [], []
    for r, (row, real) in enumerate(zip(ids.tolist(), mask.tolist(), strict=True)):
        own = [token for token, exists in zip(row, real, strict=True) if exists]
        said = own[len(own) - answer :] if answer > 0 else []
        question = own[: len(own) - len(said)]
        other = edit(question, r // beams)
        if not other:
            raise ValueError(f"{who}: nothing is left of the prompt in row {r}")
        rows.append(other + said)
        suffixes.append(_common_suffix(question, other) + len(said))
    width = max(map(len, rows))
    config = getattr(parts.model, "generation_config", None)
    pad = getattr(config, "pad_token_id", None) or 0
    new = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=ids.device)
    real = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=ids.device)
    before, after = (int((t == parts.image_token_id).sum()) for t in (ids, new))
    if after not in (0, before):
        raise ValueError(f"{who}: a prompt with {after} image tokens was made of one with {before}")
    kept = ("token_type_ids", "mm_token_type_ids")
    edited = {k: v for k, v in inputs.items() if k in kept or (after and k not in ("input_ids", "position_ids"))}
    for name in kept:
        if name in edited:
            edited[name] = _edit_types(edited[name], ids == parts.image_token_id, new == parts.image_token_id, answer)
    suffix = torch.tensor(suffixes, device=ids.device)
    padded = any(len(row) < width for row in rows)
    return {**edited, "input_ids": new, "attention_mask": real, "common_suffix": suffix}, padded


def _edit_types(types: Tensor, visual: Tensor, other_visual: Tensor, answer: int) -> Tensor:
    """Token types as the original has them: of image tokens, of the prompt's text, and of what was generated."""
    of_image = types[visual].amax() if bool(visual.any()) else types.new_zeros(())
    last = types.shape[1] - answer
    own = torch.where(other_visual, of_image, types[:, last - 1 : last])
    if answer > 0:
        own[:, -answer:] = types[:, -answer:]
    return own


def _common_suffix(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[-1 - n] == b[-1 - n]:
        n += 1
    return n


def _beam(arguments: dict[str, Any], fp: ForwardPass, j: int) -> dict[str, Any]:
    """Copy j of every row, of tensors whose rows are the batch's."""
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
