"""Cost of a new image on the embedded models: crop-blend over vanilla, and what the difference consists of.

Every answer is about an image that was not seen before: it is resized, encoded with its crops and answered with a fixed
number of tokens. The method runs with image and crops in one call of the vision tower, in two calls, and with smaller
crops where the tower takes them. All take turns; with one thread the seconds are processor seconds. Below that, the
parts of the work, each by itself; and whether the image's features in a shared call are those of a call of its own, bit
for bit, also on small random models of every family.

    OMP_NUM_THREADS=1 python -m experiments.speed.new_image [--rounds 15]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from airvlm import VLM, CropBlend, Method
from airvlm.bench.efficiency import Subject, vlm_subject
from airvlm.methods.evidence.base import CropMethod
from airvlm.methods.evidence.crops import CropQueue, crop_boxes
from airvlm.methods.evidence.matching import gather_evidence
from airvlm.models.parts import ModelParts
from airvlm.testing import small_models
from experiments.speed import timing

LENGTHS = (1, 16)  # tokens per answer
SMALL = {"photo": (192, 128, 96), "tiny": ()}  # sides of crops that the tower takes beside its own


def new_image_job(vlm: VLM, subject: Subject, method: Method | None, tokens: int, shared: bool) -> Callable[[], float]:
    """Seconds of an answer about a new image."""
    image = subject.image(0)

    def job() -> float:
        vlm.builder.cache.clear()
        if shared:
            return timing.time_job(lambda: subject.ask(method, image, tokens))
        with mock.patch.object(CropMethod, "further_views", return_value=None):
            return timing.time_job(lambda: subject.ask(method, image, tokens))

    return job


def measure_answers(vlm: VLM, name: str, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds per answer, by number of tokens and method."""
    subject, found = vlm_subject(vlm), {}
    methods: dict[str, tuple[Method | None, bool]] = {
        "vanilla": (None, True),
        "crop-blend": (CropBlend(), True),
        "crop-blend, two calls": (CropBlend(), False),
    }
    methods |= {f"crop-blend:crop_size={side}": (CropBlend(crop_size=side), True) for side in SMALL[name]}
    for tokens in LENGTHS:
        jobs = {key: new_image_job(vlm, subject, method, tokens, shared) for key, (method, shared) in methods.items()}
        found[str(tokens)] = timing.interleave(jobs, rounds)
    return found


def measure_parts(vlm: VLM, name: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each part of the work for one image."""
    parts, processor, image = vlm.parts, vlm.processor, vlm_subject(vlm).image(0)
    crops = [image.crop(box) for box in crop_boxes(image.size, CropBlend().num_crops)]
    whole, cut = parts.pixels(processor, [image]), parts.pixels(processor, crops)
    both = {key: torch.cat([whole[key], cut[key]]) for key in whole}
    tokens = CropQueue(parts, processor, {"image": image}, CropBlend().crop_plan()).finish()["image"]
    Z, spec = parts.encode(whole)[0], CropBlend().evidence_spec()
    jobs: dict[str, Callable[[], Any]] = {
        "resize the image": lambda: parts.pixels(processor, [image]),
        "resize 4 crops": lambda: parts.pixels(processor, crops),
        "encode the image": lambda: parts.encode(whole),
        "encode 4 crops": lambda: parts.encode(cut),
        "encode image and 4 crops": lambda: parts.encode(both),
        "transport and projection": lambda: gather_evidence([Z], [tokens], spec),
    }
    for side in SMALL[name]:
        plan = CropBlend(crop_size=side).crop_plan()
        small = CropQueue(parts, processor, {f"image at {side}": image}, plan).take()
        assert small is not None
        jobs[f"encode 4 crops at {side}"] = lambda small=small: parts.encode(small)
    equal = torch.equal(parts.encode(both)[0], Z)
    print(f"{name}: features of the image beside its crops are {'' if equal else 'not '}bit-equal to those of it alone")
    return timing.interleave({key: lambda job=job: timing.time_job(job) for key, job in jobs.items()}, rounds)


@torch.no_grad()
def compare_bits() -> dict[str, float]:
    """Largest difference between an image's features beside its crops and alone, over the largest feature."""
    found = {}
    image = small_models.sample_image(1, (64, 48))
    crops = [image.crop(box) for box in crop_boxes(image.size, CropBlend().num_crops)]
    for family in small_models.list_families():
        for dtype in (torch.float32, torch.bfloat16):
            model, processor = small_models.build(family)
            parts = ModelParts.of(model.to(dtype))
            (alone,) = parts.encode(parts.pixels(processor, [image]))
            beside = parts.encode(parts.pixels(processor, [image, *crops]))[0]
            difference = (alone.float() - beside.float()).abs().max() / alone.float().abs().max()
            found[f"{family}, {str(dtype).removeprefix('torch.')}"] = float(difference)
    return found


@torch.no_grad()
def main() -> None:
    given = timing.parse_arguments(__doc__ or "", rounds=15)
    result: dict[str, Any] = {}
    for name in SMALL:
        vlm = VLM.load(name)
        answers, parts = measure_answers(vlm, name, given.rounds), measure_parts(vlm, name, given.rounds)
        rows = [
            [tokens, key, f"{timing.median(taken[key]) * 1e3:.1f}", timing.show(over, 2)]
            for tokens, taken in answers.items()
            for key, over in timing.ratios(taken, "vanilla").items()
        ]
        title = f"A new image, {name}, {given.rounds} rounds"
        timing.print_table(title, ["tokens", "method", "ms", "ratio to vanilla: median [range]"], rows)
        milliseconds = {key: [1e3 * seconds for seconds in own] for key, own in parts.items()}
        rows = [[key, timing.show(own, 1)] for key, own in milliseconds.items()]
        timing.print_table(f"Parts of the work, {name}", ["part", "ms: median [range]"], rows)
        result[name] = {"answers": answers, "parts": parts}
    differences = result["differences"] = compare_bits()
    unequal = {key: value for key, value in differences.items() if value}
    print(f"\nsmall models: {len(differences) - len(unequal)} of {len(differences)} bit-equal; not equal: {unequal}")
    timing.write_result("new_image", result)


if __name__ == "__main__":
    main()
