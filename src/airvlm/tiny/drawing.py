"""Draws a scene with Pillow from the sprites in the package, and tells which object covers each pixel.

The sprites are glyphs of Noto Color Emoji (sprites/NOTICE); the font itself is not needed.
"""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from airvlm.tiny.world import COLORS, Scene

SIDE = 448  # pixels of a drawn scene
# all sprites in one image; their boxes are in the .json beside it
ATLAS = Path(__file__).parent / "sprites" / "sprites.webp"


@functools.cache
def _load_atlas() -> tuple[Image.Image, dict[str, tuple[int, int, int, int]]]:
    boxes = json.loads(ATLAS.with_suffix(".json").read_text(encoding="utf-8"))
    with Image.open(ATLAS) as image:
        return image.convert("RGBA"), {character: tuple(box) for character, box in boxes.items()}


@functools.cache
def sprite(character: str) -> Image.Image:
    """The character as a square RGBA image, trimmed to what is visible and centered."""
    image, boxes = _load_atlas()
    return image.crop(boxes[character])


def draw(scene: Scene, side: int = SIDE) -> Image.Image:
    """The scene as an RGB image."""
    return draw_with_cover(scene, side)[0]


def draw_with_cover(scene: Scene, side: int = SIDE) -> tuple[Image.Image, np.ndarray]:
    """The image, and for each pixel the object on top: 0 for none, else 1 + its place in ``scene.objects``."""
    image = _draw_background(scene, side)
    cover = Image.new("L", (side, side), 0)
    for index, placed in enumerate(scene.objects):
        pixels = max(8, round(placed.size * side))
        drawn = sprite(placed.sprite).resize((pixels, pixels), Image.Resampling.BILINEAR)
        if placed.flipped:
            drawn = drawn.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if placed.angle:
            drawn = drawn.rotate(placed.angle, Image.Resampling.BILINEAR)
        corner = (round(placed.x * side - pixels / 2), round(placed.y * side - pixels / 2))
        image.paste(drawn, corner, drawn)
        opaque = drawn.getchannel("A").point([0] * 128 + [255] * 128)
        cover.paste(index + 1, (*corner, corner[0] + pixels, corner[1] + pixels), opaque)
    return image, np.asarray(cover)


def _draw_background(scene: Scene, side: int) -> Image.Image:
    """The colored background, lighter at the top, with shapes that are not objects."""
    chance = random.Random(f"airvlm background {scene.seed}")
    base = np.array(COLORS[scene.color], dtype=np.float32)
    shade = np.linspace(1.04, chance.uniform(0.82, 0.96), side, dtype=np.float32)[:, None, None]
    ground = np.broadcast_to(base * shade, (side, side, 3))
    image = Image.fromarray(np.clip(ground, 0, 255).astype(np.uint8), "RGB")
    pencil = ImageDraw.Draw(image)
    for _ in range(chance.randint(2, 6)):
        tint = tuple(int(np.clip(c + chance.randint(-45, 45), 0, 255)) for c in COLORS[scene.color])
        x, y = chance.uniform(-0.1, 1) * side, chance.uniform(-0.1, 1) * side
        w, h = chance.uniform(0.05, 0.35) * side, chance.uniform(0.05, 0.35) * side
        shape = chance.choice(("ellipse", "rectangle", "triangle", "line"))
        if shape == "ellipse":
            pencil.ellipse((x, y, x + w, y + h), fill=tint)
        elif shape == "rectangle":
            pencil.rectangle((x, y, x + w, y + h), fill=tint)
        elif shape == "triangle":
            pencil.polygon([(x, y + h), (x + w / 2, y), (x + w, y + h)], fill=tint)
        else:
            pencil.line((x, y, x + w, y + h), fill=tint, width=max(1, side // 60))
    return image
