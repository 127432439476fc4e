"""``python -m experiments.train.photo.objects``: which of COCO's 80 objects each photograph shows, and its split.

Objects come from COCO's annotation files by CHAIR's rules (an object counts if it has a box or is named in a caption),
or from a file with CHAIR's ground truth. Training reads the output: {"objects": {file stem: [names]}, "splits": {split:
[file stems]}}. Beside it, one file per split that is not trained on, {file: [names]}, is written for ``airvlm evaluate
chair pope --objects``, and with --pope a folder of POPE's own questions.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SPLITS = {"test": 5000, "calibration": 1000, "validation": 1000}  # the rest is for training
APART = (59, 7)  # (divisor, remainder): photographs with such an id are not used at all


def file_stem(number: int) -> str:
    """The file name of a photograph in COCO 2017, without its ending."""
    return f"{number:012d}"


def split_all(numbers: Iterable[int], never_trained: Iterable[int] = ()) -> dict[str, list[int]]:
    """Split by a hash of the id, so that a photograph is in the same split wherever this is run on COCO."""
    kept = [n for n in numbers if n % APART[0] != APART[1]]
    pope = set(never_trained)
    order = sorted(
        (n for n in kept if n not in pope),
        key=lambda n: hashlib.sha256(f"airvlm photograph {n}".encode()).digest(),
    )
    splits, start = {}, 0
    for name, size in SPLITS.items():
        splits[name] = order[start : start + size]
        start += size
    return splits | {"train": order[start:], "pope": sorted(pope.intersection(kept))}


def from_chair(path: Path) -> dict[int, set[str]]:
    """CHAIR's ground truth as {categories, <pattern>: {id: [indices]}}."""
    with gzip.open(path) as file:
        table = json.load(file)
    names = table["categories"]
    return {int(n): {names[i] for i in own} for n, own in table["maxlinn_pattern"].items()}


def from_coco(instances: list[dict[str, Any]], captions: list[dict[str, Any]]) -> dict[int, set[str]]:
    """From COCO's annotation files: boxed objects, and those that CHAIR finds in the captions."""
    from airvlm.tasks.words.objects import find_mentions

    found: dict[int, set[str]] = {}
    for table in instances:
        names = {c["id"]: c["name"] for c in table["categories"]}
        for image in table["images"]:
            found.setdefault(image["id"], set())
        for box in table["annotations"]:
            found.setdefault(box["image_id"], set()).add(names[box["category_id"]])
    for table in captions:
        for said in table["annotations"]:
            found.setdefault(said["image_id"], set()).update(m.category for m in find_mentions(said["caption"]))
    return found


def read_image_id(question: dict[str, Any]) -> int:
    """The COCO id of the photograph that one of POPE's questions is about."""
    return int(re.findall(r"(\d+)\.\w+$", question["image"])[0])


def read_pope_ids(path: Path) -> set[int]:
    """The photographs that a file of POPE's questions asks about."""
    return {read_image_id(json.loads(line)) for line in path.read_text().splitlines() if line.strip()}


def write_pope_folder(files: Iterable[Path], photos: Path, numbers: Iterable[int], folder: Path) -> None:
    """POPE's questions on these photographs, and links to them under the names that the questions use."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = set(numbers)
    for path in files:
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        rows = [row for row in rows if read_image_id(row) in kept]
        (folder / path.name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        for row in rows:
            link = folder / row["image"]
            if not link.exists():
                link.symlink_to((photos / f"{file_stem(read_image_id(row))}.jpg").resolve())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("annotations", nargs="*", type=Path, help="COCO's instances_*.json and captions_*.json")
    parser.add_argument("--chair", type=Path, help="CHAIR's ground truth instead (json.gz)")
    parser.add_argument("--photos", type=Path, required=True, help="folder of the photographs: only these are listed")
    parser.add_argument("--pope", nargs="*", type=Path, default=[], help="POPE's question files: never trained on")
    parser.add_argument("--out", type=Path, default=Path("objects.json"))
    chosen = parser.parse_args()
    if chosen.chair:
        found = from_chair(chosen.chair)
    elif chosen.annotations:
        tables = [json.loads(path.read_text()) for path in chosen.annotations]
        boxed = [t for t in tables if "categories" in t]
        found = from_coco(boxed, [t for t in tables if "categories" not in t])
    else:
        parser.error("give COCO's annotation files, or --chair FILE")
    here = {int(path.stem) for path in chosen.photos.glob("*.jpg")}
    numbers = sorted(here.intersection(found))
    if not numbers:
        raise SystemExit(f"none of the {len(here)} photographs in {chosen.photos} is in the annotations")
    splits = split_all(numbers, {n for path in chosen.pope for n in read_pope_ids(path)})
    table = {
        "objects": {file_stem(n): sorted(found[n]) for own in splits.values() for n in own},
        "splits": {name: [file_stem(n) for n in own] for name, own in splits.items()},
    }
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(table))
    for name in set(splits) - {"train"}:
        own = {f"{file_stem(n)}.jpg": sorted(found[n]) for n in splits[name]}
        chosen.out.with_suffix(f".{name}.json").write_text(json.dumps(own))
    write_pope_folder(chosen.pope, chosen.photos, splits["pope"], chosen.out.with_suffix(".pope"))
    print(f"{chosen.out}: " + ", ".join(f"{name} {len(own)}" for name, own in splits.items()))


if __name__ == "__main__":
    main()
