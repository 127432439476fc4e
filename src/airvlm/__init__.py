"""airvlm: multimodal language models that hallucinate less, without training.

Names are re-exported lazily, so that `import airvlm` costs nothing and has no side effects: torch and
transformers are imported with the first name that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airvlm.hooks.method import Method as Method
    from airvlm.hooks.run import NeverFired as NeverFired
    from airvlm.integrations.pipeline import pipeline as pipeline
    from airvlm.methods import AIR as AIR
    from airvlm.methods import VAF as VAF
    from airvlm.methods import VCD as VCD
    from airvlm.methods import Composed as Composed
    from airvlm.methods import MemVR as MemVR
    from airvlm.methods import parse_method as parse_method
    from airvlm.models.anatomy import Anatomy as Anatomy
    from airvlm.report import Report as Report
    from airvlm.vlm import VLM as VLM
    from airvlm.vlm import Answer as Answer

__version__ = "0.1.0"

# public name -> the module that defines it
_HOMES = {
    "AIR": "airvlm.methods",
    "Anatomy": "airvlm.models.anatomy",
    "Answer": "airvlm.vlm",
    "Composed": "airvlm.methods",
    "MemVR": "airvlm.methods",
    "Method": "airvlm.hooks.method",
    "NeverFired": "airvlm.hooks.run",
    "Report": "airvlm.report",
    "VAF": "airvlm.methods",
    "VCD": "airvlm.methods",
    "VLM": "airvlm.vlm",
    "parse_method": "airvlm.methods",
    "pipeline": "airvlm.integrations.pipeline",
}

__all__ = [
    "AIR",
    "VAF",
    "VCD",
    "VLM",
    "Anatomy",
    "Answer",
    "Composed",
    "MemVR",
    "Method",
    "NeverFired",
    "Report",
    "parse_method",
    "pipeline",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'airvlm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
