"""A bundled scene's file: drawn once, exact, whole, never another version's, and with a word where it is not exact."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from airvlm import tiny
from airvlm.evaluation.plan import TaskSpec, image_digest
from airvlm.evaluation.results import TaskResults
from airvlm.inputs.images import load_image
from airvlm.tiny import files


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder of the test's own, that nobody has made yet."""
    monkeypatch.setenv("AIRVLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "_spare", [])
    return tmp_path / "cache" / "scenes"


def test_a_scene_is_drawn_exactly_when_it_is_asked_for_and_only_then(cache: Path) -> None:
    for split in tiny.SPLITS:
        scene = tiny.scenes(split)[7]
        path = scene.path
        with Image.open(path) as image:
            assert (image.format, image.size) == ("WEBP", (448, 448))
        assert scene.file.exact
        assert files.pixels_hash(path.read_bytes()) == scene.pixels_hash
    assert len(list(cache.iterdir())) == len(tiny.SPLITS)


def test_a_scene_is_an_image_wherever_one_is_asked_for() -> None:
    scene = tiny.scenes("test")[3]
    assert load_image(scene).tobytes() == load_image(scene.path).tobytes()
    assert os.fspath(scene) == str(scene.path)


def test_answers_are_stored_under_the_hash_of_the_file_that_used_to_ship() -> None:
    scene = tiny.scenes("test")[0]
    assert image_digest(scene) == scene.content_hash == "9607a91aabce175b"


def test_a_file_is_drawn_once(cache: Path) -> None:
    scene = tiny.scenes("test")[5]
    before = scene.path.stat()
    files._checked.clear()
    assert scene.path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("content", [b"", b"torn", None])
def test_a_damaged_or_foreign_file_is_drawn_again(content: bytes | None) -> None:
    scene, other = tiny.scenes("test")[5:7]
    scene.path.write_bytes(other.path.read_bytes() if content is None else content)
    files._checked.clear()
    assert scene.file.exact
    assert files.pixels_hash(scene.path.read_bytes()) == scene.pixels_hash


def test_a_file_that_was_deleted_is_drawn_again() -> None:
    scene = tiny.scenes("test")[5]
    scene.path.unlink()
    assert scene.path.is_file()


def test_another_version_of_a_scene_has_another_file() -> None:
    scene, other = tiny.scenes("test")[5:7]
    changed = replace(other, id=scene.id)
    assert changed.path != scene.path


def test_other_bytes_that_show_the_same_pixels_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    def lossless(scene: object) -> bytes:
        with Image.open(path) as image:
            image.save(path.with_suffix(".png"))
        return path.with_suffix(".png").read_bytes()

    bundled = tiny.scenes("test")[5]
    path = bundled.path
    monkeypatch.setattr(files, "encode_scene", lossless)
    monkeypatch.setenv("AIRVLM_CACHE", str(path.parent / "elsewhere"))
    assert bundled.file.exact
    assert image_digest(bundled) == bundled.content_hash


def test_other_pixels_are_said_once_and_stored_under_a_hash_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "QUALITY", 71)
    scenes = tiny.scenes("test")[5:8]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        found = [scene.file for scene in scenes]
    assert [str(one.message)[:7] for one in said if one.category is files.OtherPixels] == ["Pillow "]
    assert not any(file.exact for file in found)
    assert all(image_digest(scene) == file.digest != scene.content_hash for scene, file in zip(scenes, found))


def test_an_evaluation_on_other_pixels_names_them_among_its_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TaskSpec.of("tiny-chair", limit=3)
    exact = TaskResults(spec, {}, {}, {})
    assert exact.problems() == []
    monkeypatch.setattr(files, "QUALITY", 71)
    monkeypatch.setenv("AIRVLM_CACHE", str(tiny.scenes("test")[0].path.parent / "other"))
    with pytest.warns(files.OtherPixels):
        (problem,) = TaskResults(spec, {}, {}, {}).problems()
    assert "3 of 3 scenes" in problem


def test_a_cache_folder_that_cannot_be_written_is_replaced_by_a_temporary_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("AIRVLM_CACHE", str(tmp_path / "file"))
    scene = tiny.scenes("test")[5]
    assert scene.file.exact
    assert scene.path == scene.path
    assert tmp_path not in scene.path.parents


def test_threads_and_processes_that_draw_the_same_scene_leave_one_whole_file(cache: Path) -> None:
    code = "from airvlm import tiny; assert all(s.file.exact for s in tiny.scenes('test')[:4])"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: tiny.scenes("test")[k % 4].file.exact, range(16)))
    assert all(found)
    assert [other.wait() for other in others] == [0, 0]
    assert len(list(cache.iterdir())) == 4
