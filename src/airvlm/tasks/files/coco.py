"""Reading COCO: annotation folders, ground-truth objects, reference captions, and files of descriptions.

Knows nothing about metrics. Image ids are strings of plain digits throughout ("226988"), wherever they come from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from airvlm.tasks.base import TaskDataMissing, read_records, read_text
from airvlm.tasks.words.objects import category_of, mentions
from airvlm.tasks.words.singular import Words

__all__ = ["annotation_files", "category", "image_id", "read_captions", "read_objects", "read_references"]

_TEXT_KEYS = ("caption", "text", "answer", "response", "output", "prediction")
_IMAGE_KEYS = ("image_id", "image", "image_file", "item", "id", "question_id")


def image_id(name: Any) -> str:
    """An image's id from the id itself or from a file name such as COCO_val2014_000000226988.jpg."""
    if isinstance(name, int) or (isinstance(name, str) and name.isdecimal()):
        return str(int(name))
    digits = re.findall(r"\d+", Path(str(name)).stem)
    if not digits:
        raise ValueError(f"no COCO image id in {name!r}")
    return str(int(digits[-1]))


def read_captions(path: Path) -> list[tuple[str, str]]:
    """(image id, description) of each line of a file of descriptions; the id is "" where the file has none."""
    records = read_records(path)
    if len(records) == 1 and not any(key in records[0] for key in _TEXT_KEYS):
        pairs = next((v for v in (records[0].get("hyp"), records[0]) if isinstance(v, Mapping)), {})
        if pairs and all(isinstance(text, str) for text in pairs.values()):
            return [(image_id(image), text) for image, text in pairs.items()]
    if len({json.dumps(record.get("method")) for record in records if "fingerprint" in record}) > 1:
        raise ValueError(f"{path} holds answers of several methods; leave one of them in a file of its own")
    found = []
    for number, record in enumerate(records, 1):
        text = next((record[key] for key in _TEXT_KEYS if key in record), None)
        if not isinstance(text, str):
            raise ValueError(f"{path}, record {number}: no description under any of {', '.join(_TEXT_KEYS)}")
        image = next((record[key] for key in _IMAGE_KEYS if key in record), None)
        found.append(("" if image is None else image_id(image), text))
    if not found:
        raise ValueError(f"{path} has no descriptions in it")
    return found


def annotation_files(folder: Path, kind: str) -> list[Path]:
    """The instances_*.json or captions_*.json of a COCO folder (or of its annotations/ folder)."""
    for place in (Path(folder), Path(folder) / "annotations"):
        found = sorted([*place.glob(f"{kind}_*.json"), *place.glob(f"{kind}_*.json.gz")])
        if found:
            return found
    raise TaskDataMissing(
        f"{folder}: no {kind}_*.json there or in its annotations/ folder; "
        "download annotations_trainval2014.zip from cocodataset.org and unpack it there"
    )


def read_references(truth: Path, wanted: Collection[str] | None = None) -> dict[str, list[str]]:
    """Image id -> its reference captions, from a COCO folder, a captions file, or JSON of id -> captions."""
    files = annotation_files(truth, "captions") if Path(truth).is_dir() else [Path(truth)]
    found: dict[str, list[str]] = {}
    for file in files:
        content = json.loads(read_text(file))
        if isinstance(content, dict) and "annotations" in content:
            pairs: Iterable[tuple[Any, list[str]]] = (
                (note["image_id"], [note["caption"]]) for note in content["annotations"]
            )
        else:
            pairs = content.get("refs", content).items()
        for image, captions in pairs:
            key = image_id(image)
            if wanted is None or key in wanted:
                found.setdefault(key, []).extend(captions)
    return found


def read_objects(
    truth: Path, words: Words = "pattern", wanted: Collection[str] | None = None
) -> dict[str, frozenset[str]]:
    """Image id -> categories in it.

    `truth` is a COCO annotations folder (categories of the instances, and objects that the captions name, found
    with the same `words`), or JSON: {id: [names]}, or {"categories": [names], ..: {id: [indices]}}, where a key with
    "pattern" holds the objects of all images and one with "wordnet" those of the images that differ.
    """
    if Path(truth).is_dir():
        return _objects_of_annotations(truth, words, wanted)
    content = json.loads(read_text(truth))
    if not isinstance(content, dict):
        raise ValueError(f"{truth}: expected a JSON object of image id -> objects")
    names: Any = content.get("categories")
    tables: list[Mapping[str, list[Any]]] = [content]
    if isinstance(names, list):
        tables = [t for key, t in content.items() if isinstance(t, dict) and "wordnet" not in key]
        if words in ("wordnet", "tagged"):
            tables += [t for key, t in content.items() if isinstance(t, dict) and "wordnet" in key]
    found: dict[str, frozenset[str]] = {}
    for table in tables:
        for image, objects in table.items():
            key = image_id(image)
            if wanted is None or key in wanted:
                found[key] = frozenset(
                    category(names[o] if isinstance(o, int) else o, truth) for o in objects
                )
    return found


def category(name: Any, source: Path) -> str:
    """The COCO category that a name in a file stands for."""
    found = category_of(str(name))
    if found is None:
        raise ValueError(f"{source}: {name!r} is no COCO category and no word for one")
    return found


def _objects_of_annotations(
    folder: Path, words: Words, wanted: Collection[str] | None
) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for file in annotation_files(folder, "instances"):
        content = json.loads(read_text(file))
        names = {kind["id"]: category(kind["name"], file) for kind in content["categories"]}
        for image in content["images"]:
            found.setdefault(str(image["id"]), set())
        for note in content["annotations"]:
            found.setdefault(str(note["image_id"]), set()).add(names[note["category_id"]])
    for image_key, captions in read_references(folder, wanted).items():
        for caption in captions:
            found.setdefault(image_key, set()).update(m.category for m in mentions(caption, words))
    return {key: frozenset(v) for key, v in found.items() if wanted is None or key in wanted}
