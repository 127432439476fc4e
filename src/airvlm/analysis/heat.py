"""heat: where in the image each object word of an answer comes from, without and with a method.

The gradient of the word's logit at the visual tokens (times the way from their mean: what it foretells of occluding
one), and the drop of that logit when a token is occluded, replaced by the mean, as the check of
the first. A word that the image does not hold stands beside one that it does, where the truth is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from airvlm import VLM, Method
from airvlm.analysis.result import Analysis, canvas, interval
from airvlm.analysis.samples import LabelledImage, grid
from airvlm.inputs.prompts import DESCRIBE
from airvlm.tasks.words.marks import Mark, marks
from airvlm.tasks.words.objects import mentions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["heat"]

BLOCKS = 64  # parts of an image that are occluded one after another
WORDS = 4  # words drawn of one answer


@dataclass(frozen=True)
class _Word:
    text: str
    present: bool | None  # None where nobody said what the image shows
    gradient: np.ndarray  # (K,)
    occlusion: np.ndarray  # (K,)

    @property
    def agreement(self) -> float:
        """Rank correlation of the two maps."""
        a, b = (np.argsort(np.argsort(x)).astype(float) for x in (self.gradient, self.occlusion))
        return float(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else float("nan")


def heat(vlm: VLM, samples: Sequence[LabelledImage], method: Method | None, *, progress: bool = True) -> Analysis:
    """Maps of every object word, for vanilla's answer and the method's."""
    found: list[tuple[LabelledImage, str, list[_Word]]] = []
    for sample in tqdm(samples, desc="heat", disable=not progress):
        for name, chosen in (("vanilla", None), *([(method.name, method)] if method is not None else [])):
            found.append((sample, name, _words(vlm, sample, chosen)))
    words = [(name, word) for _, name, own in found for word in own]
    numbers: dict[str, Any] = {"n": len(samples), "words": len(words)}
    for name in dict.fromkeys(name for name, _ in words):
        own = [word for label, word in words if label == name]
        numbers[name] = {
            "words": len(own),
            "gradient_and_occlusion_agree": interval([w.agreement for w in own]),
            "true_words_fall_when_occluded": interval([w.occlusion.max() for w in own if w.present]),
            "wrong_words_fall_when_occluded": interval([w.occlusion.max() for w in own if w.present is False]),
        }
    agree = interval([w.agreement for _, w in words])
    finding = (
        f"On {len(words)} object words, gradient and occlusion agree with a rank correlation of {agree['value']:.2f} "
        f"[{agree['low']:.2f}, {agree['high']:.2f}]."
    )
    return Analysis(
        "heat",
        "Where in the image does each object word of an answer come from?",
        finding,
        numbers,
        _drawn(found),
    )


def _words(vlm: VLM, sample: LabelledImage, method: Method | None) -> list[_Word]:
    row = vlm.builder.read(sample.path, DESCRIBE)
    [answer] = vlm.answer_rows([row], method)
    tokenizer = vlm.processor.tokenizer
    inputs = vlm.builder.inputs([row], pixels=True)
    prompt = inputs["input_ids"]
    said = tokenizer(answer.text, add_special_tokens=False, return_tensors="pt")["input_ids"].to(prompt.device)
    places = _places(tokenizer, said[0].tolist(), answer.text, sample)
    if not places:
        return []
    full = {**inputs, "input_ids": torch.cat([prompt, said], 1)}
    for name in ("attention_mask", "mm_token_type_ids", "token_type_ids"):
        if name in full:
            filler = torch.ones_like(said) if name == "attention_mask" else torch.zeros_like(said)
            full[name] = torch.cat([full[name], filler], 1)
    visual = (full["input_ids"][0] == vlm.parts.image_token_id).nonzero()[:, 0]  # (K,)
    at = torch.tensor([prompt.shape[1] + k - 1 for k, _ in places], device=prompt.device)
    tokens = torch.tensor([int(said[0, k]) for k, _ in places], device=prompt.device)
    images = [[image.rgb for image in row.images]]
    gradients: list[Tensor] = []
    with torch.enable_grad():
        leaf, logits = _pass(vlm, method, images, full)
        for i in range(len(places)):
            [slope] = torch.autograd.grad(logits[at[i], tokens[i]], leaf, retain_graph=i + 1 < len(places))
            # what the gradient foretells of occluding a token: its way to the mean, along the slope
            away = leaf[0, visual] - leaf[0, visual].mean(0)
            gradients.append((slope[0, visual] * away).float().sum(-1).detach())
        base = logits[at, tokens].detach().float()
    size = -(-len(visual) // BLOCKS)
    drops = torch.zeros(len(places), len(visual))
    with torch.no_grad():
        for start in range(0, len(visual), size):
            block = visual[start : start + size]
            _, logits = _pass(vlm, method, images, full, occluded=(block, visual))
            drops[:, start : start + size] = (base - logits[at, tokens].float()).cpu()[:, None]
    return [
        _Word(mark_text, present, gradient.cpu().numpy(), drop.numpy())
        for (_, (mark_text, present)), gradient, drop in zip(places, gradients, drops)
    ]


def _places(
    tokenizer: Any, ids: list[int], text: str, sample: LabelledImage
) -> list[tuple[int, tuple[str, bool | None]]]:
    """The token at which each object word begins, the word, and whether the image shows it; true and wrong in turns."""
    truth = set(sample.objects or ())
    found: list[Mark] = marks(text, mentions(text, "exact"), truth)
    known = sample.objects is not None
    ends = [len(tokenizer.decode(ids[: k + 1], skip_special_tokens=True)) for k in range(len(ids))]
    words: dict[str, tuple[int, tuple[str, bool | None]]] = {}
    for mark in found:
        k = next((k for k, end in enumerate(ends) if end > mark.start), None)
        if k is not None:
            words.setdefault(mark.category, (k, (text[mark.start : mark.end], mark.present if known else None)))
    return list(words.values())


def _pass(
    vlm: VLM,
    method: Method | None,
    images: Any,
    inputs: dict[str, Any],
    occluded: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """One pass; the decoder's input as a leaf of the graph, and the logits (L, V)."""
    held: list[Tensor] = []

    def enter(module: Any, arguments: Any, options: dict[str, Any]) -> Any:
        embeds = options["inputs_embeds"].detach().clone()
        if occluded is not None:
            block, visual = occluded
            embeds[0, block] = embeds[0, visual].mean(0)
        embeds.requires_grad_(torch.is_grad_enabled())
        held.append(embeds)
        return arguments, {**options, "inputs_embeds": embeds}

    block = nullcontext() if method is None else method(vlm.model, vlm.processor, images=images, parts=vlm.parts)
    with block:
        hook = vlm.parts.decoder.register_forward_pre_hook(enter, with_kwargs=True)  # after the method's own
        try:
            logits = vlm.model(**inputs, use_cache=False).logits[0]
        finally:
            hook.remove()
    return held[-1], logits


def _drawn(found: Sequence[tuple[LabelledImage, str, list[_Word]]]) -> Figure:
    shown = [(sample, name, _chosen(words)) for sample, name, words in found if words][:6]
    columns = 1 + 2 * WORDS
    figure, axes = canvas(max(1, len(shown)), columns, (1.5 * columns, 1.8 * max(1, len(shown))), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for row, (sample, name, words) in zip(axes, shown):
        image = sample.image
        row[0].imshow(image)
        row[0].set_title(name, fontsize=8)
        for k, word in enumerate(words):
            for j, (kind, values) in enumerate((("gradient", word.gradient), ("occlusion", word.occlusion))):
                axis = row[1 + 2 * k + j]
                axis.imshow(image, alpha=0.5)
                sides = grid(len(values))
                if sides is not None:
                    extent = (0, image.width, image.height, 0)
                    axis.imshow(np.maximum(values, 0).reshape(sides), cmap="inferno", alpha=0.6, extent=extent)
                colour = {True: "green", False: "red", None: "black"}[word.present]
                axis.set_title(f"{word.text}\n{kind}", fontsize=7, color=colour)
    figure.tight_layout()
    return figure


def _chosen(words: list[_Word]) -> list[_Word]:
    """Wrong words first, so that a wrong one stands beside a true one."""
    return sorted(words, key=lambda word: word.present is not False)[:WORDS]
