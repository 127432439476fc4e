"""RePOPE: POPE's COCO questions with corrected labels; ambiguous questions are gone (Neuhaus and Hein, 2025).

Of POPE's 1500 questions whose label is "yes", 139 are labeled wrongly and 207 are ambiguous. Files, images, prompts and
ids are POPE's, so that answers to POPE can be scored with either labels. RePOPE has no license: its label files are
downloaded and never shipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from airvlm.tasks.files.reading import find_file
from airvlm.tasks.pope import Pope

__all__ = ["RePope"]


@dataclass(frozen=True)
class RePope(Pope):
    """RePOPE from coco_repope_random.json, ... and POPE's images. The variant `repope` parses as its script does."""

    dataset: Literal["coco"] = "coco"

    name: ClassVar[str] = "repope"
    source: ClassVar[str] = "YanNeu/RePOPE: coco_repope_random.json, ..., and COCO's images, in --data FOLDER"

    def find_questions(self, folder: Path, dataset: str, setting: str) -> Path:
        return find_file(folder, f"coco_repope_{setting}.json", "repope", "annotations", task=self.name)
