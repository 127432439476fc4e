"""The golden cases of a ported model: what the original code computed on small random weights, case by case.

A folder has config.json and model.safetensors in the official form, and cases.safetensors with tensors named
`<case>.<tensor>`. AIRVLM_GOLDEN_MODELS may name another folder of the same form.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.golden import golden


def folder(model: str) -> Path:
    elsewhere = os.environ.get("AIRVLM_GOLDEN_MODELS")
    return Path(elsewhere) / model if elsewhere else golden("models", model)


def names(model: str) -> list[str]:
    """The cases of a model, for parametrizing; one that skips where the data is not at hand."""
    try:
        return list(meta(model))
    except BaseException:  # pytest's skip is not an Exception
        return ["absent"]


@cache
def meta(model: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder(model) / "cases_meta.json").read_text())
    return found


@cache
def tensors(model: str, file: str = "cases.safetensors") -> dict[str, Tensor]:
    return load_file(folder(model) / file)


def case(model: str, name: str) -> dict[str, Tensor]:
    return {k.removeprefix(f"{name}."): v for k, v in tensors(model).items() if k.startswith(f"{name}.")}


@torch.no_grad()
def run(model: nn.Module, decoder: Any, **inputs: Any) -> dict[str, Tensor]:
    """One forward: logits, and what each attention, feed-forward and layer gave, under the golden names."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, arguments: Any, output: Any) -> None:
            seen[name] = output[0] if isinstance(output, tuple) else output

        return hook

    handles = [decoder.norm.register_forward_hook(keep("final_norm"))]
    for i, layer in enumerate(decoder.layers):
        handles.append(layer.self_attn.register_forward_hook(keep(f"attn_out.{i}")))
        handles.append(layer.mlp.register_forward_hook(keep(f"mlp_out.{i}")))
        handles.append(layer.register_forward_hook(keep(f"layer_out.{i}")))
    try:
        seen["logits"] = model(**inputs).logits
    finally:
        for handle in handles:
            handle.remove()
    return seen


def close(ours: Tensor, theirs: Tensor, rows: Tensor, atol: float) -> None:
    """Equal within `atol` on the rows (B, L) that are not padding."""
    where = rows.bool()
    torch.testing.assert_close(ours[where], theirs[where], rtol=0, atol=atol)
