"""All numbers of the recipe; the two checkpoints differ in nothing else."""

from __future__ import annotations

from dataclasses import dataclass

# Seeds of scenes: the splits have ranges that do not overlap
SPLIT_SEEDS = {"train": 0, "validation": 10_000_000, "calibration": 20_000_000, "test": 30_000_000}


@dataclass(frozen=True)
class Recipe:
    name: str
    seed: int  # of weights and of the order of samples
    scenes: int = 40_000  # each seen whole once and zoomed once
    first_scene: int = 0  # the seed of the first training scene
    zoom: tuple[float, float] = (0.35, 0.85)  # side of a zoom, as a fraction of the image's
    zoomed_share: float = 0.5  # of the samples in vision pre-training
    image_side: int = 112
    patch: int = 14
    vision_width: int = 128
    vision_layers: int = 4
    vision_heads: int = 4
    vision_steps: int = 2300  # of vision_batch views
    place_steps: int = 400  # further steps, in which the tower must also predict where each patch is
    place_weight: float = 0.3
    vision_batch: int = 64
    vision_rate: float = 1.5e-3
    width: int = 96
    layers: int = 6
    heads: int = 4
    feed_forward: int = 256
    vocabulary: int = 1024
    align_steps: int = 800
    joint_steps: int = 7000
    joint_rate: float = 2e-3
    questioned_share: float = 0.3  # fraction of the steps that have ten yes/no questions beside descriptions
    joint_batch: int = 32  # half of it in steps with yes/no questions
    joint_zoomed_share: float = 0.3
    answer_weight: float = 3.0  # weight of the tokens of an answer, relative to those of a description
    probe_weight: float = 0.5  # weight of the auxiliary linear probe at the word of the object in question


RECIPES = {
    "first": Recipe("first", seed=1),
    "second": Recipe(
        "second",
        seed=2,
        first_scene=1_000_000,
        zoom=(0.25, 0.6),
        zoomed_share=0.35,
        joint_steps=3000,
        joint_zoomed_share=0.15,
    ),
}
