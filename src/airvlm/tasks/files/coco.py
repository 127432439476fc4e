"""Images and the objects in them: COCO's annotations, label files of one's own, and files of descriptions.

A label file is a JSON object of image -> names of the objects in it, for any folder of images:

    {"cat.jpg": ["cat", "couch"], "000000226988": ["person"]}

The object may also be under the key "objects", beside "splits" ({"test": [images], "calibration": [images]}), which
then decide which images are asked about. Images are named by their COCO id in plain digits ("226988") or by their file
name without its ending; `get_image_key` turns any spelling into that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from airvlm.tasks.answers import Entry, raise_on_several_methods, require_rows
from airvlm.tasks.files.reading import Row, TaskDataMissing, make_rows, read_json, read_records
from airvlm.tasks.words.base_forms import Words
from airvlm.tasks.words.objects import find_category, find_mentions

__all__ = [
    "Instances",
    "choose_expected_images",
    "find_annotation_files",
    "find_images",
    "get_image_key",
    "read_descriptions",
    "read_labels",
    "read_objects",
    "read_references",
    "read_split",
    "require_category",
]

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
COLLECTION = 10  # ground truth of this many times more images than are described is a collection, not the task's list
_TEXT_FIELDS = ("caption", "text", "answer", "response", "output", "prediction")
_IMAGE_FIELDS = ("image_id", "image", "image_file", "item", "id", "question_id")
_COCO_NAME = re.compile(r"(?:COCO_\w+_)?(\d+)", re.IGNORECASE)


def get_image_key(name: str | int) -> str:
    """The name of an image: its COCO id in plain digits, or else its file name without the ending."""
    stem = str(name)
    if stem.isascii() and stem.isdigit():  # fast path: truth files have a hundred thousand of these
        return stem.lstrip("0") or "0"
    stem = stem.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    if stem.lower().endswith(IMAGE_ENDINGS):
        stem = stem.rsplit(".", 1)[0]
    found = _COCO_NAME.fullmatch(stem)
    return (found[1].lstrip("0") or "0") if found else stem


# -- label files


def read_labels(path: Path, *, keep_names: bool = False) -> dict[str, list[str]]:
    """Image -> its objects, in the file's order.

    Args:
        path: a label file.
        keep_names: name images as the file does, instead of by `get_image_key`.
    """
    content = read_json(path)
    if isinstance(content, dict) and isinstance(content.get("objects"), dict):
        content = content["objects"]
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path}: expected a JSON object of image -> [object names]")
    labels: dict[str, list[str]] = {}
    for image, names in content.items():
        if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
            raise ValueError(f"{path}, field {image!r}: expected a list of object names, found {str(names)[:60]}")
        key = image if keep_names else get_image_key(image)
        if key in labels:
            raise ValueError(f"{path}: duplicate image {key} ({image!r})")
        labels[key] = [name.strip() for name in names]
    return labels


def read_split(path: Path, split: str) -> list[str] | None:
    """The images of one of a label file's own splits, in its order; None if the file has no splits."""
    content = read_json(path)
    splits = content.get("splits") if isinstance(content, dict) and "objects" in content else None
    if splits is None:
        return None
    if not isinstance(splits, dict) or not isinstance(splits.get(split), list):
        known = ", ".join(splits) if isinstance(splits, dict) and splits else "none"
        raise ValueError(f"{path}, field 'splits': no list of images for the {split} split; there are {known}")
    return [get_image_key(image) for image in splits[split]]


def find_images(folder: Path, wanted: Collection[str]) -> dict[str, Path]:
    """Image -> its file, for those of the wanted images that a folder or its subfolders have."""
    files = _list_images(Path(folder), Path(folder).stat().st_mtime_ns)
    return {key: Path(path) for key, path in files.items() if key in wanted}


@lru_cache(maxsize=4)
def _list_images(folder: Path, changed: int) -> dict[str, str]:
    """Image -> its file in a folder; `changed` is the folder's modification time, for the cache."""
    files = sorted(
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(IMAGE_ENDINGS)
    )
    found: dict[str, str] = {}
    for file in files:
        other = found.setdefault(get_image_key(file), file)
        if other != file:
            names = " and ".join(os.path.basename(path) for path in (other, file))
            raise ValueError(f"{folder}: {names} have the same name {get_image_key(file)}")
    return found


# -- COCO's annotations


def find_annotation_files(folder: Path, kind: str) -> list[Path]:
    """The instances_*.json or captions_*.json of a COCO folder or of its annotations/ folder."""
    for place in (Path(folder), Path(folder) / "annotations"):
        found = sorted([*place.glob(f"{kind}_*.json"), *place.glob(f"{kind}_*.json.gz")])
        if found:
            return found
    raise TaskDataMissing(
        f"{folder}: no {kind}_*.json in it or in its annotations/ folder; "
        "download annotations_trainval2014.zip from cocodataset.org and unpack it there"
    )


class Instances:
    """An instances_*.json.

    Attributes:
        files: image id -> file name.
        annotations: (image id, category name, area) of each annotated object.
    """

    def __init__(self, path: Path) -> None:
        content = read_json(path)
        names = {row.read_id("id"): row.read_text("name") for row in _find_rows(content, "categories", path)}
        images = _find_rows(content, "images", path)
        self.files = {row.read_id("id"): row.read_text("file_name", default="") for row in images}
        self.annotations: list[tuple[str, str, float]] = []
        for row in _find_rows(content, "annotations", path):
            category = row.read_id("category_id")
            if category not in names:
                raise row.error("category_id", f"the file has no category {category}")
            area = row.read_number("area", 0, float("inf"), default=1.0)
            self.annotations.append((row.read_id("image_id"), names[category], area))


def _find_rows(content: Any, field: str, path: Path) -> list[Row]:
    return make_rows(content.get(field) if isinstance(content, dict) else None, path, field.rstrip("s"), field)


def read_references(truth: Path, wanted: Collection[str] | None = None) -> dict[str, list[str]]:
    """Image -> its reference captions.

    Args:
        truth: a COCO folder, a captions file, or JSON of image -> captions (or of `refs`: image -> captions).
        wanted: the images to read; None: all.
    """
    files = find_annotation_files(truth, "captions") if Path(truth).is_dir() else [Path(truth)]
    references: dict[str, list[str]] = {}
    for file in files:
        for image, captions in _iterate_references(read_json(file), file):
            key = get_image_key(image)
            if wanted is None or key in wanted:
                references.setdefault(key, []).extend(captions)
    return references


def _iterate_references(content: Any, path: Path) -> Iterator[tuple[str, list[str]]]:
    if isinstance(content, dict) and "annotations" in content:
        for row in _find_rows(content, "annotations", path):
            yield row.read_id("image_id"), [row.read_text("caption")]
        return
    field = "refs" if isinstance(content, dict) and "refs" in content else None
    for image, texts in _read_mapping(content["refs"] if field else content, path, "[captions]", field):
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            place = f"field {field}.{image}" if field else f"field {image}"
            raise ValueError(f"{path}, {place}: expected a list of captions, not {str(texts)[:40]!r}")
        yield image, texts


def _read_mapping(content: Any, path: Path, values: str, field: str | None = None) -> list[tuple[str, Any]]:
    """The entries of an object of image -> values, in which no image occurs twice."""
    place = f", field {field}" if field else ""
    if not isinstance(content, Mapping) or not content:
        raise ValueError(f"{path}{place}: expected a JSON object of image -> {values}")
    keys = [get_image_key(key) for key in content]
    if len(set(keys)) < len(keys):
        raise ValueError(f"{path}{place}: duplicate image {next(key for key in keys if keys.count(key) > 1)}")
    return list(content.items())


def read_objects(
    truth: Path, words: Words = "pattern", wanted: Collection[str] | None = None, known: set[str] | None = None
) -> dict[str, frozenset[str]]:
    """Image -> categories in it.

    Args:
        truth: a COCO annotations folder (categories of the instances, and objects that the captions name), or JSON:
            {image: [names]}, or {"categories": [names], ...: {image: [indices]}}, where a key with "pattern" has the
            objects of all images and one with "wordnet" those of the images that differ.
        words: how objects are found in captions.
        wanted: the images to read; None: all.
        known: receives all images of a JSON file, wanted or not.
    """
    if Path(truth).is_dir():
        return _read_annotated_objects(truth, words, wanted)
    content = read_json(truth)
    if isinstance(content, dict) and isinstance(content.get("objects"), dict):
        content = content["objects"]
    names: Any = content.get("categories") if isinstance(content, dict) else None
    tables: list[Any] = [content]
    if isinstance(names, list):
        tables = [table for key, table in content.items() if isinstance(table, dict) and "wordnet" not in key]
        if words in ("wordnet", "wordnet-rules"):
            tables += [table for key, table in content.items() if isinstance(table, dict) and "wordnet" in key]
        if not tables:
            raise ValueError(f"{truth}: it has categories, but no JSON object of image -> objects")
    objects: dict[str, frozenset[str]] = {}
    for table in tables:
        for image, listed in _read_mapping(table, truth, "[object names]"):
            key = get_image_key(image)
            if known is not None:
                known.add(key)
            if wanted is None or key in wanted:
                objects[key] = frozenset(_iterate_categories(image, listed, names, truth))
    return objects


def _iterate_categories(image: str, objects: Any, names: Any, truth: Path) -> Iterable[str]:
    """The categories of one image, which the file gives by name or by number."""
    if not isinstance(objects, list):
        raise ValueError(f"{truth}, field {image}: expected a list of object names, not {str(objects)[:40]!r}")
    for name in objects:
        if isinstance(name, int) and not isinstance(name, bool) and isinstance(names, list):
            if not 0 <= name < len(names):
                raise ValueError(f"{truth}, field {image}: there is no category number {name}")
            name = names[name]
        if not isinstance(name, str):
            raise ValueError(f"{truth}, field {image}: expected object names, not {str(name)[:40]!r}")
        yield require_category(name, truth)


def require_category(name: str, path: Path) -> str:
    """The COCO category that a name in a file means."""
    category = find_category(name)
    if category is None:
        raise ValueError(f"{path}: {name[:60]!r} is not a COCO category or a word for one")
    return category


def _read_annotated_objects(folder: Path, words: Words, wanted: Collection[str] | None) -> dict[str, frozenset[str]]:
    objects: dict[str, set[str]] = {}
    for file in find_annotation_files(folder, "instances"):
        instances = Instances(file)
        for image in instances.files:
            objects.setdefault(get_image_key(image), set())
        for image, name, _ in instances.annotations:
            objects.setdefault(get_image_key(image), set()).add(require_category(name, file))
    for image, captions in read_references(folder, wanted).items():
        for caption in captions:
            objects.setdefault(image, set()).update(mention.category for mention in find_mentions(caption, words))
    return {key: frozenset(found) for key, found in objects.items() if wanted is None or key in wanted}


# -- descriptions


def read_descriptions(path: Path) -> list[Entry[str]]:
    """The descriptions of a file with their images; the image is "" if no record of the file names one.

    Records with an image and a text under their usual names (`image_id`, `caption`, ...), or one JSON object of image
    -> text, which may be under the key "hyp".
    """
    records = require_rows(read_records(path), path, "descriptions")
    if len(records) == 1 and not set(records[0]) & set(_TEXT_FIELDS):
        field = "hyp" if "hyp" in records[0] else None
        pairs = _read_mapping(records[0]["hyp"] if field else records[0], path, "text", field)
        rows = [Row({"image": image, "text": text}, path, f"entry {n}") for n, (image, text) in enumerate(pairs, 1)]
        return [Entry(get_image_key(row.read_id("image")), row.read_text("text")) for row in rows]
    raise_on_several_methods(records, path)
    named = any(set(record) & set(_IMAGE_FIELDS) for record in records)
    return [
        Entry(get_image_key(row.read_id(*_IMAGE_FIELDS)) if named else "", row.read_text(*_TEXT_FIELDS), row.line)
        for row in records
    ]


def choose_expected_images(truth: Iterable[str], described: Iterable[str]) -> set[str]:
    """The images that should be described: those of the truth, unless it is a collection of far more images."""
    known, named = set(truth), set(described)
    return known if len(known) <= COLLECTION * max(1, len(named)) else named
