"""VLM: a vision-language model to talk to — ask, describe, chat, batch, stream, compare."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import StoppingCriteriaList
from transformers.utils import logging as transformers_logging

from airvlm.inputs.builder import Images, InputBuilder, Request, group_by_length, read_windows
from airvlm.inputs.prompts import DESCRIBE, Question, split_messages
from airvlm.methods.base import Method
from airvlm.methods.names import get_method
from airvlm.models.loading import fingerprint, load_parts
from airvlm.models.parts import ModelParts
from airvlm.report import Report
from airvlm.runtime.locks import lock_of
from airvlm.runtime.text_stream import StopTexts, cut_text, stream_text

__all__ = ["VLM", "Answer", "Prefill", "PromptTooLong"]

EMBEDDED = (None, "photo", "tiny")


@dataclass(frozen=True)
class Answer:
    """One answer, and how it was made."""

    text: str
    report: Report | None  # what the method did; None without a method
    prompt: str  # the whole prompt, placeholders for images included
    tokens: int  # new tokens, without the end token
    finished: bool  # the model ended by itself, before max_new_tokens
    seconds: float  # of the whole call; in a batch, this row's share
    error: Exception | None = None  # why there is no answer (`batch(errors="keep")`); all else is empty then

    def __str__(self) -> str:
        return self.text


class PromptTooLong(ValueError):
    """A prompt has more tokens than the model reads; `rows` are the rows of the batch that do."""

    def __init__(self, name: str, tokens: int, longest: int, rows: Sequence[int]) -> None:
        super().__init__(
            f"the prompt has {tokens} tokens, and {name} reads at most {longest}. Shorten it, or give fewer "
            "images; in Python, VLM(..., allow_long_prompts=True) answers it all the same"
        )
        self.rows = tuple(rows)


@dataclass(frozen=True)
class Prefill:
    """A batch after its prefill."""

    tokens: Tensor  # (B,) the first token of each answer
    cache: Any  # keys and values of the prompts
    mask: Tensor  # (B, L) 1 where a row has a token, 0 where it is padded
    reports: list[Report | None]  # what the method did, per row


class VLM:
    """A model with its processor. Safe for threads: calls run one after the other, in the order they came.

    Args:
        model: a transformers vision-language model.
        processor: its processor.
        name: shown in progress bars and results.
        parts: the model's parts, for models that `ModelParts.of` does not know.
        allow_urls: whether images may be downloaded from http(s) addresses.
        allow_long_prompts: answer prompts beyond the model's length, where answers are mostly nonsense.
        max_crop_batch: most views (images, crops, tiles of them) in one call of the vision tower when crops are
            encoded; less needs less memory.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        *,
        name: str = "model",
        parts: ModelParts | None = None,
        allow_urls: bool = False,
        allow_long_prompts: bool = False,
        max_crop_batch: int | None = None,
    ) -> None:
        self.model = model
        self.processor = processor
        self.name = name
        self.parts = parts if parts is not None else ModelParts.of(model)
        if max_crop_batch is not None:
            if max_crop_batch < 1:
                raise ValueError(f"max_crop_batch = {max_crop_batch}: give at least 1")
            self.parts = replace(self.parts, max_crop_batch=max_crop_batch)
        self.builder = InputBuilder(model, processor, self.parts, allow_urls=allow_urls)
        self.lock = lock_of(self.parts.model)
        self.allow_long_prompts = allow_long_prompts

    @classmethod
    def load(
        cls,
        name_or_path: str | Path | None = None,
        *,
        adapter: str | Path | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        device_map: Any = None,
        trust_remote_code: bool = False,
        allow_urls: bool = False,
        allow_long_prompts: bool = False,
        max_crop_batch: int | None = None,
        allow_missing: bool = False,
        **options: Any,
    ) -> Self:
        """Load a model.

        Args:
            name_or_path: an embedded model ("photo", the default, or "tiny"), "smol", assembled from two public
                checkpoints, a local folder, or a name on the hub.
            adapter: a LoRA to merge into it.
            device: where it runs; a GPU if there is one.
            dtype: of the weights; float32 on a CPU, the checkpoint's own elsewhere.
            device_map: as in transformers, to spread a model over devices.
            trust_remote_code: run code that comes with the checkpoint.
            allow_urls: whether images may be downloaded from http(s) addresses.
            allow_long_prompts: answer prompts beyond the model's length, where answers are mostly nonsense.
            max_crop_batch: as in `VLM`.
            allow_missing: accept a checkpoint with missing weights, which are then random.
            options: passed to transformers' `from_pretrained`.
        """
        with _without_bars() if name_or_path in EMBEDDED else nullcontext():
            model, processor, name = load_parts(
                name_or_path,
                adapter=adapter,
                device=device,
                dtype=dtype,
                device_map=device_map,
                trust_remote_code=trust_remote_code,
                allow_missing=allow_missing,
                **options,
            )
        return cls(
            model,
            processor,
            name=name,
            allow_urls=allow_urls,
            allow_long_prompts=allow_long_prompts,
            max_crop_batch=max_crop_batch,
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of configuration and weights: equal for equal models, wherever they were loaded from."""
        return fingerprint(self.model)

    # -- asking

    def ask(
        self,
        image: Images,
        question: Question,
        *,
        method: Method | str | None = None,
        max_new_tokens: int = 64,
        **generation: Any,
    ) -> Answer:
        """Ask one question.

        Args:
            image: one image, a list of images, or None. A path, bytes, array, Pillow image, data URI or web address.
            question: a question, or the turns of a conversation.
            method: a method or its spelling ("crop-blend"); None is the model as it is.
            max_new_tokens: longest answer, in tokens.
            generation: passed to transformers' generate. `stop_strings` end the answer and are left out of it;
                `temperature`, `top_p` or `top_k` mean sampling, and `seed` makes it repeatable.
        """
        row = self.builder.read(image, question)
        return self.answer_rows([row], method, max_new_tokens=max_new_tokens, **generation)[0]

    def describe(self, image: Images, *, method: Method | str | None = None, **generation: Any) -> Answer:
        """Describe an image, with the prompt that CHAIR evaluations use. Arguments are those of `ask`."""
        return self.ask(image, DESCRIBE, method=method, **generation)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        system: str | None = None,
        method: Method | str | None = None,
        **generation: Any,
    ) -> Answer:
        """The next turn of a conversation, through the model's chat template.

        Args:
            messages: turns with a role and a content, a text or parts: {"type": "text", "text": ...} and
                {"type": "image", "image": anything that `ask` takes}, or OpenAI's {"type": "image_url", ...}.
            system: the system prompt.
            method: as in `ask`.
            generation: as in `ask`.
        """
        images, turns = split_messages(messages, system=system)
        return self.ask(images or None, turns, method=method, **generation)

    def compare(
        self,
        image: Images,
        question: Question,
        methods: Mapping[str, Method | str | None] | Sequence[Method | str | None],
        **generation: Any,
    ) -> dict[str, Answer]:
        """The same question under several methods.

        Args:
            image: as in `ask`.
            question: as in `ask`.
            methods: methods or their spellings, as a list or with names of your own.
            generation: as in `ask`.

        Returns:
            Answers by name, in the order of the methods.
        """
        if isinstance(methods, str):
            raise TypeError(f"compare(image, question, methods) takes a list of methods, not the text {methods!r}")
        if not isinstance(methods, Mapping):
            chosen = [get_method(method) for method in methods]
            methods = {"vanilla" if method is None else method.label: method for method in chosen}
        row = self.builder.read(image, question)
        return {name: self.answer_rows([row], method, **generation)[0] for name, method in methods.items()}

    def batch(
        self,
        requests: Iterable[tuple[Images, Question]],
        *,
        method: Method | str | None = None,
        batch_size: int = 16,
        progress: bool = True,
        errors: Literal["raise", "keep"] = "raise",
        **generation: Any,
    ) -> Iterator[Answer]:
        """Answer many requests, in their order; they are read as they are needed.

        Rows of similar length run together, so that little is spent on padding. A row without an image, where others
        have one, is answered without the method, and its report says so.

        Args:
            requests: pairs of images and question, as in `ask`.
            method: as in `ask`.
            batch_size: rows per batch.
            progress: show a progress bar.
            errors: "raise" at a request that cannot be read, or "keep" an Answer with its `error` in its place.
            generation: as in `ask`.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size = {batch_size}: give at least 1")
        if errors not in ("raise", "keep"):
            raise ValueError(f"errors = {errors!r}: choose raise or keep")
        method = get_method(method)
        total = len(requests) if isinstance(requests, Sized) else None
        with tqdm(total=total, disable=None if progress else True, unit="answer", desc=self.name) as bar:
            for window in read_windows(self.builder, requests, batch_size):
                failed = {i: one for i, one in enumerate(window) if isinstance(one, Exception)}
                if failed and errors == "raise":
                    raise next(iter(failed.values()))
                answers = {i: Answer("", None, "", 0, False, 0.0, error) for i, error in failed.items()}
                rows = {i: one for i, one in enumerate(window) if isinstance(one, Request)}
                any_image = any(row.images for row in rows.values())
                for group in group_by_length(rows, batch_size):
                    try:
                        given = self.answer_rows(
                            [rows[i] for i in group], method, allow_text_only=any_image, **generation
                        )
                    except PromptTooLong as error:
                        if errors == "raise":
                            raise
                        too_long = [group[row] for row in error.rows]
                        answers.update({i: Answer("", None, rows[i].prompt, 0, False, 0.0, error) for i in too_long})
                        group = [i for i in group if i not in too_long]
                        kept = [rows[i] for i in group]
                        given = self.answer_rows(kept, method, allow_text_only=any_image, **generation) if kept else []
                        bar.update(len(too_long))
                    answers.update(zip(group, given, strict=True))
                    bar.update(len(group))
                yield from (answers[i] for i in range(len(window)))

    def stream(
        self,
        image: Images,
        question: Question,
        *,
        method: Method | str | None = None,
        max_new_tokens: int = 64,
        **generation: Any,
    ) -> Generator[str, None, Answer]:
        """The answer's text piece by piece; the generator returns the whole Answer at its end.

        The model is taken at the first piece and free again when the answer is generated, read or not; other calls wait
        until then. A stream that is closed or dropped stops at its next token. Arguments are those of `ask`.
        """
        method = get_method(method)
        row = self.builder.read(image, question)
        ticket = self.lock.acquire()
        try:
            started = time.perf_counter()
            inputs = self._build([row], method)
            stops = _stop_strings(generation)
        except BaseException:
            ticket.release()
            raise

        def generate(**hooks: Any) -> tuple[Tensor, Report | None]:
            return self._generate(inputs, [row], method, max_new_tokens=max_new_tokens, **hooks, **generation)

        ids, report = yield from stream_text(generate, self.processor, ticket, stops)
        return self._decode(ids[0], row, report, time.perf_counter() - started, stops)

    @torch.no_grad()
    def likelihood(
        self, image: Images, question: Question, options: Sequence[str], *, method: Method | str | None = None
    ) -> list[float]:
        """Mean log-likelihood of each option's tokens as the answer; the largest is the model's choice."""
        method = get_method(method)
        row = self.builder.read(image, question)
        # GLM-4V's template leaves it to the model to begin its answer with a newline
        row = replace(row, prompt=row.prompt + getattr(self.processor, "answer_start", ""))
        scores = []
        with self.lock.acquire():
            prompt_ids = self.builder.build([row])["input_ids"][0]
            for option in options:
                if not option.strip():
                    raise ValueError("an option is empty: there is nothing to compare")
                # tokenized together with the prompt: a space belongs to the word that follows it
                gap = "" if row.prompt[-1:].isspace() else " "
                full = replace(row, prompt=row.prompt + gap + option.strip())
                inputs = self._build([full], method)
                ids = inputs["input_ids"][0]
                start = _common_prefix(prompt_ids, ids)
                with self._session(method, [full]):
                    logits = self.model(**inputs).logits[0]  # (L, vocabulary)
                logp = logits[start - 1 : -1].float().log_softmax(-1)  # (option tokens, vocabulary)
                scores.append(logp.gather(1, ids[start:, None].to(logp.device)).mean().item())
        return scores

    # -- the steps of an answer

    def answer_rows(
        self,
        rows: Sequence[Request],
        method: Method | str | None,
        *,
        max_new_tokens: int = 64,
        allow_text_only: bool = False,
        **generation: Any,
    ) -> list[Answer]:
        """Answer requests that were read by `builder.read`, as one batch; all have images, or none has.

        Args:
            rows: the requests.
            method: as in `ask`.
            max_new_tokens: as in `ask`.
            allow_text_only: answer rows without an image without a method that needs one, and say so in their reports;
                otherwise such a method raises.
            generation: as in `ask`.
        """
        method = get_method(method)
        if allow_text_only and method is not None and method.needs_images and not any(row.images for row in rows):
            not_applied = Report(method.to_json(), fired=False, reason="this request has no image")
            answers = self.answer_rows(rows, None, max_new_tokens=max_new_tokens, **generation)
            return [replace(answer, report=not_applied) for answer in answers]
        with self.lock.acquire():
            started = time.perf_counter()
            inputs = self._build(rows, method)
            ids, report = self._generate(inputs, rows, method, max_new_tokens=max_new_tokens, **generation)
            seconds = (time.perf_counter() - started) / len(rows)
        stops = _stop_strings(generation)
        reports = _row_reports(report, len(rows))
        return [self._decode(ids[i], row, reports[i], seconds, stops) for i, row in enumerate(rows)]

    def prefill_rows(self, rows: Sequence[Request], method: Method | str | None) -> Prefill:
        """The first token of each answer, chosen greedily, and what is needed to decode the rest without hooks.

        For methods that act in the prefill alone.

        Args:
            rows: requests that were read by `builder.read`; all have images, or none has.
            method: as in `ask`.
        """
        method = get_method(method)
        with self.lock.acquire():
            inputs = self._build(rows, method)
            with torch.no_grad(), self._session(method, rows) as session:
                output = self.model.generate(
                    **inputs,
                    max_new_tokens=1,
                    do_sample=False,
                    pad_token_id=self._pad_token_id,
                    return_dict_in_generate=True,
                )
        reports = _row_reports(None if session is None else session.report, len(rows))
        return Prefill(output.sequences[:, -1], output.past_key_values, inputs["attention_mask"], reports)

    def encode_rows(self, rows: Sequence[Request], method: Method | str | None) -> None:
        """Encode the images of requests, and the views (crops) that the method needs of them, for later answers.

        Whatever is not in the cache goes through the vision tower in shared calls of at most `parts.max_crop_batch`
        views. `answer_rows` finds it in the cache, in whatever batches the requests run.

        Args:
            rows: requests that were read by `builder.read`; all have images, or none has.
            method: as in `ask`.
        """
        method = get_method(method)
        images = [image for row in rows for image in row.images]
        with self.lock.acquire():
            views = None if method is None else method.further_views(self.parts, self.processor, images)
            self.builder.build(rows, pixels=method is not None and method.needs_pixels, views=views)
            if views is not None:
                views.finish()
            self.builder.cache.take_seconds("crops")  # no answer's own

    def _build(self, rows: Sequence[Request], method: Method | None) -> dict[str, Any]:
        """The model's inputs; raises PromptTooLong for rows that the model cannot read whole."""
        views = None
        if method is not None:
            views = method.further_views(self.parts, self.processor, [image for row in rows for image in row.images])
        inputs = self.builder.build(rows, pixels=method is not None and method.needs_pixels, views=views)
        config: Any = self.parts.model.config
        longest = getattr(config.get_text_config(), "max_position_embeddings", None)
        if longest is not None and not self.allow_long_prompts and inputs["input_ids"].shape[1] > longest:
            mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
            lengths = mask.sum(1).tolist()
            rows_beyond = [row for row, length in enumerate(lengths) if length > longest]
            if rows_beyond:
                raise PromptTooLong(self.name, max(lengths), longest, rows_beyond)
        return inputs

    def _session(self, method: Method | None, rows: Sequence[Request]) -> Any:
        if method is None:
            return nullcontext()
        images = [list(row.images) for row in rows]
        # the inputs were built from these very images: nothing to check
        return method(
            self.model,
            self.processor,
            images=images,
            parts=self.parts,
            check_images=False,
            prompts=[row.prompt for row in rows],
        )

    def _generate(
        self, inputs: dict[str, Any], rows: Sequence[Request], method: Method | None, **generation: Any
    ) -> tuple[Tensor, Report | None]:
        """New token ids (B, T) and the report of the batch."""
        if generation.get("num_return_sequences", 1) != 1:
            raise ValueError("num_return_sequences: an Answer holds one text; ask several times with different seeds")
        if generation.get("temperature") == 0:  # a temperature of 0 is greedy
            del generation["temperature"]
            generation.setdefault("do_sample", False)
        sampling = ("temperature", "top_p", "top_k", "min_p", "typical_p")
        generation.setdefault("do_sample", any(generation.get(name) is not None for name in sampling))
        seed = generation.pop("seed", None)
        generation.setdefault("pad_token_id", self._pad_token_id)
        length = inputs["input_ids"].shape[1]
        stops = _stop_strings(generation)
        generation.pop("stop_strings", None)
        if stops:
            criterion = StopTexts(self.processor.tokenizer, stops, length)
            given = generation.get("stopping_criteria") or ()
            generation["stopping_criteria"] = StoppingCriteriaList([*given, criterion])
        seeded = nullcontext() if seed is None else _use_seed(seed, self.model.device)
        with torch.no_grad(), seeded, self._session(method, rows) as session:
            ids = self.model.generate(**inputs, **generation)
        return ids[:, length:], None if session is None else session.report

    def _decode(
        self, ids: Tensor, row: Request, report: Report | None, seconds: float, stops: Sequence[str] = ()
    ) -> Answer:
        """Token ids -> Answer, up to the end token or the first stop string."""
        ends = torch.isin(ids, torch.tensor(self.end_ids, dtype=ids.dtype, device=ids.device)).nonzero()
        tokens = int(ends[0]) if len(ends) else len(ids)
        decode = self.processor.tokenizer.decode
        text, stopped = decode(ids[:tokens], skip_special_tokens=True), False
        if stops:
            text, stopped = cut_text(text, stops)
        if stopped:  # padding follows where other rows went on: count up to where the stop string is complete
            lengths = range(1, tokens + 1)
            tokens = next(n for n in lengths if cut_text(decode(ids[:n], skip_special_tokens=True), stops)[1])
        return Answer(text.strip(), report, row.prompt, tokens, stopped or bool(len(ends)), seconds)

    @property
    def end_ids(self) -> list[int]:
        """The tokens that end an answer."""
        end = self.model.generation_config.eos_token_id
        end = self.processor.tokenizer.eos_token_id if end is None else end
        return [] if end is None else list(end) if isinstance(end, list | tuple) else [end]

    @property
    def _pad_token_id(self) -> int | None:
        pad = self.model.generation_config.pad_token_id
        pad = self.processor.tokenizer.pad_token_id if pad is None else pad
        return pad if pad is not None else next(iter(self.end_ids), None)


def _row_reports(report: Report | None, rows: int) -> list[Report | None]:
    """The report of a batch by row. The seconds are the batch's: equal shares."""
    if report is None:
        return [None] * rows
    shares = {part: spent / rows for part, spent in report.seconds.items()}
    return [replace(own, seconds=shares) for own in report.rows or (report,) * rows]


@contextmanager
def _without_bars() -> Iterator[None]:
    """No progress bars of transformers: an embedded model is loaded before one could be read."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


@contextmanager
def _use_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from `seed` alone, leaving the generators as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else [], device_type="cuda"):
        torch.manual_seed(seed)
        yield


def _stop_strings(generation: Mapping[str, Any]) -> list[str]:
    stops = generation.get("stop_strings") or ()
    return [stops] if isinstance(stops, str) else [stop for stop in stops if stop]


def _common_prefix(a: Tensor, b: Tensor) -> int:
    n = min(len(a), len(b))
    different = (a[:n] != b[:n]).nonzero()
    return int(different[0]) if len(different) else n
