"""Draw the training views: each scene as a whole, and once more as a zoom, so that the model also learns crops.

Files are memory-mapped arrays: pixels (V, S, S, 3) uint8, covers (V, G, G) uint8 (0: ground, else 1 + object's
number), and views.jsonl with what each view shows. Even views are whole scenes, odd ones zooms of the same.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from airvlm.tiny.drawing import draw_with_cover
from airvlm.tiny.world import OBJECTS, Scene, compose
from experiments.train.tiny.recipe import SPLIT_SEEDS, Recipe

IN_VIEW = 0.35  # an object is in a zoom if this fraction of its visible pixels is
UNSURE = 0.05  # between the two it is neither described nor asked about
NUMBER = {name: k for k, name in enumerate(OBJECTS)}


@dataclass(frozen=True)
class View:
    scene: Scene  # what is in view, in the view's own coordinates
    unsure: tuple[str, ...]  # objects that are mostly cut off: nothing is said about them


def zoom_into(scene: Scene, cover: np.ndarray, box: tuple[float, float, float]) -> View:
    """What the square (left, top, side) of a scene shows."""
    left, top, side = box
    pixels = cover.shape[0]
    a, b, c, d = (round(v * pixels) for v in (left, top, left + side, top + side))
    inside = np.bincount(cover[b:d, a:c].ravel(), minlength=len(scene.objects) + 1)
    total = np.bincount(cover.ravel(), minlength=len(scene.objects) + 1)
    seen, unsure = [], []
    for k, o in enumerate(scene.objects):
        share = inside[k + 1] / max(1, total[k + 1])
        if share >= IN_VIEW:
            x, y = min(1.0, max(0.0, (o.x - left) / side)), min(1.0, max(0.0, (o.y - top) / side))
            seen.append(replace(o, x=round(x, 4), y=round(y, 4), size=round(o.size / side, 4)))
        elif share >= UNSURE:
            unsure.append(o.name)
    names = {o.name for o in seen}
    return View(replace(scene, objects=tuple(seen)), tuple(n for n in unsure if n not in names))


def patch_labels(scene: Scene, cover: np.ndarray, grid: int) -> np.ndarray:
    """(G, G): the object that covers most of each patch, where objects cover at least 15 % of it."""
    cells = np.asarray(Image.fromarray(cover).resize((grid * 7, grid * 7), Image.Resampling.NEAREST))
    cells = cells.reshape(grid, 7, grid, 7).transpose(0, 2, 1, 3).reshape(grid * grid, 49)
    table = np.array([0, *(1 + NUMBER[o.name] for o in scene.objects)], dtype=np.int64)
    labels = np.zeros(grid * grid, dtype=np.uint8)
    for p, cell in enumerate(table[cells]):
        counts = np.bincount(cell, minlength=1)
        if counts[0] <= 49 * 0.85:
            labels[p] = 1 + int(np.argmax(counts[1:]))
    return labels.reshape(grid, grid)


def _draw_views(seed: int, recipe: Recipe) -> list[tuple[np.ndarray, np.ndarray, View]]:
    scene = compose(seed)
    image, cover = draw_with_cover(scene)
    side, grid = recipe.image_side, recipe.image_side // recipe.patch
    whole = np.asarray(image.resize((side, side), Image.Resampling.BICUBIC))
    rows = [(whole, patch_labels(scene, cover, grid), View(scene, ()))]
    draw = random.Random(f"airvlm zoom {recipe.name} {seed}")
    for _ in range(20):
        share = draw.uniform(*recipe.zoom)
        left, top = draw.uniform(0, 1 - share), draw.uniform(0, 1 - share)
        view = zoom_into(scene, cover, (left, top, share))
        if view.scene.objects:
            break
    n = image.width
    box = (round(left * n), round(top * n), round((left + share) * n), round((top + share) * n))
    close = np.asarray(image.resize((side, side), Image.Resampling.BICUBIC, box=box))
    rows.append((close, patch_labels(scene, cover[box[1] : box[3], box[0] : box[2]], grid), view))
    return rows


def _draw_share(recipe: Recipe, folder: Path, start: int, stop: int) -> None:
    pixels = np.load(folder / "pixels.npy", mmap_mode="r+")
    covers = np.load(folder / "covers.npy", mmap_mode="r+")
    began = time.time()
    with open(folder / f"views.{start:07d}.jsonl", "w") as lines:
        for k in range(start, stop):
            rows = _draw_views(SPLIT_SEEDS["train"] + recipe.first_scene + k, recipe)
            for j, (image, labels, view) in enumerate(rows):
                pixels[2 * k + j] = image
                covers[2 * k + j] = labels
                lines.write(json.dumps({"scene": view.scene.to_json(), "unsure": view.unsure}) + "\n")
            if start == 0 and k % 1000 == 999:
                rate = (k + 1) / (time.time() - began)
                print(f"drawn {k + 1} of {stop} scenes in this process, {rate:.0f}/s", flush=True)


def draw_all(recipe: Recipe, folder: Path, processes: int = 2) -> None:
    """Draw all views, unless that was done before."""
    if (folder / "complete").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    n, side, grid = 2 * recipe.scenes, recipe.image_side, recipe.image_side // recipe.patch
    for name, shape in (("pixels", (n, side, side, 3)), ("covers", (n, grid, grid))):
        np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.uint8, shape=shape)
    cuts = [recipe.scenes * k // processes for k in range(processes + 1)]
    workers = [
        multiprocessing.Process(target=_draw_share, args=(recipe, folder, a, b)) for a, b in itertools.pairwise(cuts)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise RuntimeError("drawing failed; see the messages above")
    (folder / "complete").touch()


def load_views(folder: Path) -> list[View]:
    views = []
    for part in sorted(folder.glob("views.*.jsonl")):
        for line in part.read_text().splitlines():
            row = json.loads(line)
            views.append(View(Scene.from_json(row["scene"]), tuple(row["unsure"])))
    return views
