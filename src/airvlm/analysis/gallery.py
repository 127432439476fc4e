"""crops: a gallery of images with the crops that were kept and dropped, their distances, and the prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.patches import Rectangle

from airvlm import AIR, VLM
from airvlm.analysis.result import Analysis, canvas, interval
from airvlm.analysis.samples import LabelledImage, grid, visual_tokens
from airvlm.inputs.prompts import DESCRIBE
from airvlm.methods.evidence.prototypes import how_many, prototypes
from airvlm.report import Crop

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["crops"]

THUMBNAILS = 12


def crops(vlm: VLM, samples: Sequence[LabelledImage], method: AIR, *, progress: bool = True) -> Analysis:
    """What AIR looked at, image by image."""
    answers = list(
        vlm.batch(
            [(s.path, DESCRIBE) for s in samples],
            method=method,
            progress=progress,
            max_new_tokens=1,
        )
    )
    reports = [answer.report for answer in answers]
    shown = [report.crops[0] if report is not None and report.crops else () for report in reports]
    distances = [crop.distance for own in shown for crop in own]
    kept = [sum(crop.kept for crop in own) for own in shown]
    told = interval(distances)
    return Analysis(
        "crops",
        "Which crops were kept, which dropped, and where do the prototypes lie?",
        f"{sum(kept)} of {len(distances)} crops were kept; distances are {told['value']:.3f} on average, "
        f"{min(distances, default=0):.3f} to {max(distances, default=0):.3f}.",
        {
            "n": len(samples),
            "method": method.to_json(),
            "distance": told,
            "kept_per_image": interval(kept),
            "images": [
                {
                    "image": sample.name,
                    "crops": [{"box": c.box, "distance": c.distance, "kept": c.kept} for c in own],
                }
                for sample, own in zip(samples, shown)
            ],
        },
        _drawn(vlm, samples[:8], shown, method),
    )


def _drawn(vlm: VLM, samples: Sequence[LabelledImage], shown: Sequence[Sequence[Crop]], method: AIR) -> Figure:
    columns = 1 + THUMBNAILS
    figure, axes = canvas(len(samples), columns, (1.2 * columns + 1.2, 1.5 * len(samples)), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for row, sample, own in zip(axes, samples, shown):
        image = sample.image
        row[0].imshow(image)
        [tokens] = visual_tokens(vlm, [image])
        sides = grid(len(tokens))
        if sides is not None:
            wide, high = image.width / sides[1], image.height / sides[0]
            for k in prototypes(tokens, how_many(method.top_q, len(tokens))).indices.tolist():
                corner = (k % sides[1] * wide, k // sides[1] * high)
                row[0].add_patch(Rectangle(corner, wide, high, fill=False, edgecolor="white", linewidth=0.5))
        row[0].set_title("prototypes", fontsize=7)
        nearest = sorted(own, key=lambda crop: crop.distance)[:THUMBNAILS]
        for axis, crop in zip(row[1:], nearest):
            axis.imshow(image.crop(crop.box))
            word, colour = ("kept", "green") if crop.kept else ("dropped", "red")
            axis.set_title(f"{crop.distance:.3f} {word}", fontsize=7, color=colour)
    figure.tight_layout()
    return figure
