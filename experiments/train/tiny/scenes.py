"""``python -m experiments.train.tiny.scenes``: write the scenes in the package, and POPE's questions about them.

A scene is stored as the positions of its objects and the hashes of its image file and pixels; the image is drawn when
it is needed. POPE's rule: for images with at least three kinds of objects, three that are present and three that are
not; the latter are random, or the most frequent in the split, or those that occur most often with the present ones.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import astuple
from itertools import permutations
from pathlib import Path

from airvlm.storage.atomic import write_atomically
from airvlm.tiny import KINDS, grammar
from airvlm.tiny.files import content_hash, encode_scene, pixels_hash
from airvlm.tiny.world import OBJECTS, Scene, compose
from experiments.train.tiny.recipe import SPLIT_SEEDS

SIZES = {"test": 1500, "calibration": 500, "validation": 200}
ASKED = {"test": 500, "calibration": 500, "validation": 200}  # largest number of images with questions
FOLDER = Path(__file__).parents[3] / "src" / "airvlm" / "tiny" / "scenes"


def choose_absent(
    kind: str,
    present: tuple[str, ...],
    frequent: Counter[str],
    beside: Counter[tuple[str, str]],
    chance: random.Random,
) -> list[str]:
    """Three objects that are not in the image, by the rule of this kind."""
    candidates = [name for name in OBJECTS if name not in present]
    if kind == "random":
        return chance.sample(candidates, 3)
    if kind == "popular":
        return sorted(candidates, key=lambda name: (-frequent[name], name))[:3]
    return sorted(candidates, key=lambda name: (-sum(beside[p, name] for p in present), name))[:3]


def choose_questions(composed: dict[str, Scene], limit: int) -> dict[str, dict[str, list[str]]]:
    """For each scene and kind, the objects in question: one that is present, one that is absent, and so on."""
    frequent = Counter(name for scene in composed.values() for name in scene.names)
    beside = Counter(pair for scene in composed.values() for pair in permutations(scene.names, 2))
    full = [(identity, scene) for identity, scene in composed.items() if len(scene.names) >= 3][:limit]
    found: dict[str, dict[str, list[str]]] = {identity: {} for identity, _ in full}
    for kind in KINDS:
        for identity, scene in full:
            chance = random.Random(f"airvlm pope {kind} {identity}")
            there = chance.sample(scene.names, 3)
            gone = choose_absent(kind, scene.names, frequent, beside, chance)
            found[identity][kind] = [name for pair in zip(there, gone, strict=True) for name in pair]
    return found


def scene_row(identity: str, scene: Scene, questions: dict[str, list[str]]) -> dict[str, object]:
    """What the package stores about a scene."""
    file = encode_scene(scene)
    return {
        "id": identity,
        "content": content_hash(file),
        "pixels": pixels_hash(file),
        "caption": grammar.description(scene, random.Random(f"airvlm caption {scene.seed}")),
        "seed": scene.seed,
        "context": scene.context,
        "colour": scene.color,
        "objects": [astuple(placed) for placed in scene.objects],
        "asked": questions,
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for split, size in SIZES.items():
        composed = {f"{split}-{k:04d}": compose(SPLIT_SEEDS[split] + k) for k in range(size)}
        questions = choose_questions(composed, ASKED[split])
        rows = (scene_row(identity, scene, questions.get(identity, {})) for identity, scene in composed.items())
        lines = [json.dumps(one, ensure_ascii=False, separators=(",", ":")) + "\n" for one in rows]
        write_atomically(FOLDER / f"{split}.jsonl", "".join(lines))
        print(f"{split}: {size} scenes", flush=True)


if __name__ == "__main__":
    main()
