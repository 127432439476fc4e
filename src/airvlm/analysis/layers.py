"""layers: what each decoder layer does with the image, and what an injection there changes.

By layer: how much the visual tokens still resemble the decoder's input, the share of attention that text pays them,
and how far AIR's printed term, added in that layer alone, moves the first answer token. The paper chose its window from
such a figure on LLaVA; here it is drawn for the model at hand.
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

from airvlm import AIR, VLM
from airvlm.analysis.result import Analysis, canvas, interval
from airvlm.analysis.samples import LabelledImage
from airvlm.inputs.prompts import DESCRIBE
from airvlm.methods.air import default_span

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["layers"]


def layers(
    vlm: VLM,
    samples: Sequence[LabelledImage],
    *,
    question: str | None = None,  # None: about an object that the image shows, where one is known
    strength: float = 0.2,
    progress: bool = True,
) -> Analysis:
    """Similarity, attention and effect of an injection, layer by layer."""
    depth = len(vlm.parts.layers)
    similar, attention = np.zeros((len(samples), depth)), np.full((len(samples), depth), np.nan)
    moved, flipped = np.zeros((len(samples), depth)), np.zeros((len(samples), depth))
    for i, sample in enumerate(tqdm(samples, desc="layers", disable=not progress)):
        row = vlm.builder.read(sample.path, question or _asked(sample))
        inputs = vlm.builder.inputs([row], pixels=True)
        visual = inputs["input_ids"][0] == vlm.parts.image_token_id  # (L,)
        with torch.no_grad(), _eager(vlm.parts.decoder):
            states, weights, plain = _traced(vlm, inputs)
        first = states[0][0, visual].float()
        after = torch.arange(len(visual), device=visual.device) > visual.nonzero().max()
        for l in range(depth):
            here = states[l + 1][0, visual].float()
            similar[i, l] = float(F.cosine_similarity(here, first, dim=-1).mean())
            if weights is not None and bool(after.any()):
                share = weights[l][0].float()[:, after][..., visual].sum(-1)  # (heads, text positions)
                attention[i, l] = float(share.mean())
            if l == depth - 1:
                continue  # nothing reads the visual tokens after the last layer: adding to them changes no answer
            method = AIR.paper(layers=(l, l + 1), quantile=1.0, strength=strength)
            with (
                torch.no_grad(),
                method(
                    vlm.model,
                    vlm.processor,
                    images=[[image.rgb for image in row.images]],
                    parts=vlm.parts,
                ),
            ):
                changed = vlm.model(**inputs).logits[0, -1].float()
            moved[i, l] = float(torch.linalg.vector_norm(changed - plain) / torch.linalg.vector_norm(plain))
            flipped[i, l] = float(changed.argmax() != plain.argmax())
    numbers = {
        "n": len(samples),
        "strength": strength,
        "question": question or "about the last object that the image is known to show",
        "layers": [
            {
                "layer": l,
                "similarity_to_input": interval(similar[:, l]),
                "attention_to_image": interval(attention[:, l]),
                "logit_change": interval(moved[:, l]),
                "flip_rate": interval(flipped[:, l]),
            }
            for l in range(depth)
        ],
    }
    window = default_span(depth)
    strongest = int(moved.mean(0).argmax())
    inside = "inside" if strongest in window else "outside"
    finding = (
        f"An injection moves the first answer token most in layer {strongest} of {depth}, {inside} the paper's window "
        f"({window.start} to {window.stop - 1} here); text pays the image most attention in layer "
        f"{int(np.nanargmax(attention.mean(0))) if np.isfinite(attention).any() else 'unknown'}."
    )
    return Analysis(
        "layers",
        "What does each layer do with the image, and what does an injection there change?",
        finding,
        numbers,
        _drawn(similar, attention, moved, flipped, window),
    )


def _asked(sample: LabelledImage) -> str:
    """A question that can be answered either way: a description begins alike whatever the image shows."""
    return f"Is there a {sample.objects[-1]} in the image?" if sample.objects else DESCRIBE


def _traced(vlm: VLM, inputs: dict[str, Any]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...] | None, Tensor]:
    """Hidden states, attention weights and the last position's logits of one plain pass."""
    out = vlm.model(**inputs, output_hidden_states=True, output_attentions=True, use_cache=False)
    weights = getattr(out, "attentions", None)
    usable = weights is not None and len(weights) == len(vlm.parts.layers) and weights[0] is not None
    return out.hidden_states, weights if usable else None, out.logits[0, -1].float()


@contextmanager
def _eager(decoder: Any) -> Iterator[None]:
    """Attention weights exist only where they are computed one by one."""
    before = decoder.config._attn_implementation
    decoder.set_attn_implementation("eager")
    try:
        yield
    finally:
        decoder.set_attn_implementation(before)


def _drawn(similar: Any, attention: Any, moved: Any, flipped: Any, window: range) -> Figure:
    figure, axes = canvas(1, 4, (13, 3), sharex=True)
    titles = [
        "similarity of visual tokens\nto the decoder's input",
        "share of text's attention\npaid to the image",
        "change of the first\nanswer token's logits",
        "share of images whose\nfirst token flips",
    ]
    for axis, values, title in zip(axes, (similar, attention, moved, flipped), titles):
        mean, error = values.mean(0), values.std(0) / max(1, len(values)) ** 0.5
        axis.axvspan(window.start - 0.5, window.stop - 0.5, color="0.9", label="the paper's window")
        axis.errorbar(range(len(mean)), mean, 1.96 * error, marker="o", markersize=3, capsize=2)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("layer")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    return figure
