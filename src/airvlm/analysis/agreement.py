"""agreement: which objects are still named when crops are blended into an image's tokens.

It tests one explanation: blending keeps what the crops have in common, so an object that few crops show is named less.
It would be wrong if crops that disagree helped as much as crops that agree, if one crop repeated helped, or if blended
tokens helped at shuffled positions. Whether a crop shows an object is the model's own answer about it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from airvlm import VLM, CropBlend, Method
from airvlm.analysis.base import Analysis, LabeledImage, crop_tokens, mean_interval, new_figure, visual_tokens
from airvlm.inputs.prompts import DESCRIBE
from airvlm.methods.evidence.transport import cosine_cost, sinkhorn
from airvlm.tasks.words.objects import find_mentions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["analyze_agreement"]

CONDITIONS = (
    "all crops",
    "crops that agree",
    "crops that disagree",
    "one crop repeated",
    "one crop, shuffled positions",
    "all crops, shuffled positions",
)


def analyze_agreement(
    vlm: VLM, images: Sequence[LabeledImage], method: Method | None, *, progress: bool = True
) -> Analysis:
    """Which objects each crop shows, and descriptions under each way of blending, with crop-blend's options."""
    if any(one.objects is None for one in images):
        raise ValueError("agreement needs to know what the images show: give --objects FILE")
    blend = method if isinstance(method, CropBlend) else CropBlend()
    named: dict[str, list[set[str]]] = {name: [] for name in ("vanilla", *CONDITIONS)}
    seen: list[tuple[int, bool, bool]] = []  # of an object that vanilla names: crops that show it, present, still named
    for i, one in enumerate(tqdm(images, desc="agreement", disable=None if progress else True)):
        image, truth = one.image, set(one.objects or ())
        [Z] = visual_tokens(vlm, [image])
        boxes, crops = crop_tokens(vlm, image, blend.num_crops)
        plain = _describe(vlm, one, None)
        objects = sorted(truth | plain)
        shows = _recognize(vlm, [image.crop(box) for box in boxes], objects)  # (M, objects)
        agree, disagree = _halve(shows)
        tokens = {
            "all crops": _project(Z, crops, blend.eps),
            "crops that agree": _project(Z, [crops[m] for m in agree], blend.eps),
            "crops that disagree": _project(Z, [crops[m] for m in disagree], blend.eps),
            "one crop repeated": _project(Z, crops[:1] * len(crops), blend.eps),
        }
        order = torch.randperm(len(Z), generator=torch.Generator().manual_seed(i))
        tokens["one crop, shuffled positions"] = tokens["one crop repeated"][order]
        tokens["all crops, shuffled positions"] = tokens["all crops"][order]
        named["vanilla"].append(plain)
        for name in CONDITIONS:
            named[name].append(_describe(vlm, one, Z + blend.weight * (tokens[name] - Z)))
        still = named["all crops"][-1]
        seen += [(int(shows[:, k].sum()), o in truth, o in still) for k, o in enumerate(objects) if o in plain]
    truths = [set(one.objects or ()) for one in images]
    numbers: dict[str, Any] = {
        "n": len(images),
        "method": blend.label,
        "conditions": {name: _score(own, named["vanilla"], truths) for name, own in named.items()},
        "agree_minus_disagree": _score(named["crops that agree"], named["crops that disagree"], truths),
        "still_named_by_crops": _by_crops(seen, blend.num_crops),
    }
    parts = {name: numbers["conditions"][name] for name in CONDITIONS}
    parts["agree minus disagree"] = numbers["agree_minus_disagree"]
    finding = "Change of wrong objects per image against vanilla: " + "; ".join(
        f"{name} {v['value']:+.2f} [{v['low']:+.2f}, {v['high']:+.2f}]"
        for name, v in ((name, own["wrong_objects_change"]) for name, own in parts.items())
    )
    question = "Which objects are still named when crops are blended in?"
    return Analysis("agreement", question, finding + ".", numbers, _draw(numbers, blend.num_crops))


def _recognize(vlm: VLM, crops: Sequence[Any], objects: Sequence[str]) -> Any:
    """(M, objects) bool: whether the model, shown a crop alone, says that the object is there."""
    requests = [(crop, f"Is there a {name} in the image?") for crop in crops for name in objects]
    answers = vlm.batch(requests, batch_size=64, progress=False, max_new_tokens=4)
    return np.array([a.text.lower().startswith("yes") for a in answers]).reshape(len(crops), len(objects))


def _halve(shows: Any) -> tuple[list[int], list[int]]:
    """The half of the crops that is nearest to what all crops show on average, and the other half."""
    distance = np.abs(shows - shows.mean(axis=0)).sum(axis=1)
    order = np.argsort(distance, kind="stable").tolist()
    return order[: len(order) // 2], order[len(order) // 2 :]


@torch.no_grad()
def _project(Z: Tensor, crops: Sequence[Tensor], eps: float) -> Tensor:
    """What the crops say about each visual token, (K, d), as crop-blend computes it."""
    rows, costs = [], []
    for X in crops:
        C = cosine_cost(Z, X)
        plan = sinkhorn(C, eps).plan  # (K, N)
        share = plan / plan.sum(-1, keepdim=True)
        rows.append(share @ X)
        costs.append((share * C).sum(-1))
    mix = torch.softmax(-torch.stack(costs) / eps, 0)  # (M, K)
    return (mix.unsqueeze(-1) * torch.stack(rows)).sum(0)


def _describe(vlm: VLM, one: LabeledImage, tokens: Tensor | None) -> set[str]:
    """The objects that the description names, with these visual tokens (K, d) in place of the image's own."""
    row = vlm.builder.read(one.path, DESCRIBE)
    visual = vlm.builder.build([row], pixels=True)["input_ids"][0] == vlm.parts.image_token_id

    def enter(module: Any, arguments: Any, options: dict[str, Any]) -> Any:
        embeds = options["inputs_embeds"]
        if tokens is None or embeds.shape[1] != len(visual):
            return None  # vanilla, or a decode step
        embeds = embeds.clone()
        embeds[0, visual] = tokens.to(embeds)
        return arguments, {**options, "inputs_embeds": embeds}

    hook = vlm.parts.decoder.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        text = vlm.answer_rows([row], None)[0].text
    finally:
        hook.remove()
    return {mention.category for mention in find_mentions(text, "exact")}


def _score(named: list[set[str]], before: list[set[str]], truths: list[set[str]]) -> dict[str, Any]:
    def count(objects: list[set[str]]) -> tuple[Any, Any]:
        wrong = np.array([len(own - truth) for own, truth in zip(objects, truths)])
        recall = np.array([100.0 * len(own & truth) / max(1, len(truth)) for own, truth in zip(objects, truths)])
        return wrong, recall

    (wrong, recall), (wrong_before, recall_before) = count(named), count(before)
    return {
        "CHAIR_S": mean_interval(100.0 * (wrong > 0)),
        "wrong_objects": mean_interval(wrong),
        "recall": mean_interval(recall),
        "wrong_objects_change": mean_interval(wrong - wrong_before),
        "recall_change": mean_interval(recall - recall_before),
    }


def _by_crops(seen: list[tuple[int, bool, bool]], num_crops: int) -> list[dict[str, Any]]:
    """How often an object that vanilla names is still named, by the number of crops that show it."""
    edges = sorted({0, 1, *(max(1, num_crops * quarter // 4) for quarter in (1, 2, 3)), num_crops + 1})
    rows = []
    for low, high in itertools.pairwise(edges):
        for present in (True, False):
            still = [named for count, there, named in seen if low <= count < high and there is present]
            rows.append({"crops": [low, high - 1], "present": present, "still_named": mean_interval(still)})
    return rows


def _draw(numbers: dict[str, Any], num_crops: int) -> Figure:
    figure, (left, right) = new_figure(1, 2, (11, 3.6))
    series = (("wrong_objects_change", "wrong objects per image", "C3", 1.0), ("recall_change", "recall", "C0", 0.01))
    for k, (metric, label, color, scale) in enumerate(series):
        values = [numbers["conditions"][name][metric] for name in CONDITIONS]
        x = [place + 0.2 * k - 0.1 for place in range(len(values))]
        ends = [[scale * (v["value"] - v["low"]) for v in values], [scale * (v["high"] - v["value"]) for v in values]]
        left.errorbar(x, [scale * v["value"] for v in values], yerr=ends, fmt="o", color=color, label=label)
    left.axhline(0, color="0.7")
    left.set_xticks(range(len(CONDITIONS)), CONDITIONS, rotation=20, ha="right", fontsize=8)
    left.set_title("change against vanilla", fontsize=10)
    left.legend(fontsize=8)
    for present, color, label in ((True, "C2", "in the image"), (False, "C3", "not in the image")):
        rows = [r for r in numbers["still_named_by_crops"] if r["present"] is present and r["still_named"]["n"]]
        right.plot(
            [sum(r["crops"]) / 2 for r in rows],
            [r["still_named"]["value"] for r in rows],
            "o-",
            color=color,
            label=label,
        )
    right.set_xlabel(f"crops of {num_crops} that show the object")
    right.set_title("share of vanilla's objects still named", fontsize=10)
    right.legend(fontsize=8)
    return figure
