"""AIR inside vLLM: the plug-in that registers a variant of each served model whose visual tokens are reinforced.

vLLM calls `register` in every process (entry-point group `vllm.general_plugins`); a model is chosen by
`hf_overrides={"architectures": [...]}`, which `overrides` writes. Knows names only: vLLM is imported by models.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["ARCHITECTURES", "overrides", "register"]

# vLLM's architecture -> ours, a class of models.py
ARCHITECTURES = {
    "LlavaForConditionalGeneration": "AirLlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration": "AirLlavaNextForConditionalGeneration",
    "Qwen2VLForConditionalGeneration": "AirQwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration": "AirQwen2_5_VLForConditionalGeneration",
}


def register() -> None:
    """Make the variants known to vLLM; called again it changes nothing."""
    from vllm import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    for name in ARCHITECTURES.values():
        if name not in known:
            ModelRegistry.register_model(name, f"airvlm.integrations.vllm.models:{name}")


def overrides(architectures: Sequence[str], method: Any = True) -> dict[str, Any]:
    """`hf_overrides` that serve such a model with AIR.

    method: what requests get that do not choose for themselves, a Method or what settings.py reads.
    """
    from airvlm.integrations.vllm.settings import resolve, written

    default = written(resolve(method))  # refused here rather than in every request
    for name in architectures:
        if name in ARCHITECTURES or name in ARCHITECTURES.values():
            return {"architectures": [ARCHITECTURES.get(name, name)], "airvlm": default}
    raise ValueError(
        f"AIR serves no {', '.join(architectures) or 'model without an architecture'} in vLLM; it serves "
        f"{', '.join(ARCHITECTURES)}. `airvlm serve` takes every family."
    )
