"""The photograph model, as files inside the package: a small LLaVA that knows COCO's 80 objects on photographs.

``model_path()`` is a transformers folder whose vision tower is a class of ours (``tower``): ``register`` makes it known
to transformers, and ``airvlm.VLM.load`` does so by itself. No photograph is in the package.
"""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["MODEL_TYPE", "model_card", "model_path"]

MODEL_TYPE = "airvlm_efficientnet_lite"  # of the vision tower, in config.json


def model_path() -> Path:
    """The folder that ``VLM.load`` loads by default."""
    return Path(__file__).parent / "model"


def model_card() -> dict[str, object]:
    """How the model was trained and what it scores, as written when it was exported."""
    card: dict[str, object] = json.loads((model_path() / "card.json").read_text())
    return card
