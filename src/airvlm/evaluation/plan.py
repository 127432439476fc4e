"""What is asked: every item of a task under every method, as questions whose content is their key.

Batches are formed here, from the items alone: they do not depend on what is answered already, on how many workers
there are or on which of them died, and so neither do the answers. They are ordered so that all methods answer a chunk
of images while what was computed of those images is still at hand. Knows nothing about running a model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from airvlm.evaluation.store import Json, Query, digest
from airvlm.inputs.images import load_image
from airvlm.tasks.base import Item, Task
from airvlm.tiny import BundledScene

__all__ = [
    "Asked",
    "Batch",
    "ModelFacts",
    "Planned",
    "batches",
    "chunks",
    "image_digest",
    "noisy",
    "versions",
]

TOGETHER = 2  # images whose questions run together, in the order in which the task lists them
LIKE_LENGTH = 16  # prompts whose lengths fall into one step of this many characters run together


@dataclass(frozen=True)
class ModelFacts:
    """Which model answers."""

    name: str
    fingerprint: str
    device: str = "cpu"

    @classmethod
    def of(cls, vlm: Any) -> ModelFacts:
        device = getattr(getattr(vlm, "model", None), "device", "cpu")
        return cls(str(vlm.name), str(vlm.fingerprint), str(device))

    def to_json(self) -> Json:
        return {"name": self.name, "fingerprint": self.fingerprint, "device": self.device}


@dataclass(frozen=True)
class Asked:
    """A task as one command asks it: its items and how they are to be answered."""

    name: str  # as the command line has it; part of every answer's key
    task: Task
    items: list[Item]
    split: str = "test"
    limit: int | None = None
    generation: Json = field(default_factory=dict)  # what goes into every key
    spec: Json = field(default_factory=dict)  # how to load the task again: variant and options
    label: str = ""  # what it is called in its run, where one task is asked in several ways
    methods: Mapping[str, Any] | None = None  # that answer it; None: those of the whole command

    @property
    def key(self) -> str:
        """Its name within a run."""
        return self.label or self.name

    @classmethod
    def of(
        cls,
        name: str,
        task: Task,
        *,
        split: str = "test",
        limit: int | None = None,
        max_new_tokens: int | None = None,
        noise: float = 0.0,  # images are disturbed by this much of the full scale, see `noisy`
        spec: Json | None = None,
        label: str = "",
        methods: Mapping[str, Any] | None = None,
    ) -> Asked:
        generation: Json = {"max_new_tokens": max_new_tokens or task.max_new_tokens, "do_sample": False}
        if task.protocol != "text":
            generation = {"protocol": task.protocol}
        if noise:
            generation["noise"] = round(noise, 6)
        return cls(name, task, task.items(limit, split), split, limit, generation, spec or {}, label, methods)


@dataclass(frozen=True)
class Planned:
    """One question with what is needed to ask it."""

    question: Query
    image: Any
    options: tuple[str, ...] | None = None  # the likelihood protocol compares these
    settings: Json = field(default_factory=dict)  # of the task: written into the record


@dataclass(frozen=True)
class Batch:
    """Questions that run together under one method."""

    label: str
    method: Any  # a Method, or None for plain greedy decoding
    jobs: tuple[Planned, ...]
    chunk: int = 0  # batches of one chunk are about the same images

    @property
    def keys(self) -> list[str]:
        return [job.question.key for job in self.jobs]


def chunks(asked: Asked, methods: Mapping[str, Any], model: ModelFacts, size: int) -> list[list[Batch]]:
    """All batches of a task, chunk by chunk: the same questions under every method, then the next ones.

    Questions about an image that the batches' lengths put far apart come soon after one another.
    """
    if not methods:
        return []
    settings = _settings(asked)
    by_method = [batches(asked, label, method, model, size, settings) for label, method in methods.items()]
    place: dict[str, int] = {}
    for item in asked.items:
        place.setdefault(image_digest(item.image), len(place))
    firsts = [min(place[job.question.image] for job in batch.jobs) for batch in by_method[0]]
    order = sorted(range(len(firsts)), key=lambda k: firsts[k])
    return [[replace(made[k], chunk=k) for made in by_method] for k in order]


def batches(
    asked: Asked, label: str, method: Any, model: ModelFacts, size: int, settings: Json | None = None
) -> list[Batch]:
    """All questions of a task under one method, in batches of like length."""
    settings, known = _settings(asked) if settings is None else settings, versions()
    configuration = None if method is None else method.to_json()
    jobs = []
    for item in asked.items:
        question = Query(
            task=asked.name,
            item=item.id,
            image=image_digest(item.image),
            prompt=asked.task.prompt(item),
            fingerprint=model.fingerprint,
            method=configuration,
            generation=asked.generation,
            versions=known,
        )
        options = tuple(item.meta["options"]) if "protocol" in asked.generation else None
        jobs.append(Planned(question, item.image, options, settings))
    # stable. Items about an image come together, though POPE lists them setting by setting: what was computed of it is
    # reused. Those of two images take turns, so that a small batch has both, as the control with another's crops needs.
    place: dict[str, int] = {}
    for job in jobs:
        place.setdefault(job.question.image, len(place))
    jobs.sort(key=lambda job: (len(job.question.prompt) // LIKE_LENGTH, place[job.question.image] // TOGETHER))
    return [Batch(label, method, tuple(jobs[i : i + size])) for i in range(0, len(jobs), size)]


def _settings(asked: Asked) -> Json:
    """What a record says of the task: all but its list of images, which the manifest holds once for all."""
    return {name: value for name, value in asked.task.settings().items() if name != "images"}


@lru_cache(maxsize=1)
def versions() -> Json:
    """Versions of what computes an answer."""
    return {name: _version(name) for name in ("airvlm", "torch", "transformers", "Pillow")}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        if name != "airvlm":
            return "absent"
        from airvlm import __version__  # run from a checkout that is not installed

        return __version__


def image_digest(image: Any) -> str:
    """A hash of what an image shows; never raises: an unreadable image is for the answer to complain about."""
    if image is None:
        return ""
    if isinstance(image, list | tuple):
        return digest([image_digest(one) for one in image])[:16]
    if isinstance(image, BundledScene):
        return image.file.digest
    if isinstance(image, Image.Image):
        content = f"{image.mode} {image.size} ".encode() + image.tobytes()
    elif isinstance(image, np.ndarray):
        content = f"{image.dtype} {image.shape} ".encode() + image.tobytes()
    elif isinstance(image, bytes | bytearray):
        content = bytes(image)
    elif isinstance(image, Path) or "://" not in str(image):
        try:
            stat = Path(image).stat()
            return _file_digest(str(image), stat.st_mtime_ns, stat.st_size)
        except OSError:
            content = f"unreadable {image}".encode()
    else:
        content = str(image).encode()  # an address: its content is not ours to fetch before it is asked about
    return hashlib.sha256(content).hexdigest()[:16]


@lru_cache(maxsize=65536)
def _file_digest(path: str, modified: int, size: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def noisy(image: Any, delta: float) -> Any:
    """The image with every value moved up or down by `delta` of the full scale, the same way every time.

    The strongest disturbance within that bound that knows nothing of the model; the paper does not say which it used.
    """
    if isinstance(image, list | tuple):
        return [noisy(one, delta) for one in image]
    if image is None:
        return None
    loaded = load_image(image)
    rng = np.random.default_rng(int(image_digest(loaded), 16))
    values = np.asarray(loaded, dtype=np.float32)
    signs = 2.0 * rng.integers(0, 2, values.shape) - 1.0
    return Image.fromarray((values + 255 * delta * signs).round().clip(0, 255).astype(np.uint8))
