"""``python -m experiments.train.tiny.scenes``: writes the scenes that ship with the package, and POPE's questions on them.

An image ships as the places of its objects and the hashes of its file and of its pixels: it is drawn where it is used.
POPE's rule: of images with at least three kinds of objects, three that are there and three that are not; the absent
ones at random, or the most frequent in the split, or those that most often stand beside what is there.
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
from airvlm.tiny.files import content_hash, encoded, pixels_hash
from airvlm.tiny.world import OBJECTS, Scene, compose
from experiments.train.tiny.recipe import SPLIT_SEEDS

SIZES = {"test": 1500, "calibration": 500, "validation": 200}
ASKED = {"test": 500, "calibration": 500, "validation": 200}  # at most so many images are asked about
FOLDER = Path(__file__).parent.parent / "src" / "airvlm" / "tiny" / "scenes"


def absent(
    kind: str,
    present: tuple[str, ...],
    frequent: Counter[str],
    beside: Counter[tuple[str, str]],
    chance: random.Random,
) -> list[str]:
    """Three objects that are not there, by the rule of this kind."""
    candidates = [name for name in OBJECTS if name not in present]
    if kind == "random":
        return chance.sample(candidates, 3)
    if kind == "popular":
        return sorted(candidates, key=lambda name: (-frequent[name], name))[:3]
    return sorted(candidates, key=lambda name: (-sum(beside[p, name] for p in present), name))[:3]


def asked(composed: dict[str, Scene], limit: int) -> dict[str, dict[str, list[str]]]:
    """By scene and kind, the objects asked for: one that is there, one that is not, and so on."""
    frequent = Counter(name for scene in composed.values() for name in scene.names)
    beside = Counter(pair for scene in composed.values() for pair in permutations(scene.names, 2))
    full = [(identity, scene) for identity, scene in composed.items() if len(scene.names) >= 3][:limit]
    found: dict[str, dict[str, list[str]]] = {identity: {} for identity, _ in full}
    for kind in KINDS:
        for identity, scene in full:
            chance = random.Random(f"airvlm pope {kind} {identity}")
            there = chance.sample(scene.names, 3)
            gone = absent(kind, scene.names, frequent, beside, chance)
            found[identity][kind] = [name for pair in zip(there, gone, strict=True) for name in pair]
    return found


def row(identity: str, scene: Scene, questions: dict[str, list[str]]) -> dict[str, object]:
    """What the package holds of a scene."""
    file = encoded(scene)
    return {
        "id": identity,
        "content": content_hash(file),
        "pixels": pixels_hash(file),
        "caption": grammar.description(scene, random.Random(f"airvlm caption {scene.seed}")),
        "seed": scene.seed,
        "context": scene.context,
        "colour": scene.colour,
        "objects": [astuple(placed) for placed in scene.objects],
        "asked": questions,
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for split, size in SIZES.items():
        composed = {f"{split}-{k:04d}": compose(SPLIT_SEEDS[split] + k) for k in range(size)}
        questions = asked(composed, ASKED[split])
        rows = (row(identity, scene, questions.get(identity, {})) for identity, scene in composed.items())
        lines = [json.dumps(one, ensure_ascii=False, separators=(",", ":")) + "\n" for one in rows]
        write_atomically(FOLDER / f"{split}.jsonl", "".join(lines))
        print(f"{split}: {size} scenes", flush=True)


if __name__ == "__main__":
    main()
