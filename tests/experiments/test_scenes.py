"""The emoji scenes as annotated images."""

import sys
from pathlib import Path

import pytest

from airvlm import tiny
from airvlm.tasks import load_task
from experiments.leaderboard import scenes


def test_scenes_are_annotated_images_with_the_splits_that_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {split: tiny.scenes(split)[:30] for split in ("test", "calibration", "validation")}
    monkeypatch.setattr(tiny, "scenes", few.__getitem__)
    monkeypatch.setattr(sys, "argv", ["scenes", str(tmp_path / "scenes")])
    scenes.main()
    task = load_task("pope-annotated-pairs", data=tmp_path / "scenes", objects=tmp_path / "scenes.json")
    for split, some in few.items():
        known = {scene.id: scene.names for scene in some}
        with pytest.warns(UserWarning, match="fewer than 3 objects"):
            items = task.items(split=split)
        asked = {item.group for item in items}
        assert asked and {Path(image).stem for image in asked} <= set(known)
        for item in items:
            named = any(f" {name} in the image?" in item.question for name in known[Path(item.group).stem])
            assert (item.truth == "yes") == named
