"""lmms-eval's model classes over a VLM: chat messages or plain contexts in, texts out, all through `VLM.batch`.

An error ends the run: no exception becomes an empty answer. How many answers the method acted on stands in the
results beside the throughput, and an evaluation in which it never acted fails. Knows nothing of tasks.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lmms_eval.api.instance import GenerationResult, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.models.model_utils.gen_metrics import log_metrics

from airvlm import VLM, Answer, MethodNotApplied
from airvlm.integrations.choice import chosen_method
from airvlm.integrations.lmms_eval.arguments import Generation, generation

__all__ = ["Airvlm", "AirvlmSimple"]

Asked = tuple[list[Any], list[dict[str, Any]]]  # images, and the turns that show them


class _Airvlm(lmms):
    """What both classes share; `_ask` and `_rounds` read a request's arguments."""

    def __init__(
        self,
        pretrained: str | None = None,  # None or "embedded": the embedded model
        method: str = "air",  # as on the command line, or @calibration.json
        device: str | None = None,
        dtype: str | None = None,
        device_map: str | None = None,
        batch_size: int | str = 16,
        max_batch_size: int | None = None,
        adapter: str | None = None,
        trust_remote_code: bool = False,
        system_prompt: str | None = None,
        ignore: str = "",  # generation arguments to leave out, joined by +
        reports: str | None = None,  # a JSON Lines file: what the method did for each answer
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown:
            raise ValueError(f"airvlm has no model argument {', '.join(unknown)}")
        if not str(batch_size).isdigit():
            raise ValueError(f"batch_size = {batch_size!r}: airvlm takes a number")
        self.method = chosen_method(method)
        self._rank, self._world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if self._world_size > 1 and torch.cuda.is_available() and device_map is None:
            device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"  # each rank answers its share on a device of its own
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
        asked = [self._ask(request.args) for request in requests]
        answers = self._answer([(question, given) for question, given, _ in asked])
        self._account([answer for answer, _ in answers], requests, "generate_until", started)
        results = []
        for (_, given, context), (answer, text) in zip(asked, answers, strict=True):
            self.cache_hook.add_partial("generate_until", (context, given), text)
            results.append(GenerationResult(text, TokenCounts(output_tokens=answer.tokens)))
        return results

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[list[str]]:
        """Each round of all requests together; a task says by its own function when a request has had its last."""
        started = time.perf_counter()
        rounds = [self._rounds(request.args) for request in requests]
        given_answers: list[tuple[Answer, Any]] = []
        said: list[list[str]] = [[] for _ in requests]
        open_ = {i: following(said[i]) for i, (following, _) in enumerate(rounds)}
        while open_ := {i: question for i, question in open_.items() if question is not None}:
            batch = [(question, rounds[i][1]) for i, question in open_.items()]
            for i, (answer, text) in zip(open_, self._answer(batch), strict=True):
                said[i].append(text)
                given_answers.append((answer, requests[i]))
            open_ = {i: rounds[i][0](said[i]) for i in open_}
        # once, whatever the number of rounds: every rank must come to it equally often
        self._account(
            [answer for answer, _ in given_answers],
            [request for _, request in given_answers],
            "generate_until_multi_round",
            started,
        )
        return said

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        raise NotImplementedError("airvlm answers generation tasks; this one asks for log-likelihoods")

    def clean(self) -> None:
        self.vlm = None
        super().clean()

    # -- answering

    def _answer(self, batch: Sequence[tuple[Asked, dict[str, Any]]]) -> list[tuple[Answer, str]]:
        """Answers and their texts, in order; requests of equal generation arguments run together."""
        assert self.vlm is not None, "the model was given up after the evaluation"
        groups: dict[str, list[int]] = {}
        for i, (_, given) in enumerate(batch):
            groups.setdefault(json.dumps(given, sort_keys=True, default=str), []).append(i)
        found: dict[int, tuple[Answer, str]] = {}
        for members in groups.values():
            how = generation(batch[members[0]][1], self.ignore)
            for i, answer in zip(members, self._run([batch[i][0] for i in members], how), strict=True):
                found[i] = answer, how.ended(answer.text)
        return [found[i] for i in range(len(batch))]

    def _run(self, questions: Sequence[Asked], how: Generation) -> Iterator[Answer]:
        assert self.vlm is not None
        options = dict(how.options)
        if how.until:
            options |= {"stop_strings": list(how.until), "tokenizer": self.vlm.processor.tokenizer}
        if how.seed is not None:
            torch.manual_seed(how.seed)
        return self.vlm.batch(
            questions, method=self.method, batch_size=self.batch_size, progress=self._rank == 0, **options
        )

    def _account(self, answers: Sequence[Answer], requests: Sequence[Any], kind: str, started: float) -> None:
        """What the method did, in the results and in the file of reports; raises where it never acted."""
        # a rank with fewer requests repeats one to keep step: those are not answers
        own = [
            (answer, request)
            for answer, request in zip(answers, requests, strict=True)
            if not request.metadata.get("__padding_only__")
        ]
        reports = [answer.report for answer, _ in own if answer.report is not None]
        fired, acting = _summed([sum(report.fired for report in reports), len(reports)])
        tokens, seconds = sum(answer.tokens for answer, _ in own), time.perf_counter() - started
        counts = {} if self.method is None else {f"airvlm_{kind}_fired": fired, f"airvlm_{kind}_answers": acting}
        log_metrics(seconds, tokens, tokens / max(seconds, 1e-9), counts)
        if self.reports is not None and own:
            file = self.reports if self._world_size == 1 else self.reports.with_suffix(f".{self._rank}.jsonl")
            with file.open("a") as lines:
                for answer, request in own:
                    *_, doc_id, task, _ = request.args
                    report = None if answer.report is None else answer.report.to_json()
                    lines.write(json.dumps({"task": task, "doc_id": doc_id, "text": answer.text, "report": report}))
                    lines.write("\n")
        if acting and not fired and not all(report.silent for report in reports):
            why = next((report.reason for report in reports), "no report of this rank")
            raise MethodNotApplied(
                f"{self.method.name if self.method else ''} acted on none of {acting} answers: {why}"
            )

    def _turns(self, messages: Sequence[dict[str, Any]]) -> Asked:
        """lmms-eval's messages -> the images, and the turns that show them."""
        images, turns = [], []
        for message in messages:
            content = message["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
            for part in parts:
                if part["type"] not in ("text", "image"):
                    raise ValueError(f"airvlm reads text and images; this task sends {part['type']}")
                if part["type"] == "image":
                    images.append(part.get("url", part.get("image")))
            kept = [part if part["type"] == "text" else {"type": "image"} for part in parts]
            turns.append({"role": message["role"], "content": kept})
        if self.system_prompt is not None and (not turns or turns[0]["role"] != "system"):
            turns.insert(0, {"role": "system", "content": [{"type": "text", "text": self.system_prompt}]})
        return images, turns

    def _doc(self, task: str, split: str, doc_id: int) -> Any:
        return self.task_dict[task][split][doc_id]

    def _ask(self, arguments: tuple[Any, ...]) -> tuple[Asked, dict[str, Any], str]:
        raise NotImplementedError

    def _rounds(self, arguments: tuple[Any, ...]) -> tuple[Callable[[list[str]], Asked | None], dict[str, Any]]:
        raise NotImplementedError


class Airvlm(_Airvlm):
    """Tasks that give chat messages."""

    is_simple = False

    def _ask(self, arguments: tuple[Any, ...]) -> tuple[Asked, dict[str, Any], str]:
        context, doc_to_messages, given, doc_id, task, split = arguments
        return self._turns(doc_to_messages(self._doc(task, split, doc_id))), given, context

    def _rounds(self, arguments: tuple[Any, ...]) -> tuple[Callable[[list[str]], Asked | None], dict[str, Any]]:
        _, doc_to_messages, given, doc_id, task, split = arguments
        doc, told = self._doc(task, split, doc_id), {"previous_round_info": None}

        def following(said: list[str]) -> Asked | None:
            if not said:
                return self._turns(doc_to_messages(doc))
            payload = doc_to_messages(doc, round_idx=len(said), previous_output=list(said), **told)
            if not (isinstance(payload, tuple) and len(payload) == 4):
                return None  # a task without further rounds
            messages, last, _, told["previous_round_info"] = payload
            return None if last else self._turns(messages)

        return following, given


class AirvlmSimple(_Airvlm):
    """Tasks that give a context and images."""

    is_simple = True

    def _plain(self, images: Any, text: str) -> Asked:
        parts: list[dict[str, Any]] = [{"type": "image", "url": image} for image in images or ()]
        return self._turns([{"role": "user", "content": [*parts, {"type": "text", "text": text}]}])

    def _ask(self, arguments: tuple[Any, ...]) -> tuple[Asked, dict[str, Any], str]:
        context, given, doc_to_visual, doc_id, task, split = arguments
        return self._plain(doc_to_visual(self._doc(task, split, doc_id)), context), given, context

    def _rounds(self, arguments: tuple[Any, ...]) -> tuple[Callable[[list[str]], Asked | None], dict[str, Any]]:
        context, given, doc_to_visual, doc_to_text, doc_id, task, split = arguments
        doc, told = self._doc(task, split, doc_id), {"previous_round_info": None}

        def following(said: list[str]) -> Asked | None:
            if not said:
                return self._plain(doc_to_visual(doc), context)
            images, text, last, _, told["previous_round_info"] = doc_to_text(
                doc, round_idx=len(said), previous_output=list(said), **told
            )
            return None if last else self._plain(images, text)

        return following, given


def _summed(counts: list[int]) -> list[int]:
    """Over all ranks."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return counts
    everyone: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, counts)
    return [sum(column) for column in zip(*everyone)]
