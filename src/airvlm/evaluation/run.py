"""Run batches on a model: records out, whatever happens in between.

A batch that raises is split until the item at fault is alone, and that item's record holds the error.
"""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airvlm.evaluation.plan import Batch, EvalItem, ModelInfo, add_noise
from airvlm.evaluation.store import Json, Record, RecordKey, Store
from airvlm.evaluation.traces import Derived, derive_answer
from airvlm.inputs.images import load_image

__all__ = ["RunBatches", "generate_batch", "pending", "run_batches"]

# answers batches into a store and calls back after each: `run_batches` with a model, or a cluster's
RunBatches = Callable[[Sequence[Batch], Store, Callable[[Batch], None]], None]


def pending(batches: Iterable[Batch], store: Store) -> list[Batch]:
    """The batches that lack an answer, or a trace that holds what is asked of it."""

    def lacks(batch: Batch, key: RecordKey) -> bool:
        if batch.trace is not None:
            return not store.covers(key, batch.trace)
        return key not in store and not (batch.traced and store.is_failed(key))

    return [batch for batch in batches if any(lacks(batch, key) for key in batch.keys)]


def run_batches(
    vlm: Any, batches: Iterable[Batch], store: Store, done: Callable[[Batch], None] = lambda batch: None
) -> None:
    """Answer batch after batch; each is stored before the next begins.

    A batch that was answered in part runs again as a whole: among other rows its numbers could round differently.

    Args:
        vlm: the model.
        batches: what to answer.
        store: where answers go; other processes may write to it as well.
        done: called after every batch.
    """
    images: dict[str, Any] = {}
    for batch in batches:
        store.refresh()
        if pending([batch], store):
            store.extend(generate_batch(vlm, batch, images))
        done(batch)


def generate_batch(vlm: Any, batch: Batch, images: dict[str, Any] | None = None) -> list[Record]:
    """One record per item, in order. An item that fails has a record with its error.

    Args:
        vlm: the model.
        batch: what to answer.
        images: files that the batch before read; the next one is mostly about the same.
    """
    model = ModelInfo.of(vlm)
    images = {} if images is None else images
    try:
        return _generate(vlm, batch, model, images)
    except Exception as error:  # whatever it is, it belongs to an item, and the run goes on
        if len(batch.items) == 1:
            item = batch.items[0]
            return [Record(item.key, error=_error_text(error), extra=_extra(item, model))]
    _free_memory()
    middle = len(batch.items) // 2
    halves = (replace(batch, items=part) for part in (batch.items[:middle], batch.items[middle:]))
    return [record for half in halves for record in generate_batch(vlm, half, images)]


def _generate(vlm: Any, batch: Batch, model: ModelInfo, read_before: dict[str, Any]) -> list[Record]:
    generation = dict(batch.items[0].key.generation)
    noise = generation.pop("noise", 0.0)
    images = [add_noise(image, noise) if noise else image for image in _read_images(batch, read_before)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* did not act")  # counted in the table instead
        if generation.pop("protocol", "text") == "likelihood":
            return [_likelihood(vlm, batch.method, item, image, model) for item, image in zip(batch.items, images)]
        # POPE asks a third of its questions in three settings: decoding is greedy, so that once is enough
        asked = [(item.key.image, item.key.prompt) for item in batch.items]
        requests = {key: (image, key[1]) for key, image in zip(asked, images)}
        rows = list(requests.values())
        traces: list[Any] = [None] * len(rows)
        if batch.trace is not None:
            given, traces = _trace(vlm, batch, rows, generation)
        if batch.trace is None or any("refused" in trace for trace in traces):
            # what cannot be traced is asked as it is, the whole batch, so that every row computes the same
            given = list(vlm.batch(rows, method=batch.method, batch_size=len(rows), progress=False, **generation))
    if len(given) != len(requests):
        raise RuntimeError(f"the model gave {len(given)} answers to {len(requests)} questions")
    answers, times = dict(zip(requests, zip(given, traces))), Counter(asked)
    return [_record(item, *answers[key], times[key], model) for item, key in zip(batch.items, asked)]


def _trace(vlm: Any, batch: Batch, rows: list[Any], generation: Json) -> tuple[list[Any], list[Any]]:
    """Answers of the method itself, and the traces that they were read from."""
    from airvlm.evaluation.recorder import answer_traced  # imports torch

    assert batch.trace is not None
    found = answer_traced(vlm, rows, batch.method, batch.trace, **generation)
    answers = []
    for one in found:
        own = derive_answer(one.trace, "", 0.0, None) or Derived(
            one.answer.text, one.answer.tokens, one.answer.finished
        )
        answers.append(replace(one.answer, text=own.text, tokens=own.tokens, finished=own.finished))
    return answers, [one.trace for one in found]


def _record(item: EvalItem, answer: Any, trace: Json | None, times: int, model: ModelInfo) -> Record:
    return Record(
        item.key,
        text=answer.text,
        tokens=answer.tokens,
        finished=answer.finished,
        seconds=round(answer.seconds / times, 4),
        report=None if answer.report is None else _shorten(answer.report.to_json()),
        extra=_extra(item, model),
        trace=trace,
    )


def _read_images(batch: Batch, read_before: dict[str, Any]) -> list[Any]:
    """The items' images. A file that several items ask about is read once and kept for the next batch."""
    read: dict[str, Any] = {}
    images = []
    for item in batch.items:
        image, key = item.image, item.key.image
        if isinstance(image, str | os.PathLike) and Path(image).is_file():
            if key not in read:
                read[key] = read_before[key] if key in read_before else load_image(image)
            image = read[key]
        images.append(image)
    read_before.clear()
    read_before.update(read)
    return images


def _likelihood(vlm: Any, method: Any, item: EvalItem, image: Any, model: ModelInfo) -> Record:
    """The answer is the likelihood of each option, as the task's parser reads it."""
    values = vlm.likelihood(image, item.key.prompt, item.options, method=method)
    text = json.dumps([round(float(value), 6) for value in values])
    return Record(item.key, text=text, finished=True, extra=_extra(item, model))


def _extra(item: EvalItem, model: ModelInfo) -> Json:
    return {"model": model.name, "device": model.device, "settings": item.settings}


def _shorten(report: Json) -> Json:
    """A report without what the record says anyway, what is empty, and what differs in every run."""
    skipped = ("method", "rows", "seconds")
    short = {k: v for k, v in report.items() if k not in skipped and (v not in (None, [], (), {}, False))}
    if "crops" in short:
        short["crops"] = [
            [[*crop["box"], round(crop["distance"], 4), crop["kept"]] for crop in image] for image in short["crops"]
        ]
    if "parts" in short:
        short["parts"] = [{"name": part["method"]["name"], **_shorten(part)} for part in short["parts"]]
    return {**short, "fired": bool(report.get("fired"))}


def _error_text(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


def _free_memory() -> None:
    """Half a batch may fit where the whole did not, once the whole one's memory is given back."""
    import torch  # not at the top: reading a store does not need it

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
