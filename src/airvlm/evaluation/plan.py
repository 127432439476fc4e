"""The plan of an evaluation: every item of a task under every method, in batches.

Batches follow from the items alone: they do not depend on what was answered before, on how many workers there are or on
which of them died, and so neither do the answers. All methods answer the same few images before the next ones come, so
that what was computed of an image is still in the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from airvlm.data import find_data
from airvlm.evaluation.store import Json, RecordKey, digest
from airvlm.inputs.images import load_image
from airvlm.tasks import load_task
from airvlm.tasks.base import Item, Task
from airvlm.tiny import BundledScene

__all__ = ["Batch", "EvalItem", "ModelInfo", "TaskSpec", "add_noise", "image_digest", "plan_batches", "versions"]

IMAGES_TOGETHER = 2  # images whose questions run in one batch, in the task's order
LENGTH_STEP = 16  # prompts whose lengths in characters fall into one step of this size run together
OWN_IMAGES = 500  # a task on the user's images takes this many of them unless `limit` is larger


@dataclass(frozen=True)
class ModelInfo:
    """Which model answers."""

    name: str
    fingerprint: str
    device: str = "cpu"

    @classmethod
    def of(cls, vlm: Any) -> ModelInfo:
        device = getattr(getattr(vlm, "model", None), "device", "cpu")
        return cls(str(vlm.name), str(vlm.fingerprint), str(device))

    def to_json(self) -> Json:
        return {"name": self.name, "fingerprint": self.fingerprint, "device": self.device}


@dataclass(frozen=True)
class TaskSpec:
    """A task as one evaluation asks it: its items, and how they are answered."""

    name: str  # as the command line spells it; part of every record's key
    task: Task
    items: list[Item]
    split: str = "test"
    limit: int | None = None
    generation: Json = field(default_factory=dict)  # part of every record's key
    options: Json = field(default_factory=dict)  # how to load the task again: variant, options
    label: str = ""  # its name in the run if one task is asked in several ways
    methods: Mapping[str, Any] | None = None  # methods of this task; None: those of the whole evaluation

    @property
    def key(self) -> str:
        """Its name in the run."""
        return self.label or (self.name if self.split == "test" else f"{self.name}, {self.split}")

    @classmethod
    def of(
        cls,
        task: str | Task | TaskSpec,
        *,
        name: str = "",
        split: str = "test",
        limit: int | None = None,
        max_new_tokens: int | None = None,
        data: str | Path | None = None,
        objects: str | Path | None = None,
        variant: str | None = None,
        noise: float = 0.0,
        label: str = "",
        methods: Mapping[str, Any] | None = None,
    ) -> TaskSpec:
        """A task with its items.

        Args:
            task: a name, an object of a class derived from Task, or a TaskSpec, which is returned as it is.
            name: of a task object, where it differs from the class's own.
            split: "test", "validation" or "calibration".
            limit: the first items only.
            max_new_tokens: longest answer; None is the task's own.
            data: folder of the benchmark's files, for a task by name.
            objects: labels of the user's own images in `data`, for a task by name.
            variant: a named variant of the task, for a task by name.
            noise: share of the full scale by which every value of an image is moved, see `add_noise`.
            label: its name in the run.
            methods: the methods that answer it.
        """
        if isinstance(task, TaskSpec):
            return task
        options: Json = {}
        if isinstance(task, str):
            name = name or task
            fields: Json = {"objects": str(Path(objects).absolute())} if objects else {}
            if objects and limit and limit > OWN_IMAGES:
                fields["count"] = limit
            options = ({"variant": variant} if variant else {}) | ({"options": fields} if fields else {})
            if objects is None:
                data = find_data(task, data, split=split, variant=variant)
            task = load_task(task, data, variant=variant, **fields)
        elif not isinstance(task, Task):
            raise TypeError(f"{task!r} is not a task: give a name, or an object of a class derived from airvlm's Task")
        generation: Json = {"max_new_tokens": max_new_tokens or task.max_new_tokens, "do_sample": False}
        if task.protocol != "text":
            generation = {"protocol": task.protocol}
        if noise:
            generation["noise"] = round(noise, 6)
        items, name = task.items(limit, split), name or task.name or type(task).__name__
        if not items:
            raise ValueError(f"{name} has no items in its {split} split")
        return cls(name, task, items, split, limit, generation, options, label, methods)


@dataclass(frozen=True)
class EvalItem:
    """One item under one method: the key of its record, and what is needed to ask it."""

    key: RecordKey
    image: Any
    options: tuple[str, ...] | None = None  # what the likelihood protocol compares
    settings: Json = field(default_factory=dict)  # of the task; written into the record


@dataclass(frozen=True)
class Batch:
    """Items that run together under one method."""

    label: str
    method: Any  # a Method; None is vanilla
    items: tuple[EvalItem, ...]
    chunk: int = 0  # batches of one chunk are about the same images

    @property
    def keys(self) -> list[str]:
        return [item.key.digest for item in self.items]


def plan_batches(spec: TaskSpec, methods: Mapping[str, Any], model: ModelInfo, size: int) -> list[list[Batch]]:
    """All batches of a task, chunk by chunk: the same items under every method, then the next ones.

    Args:
        spec: the task.
        methods: by label; None is vanilla.
        model: which answers.
        size: items per batch.
    """
    # the manifest holds the list of images once: in every record it would be nearly all of a store's bytes
    settings = {name: value for name, value in spec.task.settings().items() if name != "images"}
    configurations = {label: None if method is None else method.to_json() for label, method in methods.items()}
    place: dict[str, int] = {}  # of an image, in the task's order
    rows = []
    for item in spec.items:
        image, prompt = image_digest(item.image), spec.task.prompt(item)
        place.setdefault(image, len(place))
        rows.append((item, image, prompt))
    # Stable. Items about an image come together although POPE lists them setting by setting. Two images alternate, so
    # that a small batch has both, as the control with another image's crops needs.
    rows.sort(key=lambda row: (len(row[2]) // LENGTH_STEP, place[row[1]] // IMAGES_TOGETHER))
    chunks = [rows[i : i + size] for i in range(0, len(rows), size)]
    chunks.sort(key=lambda chunk: min(place[image] for _, image, _ in chunk))

    def eval_item(item: Item, image: str, prompt: str, method: Json | None) -> EvalItem:
        key = RecordKey(spec.name, item.id, image, prompt, model.fingerprint, method, spec.generation, versions())
        options = tuple(item.meta["options"]) if "protocol" in spec.generation else None
        return EvalItem(key, item.image, options, settings)

    return [
        [
            Batch(label, method, tuple(eval_item(*row, configurations[label]) for row in chunk), k)
            for label, method in methods.items()
        ]
        for k, chunk in enumerate(chunks)
    ]


@lru_cache(maxsize=1)
def versions() -> Json:
    """Versions of the libraries that compute an answer."""
    return {name: _version(name) for name in ("airvlm", "torch", "transformers", "Pillow")}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        if name != "airvlm":
            return "absent"
        from airvlm import __version__  # a checkout that is not installed

        return __version__


def image_digest(image: Any) -> str:
    """A hash of an image's content. Never raises: an image that cannot be read is an error of its answer."""
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
        content = str(image).encode()  # a web address is not downloaded before it is asked about
    return hashlib.sha256(content).hexdigest()[:16]


@lru_cache(maxsize=65536)
def _file_digest(path: str, modified: int, size: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def add_noise(image: Any, delta: float) -> Any:
    """Move every value up or down by `delta` of the full scale, the same way for the same image.

    The strongest perturbation within that bound that does not use the model; the paper does not say which it used.
    """
    if isinstance(image, list | tuple):
        return [add_noise(one, delta) for one in image]
    if image is None:
        return None
    loaded = load_image(image)
    rng = np.random.default_rng(int(image_digest(loaded), 16))
    values = np.asarray(loaded, dtype=np.float32)
    signs = 2.0 * rng.integers(0, 2, values.shape) - 1.0
    return Image.fromarray((values + 255 * delta * signs).round().clip(0, 255).astype(np.uint8))
