"""``python -m training.pictures``: draws the scenes that ship with the package, and POPE's questions on them.

POPE's rule: of pictures with at least three kinds of objects, three that are there and three that are not; the
absent ones at random, or the most frequent in the split, or those that most often stand beside what is there.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from itertools import permutations
from pathlib import Path

from airvlm.tiny import KINDS, Question, grammar
from airvlm.tiny.drawing import draw
from airvlm.tiny.world import OBJECTS, Scene, compose
from training.recipe import SPLIT_SEEDS

SIZES = {"test": 1500, "calibration": 500, "validation": 200}
ASKED = {"test": 500, "calibration": 500, "validation": 200}  # at most so many pictures are asked about
FOLDER = Path(__file__).parent.parent / "src" / "airvlm" / "tiny" / "pictures"
QUALITY = 70


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.replace(fresh, path)


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


def ask(split: str, ids: list[str], drawn: list[Scene]) -> None:
    frequent = Counter(name for scene in drawn for name in scene.names)
    beside = Counter(pair for scene in drawn for pair in permutations(scene.names, 2))
    pictured = [(i, s) for i, s in zip(ids, drawn, strict=True) if len(s.names) >= 3][: ASKED[split]]
    for kind in KINDS:
        rows: list[dict[str, object]] = []
        for identity, scene in pictured:
            chance = random.Random(f"airvlm pope {kind} {identity}")
            there = chance.sample(scene.names, 3)
            for name, gone in zip(there, absent(kind, scene.names, frequent, beside, chance), strict=True):
                for subject, label in ((name, "yes"), (gone, "no")):
                    text = grammar.existence(subject, label == "yes").question
                    rows.append(vars(Question(f"{kind}-{len(rows):04d}", identity, subject, text, label)))
        write_lines(FOLDER / f"{split}.{kind}.jsonl", rows)


def main() -> None:
    for split, size in SIZES.items():
        (FOLDER / split).mkdir(parents=True, exist_ok=True)
        drawn = [compose(SPLIT_SEEDS[split] + k) for k in range(size)]
        ids = [f"{split}-{k:04d}" for k in range(size)]
        rows: list[dict[str, object]] = []
        for identity, scene in zip(ids, drawn, strict=True):
            draw(scene).save(FOLDER / split / f"{identity}.webp", quality=QUALITY, method=6)
            caption = grammar.description(scene, random.Random(f"airvlm caption {scene.seed}"))
            rows.append({"id": identity, "caption": caption, "scene": scene.to_json()})
        write_lines(FOLDER / f"{split}.jsonl", rows)
        ask(split, ids, drawn)
        print(f"{split}: {size} scenes drawn", flush=True)


if __name__ == "__main__":
    main()
