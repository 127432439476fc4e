"""The benchmarks by name; a task's file is imported only when the task is asked for.

Packages bring their own by entry points of the group `airvlm.tasks`.

Knows nothing about what the tasks do.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from airvlm.registry import Registry, import_object
from airvlm.tasks.base import Item, Metric, Ratio, Scores, Task, TaskDataMissing

__all__ = ["TASKS", "Item", "Metric", "Ratio", "Scores", "Task", "TaskDataMissing", "TaskEntry", "load_task"]


@dataclass(frozen=True)
class TaskEntry:
    """Where a task lives and the field values its name stands for."""

    target: str  # "module:Class", relative to this package
    about: str  # one line for `airvlm score --list`
    fixed: Mapping[str, Any] = field(default_factory=dict)
    package: str = "airvlm"  # the distribution that brings it; a target of another one is absolute

    def __call__(self, data: str | Path | None = None, **options: Any) -> Task:
        """The task itself; options are fields of its class (the variants)."""
        module, name = self.target.split(":")
        home = import_module(f".{module}", __package__) if self.package == "airvlm" else import_module(module)
        cls: type[Task] = getattr(home, name)
        for old in sorted(set(options) & set(cls.renamed)):
            new = cls.renamed[old]
            warnings.warn(f"{cls.name}: {old} is now called {new}", DeprecationWarning, stacklevel=2)
            options[new] = options.pop(old)
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(options) - known)
        if unknown:
            has = ", ".join(sorted(known - {"data"})) or "none"
            raise ValueError(f"{cls.name} has no option {', '.join(unknown)}; its options: {has}")
        paths = {f.name for f in fields(cls) if "Path" in str(f.type)}
        chosen = {k: Path(v) if k in paths and isinstance(v, str) else v for k, v in options.items()}
        return cls(data=None if data is None else Path(data), **{**self.fixed, **chosen})


def _pope(dataset: str, setting: str) -> TaskEntry:
    about = f"POPE on {dataset}, {setting} questions"
    return TaskEntry("pope:Pope", about, {"dataset": dataset, "setting": setting})


_OWN: dict[str, TaskEntry] = {
    "chair": TaskEntry("chair:Chair", "CHAIR on 500 COCO images: objects in descriptions that are not there"),
    "bleu": TaskEntry("bleu:Bleu", "BLEU-1..4 of descriptions against reference captions"),
    "pope": TaskEntry("pope:Pope", "POPE: is there a ... in the image? (COCO, A-OKVQA, GQA)"),
    **{
        f"pope-{dataset}-{setting}": _pope(dataset, setting)
        for dataset in ("coco", "aokvqa", "gqa")
        for setting in ("random", "popular", "adversarial")
    },
    "pope-annotated": TaskEntry(
        "pope:Pope", "POPE with questions made from your own annotated images", {"dataset": "annotated"}
    ),
    "amber": TaskEntry("amber:Amber", "AMBER, descriptions: CHAIR, Cover, Hal, Cog"),
    "amber-yesno": TaskEntry("amber_yesno:AmberYesNo", "AMBER, yes/no questions: existence, attribute, relation"),
    "object-halbench": TaskEntry("object_halbench:ObjectHalBench", "Object HalBench: response and mention rates"),
    "mme": TaskEntry("mme:MME", "MME: 14 subtasks, acc + acc+"),
    "mmbench": TaskEntry("mmbench:MMBench", "MMBench with circular evaluation"),
    "hallusionbench": TaskEntry("hallusionbench:HallusionBench", "HallusionBench: aAcc, fAcc, qAcc, easy, hard"),
    "vstar": TaskEntry("vstar:VStar", "V* Bench: likelihood or letter protocol"),
    "mmhal": TaskEntry("mmhal:MMHal", "MMHal-Bench, judged 0-6"),
    "mmvet": TaskEntry("mmvet:MMVet", "MM-Vet, judged 0-1"),
    "llava-bench": TaskEntry("llava_bench:LLaVABench", "LLaVA-Bench, COCO and in the wild, judged"),
    "gpt4v": TaskEntry("gpt4v:GPT4V", "GPT-4V-style accuracy and detailedness, pairwise, judged"),
    "tiny-chair": TaskEntry("tiny:TinyChair", "CHAIR in the embedded model's world"),
    "tiny-pope": TaskEntry("tiny:TinyPope", "POPE in the embedded model's world, all three settings"),
    **{
        f"tiny-pope-{setting}": TaskEntry("tiny:TinyPope", f"tiny-pope, {setting} only", {"setting": setting})
        for setting in ("random", "popular", "adversarial")
    },
    **{
        f"tiny-{kind}": TaskEntry("tiny:TinyYesNo", f"yes/no questions on {kind}, two an image", {"subtask": kind})
        for kind in ("existence", "count", "position", "colour")
    },
}


def _adopt(name: str, thing: Any, package: str) -> TaskEntry:
    """What a name from outside stands for: a Task class, or a TaskEntry that names one."""
    if isinstance(thing, TaskEntry):
        return replace(thing, package=package)
    if not (isinstance(thing, type) and issubclass(thing, Task) and is_dataclass(thing)):
        raise TypeError(f"{thing!r} is not a Task: a dataclass that derives from airvlm.tasks.Task")
    about = (thing.__doc__ or thing.__name__).strip().partition("\n")[0]
    return TaskEntry(f"{thing.__module__}:{thing.__qualname__}", about, package=package)


TASKS: Registry[TaskEntry] = Registry("airvlm.tasks", _OWN, _adopt)


def load_task(name: str, data: str | Path | None = None, *, variant: str | None = None, **options: Any) -> Task:
    """A task by name, with a named variant of it and options for its fields."""
    if name in TASKS:
        entry = TASKS[name]
    elif ":" in name:  # package.module:Class, of anybody's
        entry = _adopt(name, import_object(name), name.split(".")[0])
    else:
        known = TASKS.problems.get(name) or f"there are: {', '.join(TASKS)}"
        raise ValueError(f"no task {name!r}; {known}")
    return entry(data, **options).variant(variant)
