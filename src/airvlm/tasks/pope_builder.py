"""POPE's questions from any annotated images: objects that are there, and three ways to choose absent ones.

Knows nothing about answers or models. The objects come from `objects.json` ({image file: [names], most prominent
first}), or from COCO's instances, where an object's prominence is the area it covers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from airvlm.tasks.base import TaskDataMissing
from airvlm.tasks.chair import seeded_images
from airvlm.tasks.files.coco import read_instances
from airvlm.tasks.files.labels import find_images, read_labels, read_split

__all__ = ["SETTINGS", "Setting", "annotated_objects", "build_questions", "pope_question"]

Setting = Literal["random", "popular", "adversarial", "all"]
SETTINGS: tuple[Setting, ...] = ("random", "popular", "adversarial")
IMAGES = 500
PER_IMAGE = 3  # questions of each answer


def annotated_objects(
    folder: Path, seed: int = 0, split: str = "test", *, labels: Path | None = None, count: int = IMAGES
) -> dict[str, list[str]]:
    """Image file -> its objects, for up to `count` images with enough of them, chosen by the seed.

    A split that the labels name themselves is asked about as a whole.

    The objects come from `labels` (files/labels.py), else from the folder's objects.json, else from COCO's instances.
    """
    own = None  # the images of a split of the labels' own
    if labels is None and (folder / "objects.json").exists():
        known = read_labels(folder / "objects.json", as_written=True)
    elif labels is not None:
        known = read_labels(labels)
        paths = find_images(folder, known)
        if not paths:
            raise TaskDataMissing(f"pope: {folder} has none of the images that {labels} names")
        own = read_split(labels, split)
        known = {str(paths[image].relative_to(folder)): known[image] for image in own or paths if image in paths}
    else:
        known = _by_area(folder)
    rich = {image: names for image, names in known.items() if len(set(names)) >= PER_IMAGE}
    if not rich:
        raise TaskDataMissing(f"pope: no image of {labels or folder} has {PER_IMAGE} objects, which POPE asks for")
    if own is not None:
        return rich
    return {image: rich[image] for image in seeded_images(list(rich), seed, split, count)}


def _by_area(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for _, instances in read_instances(folder):
        area: dict[str, Counter[str]] = {}
        for note in instances.notes:
            area.setdefault(note.image_id, Counter())[instances.names[note.category_id]] += note.area  # type: ignore[assignment]  # areas are fractional
        for image in instances.images:
            found[image.file_name] = [name for name, _ in area.get(image.id, Counter()).most_common()]
    return found


def pope_question(name: str) -> str:
    """The benchmark's question about an object, with the right article."""
    return f"Is there {'an' if name[:1].lower() in 'aeiou' else 'a'} {name} in the image?"


def build_questions(
    objects: Mapping[str, Sequence[str]], setting: Setting, *, per_image: int = PER_IMAGE, seed: int = 0
) -> list[dict[str, Any]]:
    """Questions about images with known objects: image id -> names, most prominent first.

    For each image the first `per_image` objects are asked for, and as many absent ones: drawn at random, the most
    frequent of the set, or those seen most often together with what is in the image. Images with fewer objects
    are left out. The records have the official files' keys.
    """
    frequency = Counter(name for names in objects.values() for name in set(names))
    together: dict[str, Counter[str]] = {name: Counter() for name in frequency}
    for names in objects.values():
        for name in set(names):
            together[name].update(set(names) - {name})
    rank = {name: (-count, name) for name, count in frequency.items()}
    records: list[dict[str, Any]] = []
    for image, names in objects.items():
        present = list(dict.fromkeys(names))
        absent = sorted(set(frequency) - set(present), key=rank.__getitem__)
        if len(present) < per_image or len(absent) < per_image:
            continue
        if setting == "random":
            wrong = random.Random(f"{seed}:{image}").sample(sorted(absent), per_image)
        elif setting == "popular":
            wrong = absent[:per_image]
        elif setting == "adversarial":
            wrong = []
            for name in present[:per_image]:  # each object brings the companion it is seen with most
                left = [other for other in absent if other not in wrong]
                wrong.append(min(left, key=lambda other: (-together[name][other], rank[other])))
        else:
            raise ValueError(f"no kind of question {setting!r}; there are {', '.join(SETTINGS)}")
        for right, missing in zip(present, wrong, strict=False):
            for name, label in ((right, "yes"), (missing, "no")):
                number = len(records) + 1
                question = pope_question(name)
                records.append({"question_id": number, "image": image, "text": question, "label": label})
    return records
