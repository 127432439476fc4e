"""What a wheel holds of the photograph model: everything that loading it needs, and no photograph."""

import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from airvlm import photo

ROOT = Path(__file__).parents[2]


def test_a_wheel_holds_the_model_its_notice_and_its_card(tmp_path: Path) -> None:
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = set(zipfile.ZipFile(built).namelist())
    files = {file.name for file in photo.model_path().iterdir()}
    assert {"model.safetensors", "config.json", "NOTICE", "card.json", "tokenizer.json"} <= files
    assert {f"airvlm/photo/model/{name}" for name in files} <= names
    assert not [name for name in names if name.startswith("airvlm/photo/") and name.endswith((".jpg", ".png"))]
