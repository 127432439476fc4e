"""``python -m experiments.train.photo PHOTOS OBJECTS``: train the photograph model; an interrupted run is resumed."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from experiments.train.photo.distil import distil
from experiments.train.photo.features import READERS, cache_tokens, extract, open_maps
from experiments.train.photo.grammar import World
from experiments.train.photo.joint import Packer, Views, restore_joint, train_joint
from experiments.train.photo.labels import Labels
from experiments.train.photo.model import build_model, load_processor
from experiments.train.photo.pooled import PooledNames
from experiments.train.photo.recipe import RECIPES
from experiments.train.photo.score import score
from experiments.train.photo.vision import restore_vision, train_vision
from experiments.train.tiny.checkpoint import Log
from experiments.train.tiny.model import save_model

STAGES = ("features", "vision", "tokens", "joint", "score", "export")
TRIALS = ("distil",)  # run only when named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path, help="folder of COCO's train2017 photographs, of any size")
    parser.add_argument("objects", type=Path, help="file that experiments.train.photo.objects wrote")
    parser.add_argument("--recipe", choices=RECIPES, default="first")
    parser.add_argument(
        "--folder", type=Path, default=Path("experiments/train/photo/runs"), help="folder of checkpoints and logs"
    )
    parser.add_argument("--threads", type=int, default=None, help="number of threads (default: all cores)")
    parser.add_argument("--stages", nargs="*", choices=STAGES + TRIALS, default=STAGES, help="default: all but distil")
    parser.add_argument("--pope", nargs="*", type=Path, default=[], help="POPE's question files, for the scores")
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    recipe = RECIPES[chosen.recipe]
    folder = chosen.folder / recipe.name
    folder.mkdir(parents=True, exist_ok=True)
    log = Log(folder / "log.jsonl")
    labels = Labels.read(chosen.objects)
    world = World.of(labels.names, labels.present[labels.splits["train"].start :])
    torch.manual_seed(recipe.seed)
    processor = load_processor(recipe, world, folder / "processor")
    model = build_model(recipe, processor)
    tower = model.model.vision_tower
    if "features" in chosen.stages:
        for view in READERS:
            extract(recipe, tower, labels, chosen.photos, folder, view)
    kept = {view: open_maps(recipe, labels, folder, view) for view in READERS}
    pooled = PooledNames(labels.names, processor.tokenizer, labels.present[labels.splits["train"].start :].mean(0))
    if "vision" in chosen.stages:
        train_vision(recipe, model, pooled, labels, kept["whole"], kept["zoom"], folder, log)
    else:
        restore_vision(model, pooled, folder)
    if not {"tokens", "joint", "score", "export", "distil"} & set(chosen.stages):
        return
    tables = {view: cache_tokens(recipe, model, labels, own, folder) for view, own in kept.items()}
    if "distil" in chosen.stages:
        distil(recipe, model, pooled, labels, tables["whole"], chosen.photos, folder, log)
        return
    packer = Packer(recipe, processor, world)
    if "joint" in chosen.stages:
        train_joint(recipe, model, pooled, packer, Views(recipe, labels, tables), folder, log)
    elif {"score", "export"} & set(chosen.stages):
        restore_joint(model, pooled, folder)
    if "score" in chosen.stages:
        log.write(stage="score", **score(model, packer, labels, tables["whole"], chosen.pope, 500))
    if "export" in chosen.stages:
        save_model(model, processor, folder / "model")
        print(f"the model is in {folder / 'model'}; experiments/train/photo/README.md says how to score and ship it")


if __name__ == "__main__":
    main()
