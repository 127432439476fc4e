"""crops: a gallery of images with the crops that were used and not used, their distances, and the prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.patches import Rectangle

from airvlm import VLM, Method
from airvlm.analysis.base import (
    Analysis,
    LabeledImage,
    crop_method,
    mean_interval,
    new_figure,
    square_grid,
    visual_tokens,
)
from airvlm.inputs.prompts import DESCRIBE
from airvlm.methods.evidence.base import CropMethod
from airvlm.methods.evidence.prototypes import select_prototypes
from airvlm.report import Crop

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["analyze_crops"]

ROWS, THUMBNAILS = 8, 12  # images and crops per image in the drawing


def analyze_crops(
    vlm: VLM, images: Sequence[LabeledImage], method: Method | None, *, progress: bool = True
) -> Analysis:
    """The crops of each image, by the method's own report."""
    method = crop_method(method)
    requests = [(one.path, DESCRIBE) for one in images]
    reports = [answer.report for answer in vlm.batch(requests, method=method, progress=progress, max_new_tokens=1)]
    crops = [report.crops[0] if report is not None and report.crops else () for report in reports]
    distances = [crop.distance for own in crops for crop in own]
    mean = mean_interval(distances)
    used = [sum(crop.kept for crop in own) for own in crops]
    numbers = {
        "n": len(images),
        "method": method.to_json(),
        "distance": mean,
        "used_per_image": mean_interval(used),
        "images": [
            {"image": one.name, "crops": [{"box": c.box, "distance": c.distance, "used": c.kept} for c in own]}
            for one, own in zip(images, crops)
        ],
    }
    finding = (
        f"{method.label} used {sum(used)} of {len(distances)} crops; distances are {mean['value']:.3f} on average, "
        f"{min(distances, default=0):.3f} to {max(distances, default=0):.3f}."
    )
    question = "Which crops are used, and where are the prototypes?"
    return Analysis("crops", question, finding, numbers, _draw(vlm, images[:ROWS], crops, method))


def _draw(vlm: VLM, images: Sequence[LabeledImage], crops: Sequence[Sequence[Crop]], method: CropMethod) -> Figure:
    columns = 1 + min(THUMBNAILS, method.num_crops)
    figure, axes = new_figure(len(images), columns, (1.2 * columns + 1.2, 1.5 * len(images)), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for row, one, own in zip(axes, images, crops):
        image = one.image
        row[0].imshow(image)
        [tokens] = visual_tokens(vlm, [image])
        sides, Q = square_grid(len(tokens)), method.evidence_spec().count_prototypes(len(tokens))
        if sides is not None and len(tokens) > Q:
            width, height = image.width / sides[1], image.height / sides[0]
            for k in select_prototypes(tokens, Q).indices.tolist():
                corner = (k % sides[1] * width, k // sides[1] * height)
                row[0].add_patch(Rectangle(corner, width, height, fill=False, edgecolor="white", linewidth=0.5))
        row[0].set_title("all tokens" if len(tokens) == Q else f"{Q} prototypes", fontsize=7)
        for axis, crop in zip(row[1:], sorted(own, key=lambda crop: crop.distance)):
            axis.imshow(image.crop(crop.box))
            word, color = ("used", "green") if crop.kept else ("not used", "red")
            axis.set_title(f"{crop.distance:.3f} {word}", fontsize=7, color=color)
    return figure
