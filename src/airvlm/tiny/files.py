"""The image file of a bundled scene: drawn when first asked for, kept in the user's cache folder, checked by hash.

The name of a file holds the hash of its content, so that no version of the package reads another one's. Knows nothing
of what is asked about an image.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import PIL
from PIL import Image, features

from airvlm.storage.atomic import write_atomically
from airvlm.storage.cache import cache_folder
from airvlm.tiny.drawing import draw
from airvlm.tiny.world import Scene

__all__ = ["OtherPixels", "SceneFile", "content_hash", "encoded", "pixels_hash", "scene_file"]

QUALITY, METHOD = 70, 6  # of the WebP encoder; another choice is another image
MADE_WITH = "13.0.0"  # the Pillow with which the published figures were made; 11.0.0 draws the same
_spare: list[tempfile.TemporaryDirectory[str]] = []  # holds one where the cache folder cannot be written
_checked: dict[Path, SceneFile] = {}  # files that this process has read and hashed


class OtherPixels(UserWarning):
    """A bundled scene does not come out as it was when the published figures were made."""


@dataclass(frozen=True)
class SceneFile:
    path: Path
    digest: str  # of the file that published figures were made with, or, where this one shows other pixels, its own
    exact: bool  # it shows the same pixels as that file


def content_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def pixels_hash(content: bytes) -> str:
    """The hash of what a file shows; an encoder may write the same pixels in other bytes."""
    with Image.open(io.BytesIO(content)) as image:
        return content_hash(image.convert("RGB").tobytes())


def encoded(scene: Scene) -> bytes:
    """The scene as a WebP file."""
    content = io.BytesIO()
    draw(scene).save(content, "WEBP", quality=QUALITY, method=METHOD)
    return content.getvalue()


def scene_file(name: str, scene: Scene, digest: str, pixels: str) -> SceneFile:
    """The file of the scene, whose content and pixels should have these hashes; a warning where they have not."""
    called = f"{name}-{digest}.webp"
    for path in [folder / called for folder in _folders()]:
        if path in _checked and path.is_file():
            return _checked[path]
        content = _read(path)
        if content is not None and _sound(content, digest, pixels):
            return _checked.setdefault(path, SceneFile(path, digest, True))
    content = encoded(scene)
    path = _kept(called, content)
    exact = _sound(content, digest, pixels)
    if not exact:
        _warn()
    _checked[path] = SceneFile(path, digest if exact else content_hash(content), exact)
    return _checked[path]


def _warn() -> None:
    webp = features.version_module("webp")
    warnings.warn(
        f"Pillow {PIL.__version__} (libwebp {webp}) does not draw airvlm's scenes pixel for pixel as they were when "
        f"the published figures were made: figures on them differ. Pillow {MADE_WITH} draws them exactly.",
        OtherPixels,
        stacklevel=1,  # one place, so that it is said once
    )


def _sound(content: bytes, digest: str, pixels: str) -> bool:
    """Whether a file is the one meant; one that cannot be decoded is not."""
    try:
        return content_hash(content) == digest or pixels_hash(content) == pixels
    except OSError:
        return False


def _folders() -> Iterator[Path]:
    with contextlib.suppress(RuntimeError):  # a user without a home
        yield cache_folder() / "scenes"
    yield from (Path(folder.name) for folder in _spare)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _kept(called: str, content: bytes) -> Path:
    """Write a file where there is room for it; one that is there already, with this content, stays."""
    for folder in _folders():
        if _read(folder / called) == content:
            return folder / called
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / called, content)
            return folder / called
        except OSError:  # read-only, full, or no folder: a temporary one serves, for as long as this process lives
            continue
    _spare.append(tempfile.TemporaryDirectory(prefix="airvlm-scenes-"))
    return _kept(called, content)
