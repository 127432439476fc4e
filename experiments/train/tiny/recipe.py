"""Every number of the recipe in one place; the two checkpoints differ in nothing else."""

from __future__ import annotations

from dataclasses import dataclass

# Seeds of scenes: the splits take theirs from ranges that cannot meet.
SPLIT_SEEDS = {"train": 0, "validation": 10_000_000, "calibration": 20_000_000, "test": 30_000_000}


@dataclass(frozen=True)
class Recipe:
    name: str
    seed: int  # of weights and of the order of samples
    scenes: int = 40_000  # each seen whole once and zoomed once
    first_scene: int = 0  # the seed of the first training scene
    zoom: tuple[float, float] = (0.35, 0.85)  # side of a zoom, as a share of the image's
    zoomed_share: float = 0.5  # of the samples in vision pre-training
    image_side: int = 112
    patch: int = 14
    vision_width: int = 128
    vision_layers: int = 4
    vision_heads: int = 4
    vision_steps: int = 2300  # of vision_batch views
    place_steps: int = 400  # more of them, in which the tower must also tell where each patch lies
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
    questioned_share: float = 0.3  # of the steps, those with ten yes/no questions besides descriptions
    joint_batch: int = 32  # half as many where questions are asked
    joint_zoomed_share: float = 0.3
    answer_weight: float = 3.0  # of the tokens of an answer, against those of a description
    probe_weight: float = 0.5  # of the auxiliary linear probe at the asked object's word


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
