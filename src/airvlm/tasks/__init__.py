"""The benchmarks by name; a benchmark's file is imported only when it is used.

Packages add their own by entry points of the group `airvlm.tasks`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from airvlm.registry import Registry, import_object
from airvlm.tasks.answers import score_file
from airvlm.tasks.base import Coverage, Item, Metric, Ratio, Scores, Task, TaskDataMissing

__all__ = [
    "TASKS",
    "Coverage",
    "Item",
    "Metric",
    "Ratio",
    "Scores",
    "Task",
    "TaskDataMissing",
    "TaskEntry",
    "has_option",
    "load_task",
    "score_file",
]


@dataclass(frozen=True)
class TaskEntry:
    """Where a task is defined, and the field values that its name stands for."""

    target: str  # "module:Class", relative to this package
    about: str  # one line for lists of tasks
    fixed: Mapping[str, Any] = field(default_factory=dict)
    package: str = "airvlm"  # the distribution that provides it; a target of another one is absolute

    def __call__(self, data: str | Path | None = None, **options: Any) -> Task:
        """Build the task.

        Args:
            data: the user's folder with the benchmark's files.
            options: fields of the task's class.
        """
        module, name = self.target.split(":")
        home = import_module(f".{module}", __package__) if self.package == "airvlm" else import_module(module)
        cls: type[Task] = getattr(home, name)
        known = {f.name: f for f in fields(cls)}
        unknown = sorted(set(options) - set(known))
        if unknown:
            names = sorted(set(known) - {"data"})
            near = difflib.get_close_matches(unknown[0], names, 1)
            hint = f"; did you mean {near[0]}?" if near else f". Known: {', '.join(names) or 'none'}"
            raise ValueError(f"{cls.name} has no option {', '.join(unknown)}{hint}")
        for option, value in options.items():
            if isinstance(value, str) and "Path" in str(known[option].type):
                options[option] = Path(value)
        return cls(data=None if data is None else Path(data), **{**self.fixed, **options})


SETTINGS = ("random", "popular", "adversarial")
_OWN: dict[str, TaskEntry] = {
    "chair": TaskEntry("chair:Chair", "CHAIR on 500 COCO images: objects in descriptions that are not in the image"),
    "bleu": TaskEntry("bleu:Bleu", "BLEU-1..4 of descriptions against reference captions"),
    "pope": TaskEntry("pope:Pope", "POPE: is there a ... in the image? (COCO, A-OKVQA, GQA)"),
    **{
        f"pope-{dataset}-{setting}": TaskEntry(
            "pope:Pope", f"POPE on {dataset}, {setting} questions", {"dataset": dataset, "setting": setting}
        )
        for dataset in ("coco", "aokvqa", "gqa")
        for setting in SETTINGS
    },
    "pope-annotated": TaskEntry(
        "pope:Pope", "POPE with questions built from your own annotated images", {"dataset": "annotated"}
    ),
    "pope-annotated-pairs": TaskEntry(
        "pope:Pope",
        "the same with 2 of the 18 questions about each image: more images in the same time",
        {"dataset": "annotated", "one_pair": True},
    ),
    "repope": TaskEntry("repope:RePope", "RePOPE: POPE on COCO with corrected labels"),
    **{
        f"repope-{setting}": TaskEntry("repope:RePope", f"RePOPE, {setting} questions", {"setting": setting})
        for setting in SETTINGS
    },
    "dash-b": TaskEntry("dash_b:DashB", "DASH-B: can you see a ... in this image? on images that provoke a false yes"),
    "amber": TaskEntry("amber:Amber", "AMBER, descriptions: CHAIR, Cover, Hal, Cog"),
    "amber-yesno": TaskEntry("amber:AmberYesNo", "AMBER, yes/no questions: existence, attribute, relation"),
    "object-halbench": TaskEntry("object_halbench:ObjectHalBench", "Object HalBench: response and mention rates"),
    "mme": TaskEntry("mme:MME", "MME: 14 subtasks, acc + acc+"),
    "mmbench": TaskEntry("mmbench:MMBench", "MMBench with circular evaluation"),
    "hallusionbench": TaskEntry("hallusionbench:HallusionBench", "HallusionBench: aAcc, fAcc, qAcc, easy, hard"),
    "vstar": TaskEntry("vstar:VStar", "V* Bench: likelihood or letter protocol"),
    "hr-bench": TaskEntry("hr_bench:HRBench", "HR-Bench 4K: multiple choice about large images"),
    "hr-bench-8k": TaskEntry("hr_bench:HRBench", "HR-Bench 8K", {"size": "8k"}),
    "haloquest": TaskEntry("haloquest:HaloQuest", "HaloQuest: false premises and missing context, judged"),
    "reefknot": TaskEntry("reefknot:Reefknot", "Reefknot: relations, yes/no questions"),
    "reefknot-choice": TaskEntry("reefknot:ReefknotChoice", "Reefknot: relations, multiple choice"),
    "reefknot-vqa": TaskEntry("reefknot:ReefknotVQA", "Reefknot: relations, open questions"),
    "detailcaps": TaskEntry(
        "detailcaps:DetailCaps", "DetailCaps: objects, attributes and relations of descriptions (CAPTURE)"
    ),
    "mmhal": TaskEntry("mmhal:MMHal", "MMHal-Bench, judged 0-6"),
    "mmvet": TaskEntry("mmvet:MMVet", "MM-Vet, judged 0-1"),
    "llava-bench": TaskEntry("llava_bench:LLaVABench", "LLaVA-Bench, COCO and in the wild, judged"),
    "gpt4v": TaskEntry("gpt4v:GPT4V", "GPT-4V-style accuracy and detailedness, pairwise, judged"),
    "tiny-chair": TaskEntry("tiny:TinyChair", "CHAIR on the scenes of the embedded model"),
    "tiny-pope": TaskEntry("tiny:TinyPope", "POPE on the scenes of the embedded model, all three settings"),
    **{
        f"tiny-pope-{setting}": TaskEntry("tiny:TinyPope", f"tiny-pope, {setting} only", {"setting": setting})
        for setting in SETTINGS
    },
    **{
        f"tiny-{kind}": TaskEntry("tiny:TinyYesNo", f"yes/no questions about {kind}, two per image", {"subtask": kind})
        for kind in ("existence", "count", "position", "color")
    },
}


def _adopt(name: str, thing: Any, package: str) -> TaskEntry:
    """The entry of a name from outside, which stands for a Task class or for a TaskEntry."""
    if isinstance(thing, TaskEntry):
        return replace(thing, package=package)
    if not (isinstance(thing, type) and issubclass(thing, Task) and is_dataclass(thing)):
        raise TypeError(f"{thing!r} is not a Task: a dataclass that derives from airvlm.tasks.Task")
    about = (thing.__doc__ or thing.__name__).strip().partition("\n")[0]
    return TaskEntry(f"{thing.__module__}:{thing.__qualname__}", about, package=package)


TASKS: Registry[TaskEntry] = Registry("airvlm.tasks", _OWN, _adopt)


def has_option(name: str, option: str) -> bool:
    """Whether the task of this name has a field `option`."""
    return name in TASKS and option in {f.name for f in fields(TASKS[name]())}


def load_task(name: str, data: str | Path | None = None, *, variant: str | None = None, **options: Any) -> Task:
    """Load a task.

    Args:
        name: a name in TASKS, or `package.module:Class`.
        data: the user's folder with the benchmark's files.
        variant: a named variant of the task.
        options: fields of the task's class.
    """
    if name in TASKS:
        entry = TASKS[name]
    elif ":" in name:
        entry = _adopt(name, import_object(name), name.split(".")[0])
    else:
        raise ValueError(TASKS.unknown("task", name))
    return entry(data, **options).with_variant(variant)
