"""Probes: a forward pass outside the answer, with another prompt, other images or without the image.

A probe reads states and attention of a prompt before anything is generated. No method sees it, and it leaves the model
as it was.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from airvlm.models.parts import ModelParts
from airvlm.runtime.attention import AttentionChange, attention_modules, editing_stream, use_own_attention
from airvlm.runtime.intervention import without_methods
from airvlm.runtime.streams import EditIds, EditImages, edit_prompts

__all__ = ["Probe", "model_inputs", "run_probe"]


@dataclass
class Probe:
    """What a probe saw."""

    logits: Tensor  # (B, V) of the last position
    visual: Tensor  # (B, L) image tokens
    mask: Tensor  # (B, L) 1 at real tokens
    states: dict[tuple[str, int], Tensor] = field(default_factory=dict)  # (site, layer) -> (B, d), or (B, L, d)
    attention: dict[int, Tensor] = field(default_factory=dict)  # layer -> (B, H, L) of the last query
    values: dict[int, Tensor] = field(default_factory=dict)  # layer -> (B, H_kv, L, D) value features


def model_inputs(parts: ModelParts, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The model's inputs among the arguments of a generate call."""
    model: Any = parts.model
    accepted = inspect.signature(model.forward).parameters
    other = ("use_cache", "past_key_values", "return_dict", "labels", "logits_to_keep")
    named = {k: v for k, v in arguments.items() if k in accepted and k not in other and v is not None}
    ids = arguments.get("input_ids", arguments.get("inputs"))
    return {**named, "input_ids": ids, "attention_mask": named.get("attention_mask", torch.ones_like(ids))}


@torch.no_grad()
def run_probe(
    parts: ModelParts,
    arguments: Mapping[str, Any],
    *,
    edit_ids: EditIds | None = None,
    images: EditImages | None = None,
    sites: Mapping[str, Sequence[int]] | None = None,
    all_positions: bool = False,
    attention: Sequence[int] = (),
    values: Sequence[int] = (),
) -> Probe:
    """Run the prompt of a generate call, or an edit of it.

    Args:
        parts: of the model.
        arguments: of the generate call.
        edit_ids: changes each row's token ids; without image tokens left, the images are left out.
        images: changes the image inputs.
        sites: which states to keep: "residual", "attention", "ffn" or "heads" -> layers.
        all_positions: keep the states of all positions, not only the last one's.
        attention: layers whose attention of the last query is kept.
        values: layers whose value features are kept.
    """
    inputs = model_inputs(parts, arguments)
    if edit_ids is not None:
        inputs = edit_prompts(parts, inputs, edit_ids)
        del inputs["common_suffix"]
    if images is not None:
        inputs = {**inputs, **images(inputs)}
    model: Any = parts.model
    base: Any = getattr(model, "base_model", model)
    mask = inputs["attention_mask"]
    probe = Probe(torch.empty(0), inputs["input_ids"] == parts.image_token_id, mask)
    kept = vars(base).get("rope_deltas")
    try:
        with ExitStack() as stack:
            stack.enter_context(without_methods())
            for site, layers in (sites or {}).items():
                for layer in layers:
                    _hook(parts, site, layer, probe, all_positions, stack)
            if attention or values:
                use_own_attention(parts, stack)
                stack.enter_context(editing_stream(_Reader(parts, attention, values, probe)))
            if "position_ids" not in inputs:
                inputs["position_ids"] = model._prepare_position_ids_for_generation(inputs["input_ids"], dict(inputs))
            out = model(**inputs, use_cache=False, return_dict=True)
    finally:
        if "rope_deltas" in vars(base):
            base.rope_deltas = kept
    probe.logits = out.logits[:, -1]
    return probe


class _Reader:
    """Keeps the last query's attention, and the value features, of some layers."""

    def __init__(self, parts: ModelParts, attention: Sequence[int], values: Sequence[int], probe: Probe) -> None:
        modules = attention_modules(parts)
        self.layer_of = {modules[i]: i for i in {*attention, *values}}
        self.attention, self.values, self.probe = attention, values, probe

    def attention_change(self, module: nn.Module) -> AttentionChange | None:
        layer = self.layer_of.get(module)
        if layer is None:
            return None
        length = self.probe.mask.shape[1]

        def observe(p: Tensor) -> None:  # (B, H, 1, T)
            self.probe.attention[layer] = p[:, :, -1]

        def observe_values(v: Tensor) -> None:
            self.probe.values[layer] = v

        return AttentionChange(
            length,
            first=length - 1,
            observe=observe if layer in self.attention else None,
            observe_values=observe_values if layer in self.values else None,
        )


def _hook(parts: ModelParts, site: str, layer: int, probe: Probe, all_positions: bool, stack: ExitStack) -> None:
    def keep(value: Any) -> None:
        y = value[0] if isinstance(value, tuple) else value
        y = y.view(len(probe.mask), -1, y.shape[-1])
        probe.states[site, layer] = y if all_positions else y[:, -1]

    def of_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep(args[0] if args else kwargs["hidden_states"])

    def of_output(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        keep(out)

    if site in ("residual", "heads"):
        target = parts.output_projections[layer] if site == "heads" else parts.after_layer(layer)
        stack.callback(target.register_forward_pre_hook(of_input, with_kwargs=True).remove)
    else:
        target = parts.ffns[layer] if site == "ffn" else parts.attentions[layer]
        stack.callback(target.register_forward_hook(of_output, with_kwargs=True).remove)
