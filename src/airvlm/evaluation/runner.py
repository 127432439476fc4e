"""The loop: batches in, records out, whatever happens in between.

A batch that raises is split until the item at fault is alone, and that item's record holds the error. Knows nothing
about what the answers mean.
"""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from airvlm.evaluation.plan import Batch, ModelFacts, Planned, noisy
from airvlm.evaluation.store import Json, Record, Store
from airvlm.inputs.images import load_image

__all__ = ["answer", "pending", "work"]


def pending(batches: Iterable[Batch], store: Store) -> list[Batch]:
    """The batches that still lack an answer."""
    return [batch for batch in batches if any(key not in store for key in batch.keys)]


def work(vlm: Any, batches: Iterable[Batch], store: Store, done: Callable[[Batch], None] = lambda batch: None) -> None:
    """Answer batch after batch; each is on disk before the next begins. `done` hears of every batch.

    A batch that is answered in part runs again as a whole: among other rows its numbers could round differently.
    """
    images: dict[str, Any] = {}
    for batch in batches:
        store.refresh()  # others may work on the same store
        if pending([batch], store):
            store.extend(answer(vlm, batch, images))
        done(batch)


def answer(vlm: Any, batch: Batch, images: dict[str, Any] | None = None) -> list[Record]:
    """One record a job, in order; never raises for a job that fails.

    `images` holds the files that the batch before has read: the next one is mostly about the same.
    """
    facts = ModelFacts.of(vlm)
    images = {} if images is None else images
    try:
        return _ask(vlm, batch, facts, images)
    except Exception as error:  # whatever it is, it belongs to an item, and the run goes on
        if len(batch.jobs) == 1:
            job = batch.jobs[0]
            return [Record(job.question, error=_describe(error), extra=_extra(job, facts))]
    _free_memory()
    middle = len(batch.jobs) // 2
    halves = (batch.jobs[:middle], batch.jobs[middle:])
    return [record for half in halves for record in answer(vlm, Batch(batch.label, batch.method, half), images)]


def _ask(vlm: Any, batch: Batch, facts: ModelFacts, kept: dict[str, Any]) -> list[Record]:
    generation = dict(batch.jobs[0].question.generation)
    noise = generation.pop("noise", 0.0)
    images = [noisy(image, noise) if noise else image for image in _images(batch, kept)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* did not act")  # counted in the table instead
        if generation.pop("protocol", "text") == "likelihood":
            return [_likelihood(vlm, batch.method, job, image, facts) for job, image in zip(batch.jobs, images)]
        # POPE asks a third of its questions in three settings: decoding is greedy, so that once is enough
        asked = [(job.question.image, job.question.prompt) for job in batch.jobs]
        requests = {key: (image, key[1]) for key, image in zip(asked, images)}
        given_once = list(
            vlm.batch(
                list(requests.values()),
                method=batch.method,
                batch_size=len(requests),
                progress=False,
                **generation,
            )
        )
    if len(given_once) != len(requests):
        raise RuntimeError(f"the model gave {len(given_once)} answers to {len(requests)} questions")
    answers, times = dict(zip(requests, given_once)), Counter(asked)
    return [
        Record(
            job.question,
            text=given.text,
            tokens=given.tokens,
            finished=given.finished,
            seconds=round(given.seconds / times[key], 4),
            report=None if given.report is None else _brief(given.report.to_json()),
            extra=_extra(job, facts),
        )
        for job, key in zip(batch.jobs, asked)
        for given in [answers[key]]
    ]


def _images(batch: Batch, kept: dict[str, Any]) -> list[Any]:
    """The jobs' images; a file that many of them ask about is read once, and kept for the next batch."""
    read: dict[str, Any] = {}
    images = []
    for job in batch.jobs:
        image, key = job.image, job.question.image
        if isinstance(image, str | os.PathLike) and Path(image).is_file():
            if key not in read:
                read[key] = kept[key] if key in kept else load_image(image)
            image = read[key]
        images.append(image)
    kept.clear()
    kept.update(read)
    return images


def _likelihood(vlm: Any, method: Any, job: Planned, image: Any, facts: ModelFacts) -> Record:
    """The answer is what the model finds each option worth, as the task's parser reads it."""
    values = vlm.likelihood(image, job.question.prompt, job.options, method=method)
    text = json.dumps([round(float(value), 6) for value in values])
    return Record(job.question, text=text, finished=True, extra=_extra(job, facts))


def _extra(job: Planned, facts: ModelFacts) -> Json:
    return {"model": facts.name, "device": facts.device, "settings": job.settings}


def _brief(report: Json) -> Json:
    """A report without what the record says anyway, what is empty, and what no two runs have in common."""
    left_out = ("method", "rows", "seconds")
    short = {k: v for k, v in report.items() if k not in left_out and (v not in (None, [], (), {}, False))}
    if "crops" in short:
        short["crops"] = [
            [[*crop["box"], round(crop["distance"], 4), crop["kept"]] for crop in image] for image in short["crops"]
        ]
    return {**short, "fired": bool(report.get("fired"))}


def _describe(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


def _free_memory() -> None:
    """Half a batch may fit where the whole did not, if the whole one's memory is given back."""
    import torch  # here, so that whoever only reads stores does not wait for it

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
