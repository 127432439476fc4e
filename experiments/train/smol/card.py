"""Write the model's card from the scores of evaluate.py: python -m experiments.train.smol.card SCORES [SCORES ...]

Several scores.json files are joined: parts of an evaluation may run side by side.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from airvlm import smol
from airvlm.smol.assembly import LANGUAGE_MODEL, TOWER


def main() -> None:
    scores: dict[str, object] = {}
    for path in sys.argv[1:]:
        scores |= json.loads(Path(path).read_text())
    card = {
        "name": "airvlm-smol",
        "parameters": 221_016_576,
        "parts": {part.name: part.revision for part in (TOWER, LANGUAGE_MODEL)},
        "training": {
            "data": "COCO train2017 and its labels (CC BY 4.0): see NOTICE",
            "patch head": "1,500 steps of 64 on 15,600 to 26,800 photographs",
            "soft words": "2,000 steps of 64 on 26,800 to 38,000 photographs",
            "language model": "3,816 sequences of a photograph and its questions",
            "parts": "dequantized from 8 bits (tower) and 4 bits (language model)",
        },
        "scored on": "POPE's own questions and test photographs, from pixels, greedy; value and 95 % interval",
        "scores": scores or "not measured yet",
    }
    (smol.model_path() / "card.json").write_text(json.dumps(card, indent=2) + "\n")
    print(json.dumps(card, indent=2))


if __name__ == "__main__":
    main()
