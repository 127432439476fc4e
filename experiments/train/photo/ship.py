"""``python -m experiments.train.photo.ship PHOTOS OBJECTS``: copy a model into the package, score it, write its card.

The scores are those of greedy decoding without a method, from pixels, by `airvlm evaluate`: descriptions of test
photographs, and POPE's own questions. The blind scores come from the training log: another photograph's tokens.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from safetensors import safe_open

from airvlm import evaluate, photo
from experiments.train.photo.recipe import RECIPES
from experiments.train.tiny.ship import stage_minutes

HERE = Path(__file__).parent


def score_model(model: Path, out: Path, photos: Path, objects: Path, descriptions: int) -> dict[str, float]:
    """Scores of vanilla greedy decoding, in percent."""
    described = evaluate(
        model, "chair", [], data=photos, objects=objects, limit=descriptions, curve=False, out=out / "chair"
    )
    asked = evaluate(model, "pope", [], data=objects.with_suffix(".pope"), curve=False, out=out / "pope")
    chair, pope = described.tasks["chair"].figures("vanilla"), asked.tasks["pope"].figures("vanilla")
    found = {name: chair[name]["value"] for name in ("CHAIR_S", "CHAIR_I", "recall")}
    found |= {f"POPE {name}": figure["value"] for name, figure in pope.items() if name.startswith("accuracy")}
    return {name: round(value, 2) for name, value in found.items()}


def draw_curves(log: list[dict[str, Any]], path: Path) -> None:
    """Draw the curves of a training log."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
    for axis, stage, columns in (
        (axes[0], "vision", ("loss",)),
        (axes[1], "joint", ("words", "yes_no_right")),
        (axes[2], "joint", ("pooled",)),
    ):
        rows = [row for row in log if row["stage"] == stage]
        for column in columns:
            axis.plot([r["step"] for r in rows], [r[column] for r in rows], label=column.replace("_", " "))
        axis.set(title=stage, xlabel="step", ylim=(0, None))
        axis.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path)
    parser.add_argument("objects", type=Path)
    parser.add_argument("--recipe", choices=RECIPES, default="first")
    parser.add_argument("--folder", type=Path, default=Path("experiments/train/photo/runs"))
    parser.add_argument("--descriptions", type=int, default=1000, help="number of test photographs to describe")
    parser.add_argument("--runs", type=Path, default=None, help="folder in which to keep the answers")
    chosen = parser.parse_args()
    recipe = RECIPES[chosen.recipe]
    trained = chosen.folder / recipe.name
    log = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    draw_curves(log, HERE / f"curves-{recipe.name}.png")
    target = photo.model_path()
    target.mkdir(exist_ok=True)
    for file in [*(trained / "model").iterdir(), HERE / "NOTICE"]:
        shutil.copyfile(file, target / file.name)
    with safe_open(target / "model.safetensors", "pt") as weights:
        parameters = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118  # not a dict
    with tempfile.TemporaryDirectory() as scratch:
        found = score_model(target, chosen.runs or Path(scratch), chosen.photos, chosen.objects, chosen.descriptions)
    low, high = recipe.share
    splits = json.loads(chosen.objects.read_text())["splits"]
    blind: dict[str, Any] = next((row for row in reversed(log) if row["stage"] == "score"), {})
    card = {
        "name": f"airvlm-photo ({recipe.name})",
        "parameters": parameters,
        "training": {
            "seed": recipe.seed,
            "photographs": round((high - low) * len(splits["train"])),
            "data": "COCO train2017 and its labels (CC BY 4.0); tower from EfficientNet-lite0 on ImageNet: see NOTICE",
            "steps": {row["stage"]: row["step"] + 1 for row in log if row["stage"] in ("vision", "joint")},
            "minutes": stage_minutes([row for row in log if row["stage"] in ("vision", "joint")]),
        },
        "scored on": f"{chosen.descriptions} test photographs described in at most 64 tokens; POPE's own questions on "
        f"{len(splits['pope'])} photographs that were never trained on; greedy",
        "scores": found,
        "blind": {name: value for name, value in blind.items() if name.startswith("blind")},
    }
    (target / "card.json").write_text(json.dumps(card, indent=2) + "\n")
    print(json.dumps(card, indent=2))


if __name__ == "__main__":
    main()
