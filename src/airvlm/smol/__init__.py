"""The model smol: a LLaVA of 220 M parameters, CLIP ViT-B/16 and SmolLM2-135M-Instruct with a trained connection.

The package contains the trained part only (`model_path()`): a projector and a LoRA, a few MB. The two public parts come
from the hub or from a folder, and `airvlm.smol.assembly` puts the three together; `airvlm.VLM.load("smol")` calls it.
"""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["PARTS_VARIABLE", "model_card", "model_path"]

PARTS_VARIABLE = "AIRVLM_SMOL_PARTS"  # environment variable: a folder with both public parts


def model_path() -> Path:
    """The folder with the trained part, its card and the chat template."""
    return Path(__file__).parent / "model"


def model_card() -> dict[str, object]:
    """How the model was trained and what it scores, as written when it was exported."""
    card: dict[str, object] = json.loads((model_path() / "card.json").read_text())
    return card
