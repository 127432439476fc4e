"""Calibration and validation items of a task: its own splits, or, where it has none, two parts of its items.

Items about one image stay on one side. Knows nothing of what is done with them.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from airvlm.evaluation.plan import Asked
from airvlm.tasks.base import Item

__all__ = ["calibration_and_validation"]

SHARE = 0.6  # of the images, for the calibration


def calibration_and_validation(asked: Asked) -> tuple[Asked, Asked, bool]:
    """The task on both splits, and whether they are the task's own; the first items of each are a fair sample."""
    parts = [_own(asked, split) for split in ("calibration", "validation")]
    apart = parts[0] and parts[1] and not {_identity(i) for i in parts[0]} & {_identity(i) for i in parts[1]}
    if not apart:
        side = {item.group: _share(item.group) < SHARE for item in asked.items}
        parts = [[item for item in asked.items if side[item.group] is want] for want in (True, False)]
        if not all(parts):
            raise ValueError(f"{asked.name} has {len(side)} images: too few to calibrate and to validate on")
    calibration, validation = (
        replace(asked, items=_mixed(items), split=split, label=f"{asked.name}, {split}")
        for items, split in zip(parts, ("calibration", "validation"), strict=True)
    )
    return calibration, validation, bool(apart)


def _own(asked: Asked, split: str) -> list[Item]:
    try:
        return asked.task.items(asked.limit, split)
    except ValueError:  # a task that knows no such split
        return []


def _identity(item: Item) -> tuple[str, str]:
    return item.id, str(item.image)


def _mixed(items: list[Item]) -> list[Item]:
    """In an order of no meaning, the same every time: tasks list one kind of question after the other."""
    return sorted(items, key=lambda item: _share(item.id))


def _share(name: str) -> float:
    """A number in 0..1 that belongs to an image or item, the same every time."""
    return int(hashlib.sha256(f"split {name}".encode()).hexdigest()[:8], 16) / 2**32
