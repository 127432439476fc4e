"""airvlm as a model of lmms-eval: `lmms-eval eval --model airvlm --model_args method=crop-blend --tasks pope`.

lmms-eval finds `manifest` by the entry-point group `lmms_eval.models`.
"""

from __future__ import annotations

from typing import Any

__all__ = ["manifest"]


def manifest() -> Any:
    """What lmms-eval registers: one name, a class for chat messages and one for plain contexts."""
    from lmms_eval.models.registry_v2 import ModelManifest

    models = "airvlm.integrations.lmms_eval.models"
    return ModelManifest("airvlm", simple_class_path=f"{models}.AirvlmSimple", chat_class_path=f"{models}.Airvlm")
