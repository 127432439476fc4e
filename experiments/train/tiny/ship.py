"""``python -m experiments.train.tiny.ship``: copy a model into the package, score it, write its card and curves.

The scores on the card are those of greedy decoding without a method on the test split, by `airvlm evaluate`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import tempfile
from pathlib import Path

from safetensors import safe_open

from airvlm import evaluate, tiny
from experiments.train.tiny.recipe import RECIPES

HERE = Path(__file__).parent


def stage_minutes(log: list[dict[str, float | str]]) -> dict[str, float]:
    """How long each stage ran, without pauses of more than five minutes."""
    spent: dict[str, float] = {}
    for before, after in itertools.pairwise(log):
        gap = float(after["time"]) - float(before["time"])
        if before["stage"] == after["stage"] and gap < 300:
            spent[str(after["stage"])] = spent.get(str(after["stage"]), 0.0) + gap / 60
    return {stage: round(value, 1) for stage, value in spent.items()}


def score_model(model: Path, out: Path) -> dict[str, float]:
    """Scores of vanilla greedy decoding on the test split, in percent."""
    tasks = evaluate(model, ["tiny-chair", "tiny-pope"], [], curve=False, out=out).tasks
    chair, pope = (tasks[name].figures("vanilla") for name in ("tiny-chair", "tiny-pope"))
    found = {name: chair[name]["value"] for name in ("CHAIR_S", "CHAIR_I", "recall")}
    found |= {f"POPE {name}": figure["value"] for name, figure in pope.items() if name.startswith("accuracy")}
    return {name: round(value, 2) for name, value in found.items()}


def draw_curves(log: list[dict[str, float | str]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
    for axis, stage, columns in (
        (axes[0], "vision", ("loss", "patches_right")),
        (axes[1], "align", ("loss", "patches_right")),
        (axes[2], "joint", ("words", "yes_no_right", "probe_right")),
    ):
        rows = [row for row in log if row["stage"] == stage]
        for column in columns:
            axis.plot([r["step"] for r in rows], [r[column] for r in rows], label=column.replace("_", " "))
        axis.set(title=stage, xlabel="step", ylim=(0, 2.5))
        axis.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", choices=RECIPES, default="first")
    parser.add_argument("--folder", type=Path, default=Path("experiments/train/tiny/runs"))
    parser.add_argument("--runs", type=Path, default=None, help="folder in which to keep the answers")
    chosen = parser.parse_args()
    trained = chosen.folder / chosen.recipe
    log = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    draw_curves(log, HERE / f"curves-{chosen.recipe}.png")
    target = tiny.model_path()
    target.mkdir(exist_ok=True)
    for file in (trained / "model").iterdir():
        shutil.copyfile(file, target / file.name)
    with safe_open(target / "model.safetensors", "pt") as weights:
        parameters = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118  # not a dict
    with tempfile.TemporaryDirectory() as scratch:
        found = score_model(target, chosen.runs or Path(scratch))
    recipe = RECIPES[chosen.recipe]
    card = {
        "name": f"airvlm-tiny ({recipe.name})",
        "parameters": parameters,
        "training": {"seed": recipe.seed, "scenes": recipe.scenes, "minutes": stage_minutes(log)},
        "scored on": "test split, 1500 descriptions of at most 64 tokens, 3 x 3000 questions, greedy",
        "scores": found,
    }
    (target / "card.json").write_text(json.dumps(card, indent=2) + "\n")
    print(json.dumps(card, indent=2))


if __name__ == "__main__":
    main()
