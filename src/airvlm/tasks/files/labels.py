"""Our own label format: a JSON object of image -> the names of the objects in it, for any folder of images.

    {"cat.jpg": ["cat", "couch"], "000000226988": ["person"]}

An image is named by its file, with or without the ending, or by its COCO id; the object may also stand under the
key "objects", beside "splits" ({"test": [images], "calibration": [images]}), which then say what is asked when.
Knows nothing about metrics or questions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from airvlm.tasks.files.reading import read_json

__all__ = ["IMAGE_ENDINGS", "find_images", "image_key", "read_labels", "read_split"]

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
_ID = re.compile(r"(?:COCO_\w+_)?(\d+)", re.IGNORECASE)


def image_key(name: str | int) -> str:
    """What an image is called everywhere: COCO's id in plain digits, else the file's name without its ending."""
    stem = str(name)
    if stem.isascii() and stem.isdigit():  # most are, and truth files hold a hundred thousand
        return stem.lstrip("0") or "0"
    stem = stem.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    if stem.lower().endswith(IMAGE_ENDINGS):
        stem = stem.rsplit(".", 1)[0]
    found = _ID.fullmatch(stem)
    return (found[1].lstrip("0") or "0") if found else stem


def read_labels(path: Path, *, as_written: bool = False) -> dict[str, list[str]]:
    """Image (see `image_key`, or as the file names it) -> its objects, most prominent first if the file says so."""
    content = read_json(path)
    if isinstance(content, dict) and isinstance(content.get("objects"), dict):
        content = content["objects"]
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path}: expected a JSON object of image -> [object names]")
    found: dict[str, list[str]] = {}
    for image, names in content.items():
        if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
            raise ValueError(f"{path}, field {image!r}: expected a list of object names, found {str(names)[:60]}")
        key = image if as_written else image_key(image)
        if key in found:
            raise ValueError(f"{path}: image {key} stands there twice ({image!r})")
        found[key] = [name.strip() for name in names]
    return found


def read_split(path: Path, split: str) -> list[str] | None:
    """The images of one of the file's own splits, in its order; None where the file has no splits."""
    content = read_json(path)
    splits = content.get("splits") if isinstance(content, dict) and "objects" in content else None
    if splits is None:
        return None
    if not isinstance(splits, dict) or not isinstance(splits.get(split), list):
        there = ", ".join(splits) if isinstance(splits, dict) and splits else "none"
        raise ValueError(f"{path}, field 'splits': no list of images for the {split} split; there are {there}")
    return [image_key(image) for image in splits[split]]


def find_images(folder: Path, wanted: Mapping[str, object]) -> dict[str, Path]:
    """The files of a folder (or of one of its folders) that show the wanted images, by image."""
    folder = Path(folder)
    found = _images_in(folder, folder.stat().st_mtime_ns)
    return {key: Path(path) for key, path in found.items() if key in wanted}


@lru_cache(maxsize=4)
def _images_in(folder: Path, changed: int) -> dict[str, str]:
    files = sorted(
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(IMAGE_ENDINGS)
    )
    found: dict[str, str] = {}
    for file in files:
        key = image_key(file)
        other = found.setdefault(key, file)
        if other != file:
            names = " and ".join(os.path.basename(path) for path in (other, file))
            raise ValueError(f"{folder}: {names} are both called {key}")
    return found
