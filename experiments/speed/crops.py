"""Cost of encoding an image's crops, beside its prefill and 64 decoded tokens, and how often it is paid.

Counted in FLOPs (two per weight and token, and the attention's products) and measured at the widths of LLaVA-1.5-7B
with its 24-layer tower: the encoder on `--crops` crops scaled to the method's number (it is linear in them), a decoder
layer's prefill and decode step scaled to 32 layers and 64 tokens. Then six questions about one image, as in POPE: the
crops are encoded for the first one and cached for the others.

    python -m experiments.speed.crops [--crops 3] [--rounds 3]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from airvlm import AIR, CropBlend
from airvlm.bench.wide import PATCH, TOWER_FFN, TOWER_WIDTH, WIDTH, WORDS, K, wide_processor, wide_prompt
from airvlm.inputs.cache import cache_of
from airvlm.methods.evidence.base import CropMethod
from airvlm.methods.evidence.crops import crop_boxes
from airvlm.models.parts import ModelParts
from experiments.speed import llava_widths as llava
from experiments.speed import timing
from experiments.speed.transport import GPU_BYTES, GPU_FLOPS, estimate_gpu

DECODED, QUESTIONS = 64, 6
METHODS: dict[str, CropMethod] = {"crop-blend": CropBlend(), "air": AIR()}
# Sinkhorn updates of the slowest crop by eps, on tokens drawn like trained ones (experiments.speed.transport)
UPDATES = {0.03: 27, 0.1: 12}


def count_flops() -> dict[str, float]:
    """FLOPs of the real model: 32 decoder layers, 24 tower layers (the last is computed, though not used)."""
    length, tower_tokens, w = K + WORDS, K + 1, TOWER_WIDTH
    tower_layer = 2 * tower_tokens * (4 * w**2 + 2 * w * TOWER_FFN) + 4 * tower_tokens**2 * w
    patches = 2 * K * 3 * PATCH**2 * w
    projector = 2 * K * (w * WIDTH + WIDTH**2)
    layer = 2 * length * llava.LAYER_WEIGHTS + 2 * length**2 * WIDTH  # half of the attention is masked
    step = llava.LAYERS * (2 * llava.LAYER_WEIGHTS + 4 * length * WIDTH) + 2 * llava.HEAD_WEIGHTS
    return {
        "crop": llava.TOWER_LAYERS * tower_layer + patches + projector,
        "prefill": llava.LAYERS * layer + 2 * llava.HEAD_WEIGHTS,
        "decoding": DECODED * step,
    }


def estimate_end_to_end(flops: dict[str, float], method: CropMethod) -> float:
    """Ratio to vanilla on a GPU by arithmetic: products in prefill and encoder, weights read per step, transport."""
    weights = 2 * (llava.LAYERS * llava.LAYER_WEIGHTS + llava.HEAD_WEIGHTS)  # bytes in half precision
    vanilla = (flops["crop"] + flops["prefill"]) / GPU_FLOPS + DECODED * weights / GPU_BYTES
    spec = method.evidence_spec()
    transport = estimate_gpu(spec.eps, UPDATES[spec.eps], method.num_crops, spec.count_prototypes(K))["seconds"]
    return 1 + (method.num_crops * flops["crop"] / GPU_FLOPS + transport) / vanilla


def measure_parts(model: Any, crops: list[Any], rounds: int) -> dict[str, list[float]]:
    """Seconds of one crop, of a prefill and of the decoding, scaled to full size."""
    parts, prompt = ModelParts.of(model), wide_prompt()
    features = llava.encode_image(model, llava.sample_image())
    pixels = parts.pixels(wide_processor(), crops)
    length = prompt["input_ids"].shape[1]
    token = {"input_ids": torch.tensor([[7]]), "attention_mask": torch.ones(1, length + 1, dtype=torch.long)}
    times: list[float] = []  # at the two ends of the layer, so that the head is not scaled with it
    (layer,) = model.get_decoder().layers
    hooks = [
        layer.register_forward_pre_hook(lambda *_: times.append(timing.clock())),
        layer.register_forward_hook(lambda *_: times.append(timing.clock())),
    ]

    def time_layer(**inputs: Any) -> float:
        times.clear()
        model(**inputs, use_cache=True, logits_to_keep=1)
        return times[1] - times[0]

    jobs: dict[str, Callable[[], float]] = {
        "crop": lambda: timing.time_job(lambda: parts.encode(pixels)) / len(crops),
        "prefill": lambda: time_layer(**prompt, **features) * llava.LAYERS,
        "decoding": lambda: (
            time_layer(**token, past_key_values=llava.fill_cache(model, length)) * llava.LAYERS * DECODED
        ),
    }
    taken = timing.interleave(jobs, rounds)
    for hook in hooks:
        hook.remove()
    return taken


def ask_repeatedly(model: Any, num_crops: int) -> tuple[list[float], int]:
    """Seconds of the evidence for each question about one image, and the number of images whose crops were encoded."""
    image, method = llava.sample_image(), CropBlend(num_crops=num_crops)
    processor = wide_processor()  # one for all questions: the cache is by processor
    inputs = {**wide_prompt(), **llava.encode_image(model, image)}
    cache_of(model).clear()
    before, seconds = cache_of(model).computed["crops"], []
    for question in range(QUESTIONS):
        inputs["input_ids"][0, -1] = 100 + question
        with (
            llava.without_arithmetic(model),
            method(model, processor, images=[[image.copy()]], check_images=False),
        ):
            seconds.append(timing.time_job(lambda: model(**inputs, logits_to_keep=1)))
    return seconds, cache_of(model).computed["crops"] - before


@torch.no_grad()
def main() -> None:
    given = timing.parse_arguments(__doc__ or "", crops=3, rounds=3)
    model, image = llava.build(1, llava.TOWER_LAYERS), llava.sample_image()
    crops = [image.crop(box) for box in crop_boxes(image.size, given.crops)]
    flops, taken = count_flops(), measure_parts(model, crops, given.rounds)
    rows = [
        [name, f"{flops[name] / 1e12:.2f}", timing.show(own, 1), f"{flops[name] / timing.median(own) / 1e9:.0f}"]
        for name, own in taken.items()
    ]
    title = f"One crop, a prefill and {DECODED} decoded tokens (seconds scaled to full size)"
    timing.print_table(title, ["part", "TFLOPs", "seconds: median [range]", "GFLOP/s"], rows)
    rest = flops["prefill"] + flops["decoding"]
    result: dict[str, Any] = {"flops": flops, "seconds_at_full_size": taken}
    rows = []
    for name, method in METHODS.items():
        m = method.num_crops
        measured = [m * c / (p + d) for c, p, d in zip(*taken.values(), strict=True)]
        gpu = estimate_end_to_end(flops, method)
        result[name] = {"by_flops": m * flops["crop"] / rest, "measured": measured, "gpu_ratio_to_vanilla": gpu}
        rows.append([name, str(m), f"{m * flops['crop'] / rest:.3f}", timing.show(measured), f"{gpu:.3f}"])
    head = ["method", "crops", "by FLOPs", "measured: median [range]", "GPU, end to end over vanilla"]
    timing.print_table("Crops over prefill and decoding; the GPU by arithmetic (150 TFLOP/s, 1.5 TB/s)", head, rows)
    seconds, encoded = ask_repeatedly(model, given.crops)
    later = timing.median(seconds[1:])
    print(
        f"\n{QUESTIONS} questions about one image, {given.crops} crops, encoded {encoded} time(s): first question "
        f"{seconds[0]:.2f} s, later ones {later:.3f} s ({seconds[0] / later:.0f} times less)"
    )
    result["questions"] = {"crops": given.crops, "seconds": seconds, "images_encoded": encoded}
    timing.write_result("crops", result)


if __name__ == "__main__":
    main()
