"""The former names of `airvlm.cli.common`, until the commands of the evaluation use the new ones."""

from __future__ import annotations

from typing import Any

from airvlm.cli.common import answer_json, load_model
from airvlm.cli.common import choose_method as chosen_method
from airvlm.cli.common import default_model as model_for
from airvlm.cli.common import exit_on_method_error as explained
from airvlm.cli.common import load_model as load_for
from airvlm.cli.options import ModelOptions

__all__ = ["answer_json", "chosen_method", "explained", "label_of", "load", "load_for", "loading_options", "model_for"]


def load(
    model: str | None,
    adapter: str | None = None,
    dtype: Any = None,
    device: str | None = None,
    *,
    device_map: str | None = None,
    quantise: Any = None,
    trust_remote_code: bool = False,
    allow_missing: bool = False,
) -> Any:
    """Load a model."""
    return load_model(
        ModelOptions(model, adapter, dtype, device, device_map, quantise, trust_remote_code, allow_missing)
    )


def loading_options(how: ModelOptions) -> dict[str, Any]:
    """What `load` is told by keyword."""
    return {
        "device_map": how.device_map,
        "quantise": how.quantize,
        "trust_remote_code": how.trust_remote_code,
        "allow_missing": how.allow_missing,
    }


def label_of(name: str) -> str:
    """What tables call the method."""
    method = chosen_method(name)
    return "vanilla" if method is None else method.label
