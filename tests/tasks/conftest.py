"""Data sets that several tests use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from airvlm.tasks.judges.judge import Judge
from tests.fake_judge import FakeJudge

LABELS = {
    "cat.jpg": ["cat", "couch", "book"],
    "000000000007": ["dog", "person", "car"],
    "sub/bus": ["bus", "person", "traffic light"],
    "not there.jpg": ["zebra"],
}


@pytest.fixture
def labeled(tmp_path: Path) -> Path:
    """Three images and a label file that names four."""
    (tmp_path / "sub").mkdir()
    for name in ("cat.jpg", "000000000007.png", "sub/bus.jpg"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    (tmp_path / "labels.json").write_text(json.dumps(LABELS))
    return tmp_path


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """A COCO folder of three images."""
    notes = tmp_path / "annotations"
    notes.mkdir()
    (tmp_path / "val2014").mkdir()
    images = [{"id": i, "file_name": f"COCO_val2014_{i:012d}.jpg"} for i in (1, 2, 3)]
    for image in images:
        (tmp_path / "val2014" / str(image["file_name"])).write_bytes(b"")
    instances = {
        "images": images,
        "categories": [{"id": 18, "name": "dog"}, {"id": 62, "name": "chair"}],
        "annotations": [{"image_id": 1, "category_id": 18}, {"image_id": 2, "category_id": 62}],
    }
    captions = {
        "annotations": [
            {"image_id": 1, "caption": "A dog on a bus"},
            {"image_id": 2, "caption": "People seated."},
            {"image_id": 3, "caption": "Nothing."},
        ]
    }
    (notes / "instances_val2014.json").write_text(json.dumps(instances))
    (notes / "captions_val2014.json").write_text(json.dumps(captions))
    return tmp_path


@pytest.fixture(autouse=True)
def no_judge_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge of the user's must not be asked, and the fake one is reached without a proxy."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("AIRVLM_JUDGE_URL", raising=False)


def judge_at(fake: FakeJudge) -> Judge:
    return Judge(fake.url, "m", pause=0.01, attempts=2)


def write_lines(path: Path, records: list[dict[str, object]]) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path
