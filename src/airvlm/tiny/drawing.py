"""Draws a scene with Pillow from a colour emoji font, and says which object covers each place.

Needed only to draw new scenes: the images of the evaluation ship with the package. It knows nothing of models.
"""

from __future__ import annotations

import functools
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from airvlm.tiny.world import COLOURS, OBJECTS, Scene

SIDE = 448  # pixels of a drawn scene
STRIKE = 109  # the one size in which the font's bitmaps exist
PLACES = (
    "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf",
    "/usr/share/fonts/noto/NotoColorEmoji.ttf",
    "/usr/share/fonts/google-noto-emoji/NotoColorEmoji.ttf",
)


class NoFont(RuntimeError):
    """The colour emoji font is not installed."""


def font_path() -> Path:
    """Where the font is, by its usual places and then by fontconfig."""
    for place in PLACES:
        if Path(place).is_file():
            return Path(place)
    if shutil.which("fc-match"):
        found = subprocess.run(
            ["fc-match", "-f", "%{file}", "Noto Color Emoji"], capture_output=True, text=True, check=False
        )
        if found.stdout.endswith("NotoColorEmoji.ttf"):
            return Path(found.stdout)
    raise NoFont(
        "drawing a scene needs the font Noto Color Emoji (SIL Open Font License): install Debian's package "
        "fonts-noto-color-emoji, or your system's package of that name"
    )


@functools.cache
def _font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(font_path()), STRIKE)


@functools.cache
def sprite(character: str) -> Image.Image:
    """The character as a square RGBA picture, trimmed to what is visible and centred."""
    canvas = Image.new("RGBA", (180, 180), (0, 0, 0, 0))
    ImageDraw.Draw(canvas).text((20, 20), character, font=_font(), embedded_color=True)
    box = canvas.getbbox()
    if box is None:
        raise NoFont(f"the font has no picture for {character!r}; a newer Noto Color Emoji does")
    trimmed = canvas.crop(box)
    side = max(trimmed.size)
    square = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    square.paste(trimmed, ((side - trimmed.width) // 2, (side - trimmed.height) // 2))
    return square


def draw(scene: Scene, side: int = SIDE) -> Image.Image:
    """The scene as an RGB picture."""
    return draw_with_cover(scene, side)[0]


def draw_with_cover(scene: Scene, side: int = SIDE) -> tuple[Image.Image, np.ndarray]:
    """The picture, and for each pixel the object on top: 0 for none, else 1 + its place in ``scene.objects``."""
    picture = _background(scene, side)
    cover = Image.new("L", (side, side), 0)
    for index, placed in enumerate(scene.objects):
        pixels = max(8, round(placed.size * side))
        drawn = sprite(placed.sprite).resize((pixels, pixels), Image.Resampling.BILINEAR)
        if placed.flipped:
            drawn = drawn.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if placed.angle:
            drawn = drawn.rotate(placed.angle, Image.Resampling.BILINEAR)
        corner = (round(placed.x * side - pixels / 2), round(placed.y * side - pixels / 2))
        picture.paste(drawn, corner, drawn)
        opaque = drawn.getchannel("A").point([0] * 128 + [255] * 128)
        cover.paste(index + 1, (*corner, corner[0] + pixels, corner[1] + pixels), opaque)
    return picture, np.asarray(cover)


def _background(scene: Scene, side: int) -> Image.Image:
    """The coloured ground, lighter above than below, with shapes that are no object."""
    chance = random.Random(f"airvlm background {scene.seed}")
    base = np.array(COLOURS[scene.colour], dtype=np.float32)
    shade = np.linspace(1.04, chance.uniform(0.82, 0.96), side, dtype=np.float32)[:, None, None]
    ground = np.broadcast_to(base * shade, (side, side, 3))
    picture = Image.fromarray(np.clip(ground, 0, 255).astype(np.uint8), "RGB")
    pencil = ImageDraw.Draw(picture)
    for _ in range(chance.randint(2, 6)):
        tint = tuple(int(np.clip(c + chance.randint(-45, 45), 0, 255)) for c in COLOURS[scene.colour])
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
    return picture


def check_sprites() -> None:
    """Raises NoFont if any object of the world cannot be drawn with the font at hand."""
    from airvlm.tiny.world import SPRITES

    for name in OBJECTS:
        for character in SPRITES[name]:
            sprite(character)
