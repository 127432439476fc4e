"""attribution: where in the image each object word of an answer comes from, with and without a method.

Two maps per word: the gradient of the word's logit at each visual token times the token's difference to the mean token,
which predicts the effect of occlusion, and the drop of the logit when tokens are occluded (replaced by the mean).
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
from airvlm.analysis.base import Analysis, LabeledImage, mean_interval, new_figure, square_grid
from airvlm.inputs.prompts import DESCRIBE
from airvlm.tasks.words.objects import find_mentions, mark_mentions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["analyze_attribution"]

OCCLUSIONS = 64  # parts of an image that are occluded one after another
ROWS, WORDS = 6, 4  # answers, and words per answer, in the drawing


@dataclass(frozen=True)
class _Word:
    """An object word of an answer."""

    text: str
    token: int  # its first token in the answer
    present: bool | None  # whether the image shows the object; None if nobody said
    gradient: Any = None  # (K,)
    occlusion: Any = None  # (K,)

    @property
    def agreement(self) -> float:
        """Rank correlation of the two maps."""
        a, b = (np.argsort(np.argsort(x)).astype(float) for x in (self.gradient, self.occlusion))
        return float(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else float("nan")


def analyze_attribution(
    vlm: VLM, images: Sequence[LabeledImage], method: Method | None, *, progress: bool = True
) -> Analysis:
    """Maps of every object word of vanilla's answers and of the method's."""
    methods = {"vanilla": None} if method is None else {"vanilla": None, method.label: method}
    found: list[tuple[LabeledImage, str, list[_Word]]] = []
    for one in tqdm(images, desc="attribution", disable=None if progress else True):
        found += [(one, label, _attribute(vlm, one, chosen)) for label, chosen in methods.items()]
    numbers: dict[str, Any] = {"n": len(images)}
    for label in methods:
        own = [word for _, name, words in found if name == label for word in words]
        numbers[label] = {
            "words": len(own),
            "agreement_of_gradient_and_occlusion": mean_interval([w.agreement for w in own]),
            "largest_drop_of_true_words": mean_interval([w.occlusion.max() for w in own if w.present]),
            "largest_drop_of_wrong_words": mean_interval([w.occlusion.max() for w in own if w.present is False]),
        }
    words = [word for _, _, own in found for word in own]
    mean = mean_interval([word.agreement for word in words])
    finding = (
        f"On {len(words)} object words, gradient and occlusion agree with a rank correlation of {mean['value']:.2f} "
        f"[{mean['low']:.2f}, {mean['high']:.2f}]."
    )
    question = "Where in the image does each object word of an answer come from?"
    return Analysis("attribution", question, finding, numbers, _draw(found))


def _attribute(vlm: VLM, one: LabeledImage, method: Method | None) -> list[_Word]:
    """The object words of one answer with both maps."""
    row = vlm.builder.read(one.path, DESCRIBE)
    [answer] = vlm.answer_rows([row], method)
    tokenizer = vlm.processor.tokenizer
    inputs = vlm.builder.build([row], pixels=True)
    prompt = inputs["input_ids"]
    ids = tokenizer(answer.text, add_special_tokens=False, return_tensors="pt")["input_ids"].to(prompt.device)
    words = _find_words(tokenizer, ids[0].tolist(), answer.text, one)
    if not words:
        return []
    full = {**inputs, "input_ids": torch.cat([prompt, ids], 1)}
    for name in ("attention_mask", "mm_token_type_ids", "token_type_ids"):
        if name in full:
            filler = torch.ones_like(ids) if name == "attention_mask" else torch.zeros_like(ids)
            full[name] = torch.cat([full[name], filler], 1)
    visual = (full["input_ids"][0] == vlm.parts.image_token_id).nonzero()[:, 0]  # (K,)
    at = torch.tensor([prompt.shape[1] + word.token - 1 for word in words], device=prompt.device)
    targets = torch.tensor([int(ids[0, word.token]) for word in words], device=prompt.device)
    images = [[image.rgb for image in row.images]]
    gradients: list[Tensor] = []
    with torch.enable_grad():
        leaf, logits = _run_pass(vlm, method, images, full)
        away = (leaf[0, visual] - leaf[0, visual].mean(0)).detach()
        for i in range(len(words)):
            [slope] = torch.autograd.grad(logits[at[i], targets[i]], leaf, retain_graph=i + 1 < len(words))
            gradients.append((slope[0, visual] * away).float().sum(-1).detach())
        base = logits[at, targets].detach().float()
    size = -(-len(visual) // OCCLUSIONS)
    drops = torch.zeros(len(words), len(visual))
    with torch.no_grad():
        for start in range(0, len(visual), size):
            _, logits = _run_pass(vlm, method, images, full, occlude=(visual[start : start + size], visual))
            drops[:, start : start + size] = (base - logits[at, targets].float()).cpu()[:, None]
    return [
        _Word(word.text, word.token, word.present, gradient.cpu().numpy(), drop.numpy())
        for word, gradient, drop in zip(words, gradients, drops)
    ]


def _find_words(tokenizer: Any, ids: list[int], text: str, one: LabeledImage) -> list[_Word]:
    """The first mention of each object in an answer."""
    ends = [len(tokenizer.decode(ids[: k + 1], skip_special_tokens=True)) for k in range(len(ids))]
    words: dict[str, _Word] = {}
    for mark in mark_mentions(text, find_mentions(text, "exact"), set(one.objects or ())):
        k = next((k for k, end in enumerate(ends) if end > mark.start), None)
        if k is not None:
            present = None if one.objects is None else mark.present
            words.setdefault(mark.category, _Word(text[mark.start : mark.end], k, present))
    return list(words.values())


def _run_pass(
    vlm: VLM, method: Method | None, images: Any, inputs: dict[str, Any], occlude: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """One pass: the decoder's input (1, L, d), a leaf of the graph, and the logits (L, V).

    Args:
        vlm: the model.
        method: active during the pass.
        images: of the batch.
        inputs: of the model.
        occlude: positions to replace by the mean of the positions given second.
    """
    seen: list[Tensor] = []

    def enter(module: Any, arguments: Any, options: dict[str, Any]) -> Any:
        embeds = options["inputs_embeds"].detach().clone()
        if occlude is not None:
            positions, visual = occlude
            embeds[0, positions] = embeds[0, visual].mean(0)
        embeds.requires_grad_(torch.is_grad_enabled())
        seen.append(embeds)
        return arguments, {**options, "inputs_embeds": embeds}

    active = nullcontext() if method is None else method(vlm.model, vlm.processor, images=images, parts=vlm.parts)
    with active:
        hook = vlm.parts.decoder.register_forward_pre_hook(enter, with_kwargs=True)  # after the method's own
        try:
            logits = vlm.model(**inputs, use_cache=False).logits[0]
        finally:
            hook.remove()
    return seen[-1], logits


def _draw(found: Sequence[tuple[LabeledImage, str, list[_Word]]]) -> Figure:
    rows = [item for item in found if item[2]][:ROWS]
    columns = 1 + 2 * WORDS
    figure, axes = new_figure(max(1, len(rows)), columns, (1.5 * columns, 1.8 * max(1, len(rows))), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for line, (one, label, words) in zip(axes, rows):
        image = one.image
        line[0].imshow(image)
        line[0].set_title(label, fontsize=8)
        # wrong words first, so that a wrong one is beside a true one
        for k, word in enumerate(sorted(words, key=lambda word: word.present is not False)[:WORDS]):
            for j, (kind, values) in enumerate((("gradient", word.gradient), ("occlusion", word.occlusion))):
                axis = line[1 + 2 * k + j]
                axis.imshow(image, alpha=0.5)
                sides = square_grid(len(values))
                if sides is not None:
                    extent = (0, image.width, image.height, 0)
                    axis.imshow(np.maximum(values, 0).reshape(sides), cmap="inferno", alpha=0.6, extent=extent)
                color = {True: "green", False: "red", None: "black"}[word.present]
                axis.set_title(f"{word.text}\n{kind}", fontsize=7, color=color)
    return figure
