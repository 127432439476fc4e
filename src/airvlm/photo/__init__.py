"""The embedded model photo, as files inside the package: a LLaVA of 5 M parameters that knows COCO's 80 objects.

`model_path()` is a transformers folder. Its vision tower is a class of this package (tower.py), which `tower.register`
makes known to transformers; `airvlm.VLM.load` calls it. The package contains no photographs.
"""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["MODEL_TYPE", "model_card", "model_path"]

MODEL_TYPE = "airvlm_efficientnet_lite"  # of the vision tower, in config.json


def model_path() -> Path:
    """The folder that `VLM.load` loads by default."""
    return Path(__file__).parent / "model"


def model_card() -> dict[str, object]:
    """How the model was trained and what it scores, as written when it was exported."""
    card: dict[str, object] = json.loads((model_path() / "card.json").read_text())
    return card
