"""crop-blend inside vLLM: a plug-in with a variant of each supported model, whose visual tokens the method changes.

vLLM calls `register` in every process (entry-point group `vllm.general_plugins`). A model's variant is chosen by
`hf_overrides={"architectures": [...]}`, which `overrides` writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airvlm import Method, get_method

__all__ = ["ARCHITECTURES", "overrides", "register"]

# vLLM's architecture -> ours, a class of models.py
ARCHITECTURES = {
    name: f"CropBlend{name}"
    for name in (
        "LlavaForConditionalGeneration",
        "LlavaNextForConditionalGeneration",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
    )
}


def register() -> None:
    """Add the variants to vLLM. Calling this again changes nothing."""
    from vllm import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    for name in ARCHITECTURES.values():
        if name not in known:
            ModelRegistry.register_model(name, f"airvlm.integrations.vllm.models:{name}")


def overrides(architectures: Sequence[str], method: Method | str | bool = True) -> dict[str, Any]:
    """`hf_overrides` that serve such a model with the method.

    Args:
        architectures: those of the model's configuration.
        method: acts on requests that choose none; True is crop-blend with its defaults, False the model as it is.
    """
    from airvlm.integrations.vllm.settings import check_engine, to_setting

    if method is True:
        method = "crop-blend"
    setting = to_setting(None if method is False else check_engine(get_method(method)))
    for name in architectures:
        if name in ARCHITECTURES or name in ARCHITECTURES.values():
            return {"architectures": [ARCHITECTURES.get(name, name)], "airvlm": setting}
    raise ValueError(
        f"no method runs in vLLM for {', '.join(architectures) or 'a model without an architecture'}; supported are "
        f"{', '.join(ARCHITECTURES)}. `airvlm serve` runs every family."
    )
