"""What tests of methods on hidden states share: rows, plain passes with hooks of the test's own, and artifacts."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from airvlm.methods.artifacts import SAMPLE, Artifact, ArtifactInfo, ArtifactMethod, sample_weights
from airvlm.models.loading import fingerprint
from airvlm.testing import small_models

Change = Callable[[int, Tensor], Tensor]  # layer, value (B, L, d) -> new value


def rows_with_images() -> list[Any]:
    return [row for row in small_models.sample_rows() if row[1]]


def decoder_layers(model: Any) -> Any:
    return model.get_decoder().layers


@torch.no_grad()
def forward(
    model: Any,
    inputs: Mapping[str, Any],
    *,
    ffn: Change | None = None,
    attention: Change | None = None,
    residual: Change | None = None,
) -> Tensor:
    """Logits (B, L, V) of a plain pass in which the test itself changes values."""
    decoder = model.get_decoder()
    layers = decoder.layers
    with ExitStack() as stack:
        for i, layer in enumerate(layers):
            if ffn is not None:
                hook = layer.mlp.register_forward_hook(lambda m, a, out, i=i: _output(out, i, ffn))
                stack.callback(hook.remove)
            if attention is not None:
                hook = layer.self_attn.register_forward_hook(lambda m, a, out, i=i: _output(out, i, attention))
                stack.callback(hook.remove)
            if residual is not None:
                target = layers[i + 1] if i + 1 < len(layers) else decoder.norm
                hook = target.register_forward_pre_hook(
                    lambda m, a, k, i=i: _input(a, k, i, residual), with_kwargs=True
                )
                stack.callback(hook.remove)
        out: Tensor = model(**inputs).logits
    return out


def _output(out: Any, i: int, change: Change) -> Any:
    return (change(i, out[0]), *out[1:]) if isinstance(out, tuple) else change(i, out)


def _input(args: Any, kwargs: Any, i: int, change: Change) -> Any:
    if args:
        return (change(i, args[0]), *args[1:]), kwargs
    return args, {**kwargs, "hidden_states": change(i, kwargs["hidden_states"])}


def read(model: Any, inputs: Mapping[str, Any], site: str) -> list[Tensor]:
    """The values (B, L, d) of every layer at a site of a plain pass."""
    kept: dict[int, Tensor] = {}

    def keep(i: int, y: Tensor) -> Tensor:
        kept[i] = y.clone()
        return y

    forward(model, inputs, **{site: keep})
    return [kept[i] for i in sorted(kept)]


def finished(batch: Mapping[str, Any], ids: Tensor) -> dict[str, Any]:
    """The inputs of one plain pass over finished sequences ids (B, L + new)."""
    new = ids.shape[1] - batch["input_ids"].shape[1]
    mask = torch.cat([batch["attention_mask"], torch.ones(len(ids), new, dtype=torch.long)], 1)
    inputs = {**batch, "input_ids": ids, "attention_mask": mask}
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in batch:
            inputs[name] = (ids == small_models.IMAGE).long()
    return inputs


def write_artifact(
    kind: type[ArtifactMethod], family: str, folder: Path, pairs: int = 12, seed: int = 0
) -> tuple[str, dict[int, Tensor]]:
    """A file for a small model, made of random differences; and these."""
    model, _ = small_models.shared_model(family)
    draw = torch.Generator().manual_seed(seed)
    d = model.config.get_text_config().hidden_size
    shared = torch.randn(1, d, generator=draw)
    differences = {i: shared + torch.randn(pairs, d, generator=draw) for i in range(len(decoder_layers(model)))}
    info = ArtifactInfo(kind.name, family, fingerprint(model), pairs, "degraded", "none", "0")
    path = folder / f"{kind.name}-{family}.safetensors"
    Artifact({**kind.fit(differences), SAMPLE: sample_weights(model)}, info).save(path)
    return str(path), differences
