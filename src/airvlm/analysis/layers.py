"""layers: what each decoder layer does with the image, and what AIR's term changes there.

Per layer: how much the visual tokens still resemble the decoder's input, the share of attention that text pays to them,
and how far AIR's term, added in that layer alone, moves the first answer token. The paper chose its layers from such a
figure of LLaVA.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from airvlm import AIR, VLM, Method
from airvlm.analysis.base import Analysis, LabeledImage, mean_interval, new_figure
from airvlm.inputs.prompts import DESCRIBE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["analyze_layers"]

STRENGTH = 0.2  # of AIR's term
TITLES = {
    "similarity_to_input": "similarity of visual tokens\nto the decoder's input",
    "attention_to_image": "share of text's attention\npaid to the image",
    "logit_change": "change of the first\nanswer token's logits",
    "flip_rate": "share of images whose\nfirst token flips",
}


def analyze_layers(
    vlm: VLM, images: Sequence[LabeledImage], method: Method | None, *, progress: bool = True
) -> Analysis:
    """Similarity, attention and the effect of AIR's term, per layer. The method is not used."""
    depth = len(vlm.parts.layers)
    values = {name: np.full((len(images), depth), np.nan) for name in TITLES}
    for i, one in enumerate(tqdm(images, desc="layers", disable=None if progress else True)):
        row = vlm.builder.read(one.path, _question(one))
        inputs = vlm.builder.build([row], pixels=True)
        shown = [[image.rgb for image in row.images]]
        visual = inputs["input_ids"][0] == vlm.parts.image_token_id  # (L,)
        with torch.no_grad(), _eager_attention(vlm.parts.decoder):
            states, weights, logits = _trace(vlm, inputs)
        first = states[0][0, visual].float()
        after = torch.arange(len(visual), device=visual.device) > visual.nonzero().max()
        for l in range(depth):
            here = states[l + 1][0, visual].float()
            values["similarity_to_input"][i, l] = float(F.cosine_similarity(here, first, dim=-1).mean())
            if weights is not None and bool(after.any()):
                share = weights[l][0].float()[:, after][..., visual].sum(-1)  # (heads, text positions)
                values["attention_to_image"][i, l] = float(share.mean())
            values["logit_change"][i, l] = values["flip_rate"][i, l] = 0.0
            if l == depth - 1:
                continue  # nothing reads the visual tokens after the last layer
            air = AIR(layers=(l, l + 1), quantile=1.0, strength=STRENGTH)
            with torch.no_grad(), air(vlm.model, vlm.processor, images=shown, parts=vlm.parts):
                changed = vlm.model(**inputs).logits[0, -1].float()
            change = torch.linalg.vector_norm(changed - logits) / torch.linalg.vector_norm(logits)
            values["logit_change"][i, l] = float(change)
            values["flip_rate"][i, l] = float(changed.argmax() != logits.argmax())
    numbers = {
        "n": len(images),
        "strength": STRENGTH,
        "layers": [{"layer": l} | {name: mean_interval(v[:, l]) for name, v in values.items()} for l in range(depth)],
    }
    window = AIR().layer_range(depth)
    strongest = int(values["logit_change"].mean(0).argmax())
    attention = values["attention_to_image"].mean(0)
    finding = (
        f"AIR's term moves the first answer token most in layer {strongest} of {depth}, "
        f"{'inside' if strongest in window else 'outside'} the paper's layers ({window.start} to {window.stop - 1} "
        "here); text pays the image most attention in layer "
        f"{int(np.nanargmax(attention)) if np.isfinite(attention).any() else 'unknown'}."
    )
    question = "What does each layer do with the image, and what does AIR's term change there?"
    return Analysis("layers", question, finding, numbers, _draw(values, window))


def _question(one: LabeledImage) -> str:
    """A question whose first token depends on the image, if its objects are known; descriptions all begin alike."""
    return f"Is there a {one.objects[-1]} in the image?" if one.objects else DESCRIBE


def _trace(vlm: VLM, inputs: dict[str, Any]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...] | None, Tensor]:
    """Hidden states, attention weights and the last position's logits of one pass without a method."""
    out = vlm.model(**inputs, output_hidden_states=True, output_attentions=True, use_cache=False)
    weights = getattr(out, "attentions", None)
    usable = weights is not None and len(weights) == len(vlm.parts.layers) and weights[0] is not None
    return out.hidden_states, weights if usable else None, out.logits[0, -1].float()


@contextmanager
def _eager_attention(decoder: Any) -> Iterator[None]:
    """Only eager attention returns its weights."""
    before = decoder.config._attn_implementation
    decoder.set_attn_implementation("eager")
    try:
        yield
    finally:
        decoder.set_attn_implementation(before)


def _draw(values: dict[str, Any], window: range) -> Figure:
    figure, axes = new_figure(1, len(TITLES), (13, 3), sharex=True)
    for axis, (name, title) in zip(axes, TITLES.items()):
        mean, error = values[name].mean(0), values[name].std(0) / max(1, len(values[name])) ** 0.5
        axis.axvspan(window.start - 0.5, window.stop - 0.5, color="0.9", label="the paper's layers")
        axis.errorbar(range(len(mean)), mean, 1.96 * error, marker="o", markersize=3, capsize=2)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("layer")
    axes[0].legend(fontsize=7)
    return figure
