"""All numbers of the photograph model's recipe; the two checkpoints differ in nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    name: str
    seed: int  # of weights, zooms and the order of samples
    image_side: int = 256  # pixels per side of the tower's input; a multiple of 32
    patch: int = 32  # pixels per side that a visual token covers: 32 or 16
    imagenet: str = "lite0"  # the ImageNet weights that the tower starts from
    share: tuple[float, float] = (0.0, 0.62)  # which part of the training photographs is used
    zoom: tuple[float, float] = (0.6, 1.0)  # side of the second view's window, as a fraction of the photograph's
    zoomed: int = 12_000  # training photographs that have a second view
    zoomed_share: float = 0.15  # fraction of the samples
    stretched: int = 0  # those that have a third view: resized to another shape and then to the square
    vision_width: int = 256
    vision_ends: tuple[int, ...] = (800, 1400)  # steps at which the cycles of the learning rate end
    vision_batch: int = 64
    vision_rate: float = 1.5e-3  # of adapter, projector and names
    upper_rate: float = 3e-4  # of the tower's last blocks
    upper_from: int = 150  # the step from which on these are trained
    width: int = 160
    layers: int = 4
    heads: int = 4
    feed_forward: int = 416
    vocabulary: int = 768
    joint_ends: tuple[int, ...] = (2800, 7000)
    joint_batch: int = 24
    joint_rate: float = 2e-3
    joint_zoomed_share: float = 0.1
    joint_stretched_share: float = 0.0
    other_share: float = 0.3  # fraction of the samples with a question of another kind
    questions: int = 6  # yes/no questions per photograph
    answer_weight: float = 3.0  # weight of the tokens of a yes or no, relative to other words
    name_weight: float = 4.0  # weight of object names and of the end token in other answers, which depend on the image
    projector_share: float = 0.25  # fraction of the learning rate for the projector, which is already trained
    pooled_weight: float = 0.2  # weight of the loss that names what patches show
    distil_steps: int = 700  # steps of the trial with a plain CLIP tower

    @property
    def visual_tokens(self) -> int:
        return (self.image_side // self.patch) ** 2


RECIPES = {
    "first": Recipe("first", seed=1, stretched=16_000, joint_stretched_share=0.3, joint_ends=(2800, 7000, 9600)),
    # Its input has 160 pixels, so that crops of a larger photograph add detail; other photographs, half the joint steps
    "second": Recipe(
        "second",
        seed=2,
        image_side=160,
        patch=16,
        share=(0.62, 1.0),
        zoom=(0.4, 1.0),
        zoomed=16_000,
        joint_ends=(2800,),
    ),
}
