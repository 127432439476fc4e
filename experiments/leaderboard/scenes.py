"""Write the embedded model's scenes as images beside their labels, for tasks on annotated images.

`tiny-pope` has questions on 500 scenes, as POPE has; `pope-annotated` asks about any scene with three objects or more.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from tqdm import tqdm

from airvlm import tiny


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", type=Path, help="where the images go; their labels are written beside it, as FOLDER.json"
    )
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    objects: dict[str, list[str]] = {}
    splits: dict[str, list[str]] = {}
    for split in ("test", "calibration", "validation"):
        splits[split] = []
        for scene in tqdm(tiny.scenes(split), desc=split, disable=None):
            name = f"{scene.id}{scene.path.suffix}"
            shutil.copyfile(scene.path, folder / name)
            objects[name] = sorted(scene.names)
            splits[split].append(name)
    labels = folder.with_suffix(".json")
    labels.write_text(json.dumps({"objects": objects, "splits": splits}) + "\n")
    print(f"{len(objects)} scenes in {folder}, their labels in {labels}")


if __name__ == "__main__":
    main()
