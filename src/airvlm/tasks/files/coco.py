"""Reading COCO: annotation folders, ground-truth objects, reference captions, and files of descriptions.

Knows nothing about metrics. Images are called by COCO's id in plain digits ("226988"), wherever that comes from, or by
their file's name (labels.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from airvlm.tasks.base import TaskDataMissing
from airvlm.tasks.coverage import Given
from airvlm.tasks.files.answers import one_method
from airvlm.tasks.files.labels import image_key
from airvlm.tasks.files.reading import read_json, read_records
from airvlm.tasks.files.records import Checked, Id, Text, checked, first_of
from airvlm.tasks.words.objects import category_of, mentions
from airvlm.tasks.words.singular import Words

__all__ = [
    "Instances",
    "annotation_files",
    "category",
    "image_id",
    "read_captions",
    "read_instances",
    "read_objects",
    "read_references",
]

_TEXT_KEYS = ("caption", "text", "answer", "response", "output", "prediction")
_IMAGE_KEYS = ("image_id", "image", "image_file", "item", "id", "question_id")
image_id = image_key  # an image's id from the id itself or from a file name such as COCO_val2014_000000226988.jpg


class Description(Checked):
    """A description, and the image that it describes."""

    text: Text = first_of(*_TEXT_KEYS)
    image: Id = first_of(*_IMAGE_KEYS)


class DescriptionAlone(Checked):
    """A description of nobody knows what."""

    text: Text = first_of(*_TEXT_KEYS)


def read_captions(path: Path) -> list[Given[str]]:
    """The descriptions of a file with their images; the image is "" where no record of the file names one."""
    records = read_records(path)
    if len(records) == 1 and not set(records[0]) & set(_TEXT_KEYS):
        content = records[0].get("hyp", records[0])
        rows = _entries(content, path, "a text", "hyp" if "hyp" in records[0] else None)
        texts = [{"image": image, "text": text} for image, text in rows]
        return [Given(image_key(one.image), one.text) for one in checked(Description, texts, path, what="entry")]
    if not records:
        raise ValueError(f"{path} has no descriptions in it")
    records = list(one_method(records, path))  # type: ignore[arg-type]  # rows are dictionaries
    if not any(set(record) & set(_IMAGE_KEYS) for record in records):
        return [Given("", one.text, one.line) for one in checked(DescriptionAlone, records, path)]
    return [Given(image_key(one.image), one.text, one.line) for one in checked(Description, records, path)]


def _entries(content: Any, path: Path, what: str, field: str | None = None) -> list[tuple[str, Any]]:
    """The entries of an object of image -> something."""
    place = f", field {field}" if field else ""
    if not isinstance(content, Mapping) or not content:
        raise ValueError(f"{path}{place}: expected an object of image id -> {what}")
    keys = [image_key(key) for key in content]
    twice = next((key for key in keys if keys.count(key) > 1), None) if len(set(keys)) < len(keys) else None
    if twice is not None:
        raise ValueError(f"{path}{place}: image {twice} stands there twice")
    return list(content.items())


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


class Caption(Checked):
    image_id: Id
    caption: Text


def read_references(truth: Path, wanted: Collection[str] | None = None) -> dict[str, list[str]]:
    """Image -> its reference captions, from a COCO folder, a captions file, or JSON of image id -> captions."""
    files = annotation_files(truth, "captions") if Path(truth).is_dir() else [Path(truth)]
    found: dict[str, list[str]] = {}
    for file in files:
        content = read_json(file)
        if isinstance(content, dict) and "annotations" in content:
            notes = checked(Caption, _rows(content, "annotations", file), file, what="annotation")
            pairs: Iterable[tuple[str, list[str]]] = ((note.image_id, [note.caption]) for note in notes)
        else:
            pairs = references_in(content, file)
        for image, captions in pairs:
            key = image_key(image)
            if wanted is None or key in wanted:
                found.setdefault(key, []).extend(captions)
    return found


def references_in(content: Any, path: Path) -> list[tuple[str, list[str]]]:
    """(image, captions) of an object of image -> captions, or of its `refs`."""
    field = "refs" if isinstance(content, dict) and "refs" in content else None
    entries = _entries(content["refs"] if field else content, path, "a list of captions", field)
    for image, texts in entries:
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            place = f"field {field}.{image}" if field else f"field {image}"
            raise ValueError(f"{path}, {place}: expected a list of captions, not {str(texts)[:40]!r}")
    return entries


def read_objects(
    truth: Path,
    words: Words = "pattern",
    wanted: Collection[str] | None = None,
    every: set[str] | None = None,  # of a JSON file: takes all images that it knows, wanted or not
) -> dict[str, frozenset[str]]:
    """Image -> categories in it.

    `truth` is a COCO annotations folder (categories of the instances, and objects that the captions name, found
    with the same `words`), or JSON: {image: [names]}, or {"categories": [names], ..: {id: [indices]}}, where a key with
    "pattern" holds the objects of all images and one with "wordnet" those of the images that differ.
    """
    if Path(truth).is_dir():
        return _objects_of_annotations(truth, words, wanted)
    content = read_json(truth)
    if isinstance(content, dict) and isinstance(content.get("objects"), dict):
        content = content["objects"]
    names: Any = content.get("categories") if isinstance(content, dict) else None
    tables: list[Any] = [content]
    if isinstance(names, list):
        tables = [t for key, t in content.items() if isinstance(t, dict) and "wordnet" not in key]
        if words in ("wordnet", "tagged"):
            tables += [t for key, t in content.items() if isinstance(t, dict) and "wordnet" in key]
        if not tables:
            raise ValueError(f"{truth}: it has categories, but no object of image id -> objects")
    found: dict[str, frozenset[str]] = {}
    for table in tables:
        for image, objects in _entries(table, truth, "[object names]"):
            key = image_key(image)
            if every is not None:
                every.add(key)
            if wanted is None or key in wanted:
                found[key] = frozenset(_named(image, objects, names, truth))
    return found


def _named(image: str, objects: Any, names: Any, truth: Path) -> Iterable[str]:
    """The categories of one image, by name or by number."""
    if not isinstance(objects, list):
        raise ValueError(f"{truth}, field {image}: expected a list of object names, not {str(objects)[:40]!r}")
    for one in objects:
        if isinstance(one, int) and not isinstance(one, bool) and isinstance(names, list):
            if not 0 <= one < len(names):
                raise ValueError(f"{truth}, field {image}: there is no category number {one}")
            one = names[one]
        if not isinstance(one, str):
            raise ValueError(f"{truth}, field {image}: expected object names, not {str(one)[:40]!r}")
        yield category(one, truth)


def category(name: Any, source: Path) -> str:
    """The COCO category that a name in a file stands for."""
    found = category_of(str(name))
    if found is None:
        raise ValueError(f"{source}: {str(name)[:60]!r} is no COCO category and no word for one")
    return found


class Image(Checked):
    id: Id
    file_name: Text = ""


class Category(Checked):
    id: Id
    name: Text


class CocoAnnotation(Checked):
    image_id: Id
    category_id: Id
    area: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0


class Instances:
    """An instances_*.json: its images, the names of its categories, and what was annotated."""

    def __init__(self, file: Path) -> None:
        content = read_json(file)
        self.images = checked(Image, _rows(content, "images", file), file, what="image")
        kinds = checked(Category, _rows(content, "categories", file), file, what="category")
        self.names = {kind.id: kind.name for kind in kinds}
        self.notes = checked(CocoAnnotation, _rows(content, "annotations", file), file, what="annotation")
        strange = next((note.category_id for note in self.notes if note.category_id not in self.names), None)
        if strange is not None:
            raise ValueError(f"{file}: an annotation is of category {strange}, which the file does not name")


def read_instances(folder: Path) -> list[tuple[Path, Instances]]:
    """The instances_*.json of a COCO folder."""
    return [(file, Instances(file)) for file in annotation_files(folder, "instances")]


def _rows(content: Any, name: str, file: Path) -> list[Mapping[str, Any]]:
    rows = content.get(name) if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{file}, field {name}: expected a list of objects (is this a file of COCO's annotations?)")
    return rows


def _objects_of_annotations(folder: Path, words: Words, wanted: Collection[str] | None) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for file, instances in read_instances(folder):
        names = {key: category(name, file) for key, name in instances.names.items()}
        for image in instances.images:
            found.setdefault(image_key(image.id), set())
        for note in instances.notes:
            found.setdefault(image_key(note.image_id), set()).add(names[note.category_id])
    for image_name, captions in read_references(folder, wanted).items():
        for caption in captions:
            found.setdefault(image_name, set()).update(m.category for m in mentions(caption, words))
    return {key: frozenset(v) for key, v in found.items() if wanted is None or key in wanted}
