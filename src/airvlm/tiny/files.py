"""The image file of a bundled scene: drawn when it is first used, kept in the user's cache folder, checked by hash.

The name of a file contains the hash of its content, so that no version of the package reads another one's files.
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

__all__ = ["OtherPixels", "SceneFile", "content_hash", "encode_scene", "pixels_hash", "scene_file"]

QUALITY, METHOD = 70, 6  # of the WebP encoder; another choice is another image
MADE_WITH = "13.0.0"  # the Pillow version that published results were measured with; 11.0.0 draws the same
_spare: list[tempfile.TemporaryDirectory[str]] = []  # holds one if the cache folder cannot be written
_checked: dict[Path, SceneFile] = {}  # files that this process has read and hashed


class OtherPixels(UserWarning):
    """A bundled scene is drawn with other pixels than those of the published results."""


@dataclass(frozen=True)
class SceneFile:
    """A drawn scene."""

    path: Path
    digest: str  # of the published file, or this file's own if its pixels differ
    exact: bool  # its pixels are those of the published file


def content_hash(content: bytes) -> str:
    """The hash of a file's bytes."""
    return hashlib.sha256(content).hexdigest()[:16]


def pixels_hash(content: bytes) -> str:
    """The hash of an image file's pixels; another encoder may write the same pixels in other bytes."""
    with Image.open(io.BytesIO(content)) as image:
        return content_hash(image.convert("RGB").tobytes())


def encode_scene(scene: Scene) -> bytes:
    """The scene as a WebP file."""
    content = io.BytesIO()
    draw(scene).save(content, "WEBP", quality=QUALITY, method=METHOD)
    return content.getvalue()


def scene_file(name: str, scene: Scene, digest: str, pixels: str) -> SceneFile:
    """The file of a scene; warns if it is drawn differently here.

    Args:
        name: the scene's id.
        scene: what to draw.
        digest: `content_hash` of the published file.
        pixels: `pixels_hash` of the published file.
    """
    file_name = f"{name}-{digest}.webp"
    for path in [folder / file_name for folder in _folders()]:
        if path in _checked and path.is_file():
            return _checked[path]
        content = _read(path)
        if content is not None and _is_exact(content, digest, pixels):
            return _checked.setdefault(path, SceneFile(path, digest, True))
    content = encode_scene(scene)
    path = _store(file_name, content)
    exact = _is_exact(content, digest, pixels)
    if not exact:
        _warn()
    _checked[path] = SceneFile(path, digest if exact else content_hash(content), exact)
    return _checked[path]


def _warn() -> None:
    webp = features.version_module("webp")
    warnings.warn(
        f"Pillow {PIL.__version__} (libwebp {webp}) does not draw airvlm's scenes pixel for pixel as in the published "
        f"results, so results on them will differ slightly. Pillow {MADE_WITH} draws them exactly.",
        OtherPixels,
        stacklevel=1,  # always the same line, so that Python shows it once
    )


def _is_exact(content: bytes, digest: str, pixels: str) -> bool:
    """Whether a file shows the published pixels; one that cannot be decoded does not."""
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


def _store(file_name: str, content: bytes) -> Path:
    """Write a file into the first folder that can be written; an equal file that is there already stays."""
    for folder in _folders():
        if _read(folder / file_name) == content:
            return folder / file_name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / file_name, content)
            return folder / file_name
        except OSError:  # read-only or full: try the next one, at last a temporary folder of this process
            continue
    _spare.append(tempfile.TemporaryDirectory(prefix="airvlm-scenes-"))
    return _store(file_name, content)
