"""The two ported models as data: what belongs together, and how transformers learns of it.

Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightTransform

from airvlm.models.families import FAMILIES
from airvlm.models.families import is_port as recognises
from airvlm.models.glm_4v import tokenizer as glm_tokenizer
from airvlm.models.glm_4v.model import Glm4VConfig, Glm4VForConditionalGeneration
from airvlm.models.ported import names
from airvlm.models.ported.processing import (
    Glm4VProcessor,
    QwenVLProcessor,
    SquareImageProcessor,
    SquarePictureProcessor,
)
from airvlm.models.qwen_vl import tokenizer as qwen_tokenizer
from airvlm.models.qwen_vl.model import QwenVLConfig, QwenVLForConditionalGeneration
from airvlm.models.qwen_vl.vision import QwenVLVisionConfig

__all__ = ["PORTS", "Port", "recognises", "register"]


@dataclass(frozen=True)
class Port:
    """One of the two models: what belongs together."""

    title: str
    hub_name: str
    config: type[PreTrainedConfig]
    model: type[PreTrainedModel]
    processor: Any
    conversions: Callable[[], list[WeightTransform]]
    stops: tuple[str, ...]  # special tokens that end an answer

    @property
    def section(self) -> str:
        """Of config.json, which tells the model from text-only ones of the same model_type."""
        return str(FAMILIES[self.config.model_type].ported)


PORTS: dict[str, Port] = {
    "qwen": Port(
        "Qwen-VL",
        "Qwen/Qwen-VL-Chat",
        QwenVLConfig,
        QwenVLForConditionalGeneration,
        QwenVLProcessor,
        names.qwen_conversions,
        qwen_tokenizer.STOPS,
    ),
    "chatglm": Port(
        "GLM-4V",
        "THUDM/glm-4v-9b",
        Glm4VConfig,
        Glm4VForConditionalGeneration,
        Glm4VProcessor,
        names.glm_conversions,
        glm_tokenizer.STOPS,
    ),
}


def register() -> None:
    """Make transformers' Auto classes and weight loading know both models; calling it again changes nothing."""
    for model_type, port in PORTS.items():
        AutoConfig.register(model_type, port.config, exist_ok=True)
        AutoModelForImageTextToText.register(port.config, port.model, exist_ok=True)
        AutoProcessor.register(port.config, port.processor, exist_ok=True)
        pixels = {"pil": SquareImageProcessor}
        AutoImageProcessor.register(port.config, image_processor_classes=pixels, exist_ok=True)
        AutoTokenizer.register(port.config, port.processor.official_tokenizer, exist_ok=True)
        # By class, not by model_type: text-only Qwen and ChatGLM share the latter and have other weights.
        register_checkpoint_conversion_mapping(port.model.__name__, port.conversions(), overwrite=True)
    # found by its class's name alone; the configuration it stands under is one that has no image processor
    former = {"pil": SquarePictureProcessor}
    AutoImageProcessor.register(QwenVLVisionConfig, image_processor_classes=former, exist_ok=True)
