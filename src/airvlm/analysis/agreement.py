"""agreement: what survives when views of an image are blended into its tokens.

The account that it tests: blending keeps what the views have in common, so an object that few crops recognise is named
less. It could be wrong, and would be shown so: if blending views that disagree helped as much as views that agree, if
the same view twelve times helped, or if blended tokens helped when shuffled to the wrong places. Whether a crop shows
an object is read from the decoder's own head: its answer to a yes/no question about the crop.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from airvlm import AIR, VLM
from airvlm.analysis.result import Analysis, canvas, interval
from airvlm.analysis.samples import LabelledImage, crop_tokens, visual_tokens
from airvlm.inputs.prompts import DESCRIBE
from airvlm.methods.evidence.transport import cosine_cost, sinkhorn
from airvlm.tasks.words.objects import mentions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["agreement"]

ASKED = "Is there a {} in the image?"
CONDITIONS = (
    "all views",
    "views that agree",
    "views that disagree",
    "one view, twelve times",
    "one view, shuffled",
    "wrong places",
)


def agreement(
    vlm: VLM, samples: Sequence[LabelledImage], air: AIR, *, crops: int = 12, progress: bool = True
) -> Analysis:
    """Recognition of each object in each crop, and descriptions under each way of blending."""
    if any(sample.objects is None for sample in samples):
        raise ValueError("agreement needs to know what the images show: give --objects FILE")
    said: dict[str, list[set[str]]] = {name: [] for name in ("vanilla", *CONDITIONS)}
    seen: list[tuple[int, bool, bool, bool]] = []  # crops that recognise it, it is there, vanilla and the blend name it
    for i, sample in enumerate(tqdm(samples, desc="agreement", disable=not progress)):
        image = sample.image
        [Z] = visual_tokens(vlm, [image])
        boxes, views = crop_tokens(vlm, image, crops)
        plain = _named(_described(vlm, sample, None))
        objects = sorted(set(sample.objects or ()) | plain)
        recognised = _recognised(vlm, [image.crop(box) for box in boxes], objects)  # (M, objects)
        halves = _halves(recognised)
        chosen = {
            "all views": list(range(len(views))),
            "views that agree": halves[0],
            "views that disagree": halves[1],
            "one view, twelve times": [0] * len(views),
        }
        blends = {name: _carried(Z, [views[m] for m in own], air.eps) for name, own in chosen.items()}
        turned = torch.randperm(len(Z), generator=torch.Generator().manual_seed(i))
        blends["one view, shuffled"] = blends["one view, twelve times"][turned]
        blends["wrong places"] = blends["all views"][turned]
        said["vanilla"].append(plain)
        for name in CONDITIONS:
            said[name].append(_named(_described(vlm, sample, Z + air.weight * (blends[name] - Z))))
        for k, name in enumerate(objects):
            there = name in (sample.objects or ())
            seen.append((int(recognised[:, k].sum()), there, name in plain, name in said["all views"][-1]))
    truth = [set(sample.objects or ()) for sample in samples]
    numbers: dict[str, Any] = {
        "n": len(samples),
        "weight": air.weight,
        "conditions": {name: _scored(own, said["vanilla"], truth) for name, own in said.items()},
        "agree_minus_disagree": _scored(said["views that agree"], said["views that disagree"], truth),
        "named_by_recognition": _by_recognition(seen, crops),
    }
    wrong = {name: numbers["conditions"][name]["wrong_objects_change"] for name in CONDITIONS}
    finding = "Change of wrong objects per image against vanilla: " + "; ".join(
        f"{name} {v['value']:+.2f} [{v['low']:+.2f}, {v['high']:+.2f}]" for name, v in wrong.items()
    )
    apart = numbers["agree_minus_disagree"]["wrong_objects_change"]
    finding += f"; agree minus disagree {apart['value']:+.2f} [{apart['low']:+.2f}, {apart['high']:+.2f}]"
    return Analysis(
        "agreement",
        "What survives when views are blended?",
        finding + ".",
        numbers,
        _drawn(numbers, seen, crops),
    )


def _recognised(vlm: VLM, views: Sequence[Any], objects: Sequence[str]) -> np.ndarray:
    """(M, objects): whether the decoder, shown a crop alone, says that the object is there."""
    asked = [(view, ASKED.format(name)) for view in views for name in objects]
    answers = vlm.batch(asked, batch_size=64, progress=False, max_new_tokens=4)
    told = [answer.text.lower().startswith("yes") for answer in answers]
    return np.array(told).reshape(len(views), len(objects))


def _halves(recognised: np.ndarray) -> tuple[list[int], list[int]]:
    """The half of the views that is nearest to what the views say together, and the other half."""
    together = recognised.mean(axis=0)
    distance = np.abs(recognised - together).sum(axis=1)
    order = np.argsort(distance, kind="stable").tolist()
    return order[: len(order) // 2], order[len(order) // 2 :]


@torch.no_grad()
def _carried(Z: Tensor, views: Sequence[Tensor], eps: float) -> Tensor:
    """What the views say each visual token should be: (K, d), as AIR's transported reading computes it."""
    rows, costs = [], []
    for X in views:
        C = cosine_cost(Z, X)
        plan = sinkhorn(C, eps).plan  # (K, N)
        share = plan / plan.sum(-1, keepdim=True)
        rows.append(share @ X)
        costs.append((share * C).sum(-1))
    mix = torch.softmax(-torch.stack(costs) / eps, 0)  # (M, K)
    return (mix.unsqueeze(-1) * torch.stack(rows)).sum(0)


def _described(vlm: VLM, sample: LabelledImage, tokens: Tensor | None) -> str:
    """The description with these visual tokens in place of the image's own."""
    row = vlm.builder.read(sample.path, DESCRIBE)
    if tokens is None:
        return vlm.answer_rows([row], None)[0].text
    inputs = vlm.builder.inputs([row], pixels=True)
    visual = inputs["input_ids"][0] == vlm.parts.image_token_id

    def enter(module: Any, arguments: Any, options: dict[str, Any]) -> Any:
        embeds = options["inputs_embeds"]
        if embeds.shape[1] != len(visual):
            return None  # a decode step
        embeds = embeds.clone()
        embeds[0, visual] = tokens.to(embeds)
        return arguments, {**options, "inputs_embeds": embeds}

    hook = vlm.parts.decoder.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        return vlm.answer_rows([row], None)[0].text
    finally:
        hook.remove()


def _named(text: str) -> set[str]:
    return {mention.category for mention in mentions(text, "exact")}


def _scored(said: list[set[str]], plain: list[set[str]], truth: list[set[str]]) -> dict[str, Any]:
    wrong = np.array([len(own - there) for own, there in zip(said, truth)])
    before = np.array([len(own - there) for own, there in zip(plain, truth)])
    found = np.array([len(own & there) / max(1, len(there)) for own, there in zip(said, truth)])
    earlier = np.array([len(own & there) / max(1, len(there)) for own, there in zip(plain, truth)])
    return {
        "CHAIR_S": interval(100.0 * (wrong > 0)),
        "wrong_objects": interval(wrong),
        "recall": interval(100.0 * found),
        "wrong_objects_change": interval(wrong - before),
        "recall_change": interval(100.0 * (found - earlier)),
    }


def _by_recognition(seen: list[tuple[int, bool, bool, bool]], crops: int) -> list[dict[str, Any]]:
    """For objects that vanilla names: how often the blend still names them, by the crops that recognise them."""
    rows = []
    edges = [0, 1, 3, 6, 9, crops + 1]
    for low, high in itertools.pairwise(edges):
        for there in (True, False):
            own = [kept for count, t, plain, kept in seen if low <= count < high and t is there and plain]
            rows.append({"crops": [low, high - 1], "in_the_image": there, "still_named": interval(own)})
    return rows


def _drawn(numbers: dict[str, Any], seen: Any, crops: int) -> Figure:
    figure, (left, right) = canvas(1, 2, (11, 3.6))
    for x, name in enumerate(CONDITIONS):
        for metric, colour, shift in (("wrong_objects_change", "C3", -0.1), ("recall_change", "C0", 0.1)):
            v = numbers["conditions"][name][metric]
            scale = 0.01 if metric == "recall_change" else 1.0
            ends = [[scale * (v["value"] - v["low"])], [scale * (v["high"] - v["value"])]]
            label = {"wrong_objects_change": "wrong objects per image", "recall_change": "recall, share"}[metric]
            left.errorbar(
                x + shift,
                scale * v["value"],
                yerr=ends,
                fmt="o",
                color=colour,
                label=label if x == 0 else None,
            )
    left.axhline(0, color="0.7")
    left.set_xticks(range(len(CONDITIONS)), CONDITIONS, rotation=20, ha="right", fontsize=8)
    left.set_title("change against vanilla", fontsize=10)
    left.legend(fontsize=8)
    for there, colour in ((True, "C2"), (False, "C3")):
        rows = [r for r in numbers["named_by_recognition"] if r["in_the_image"] is there and r["still_named"]["n"]]
        middle = [sum(r["crops"]) / 2 for r in rows]
        values = [r["still_named"]["value"] for r in rows]
        right.plot(middle, values, "o-", color=colour, label="in the image" if there else "not in the image")
    right.set_xlabel(f"crops of {crops} that recognise the object")
    right.set_title("share of vanilla's objects still named", fontsize=10)
    right.legend(fontsize=8)
    figure.tight_layout()
    return figure
