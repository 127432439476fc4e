"""The plan of an evaluation: every item of a task under every method, in batches.

Methods that differ in a bias alone (vanilla and the curve of the trivial control), and tasks that differ in the token
cap alone, are one run with a trace (`plan_phases`); whatever its trace does not hold is asked after it. Batches
follow from the items alone: they do not depend on what was answered before, on how many workers there are or on which
of them died, and so neither do the answers. All methods answer the same few images before the next ones come, so that
what was computed of an image is still in the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from airvlm.data import find_data
from airvlm.evaluation.store import Json, RecordKey, digest
from airvlm.evaluation.traces import CONTROLS, TraceRequest
from airvlm.inputs.images import load_image
from airvlm.tasks import has_option, load_task
from airvlm.tasks.base import Item, Task
from airvlm.tiny import BundledScene

__all__ = [
    "Batch",
    "EvalItem",
    "ModelInfo",
    "TaskSpec",
    "add_noise",
    "choose_items",
    "image_digest",
    "methods_to_json",
    "plan_batches",
    "plan_phases",
    "plan_traces",
    "split_method",
    "versions",
]

IMAGES_TOGETHER = 2  # images whose questions run in one batch, in the task's order
LENGTH_STEP = 16  # prompts whose lengths in characters fall into one step of this size run together
OWN_IMAGES = 500  # a task on the user's images takes this many of them unless `limit` is larger


@dataclass(frozen=True)
class ModelInfo:
    """Which model answers."""

    name: str
    fingerprint: str
    device: str = "cpu"
    traces: bool = False  # whether margins can be recorded
    dtype: str = "float32"  # that it computes in

    @classmethod
    def of(cls, vlm: Any) -> ModelInfo:
        model = getattr(vlm, "model", None)
        device, dtype = str(getattr(model, "device", "cpu")), str(getattr(model, "dtype", "float32"))
        traces = hasattr(vlm, "answer_rows")
        return cls(str(vlm.name), str(vlm.fingerprint), device, traces, dtype.removeprefix("torch."))

    def to_json(self) -> Json:
        return {"name": self.name, "fingerprint": self.fingerprint, "device": self.device, "dtype": self.dtype}


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
    images: int = 0  # of the whole split; 0 if it is not known

    @property
    def sample_text(self) -> str:
        """How many items and images these are, and how many images were left out."""
        used = len({item.group for item in self.items})
        left = f" ({self.images - used} of {self.images} images left out by limit={self.limit})"
        return f"{len(self.items)} items on {used} images{left if self.images > used else ''}"

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
        approximate: bool = False,
        noise: float = 0.0,
        label: str = "",
        methods: Mapping[str, Any] | None = None,
    ) -> TaskSpec:
        """A task with its items.

        Args:
            task: a name, an object of a class derived from Task, or a TaskSpec, which is returned as it is.
            name: of a task object, where it differs from the class's own.
            split: "test", "validation" or "calibration".
            limit: so many images only, with all their questions, see `choose_items`.
            max_new_tokens: longest answer; None is the task's own.
            data: folder of the benchmark's files, for a task by name.
            objects: labels of the user's own images in `data`, for a task by name.
            variant: a named variant of the task, for a task by name.
            approximate: score by rules instead of models that are not installed, where a task by name has them; then
                its name in the run says so.
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
            if approximate and has_option(task, "approximate"):
                fields["approximate"] = True
            options = ({"variant": variant} if variant else {}) | ({"options": fields} if fields else {})
            # before anything is fetched
            load_task(task, variant=variant, **fields).check_installed()
            if objects is None:
                data = find_data(task, data, split=split, variant=variant)
            task = load_task(task, data, variant=variant, **fields)
            if "approximate" in task.variant_name and not label:
                label = ", ".join([name, "approximate", *([split] if split != "test" else [])])
        elif not isinstance(task, Task):
            raise TypeError(f"{task!r} is not a task: give a name, or an object of a class derived from airvlm's Task")
        generation: Json = {"max_new_tokens": max_new_tokens or task.max_new_tokens, "do_sample": False}
        if task.protocol != "text":
            generation = {"protocol": task.protocol}
        if noise:
            generation["noise"] = round(noise, 6)
        items, images = choose_items(task, limit, split)
        name = name or task.name or type(task).__name__
        if not items:
            raise ValueError(f"{name} has no items in its {split} split")
        return cls(name, task, items, split, limit, generation, options, label, methods, images)


def choose_items(task: Task, limit: int | None, split: str) -> tuple[list[Item], int]:
    """The items of `limit` images of a split, and the number of all images.

    The images are drawn in a fixed shuffled order, so that a part is a fair sample, and the items come in that order:
    a larger limit continues a smaller one, with the same batches. Without a limit the task's own order stays. A task
    says by `Item.group` what belongs together, which may be more or less than an image.
    """
    items = task.items(None, split)
    groups = sorted({item.group for item in items}, key=lambda group: digest(f"limit {group}"))
    if limit is None:
        return items, len(groups)
    place = {group: i for i, group in enumerate(groups[:limit])}
    return sorted((item for item in items if item.group in place), key=lambda item: place[item.group]), len(groups)


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
    trace: TraceRequest | None = None  # record what these biases would change
    traced: bool = False  # a batch with a trace was asked before it, and failed items are not asked again

    @property
    def keys(self) -> list[RecordKey]:
        return [item.key for item in self.items]


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
    configurations = methods_to_json(methods)
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


Plan = Sequence[tuple[TaskSpec, Mapping[str, Any]]]  # tasks, each with the methods that answer it
Chunks = list[list[Batch]]


def plan_phases(plan: Plan, model: ModelInfo, size: int) -> tuple[Chunks, Chunks]:
    """Runs with a trace beside what needs none; and what is asked after them, if their traces do not hold it.

    Args:
        plan: the tasks and methods; methods by label, None is vanilla.
        model: which answers.
        size: items per batch.
    """
    first, then = Chunks(), Chunks()
    for runs, (spec, methods) in zip(plan_traces(plan, model), plan, strict=True):
        traced = {label for run in runs for label in run.labels}
        own = {run.label: run for run in runs if run.asked}
        # one run for all that is known beforehand, so that every method finds what was computed of an image
        known = {label: own[label].method if label in own else method
                 for label, method in methods.items() if label in own or label not in traced}  # fmt: skip
        for chunk in plan_batches(spec, known, model, size) if known else ():
            first.append(
                [replace(batch, trace=own[batch.label].request if batch.label in own else None) for batch in chunk]
            )
        rest = {label: method for label, method in methods.items() if label in traced}
        for chunk in plan_batches(spec, rest, model, size) if rest else ():
            then.append([replace(batch, traced=True) for batch in chunk])
    return first, then


@dataclass(frozen=True)
class TracedRun:
    """One run of a method that answers for several of its biases and caps."""

    label: str
    method: Any
    request: TraceRequest
    labels: tuple[str, ...]  # the methods of the plan that it answers for
    asked: bool  # False: the same run of a larger cap holds these answers


def plan_traces(plan: Plan, model: ModelInfo) -> list[list[TracedRun]]:
    """Per task of a plan, the runs with a trace. A method that is asked for in one way only has none."""
    if not model.traces:
        return [[] for _ in plan]
    from airvlm.evaluation.recorder import trace_problem  # imports torch

    asked: dict[str, list[tuple[int, int | None, set[float]]]] = {}  # by what a trace does not vary
    found: list[dict[str, tuple[Any, str, list[str], set[float]]]] = []
    for at, (spec, methods) in enumerate(plan):
        groups: dict[str, tuple[Any, str, list[str], set[float]]] = {}
        split = {label: split_method(method) for label, method in methods.items()}
        controls = {control for _, control, _ in split.values() if control}
        # a task whose curve is drawn by a bias on yes has no other trace
        control = "yes-bias" if "yes-bias" in controls else "eos-bias"
        wanted = {bias for _, own, bias in split.values() if own == control}
        for label, (base, own, bias) in split.items():
            if own not in ("", control) or trace_problem(base, spec.generation) is not None:
                continue
            key = digest(None if base is None else base.to_json())
            group = groups.setdefault(key, (base, control, [], {0.0}))
            group[2].append(label)
            # a method's own curve over the end token's biases costs little; over those on yes, more runs
            group[3].update({bias}, wanted if control == "eos-bias" else ())
        found.append(groups)
        cap = spec.generation.get("max_new_tokens")
        for key, (_, control, _, biases) in groups.items():
            asked.setdefault(_trace_key(spec, key, control), []).append((at, cap, biases))
    runs: list[list[TracedRun]] = [[] for _ in plan]
    for at, groups in enumerate(found):
        spec = plan[at][0]
        for key, (base, control, labels, biases) in groups.items():
            same = asked[_trace_key(spec, key, control)] if control == "eos-bias" else [(at, None, biases)]
            largest = max(same, key=lambda one: (one[1] or 0, -one[0]))[0]
            biases = {bias for _, _, own in same for bias in own}
            if len(biases) < 2 and len(same) < 2:
                continue
            request = TraceRequest(control, tuple(sorted(biases)))
            label = next((one for one in labels if split_method(plan[at][1][one])[0] == plan[at][1][one]), labels[0])
            runs[at].append(TracedRun(label, base, request, tuple(labels), largest == at))
    return runs


def _trace_key(spec: TaskSpec, method: str, control: str) -> str:
    generation = {name: value for name, value in spec.generation.items() if name != "max_new_tokens"}
    return digest([spec.name, [item.id for item in spec.items], generation, method, control])


def split_method(method: Any) -> tuple[Any, str, float]:
    """A method without a control that acts last: (the rest, the control's name or "", its bias)."""
    from airvlm.methods.composed import Composed

    parts: list[Any] = list(method.methods) if isinstance(method, Composed) else [method]
    if getattr(parts[-1], "name", "") not in CONTROLS:
        return method, "", 0.0
    rest = parts[:-1]
    return (None if not rest else rest[0] if len(rest) == 1 else Composed(*rest)), parts[-1].name, parts[-1].bias


def methods_to_json(methods: Mapping[str, Any]) -> dict[str, Json | None]:
    """Methods as records hold them, by label. An artifact is named by its content: the file may move or change."""
    return {label: None if method is None else _hash_artifacts(method.to_json()) for label, method in methods.items()}


def _hash_artifacts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _name_artifact(one) if name == "artifact" and one else _hash_artifacts(one)
            for name, one in value.items()
        }
    return [_hash_artifacts(one) for one in value] if isinstance(value, list | tuple) else value


def _name_artifact(file: str) -> str:
    path = Path(file).expanduser()
    try:
        stat = path.stat()
        return f"{path.name} {_file_digest(str(path), stat.st_mtime_ns, stat.st_size)}"
    except OSError:  # the method itself says what is wrong with its file
        return file


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
