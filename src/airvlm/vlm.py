"""VLM: a vision-language model to talk to — ask, describe, batch, stream, compare.

Images and questions in, answers with their reports out. What a method does to the model is the method's own
business (methods/); loading is models/loading.py, and the way from a request to tensors is images/inputs.py.
"""

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

from airvlm.hooks.generation import turns_of
from airvlm.hooks.method import Method
from airvlm.hooks.streams import StopTexts, cut_text, stream_text
from airvlm.images.batches import like_lengths, windows
from airvlm.images.conversation import taken_apart
from airvlm.images.inputs import Encoder, Images, Request
from airvlm.images.prompts import DESCRIBE, Question
from airvlm.models.anatomy import Anatomy
from airvlm.models.loading import fingerprint, load_parts
from airvlm.report import Report

__all__ = ["VLM", "Answer"]


@dataclass(frozen=True)
class Answer:
    """One answer, and how it came about."""

    text: str
    report: Report | None  # what the method did; None without a method
    prompt: str  # the whole prompt, placeholders for images included
    tokens: int  # new tokens, the end token not counted
    finished: bool  # the model ended by itself, before max_new_tokens
    seconds: float  # of the whole call; in a batch, this row's share
    error: Exception | None = None  # why there is no answer (`batch(errors="keep")`); all else is empty then

    def __str__(self) -> str:
        return self.text


class VLM:
    """A model, its processor and its anatomy. Safe for threads: calls take turns, in the order they came."""

    def __init__(
        self,
        model: Any,
        processor: Any,
        *,
        name: str = "model",
        anatomy: Anatomy | None = None,
        allow_urls: bool = False,  # whether images may be fetched from http(s) addresses
        draft: bool = False,  # whether a large JPEG is decoded no finer than its crops need
    ) -> None:
        self.model = model
        self.processor = processor
        self.name = name
        self.anatomy = anatomy if anatomy is not None else Anatomy.of(model)
        self.encoder = Encoder(model, processor, self.anatomy, allow_urls=allow_urls, draft=draft)
        self.turns = turns_of(self.anatomy.model)

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
        draft: bool = False,
        allow_missing: bool = False,
        **options: Any,
    ) -> Self:
        """An embedded model ("photo", which None means too, or "tiny"), a local folder, or a name on the model hub.

        adapter: a LoRA on top of it. allow_missing: load weights that are not all there (the rest is random).
        draft: decode a large JPEG no finer than the encoder and its crops can use: five times as fast for 12 million
        pixels, and within two of 255 levels of the pixels that vanilla would get.
        """
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
        return cls(model, processor, name=name, allow_urls=allow_urls, draft=draft)

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
        method: Method | None = None,
        max_new_tokens: int = 64,
        **generation: Any,
    ) -> Answer:
        """One question about one image, several, or none; or a conversation's turns (images/prompts.py).

        `generation` goes to transformers' generate: `stop_strings` end the answer and are left out of it;
        `temperature`, `top_p` or `top_k` mean sampling, and `seed` makes it repeatable.
        """
        row = self.encoder.read(image, question)
        return self.answer_rows([row], method, max_new_tokens=max_new_tokens, **generation)[0]

    def describe(self, image: Images, *, method: Method | None = None, **generation: Any) -> Answer:
        """A description, asked for by the sentence that CHAIR evaluations use."""
        return self.ask(image, DESCRIBE, method=method, **generation)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        system: str | None = None,
        method: Method | None = None,
        **generation: Any,
    ) -> Answer:
        """The next turn of a conversation, through the model's chat template.

        messages: turns with a role and a content, a text or parts: {"type": "text", "text": ...} and
        {"type": "image", "image": anything that `ask` takes}, or OpenAI's {"type": "image_url", ...}.
        """
        images, turns = taken_apart(messages, system=system)
        return self.ask(images or None, turns, method=method, **generation)

    def compare(
        self, image: Images, question: Question, methods: Mapping[str, Method | None], **generation: Any
    ) -> dict[str, Answer]:
        """The same question under several methods; the image is encoded once."""
        row = self.encoder.read(image, question)
        return {name: self.answer_rows([row], method, **generation)[0] for name, method in methods.items()}

    def batch(
        self,
        requests: Iterable[tuple[Images, Question]],
        *,
        method: Method | None = None,
        batch_size: int = 16,
        progress: bool = True,
        errors: Literal["raise", "keep"] = "raise",
        **generation: Any,
    ) -> Iterator[Answer]:
        """Answers in the order of the requests, read as they are needed.

        Rows of like length run together, so that little is spent on padding. A row without an image, where others
        have one, is answered without the method, and its report says so.
        errors: "raise" at a request that cannot be read, or "keep" an Answer with its `error` in its place.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size = {batch_size}: at least one row runs at a time")
        if errors not in ("raise", "keep"):
            raise ValueError(f"errors = {errors!r}: choose raise or keep")
        total = len(requests) if isinstance(requests, Sized) else None
        with tqdm(total=total, disable=not progress, unit="answer", desc=self.name) as bar:
            for read in windows(self.encoder, requests, batch_size):
                failed = {i: one for i, one in enumerate(read) if isinstance(one, Exception)}
                if failed and errors == "raise":
                    raise next(iter(failed.values()))
                answers = {i: Answer("", None, "", 0, False, 0.0, error) for i, error in failed.items()}
                rows = {i: one for i, one in enumerate(read) if isinstance(one, Request)}
                answers |= self._answer_window(rows, method, batch_size, bar, generation)
                yield from (answers[i] for i in range(len(read)))

    def _answer_window(
        self,
        rows: dict[int, Request],
        method: Method | None,
        batch_size: int,
        bar: Any,
        generation: dict[str, Any],
    ) -> dict[int, Answer]:
        """Rows that were read together, by their places in the window."""
        answers: dict[int, Answer] = {}
        for chunk in like_lengths(rows, batch_size):
            batch = [rows[i] for i in chunk]
            blind = method is not None and not batch[0].images and any(row.images for row in rows.values())
            given = self.answer_rows(batch, None if blind else method, **generation)
            if blind and method is not None:
                given = [_without_image(answer, method) for answer in given]
            answers.update(zip(chunk, given))
            bar.update(len(chunk))
        return answers

    def stream(
        self,
        image: Images,
        question: Question,
        *,
        method: Method | None = None,
        max_new_tokens: int = 64,
        **generation: Any,
    ) -> Generator[str, None, Answer]:
        """The answer's text piece by piece, as it comes; the generator returns the whole Answer at its end.

        The model is taken at the first piece, and is free again when the answer is generated, read or not: another call
        waits until then. A stream that is closed or dropped ends at its next token.
        """
        row = self.encoder.read(image, question)
        turn = self.turns.take()
        try:
            started = time.perf_counter()
            inputs = self.encoder.inputs([row], pixels=method is not None and method.needs_pixels)
            stops = _stop_strings(generation)
        except BaseException:
            turn.end()
            raise

        def generate(**hooks: Any) -> tuple[Tensor, Report | None]:
            return self._generate(inputs, [row], method, max_new_tokens=max_new_tokens, **hooks, **generation)

        ids, report = yield from stream_text(generate, self.processor, turn, stops)
        return self._read(ids[0], row, report, time.perf_counter() - started, stops)

    @torch.no_grad()
    def likelihood(
        self, image: Images, question: Question, options: Sequence[str], *, method: Method | None = None
    ) -> list[float]:
        """Mean log-likelihood of each option's tokens as the answer; the largest is the model's choice."""
        row = self.encoder.read(image, question)
        # GLM-4V's template leaves it to the model to begin its answer with a newline
        row = replace(row, prompt=row.prompt + getattr(self.processor, "answer_start", ""))
        with self.turns.take():
            return self._likelihood(row, options, method)

    def _likelihood(self, row: Request, options: Sequence[str], method: Method | None) -> list[float]:
        asked = self.encoder.inputs([row])["input_ids"][0]
        scores = []
        for option in options:
            if not option.strip():
                raise ValueError("an option is empty: there is nothing to compare")
            # together, as the tokenizer would write it: a space belongs to the word that follows it
            gap = "" if row.prompt[-1:].isspace() else " "
            full = replace(row, prompt=row.prompt + gap + option.strip())
            inputs = self.encoder.inputs([full], pixels=method is not None and method.needs_pixels)
            ids = inputs["input_ids"][0]
            start = _common_prefix(asked, ids)
            with self._under(method, [full]):
                logits = self.model(**inputs).logits[0]  # (L, vocabulary)
            logp = logits[start - 1 : -1].float().log_softmax(-1)  # (option tokens, vocabulary)
            scores.append(logp.gather(1, ids[start:, None].to(logp.device)).mean().item())
        return scores

    # -- the steps of an answer

    def _under(self, method: Method | None, rows: Sequence[Request]) -> Any:
        if method is None:
            return nullcontext()
        images = [list(row.images) for row in rows]
        # the encoder made the inputs of these very images
        return method(self.model, self.processor, images=images, anatomy=self.anatomy, check_images=False)

    def _generate(
        self, inputs: dict[str, Any], rows: Sequence[Request], method: Method | None, **generation: Any
    ) -> tuple[Tensor, Report | None]:
        """New token ids (B, T) and the report of the batch."""
        if generation.get("num_return_sequences", 1) != 1:
            raise ValueError(
                "num_return_sequences: an Answer holds one text; ask several times with a seed instead"
            )
        _sampling(generation)
        seed = generation.pop("seed", None)
        generation.setdefault("pad_token_id", self._pad_token_id)
        length = inputs["input_ids"].shape[1]
        stops = _stop_strings(generation)
        generation.pop("stop_strings", None)
        if stops:
            ends = StopTexts(self.processor.tokenizer, stops, length)
            given = generation.get("stopping_criteria") or ()
            generation["stopping_criteria"] = StoppingCriteriaList([*given, ends])
        with torch.no_grad(), _seeded(seed, self.model.device), self._under(method, rows) as run:
            ids = self.model.generate(**inputs, **generation)
        return ids[:, length:], None if run is None else run.report

    def answer_rows(
        self, rows: Sequence[Request], method: Method | None, *, max_new_tokens: int = 64, **generation: Any
    ) -> list[Answer]:
        """Requests that were read (`encoder.read`) answered together, as one batch; all show images, or none does."""
        with self.turns.take():
            started = time.perf_counter()
            inputs = self.encoder.inputs(rows, pixels=method is not None and method.needs_pixels)
            ids, report = self._generate(inputs, rows, method, max_new_tokens=max_new_tokens, **generation)
            seconds = (time.perf_counter() - started) / len(rows)
        stops = _stop_strings(generation)
        reports = [None] * len(rows) if report is None else _row_reports(report, len(rows))
        return [self._read(ids[i], row, reports[i], seconds, stops) for i, row in enumerate(rows)]

    def _read(
        self, ids: Tensor, row: Request, report: Report | None, seconds: float, stops: Sequence[str] = ()
    ) -> Answer:
        """Token ids -> text, up to the end token or the first stop string."""
        ends = torch.isin(ids, torch.tensor(self.end_ids, dtype=ids.dtype, device=ids.device)).nonzero()
        tokens = int(ends[0]) if len(ends) else len(ids)
        decode = self.processor.tokenizer.decode
        text, stopped = decode(ids[:tokens], skip_special_tokens=True), False
        if stops:
            text, stopped = cut_text(text, stops)
        if stopped:  # rows that go on are followed by padding here: count to where the stop string is whole
            tokens = next(
                n
                for n in range(1, tokens + 1)
                if cut_text(decode(ids[:n], skip_special_tokens=True), stops)[1]
            )
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


def _sampling(generation: dict[str, Any]) -> None:
    """Greedy unless sampling is asked for, by name or by what only sampling reads; a temperature of 0 is greedy."""
    if generation.get("temperature") == 0:
        del generation["temperature"]
        generation.setdefault("do_sample", False)
    hints = ("temperature", "top_p", "top_k", "min_p", "typical_p")
    generation.setdefault("do_sample", any(generation.get(name) is not None for name in hints))


@contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Draws that depend on `seed` alone, and leave the generators as they were; None leaves all to the caller."""
    if seed is None:
        yield
        return
    own = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=own, device_type="cuda"):
        torch.manual_seed(seed)
        yield


def _stop_strings(generation: Mapping[str, Any]) -> list[str]:
    stops = generation.get("stop_strings") or ()
    return [stops] if isinstance(stops, str) else [stop for stop in stops if stop]


def _row_reports(report: Report, rows: int) -> Sequence[Report]:
    """One report a row; the seconds, which are the batch's, in equal shares."""
    own = report.rows or (report,) * rows
    return [replace(row, seconds={k: v / rows for k, v in report.seconds.items()}) for row in own]


def _without_image(answer: Answer, method: Method) -> Answer:
    report = Report(method.to_json(), fired=False, reason="this request has no image")
    return replace(answer, report=report)


def _common_prefix(a: Tensor, b: Tensor) -> int:
    n = min(len(a), len(b))
    different = (a[:n] != b[:n]).nonzero()
    return int(different[0]) if len(different) else n
