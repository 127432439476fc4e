"""``python -m experiments.train.tiny [--recipe first]``: train the emoji model; an interrupted run is resumed."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from experiments.train.tiny.align import align, cache_features
from experiments.train.tiny.checkpoint import Log
from experiments.train.tiny.data import draw_all, load_views
from experiments.train.tiny.joint import train_joint
from experiments.train.tiny.model import build_model, build_processor, save_model
from experiments.train.tiny.recipe import RECIPES
from experiments.train.tiny.vision import train_vision


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", choices=RECIPES, default="first")
    parser.add_argument(
        "--folder", type=Path, default=Path("experiments/train/tiny/runs"), help="folder of checkpoints and logs"
    )
    parser.add_argument("--threads", type=int, default=None, help="number of threads (default: all cores)")
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    recipe = RECIPES[chosen.recipe]
    folder = chosen.folder / recipe.name
    folder.mkdir(parents=True, exist_ok=True)
    log = Log(folder / "log.jsonl")
    draw_all(recipe, folder / "data")
    torch.manual_seed(recipe.seed)
    processor = build_processor(recipe)
    model = build_model(recipe, processor)
    train_vision(recipe, model.model.vision_tower, folder, log)
    features = cache_features(recipe, model.model.vision_tower.eval(), folder)
    align(recipe, model, processor, features, folder, log)
    train_joint(recipe, model, processor, features, load_views(folder / "data"), folder, log)
    save_model(model, processor, folder / "model")
    print(f"the model is in {folder / 'model'}; experiments/train/tiny/README.md says how to score and ship it")


if __name__ == "__main__":
    main()
