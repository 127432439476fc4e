"""Record the margins of a greedy run: how much bias a control's token would have needed at every step.

`answer_traced` answers requests under a method and returns traces beside the answers, see traces.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import LogitsProcessor

from airvlm.evaluation.traces import Derived, TraceRequest, bias_ranges, end_trace, thresholds, yes_trace
from airvlm.inputs.builder import Request, group_by_length
from airvlm.methods.base import Method
from airvlm.methods.biases import find_end_tokens, find_spellings
from airvlm.methods.composed import Composed
from airvlm.report import Report
from airvlm.runtime.intervention import Context, GenerateCall, Intervention
from airvlm.vlm import VLM, Answer

__all__ = ["Traced", "answer_traced", "trace_problem"]

ROUNDS = 8  # of runs that look for further answers under a bias on yes


@dataclass(frozen=True)
class Traced:
    """An answer with its trace; a refused trace says why, and then the answer is not the method's own."""

    answer: Answer  # of the run: the trace says what the method itself answers
    trace: dict[str, Any]


def trace_problem(method: Method | None, generation: dict[str, Any]) -> str | None:
    """Why a method's answers under a bias cannot be read from one run; None if they can."""
    if generation.get("do_sample", True):
        return "sampling draws every answer anew"
    if generation.get("num_beams", 1) > 1:
        return "beam search compares whole answers"
    unknown = sorted(set(generation) - {"max_new_tokens", "do_sample", "num_beams", "noise"})
    if unknown or "max_new_tokens" not in generation:
        return f"{', '.join(unknown) or 'a length without a cap'} may depend on the bias"
    if method is not None and not isinstance(method, Method):
        return "it is not a method of airvlm"
    if method is not None and "loop" in method.exclusive:
        return f"{method.name} has a decoding loop of its own"
    return None


def answer_traced(
    vlm: VLM, requests: Sequence[tuple[Any, str]], method: Method | None, request: TraceRequest, **generation: Any
) -> list[Traced]:
    """Answer requests as one batch, in their order, and record what a control's biases would change.

    Args:
        vlm: the model.
        requests: pairs of images and question.
        method: None is vanilla.
        request: the control and its biases.
        generation: as in `VLM.ask`; greedy.
    """
    rows = vlm.builder.read_each(requests)
    problem = next((row for row in rows if isinstance(row, Exception)), None)
    if problem is not None:
        raise problem
    read = {i: row for i, row in enumerate(rows) if isinstance(row, Request)}
    found: dict[int, Traced] = {}
    trace = _trace_ends if request.control == "eos-bias" else _trace_yes
    for group in group_by_length(read, len(read)):  # as VLM.batch groups them, so that every row computes the same
        own = [read[i] for i in group]
        found.update(zip(group, trace(vlm, own, method, request, generation), strict=True))
    return [found[i] for i in range(len(rows))]


def _trace_ends(
    vlm: VLM, rows: list[Request], method: Method | None, request: TraceRequest, generation: dict[str, Any]
) -> list[Traced]:
    low, cap = min(request.biases), int(generation["max_new_tokens"])
    traced = []
    for run in _run(vlm, rows, method, "eos-bias", [low] * len(rows), generation):
        trace: dict[str, Any] = {"refused": run.problem}
        if not run.problem:
            texts = [vlm.processor.tokenizer.decode(run.ids[:n], skip_special_tokens=True) for n in range(len(run.ids))]
            texts.append(run.text)
            trace = end_trace(low, cap, texts, run.margins)
        traced.append(Traced(run.answer, trace))
    return traced


def _trace_yes(
    vlm: VLM, rows: list[Request], method: Method | None, request: TraceRequest, generation: dict[str, Any]
) -> list[Traced]:
    """The method itself first; then, of rows whose answer another bias changes, the answers under those biases."""
    answers: dict[int, Answer] = {}
    problems: dict[int, str] = {}
    ranges: dict[int, list[tuple[float, float, Derived]]] = {i: [] for i in range(len(rows))}
    biases = dict.fromkeys(range(len(rows)), 0.0)
    for _ in range(ROUNDS):
        # rows that are settled are asked again only where the others' answers depend on them
        indices = list(range(len(rows))) if _mixes_rows(method) else list(biases)
        asked = [biases.get(i, 0.0) for i in indices]
        runs = _run(vlm, [rows[i] for i in indices], method, "yes-bias", asked, generation)
        for i, run in zip(indices, runs, strict=True):
            if i not in biases:
                continue
            held = answers.get(i)
            spent = run.answer.seconds + (0.0 if held is None else held.seconds)
            answers[i] = replace(held or run.answer, seconds=spent)
            if run.problem:
                problems[i] = run.problem
                continue
            low, high = bias_ranges(biases[i], run.margins)
            ranges[i].append((low, high, Derived(run.answer.text, run.answer.tokens, run.answer.finished)))
        biases = {}
        for i, known in ranges.items():
            left = [b for b in request.biases if not any(low <= b < high for low, high, _ in known)]
            if left and i not in problems:
                biases[i] = min(left, key=abs)
        if not biases:
            break
    return [
        Traced(answers[i], {"refused": problems[i]} if i in problems else yes_trace(ranges[i]))
        for i in range(len(rows))
    ]


def _mixes_rows(method: Method | None) -> bool:
    """Whether a row's answer depends on the other rows of its batch."""
    parts = method.methods if isinstance(method, Composed) else (method,)
    return any(part is not None and part.mixes_rows for part in parts)


# -- one run


@dataclass(frozen=True)
class _Row:
    answer: Answer  # under the run's bias
    ids: list[int]  # its tokens, without the end token
    text: str  # decoded from them, before it was stripped
    margins: list[float]  # one per token, and one of the end token
    problem: str = ""  # why the margins do not belong to the answer


def _run(
    vlm: VLM,
    rows: list[Request],
    method: Method | None,
    control: str,
    biases: Sequence[float],
    generation: dict[str, Any],
) -> list[_Row]:
    """Answer one batch with a bias of its own for every row, and record margins."""
    skipped = method is not None and method.needs_images and not any(row.images for row in rows)
    recorder = Recorder(control)
    recorder.steps.biases = torch.tensor(biases, dtype=torch.float32)
    applied = recorder if method is None or skipped else Composed(method, recorder)
    answers = vlm.answer_rows(rows, applied, allow_text_only=True, **generation)
    if method is None:
        answers = [replace(answer, report=None) for answer in answers]
    elif skipped:
        report = Report(method.to_json(), fired=False, reason="this request has no image")
        answers = [replace(answer, report=report) for answer in answers]
    else:
        answers = [replace(answer, report=_without_recorder(answer.report)) for answer in answers]
    return recorder.steps.read(vlm, answers)


def _without_recorder(report: Report | None) -> Report | None:
    """The report of a composition with the recorder -> that of the method alone."""
    if report is None or len(report.parts) < 2:
        return report
    parts = report.parts[:-1]
    if len(parts) == 1:
        return replace(parts[0], seconds=report.seconds)
    idle = [f"{part.method['name']}: {part.reason}" for part in parts if not part.fired]
    method = {"name": "composed", "methods": [part.method for part in parts]}
    return replace(report, method=method, parts=parts, reason="; ".join(dict.fromkeys(idle)) or None)


class _Steps:
    """What a recorder saw of one call. Nothing is read back before `read`."""

    def __init__(self) -> None:
        self.biases = torch.zeros(0)
        self.problem = ""
        self._seen: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []  # best of the control's and of others, ...
        self._ids: Tensor | None = None  # of the latest step, the prompt included
        self._first = 0  # tokens of the prompt

    def start(self, call: GenerateCall) -> None:
        self._seen, self._ids = [], None
        if call.option("num_beams", 1) > 1 or call.option("do_sample", False):
            self.problem = "decoding is not greedy"
        elif call.option("forced_eos_token_id") is not None:
            self.problem = "the model's generation config forces the end token at the cap"
        elif call.option("exponential_decay_length_penalty") is not None:
            self.problem = "the model's generation config penalizes long answers"

    def add(self, ids: Tensor, scores: Tensor, tokens: Tensor) -> Tensor:
        """One step: scores (B, V) before the bias -> after it. Rows may be finished; theirs are ignored later."""
        if self._ids is None:
            self._first = ids.shape[1]
        elif ids.shape[1] != self._ids.shape[1] + 1:
            self.problem = self.problem or "a step was taken back"
        if scores.dtype != torch.float32 or len(scores) != len(self.biases):
            self.problem = self.problem or "its scores are not those of one greedy row each"
        self._ids = ids
        chosen = scores[:, tokens]  # (B, K)
        best, place = chosen.max(-1)
        others = scores.index_fill(1, tokens, -torch.inf)
        index = others.argmax(-1)
        other = others.gather(1, index[:, None])[:, 0]
        self.biases = self.biases.to(scores.device)  # moved once
        rows = self.biases[:, None] if len(self.biases) == len(scores) else self.biases[:1, None]
        biased = scores.index_add(1, tokens, rows.to(scores.dtype).expand(len(scores), len(tokens)))
        self._seen.append((best, other, tokens[place] < index, biased.argmax(-1)))
        return biased

    def read(self, vlm: VLM, answers: Sequence[Answer]) -> list[_Row]:
        """Answers with their margins; a row whose recorded tokens do not spell its answer has a problem."""
        if not self._seen:
            return [_Row(answer, [], "", [], self.problem or "the scores were not seen") for answer in answers]
        best, other, first, chosen = (torch.stack(values, 1).cpu() for values in zip(*self._seen))  # (B, T) each
        margins = thresholds(best.float().numpy(), other.float().numpy(), first.numpy())
        assert self._ids is not None
        seen = self._ids[:, self._first :].cpu()  # (B, T - 1)
        rows = []
        for r, answer in enumerate(answers):
            n = answer.tokens
            ids = chosen[r, :n].tolist() if r < len(chosen) else []
            text = vlm.processor.tokenizer.decode(ids, skip_special_tokens=True)
            problem = self.problem
            ended = n < chosen.shape[1] and r < len(chosen) and int(chosen[r, n]) in vlm.end_ids
            consistent = len(ids) == n and text.strip() == answer.text and ended == answer.finished
            if not consistent or ids[: seen.shape[1]] != seen[r, :n].tolist():
                problem = problem or "the recorded tokens are not the answer's"
            own = margins[r, : n + ended].tolist() if r < len(margins) else []
            rows.append(_Row(answer, ids, text, own, problem))
        return rows


@dataclass(frozen=True)
class Recorder(Method):
    """Adds a control's bias, one per row, and records what every step would have needed."""

    name: ClassVar[str] = "recorder"
    summary: ClassVar[str] = "records margins during an evaluation"
    site: ClassVar[str] = "control"
    needs_images: ClassVar[bool] = False

    control: str = "eos-bias"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "steps", _Steps())  # not an option: what it saw

    steps: ClassVar[_Steps]

    def start(self, context: Context) -> Intervention:
        return _Recording(self, context)


class _Recording(Intervention):
    method: Recorder

    def processors(self, call: GenerateCall) -> list[LogitsProcessor]:
        if self.method.control == "eos-bias":
            tokens = find_end_tokens(call)
        else:
            tokens = find_spellings(self.context.processor, ("yes", "Yes", "YES"))
        steps = self.method.steps
        steps.start(call)
        return [_Processor(steps, torch.tensor(tokens))]


class _Processor(LogitsProcessor):
    def __init__(self, steps: _Steps, tokens: Tensor) -> None:
        self.steps, self.tokens = steps, tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.tokens = self.tokens.to(scores.device)
        return self.steps.add(input_ids, scores, self.tokens)
