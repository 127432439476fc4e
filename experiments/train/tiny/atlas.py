"""``python -m experiments.train.tiny.atlas``: cut the sprites out of the font Noto Color Emoji into one lossless image.

Nothing else needs the font (Debian's package fonts-noto-color-emoji): scenes are drawn from that image.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from airvlm.tiny.drawing import ATLAS
from airvlm.tiny.world import SPRITES

STRIKE = 109  # the one size in which the font's bitmaps exist
COLUMNS = 12
PLACES = (
    "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf",
    "/usr/share/fonts/noto/NotoColorEmoji.ttf",
    "/usr/share/fonts/google-noto-emoji/NotoColorEmoji.ttf",
)


class MissingFont(RuntimeError):
    """The color emoji font is not installed, or lacks a character."""


def find_font() -> Path:
    """Look for the font in the usual places, then ask fontconfig."""
    for place in PLACES:
        if Path(place).is_file():
            return Path(place)
    if shutil.which("fc-match"):
        found = subprocess.run(
            ["fc-match", "-f", "%{file}", "Noto Color Emoji"], capture_output=True, text=True, check=False
        )
        if found.stdout.endswith("NotoColorEmoji.ttf"):
            return Path(found.stdout)
    raise MissingFont(
        "the sprites are cut out of the font Noto Color Emoji (SIL Open Font License): install Debian's package "
        "fonts-noto-color-emoji, or your system's package of that name"
    )


def draw_glyph(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    """The character as a square RGBA image, trimmed to what is visible and centered."""
    canvas = Image.new("RGBA", (180, 180), (0, 0, 0, 0))
    ImageDraw.Draw(canvas).text((20, 20), character, font=font, embedded_color=True)
    box = canvas.getbbox()
    if box is None:
        raise MissingFont(f"the font has no image for {character!r}; a newer Noto Color Emoji does")
    trimmed = canvas.crop(box)
    side = max(trimmed.size)
    square = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    square.paste(trimmed, ((side - trimmed.width) // 2, (side - trimmed.height) // 2))
    return square


def main() -> None:
    font = ImageFont.truetype(str(find_font()), STRIKE)
    glyphs = {character: draw_glyph(character, font) for line in SPRITES.values() for character in line}
    cell = max(image.width for image in glyphs.values())
    atlas = Image.new("RGBA", (COLUMNS * cell, -(-len(glyphs) // COLUMNS) * cell), (0, 0, 0, 0))
    boxes = {}
    for k, (character, image) in enumerate(glyphs.items()):
        left, top = k % COLUMNS * cell, k // COLUMNS * cell
        atlas.paste(image, (left, top))
        boxes[character] = (left, top, left + image.width, top + image.height)
    atlas.save(ATLAS, lossless=True, exact=True, quality=100, method=6)  # exact: colors under alpha 0 stay
    lines = ",\n".join(f"{json.dumps(c, ensure_ascii=False)}: {list(box)}" for c, box in boxes.items())
    ATLAS.with_suffix(".json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(f"{ATLAS}: {len(glyphs)} sprites, {ATLAS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
