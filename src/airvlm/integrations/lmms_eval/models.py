"""lmms-eval's model classes: chat messages or plain contexts in, texts out, through `VLM.batch`.

An error ends the run: no exception becomes an empty answer. The number of answers that the method acted on is logged
beside the throughput, and an evaluation in which it never acted fails.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lmms_eval.api.instance import GenerationResult, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.models.model_utils.gen_metrics import log_metrics

from airvlm import VLM, Answer, MethodNotApplied, get_method
from airvlm.inputs.prompts import split_messages
from airvlm.integrations.lmms_eval.arguments import read_generation

__all__ = ["Airvlm", "AirvlmSimple"]

Conversation = tuple[list[Any], list[dict[str, Any]]]  # images, and the turns that show them


class _Airvlm(lmms):
    """What both classes share; `_read` and `_read_rounds` read a request's arguments.

    Args:
        pretrained: a folder or a name on the hub; None or "embedded" is the embedded model.
        method: as on the command line, or @calibration.json.
        device: as in `VLM.load`.
        dtype: as in `VLM.load`.
        device_map: as in `VLM.load`.
        batch_size: requests per batch.
        max_batch_size: not used; lmms-eval passes it.
        adapter: as in `VLM.load`.
        trust_remote_code: as in `VLM.load`.
        system_prompt: a text, or a file that contains it.
        ignore: generation arguments to leave out, joined by +.
        reports: a JSON Lines file for the report of each answer.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        method: str = "crop-blend",
        device: str | None = None,
        dtype: str | None = None,
        device_map: str | None = None,
        batch_size: int | str = 16,
        max_batch_size: int | None = None,
        adapter: str | None = None,
        trust_remote_code: bool = False,
        system_prompt: str | None = None,
        ignore: str = "",
        reports: str | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown:
            raise ValueError(f"airvlm has no model argument {', '.join(unknown)}")
        if not str(batch_size).isdigit():
            raise ValueError(f"batch_size = {batch_size!r}: give a number")
        self.method = get_method(str(method).strip().strip("'\""))  # quoted where it contains a comma
        self._rank, self._world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if self._world_size > 1 and torch.cuda.is_available() and device_map is None:
            device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"  # one device per rank
        self.vlm: VLM | None = VLM.load(
            None if pretrained in (None, "embedded") else pretrained,
            device=device,
            dtype=dtype,
            device_map=device_map,
            adapter=adapter,
            trust_remote_code=trust_remote_code,
        )
        self.device = self.vlm.model.device
        self.batch_size = int(batch_size)
        self.system_prompt = None if system_prompt is None else self._resolve_system_prompt(str(system_prompt))
        self.ignore = tuple(name for name in ignore.split("+") if name)
        self.reports = None if reports is None else Path(str(reports))

    # -- what lmms-eval calls

    def generate_until(self, requests: Sequence[Any]) -> list[Any]:
        started = time.perf_counter()
        read = [self._read(request.args) for request in requests]
        answers = self._answer([(conversation, given) for conversation, given, _ in read])
        self._log(answers, requests, "generate_until", started)
        results = []
        for (_, given, context), answer in zip(read, answers, strict=True):
            self.cache_hook.add_partial("generate_until", (context, given), answer.text)
            results.append(GenerationResult(answer.text, TokenCounts(output_tokens=answer.tokens)))
        return results

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[list[str]]:
        """Each round of all requests together; a task's own function ends a request's rounds."""
        started = time.perf_counter()
        rounds = [self._read_rounds(request.args) for request in requests]
        answers: list[tuple[Answer, Any]] = []
        texts: list[list[str]] = [[] for _ in requests]
        pending = {i: next_round([]) for i, (next_round, _) in enumerate(rounds)}
        while pending := {i: conversation for i, conversation in pending.items() if conversation is not None}:
            batch = [(conversation, rounds[i][1]) for i, conversation in pending.items()]
            for i, answer in zip(pending, self._answer(batch), strict=True):
                texts[i].append(answer.text)
                answers.append((answer, requests[i]))
            pending = {i: rounds[i][0](texts[i]) for i in pending}
        # once, whatever the number of rounds: every rank must call it equally often
        own, of = [answer for answer, _ in answers], [request for _, request in answers]
        self._log(own, of, "generate_until_multi_round", started)
        return texts

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        raise NotImplementedError("airvlm supports generation tasks; this one needs log-likelihoods")

    def clean(self) -> None:
        self.vlm = None
        super().clean()

    # -- answering

    def _answer(self, batch: Sequence[tuple[Conversation, dict[str, Any]]]) -> list[Answer]:
        """Answers in order; requests with equal generation arguments run together."""
        assert self.vlm is not None, "the model was released after the evaluation"
        groups: dict[str, list[int]] = {}
        for i, (_, given) in enumerate(batch):
            groups.setdefault(json.dumps(given, sort_keys=True, default=str), []).append(i)
        found: dict[int, Answer] = {}
        for members in groups.values():
            answers = self.vlm.batch(
                [batch[i][0] for i in members],
                method=self.method,
                batch_size=self.batch_size,
                progress=self._rank == 0,
                **read_generation(batch[members[0]][1], self.ignore),
            )
            found.update(zip(members, answers, strict=True))
        return [found[i] for i in range(len(batch))]

    def _log(self, answers: Sequence[Answer], requests: Sequence[Any], kind: str, started: float) -> None:
        """Log what the method did, and write its reports; raises if it never acted."""
        # a rank with fewer requests repeats one to keep in step
        own = [
            (answer, request)
            for answer, request in zip(answers, requests, strict=True)
            if not request.metadata.get("__padding_only__")
        ]
        reports = [answer.report for answer, _ in own if answer.report is not None]
        fired, total = _sum_over_ranks([sum(report.fired for report in reports), len(reports)])
        tokens, seconds = sum(answer.tokens for answer, _ in own), time.perf_counter() - started
        counts = {} if self.method is None else {f"airvlm_{kind}_fired": fired, f"airvlm_{kind}_answers": total}
        log_metrics(seconds, tokens, tokens / max(seconds, 1e-9), counts)
        if self.reports is not None and own:
            file = self.reports if self._world_size == 1 else self.reports.with_suffix(f".{self._rank}.jsonl")
            with file.open("a") as lines:
                for answer, request in own:
                    *_, doc_id, task, _ = request.args
                    report = None if answer.report is None else answer.report.to_json()
                    lines.write(json.dumps({"task": task, "doc_id": doc_id, "text": answer.text, "report": report}))
                    lines.write("\n")
        if total and not fired and not all(report.expected for report in reports):
            reason = next((report.reason for report in reports), "this rank has no report")
            raise MethodNotApplied(
                f"{self.method.label if self.method else ''} acted on none of {total} answers: {reason}"
            )

    def _split(self, messages: Sequence[dict[str, Any]]) -> Conversation:
        """lmms-eval's messages -> the images, and the turns that show them."""
        has_system = bool(messages) and messages[0]["role"] == "system"
        return split_messages(messages, system=None if has_system else self.system_prompt)

    def _doc(self, task: str, split: str, doc_id: int) -> Any:
        return self.task_dict[task][split][doc_id]

    def _read(self, arguments: tuple[Any, ...]) -> tuple[Conversation, dict[str, Any], str]:
        raise NotImplementedError

    def _read_rounds(
        self, arguments: tuple[Any, ...]
    ) -> tuple[Callable[[list[str]], Conversation | None], dict[str, Any]]:
        raise NotImplementedError


class Airvlm(_Airvlm):
    """Tasks that give chat messages."""

    is_simple = False

    def _read(self, arguments: tuple[Any, ...]) -> tuple[Conversation, dict[str, Any], str]:
        context, doc_to_messages, given, doc_id, task, split = arguments
        return self._split(doc_to_messages(self._doc(task, split, doc_id))), given, context

    def _read_rounds(
        self, arguments: tuple[Any, ...]
    ) -> tuple[Callable[[list[str]], Conversation | None], dict[str, Any]]:
        _, doc_to_messages, given, doc_id, task, split = arguments
        doc, state = self._doc(task, split, doc_id), {"previous_round_info": None}

        def next_round(texts: list[str]) -> Conversation | None:
            if not texts:
                return self._split(doc_to_messages(doc))
            payload = doc_to_messages(doc, round_idx=len(texts), previous_output=list(texts), **state)
            if not (isinstance(payload, tuple) and len(payload) == 4):
                return None  # a task without further rounds
            messages, last, _, state["previous_round_info"] = payload
            return None if last else self._split(messages)

        return next_round, given


class AirvlmSimple(_Airvlm):
    """Tasks that give a context and images."""

    is_simple = True

    def _user_turn(self, images: Any, text: str) -> Conversation:
        parts: list[dict[str, Any]] = [{"type": "image", "url": image} for image in images or ()]
        return self._split([{"role": "user", "content": [*parts, {"type": "text", "text": text}]}])

    def _read(self, arguments: tuple[Any, ...]) -> tuple[Conversation, dict[str, Any], str]:
        context, given, doc_to_visual, doc_id, task, split = arguments
        return self._user_turn(doc_to_visual(self._doc(task, split, doc_id)), context), given, context

    def _read_rounds(
        self, arguments: tuple[Any, ...]
    ) -> tuple[Callable[[list[str]], Conversation | None], dict[str, Any]]:
        context, given, doc_to_visual, doc_to_text, doc_id, task, split = arguments
        doc, state = self._doc(task, split, doc_id), {"previous_round_info": None}

        def next_round(texts: list[str]) -> Conversation | None:
            if not texts:
                return self._user_turn(doc_to_visual(doc), context)
            images, text, last, _, state["previous_round_info"] = doc_to_text(
                doc, round_idx=len(texts), previous_output=list(texts), **state
            )
            return None if last else self._user_turn(images, text)

        return next_round, given


def _sum_over_ranks(counts: list[int]) -> list[int]:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return counts
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, counts)
    return [sum(column) for column in zip(*gathered)]
