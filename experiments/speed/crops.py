"""What encoding an image's crops costs, beside its prefill and 64 decoded tokens, and how often it is paid.

Counted in FLOPs (two a weight and token, and the attention's products) and measured at LLaVA-1.5-7B's widths with
its 24-layer tower: the encoder on `--crops` crops scaled to twelve (it is linear in them), a decoder layer's prefill
and decode step scaled to 32 layers and 64 tokens. Then six questions about one image, as POPE asks: the crops are
encoded for the first and remembered for the others.

    python -m experiments.speed.crops [--crops 3] [--repeats 3]
"""

from __future__ import annotations

from typing import Any

import torch

from airvlm import AIR
from airvlm.inputs.cache import cache_of
from airvlm.methods.evidence.crops import crop_boxes, crops
from airvlm.models.parts import ModelParts
from experiments.speed import llava_widths as llava
from experiments.speed.transport import GPU_BYTES, GPU_FLOPS, on_a_gpu

M, DECODED, QUESTIONS = 12, 64, 6
UPDATES = {
    0.03: 27,
    0.1: 12,
}  # of the slowest crop by eps, on tokens drawn like trained ones (benchmarks.transport)


def flops() -> dict[str, float]:
    """Arithmetic of the real model: 32 decoder layers, 24 tower layers (the last is run, though not read)."""
    L = llava.K + llava.TEXT_TOKENS
    tower_tokens, w = llava.K + 1, llava.TOWER_WIDTH
    tower_layer = 2 * tower_tokens * (4 * w**2 + 2 * w * llava.TOWER_FFN) + 4 * tower_tokens**2 * w
    patches = 2 * llava.K * 3 * llava.PATCH**2 * w
    projector = 2 * llava.K * (w * llava.WIDTH + llava.WIDTH**2)
    image = llava.TOWER_LAYERS * tower_layer + patches + projector
    layer = 2 * L * llava.LAYER_WEIGHTS + 2 * L**2 * llava.WIDTH  # half of the attention is masked
    step = llava.LAYERS * (2 * llava.LAYER_WEIGHTS + 4 * L * llava.WIDTH) + 2 * llava.HEAD_WEIGHTS
    return {
        "crops": M * image,
        "image": image,
        "prefill": llava.LAYERS * layer + 2 * llava.HEAD_WEIGHTS,
        "decoding": DECODED * step,
    }


def end_to_end_on_a_gpu(count: dict[str, float]) -> float:
    """Time over vanilla by arithmetic: products in prefill and encoder, a step reading all weights, transport."""
    weights = 2 * (llava.LAYERS * llava.LAYER_WEIGHTS + llava.HEAD_WEIGHTS)  # bytes in half precision
    vanilla = (count["image"] + count["prefill"]) / GPU_FLOPS + DECODED * weights / GPU_BYTES
    eps = AIR().eps
    return 1 + (count["crops"] / GPU_FLOPS + on_a_gpu(eps, UPDATES[eps])["seconds"]) / vanilla


def measured(model: Any, cut: list[Any], repeats: int) -> dict[str, float]:
    """Seconds of the crops, a prefill and the decoding at full size, each scaled from what was run."""
    parts, prompt = ModelParts.of(model), llava.prompt()
    features = llava.encoded(model, llava.sample_image())
    pixels = parts.pixels(llava.processor(), cut)
    length = prompt["input_ids"].shape[1]
    token = {"input_ids": torch.tensor([[7]]), "attention_mask": torch.ones(1, length + 1, dtype=torch.long)}
    inside: list[float] = []  # clock at the layer's two ends, so that the head is not scaled with it
    (layer,) = model.get_decoder().layers
    hooks = [
        layer.register_forward_pre_hook(lambda *_: inside.append(llava.clock())),
        layer.register_forward_hook(lambda *_: inside.append(llava.clock())),
    ]

    def in_layer(**inputs: Any) -> float:
        inside.clear()
        model(**inputs, use_cache=True, logits_to_keep=1)
        return inside[1] - inside[0]

    jobs = {
        "crops": lambda: llava.seconds(lambda: parts.encode(pixels)) * M / len(cut),
        "prefill": lambda: in_layer(**prompt, **features) * llava.LAYERS,
        "decoding": lambda: (
            in_layer(**token, past_key_values=llava.filled_cache(model, length)) * llava.LAYERS * DECODED
        ),
    }
    taken = llava.interleaved(jobs, repeats)
    for hook in hooks:
        hook.remove()
    return {name: llava.median(own) for name, own in taken.items()}


def six_questions(model: Any, patches: int) -> tuple[list[float], int]:
    """Seconds of the evidence of each question about one image, and how many images' crops were encoded."""
    image, method = llava.sample_image(), AIR.transported(patches=patches)
    processor = llava.processor()  # one for all: what another has made of an image would be made anew
    inputs = {**llava.prompt(), **llava.encoded(model, image)}
    cache_of(model).clear()
    before, each = cache_of(model).computed["crops"], []
    for question in range(QUESTIONS):
        inputs["input_ids"][0, -1] = 100 + question
        with (
            llava.without_arithmetic(model),
            method(model, processor, images=[[image.copy()]], check_images=False),
        ):
            each.append(llava.seconds(lambda: model(**inputs, logits_to_keep=1)))
    return each, cache_of(model).computed["crops"] - before


@torch.no_grad()
def main() -> None:
    given = llava.arguments(__doc__ or "", crops=3, repeats=3)
    model, image = llava.build(1, llava.TOWER_LAYERS), llava.sample_image()
    cut = crops(image, crop_boxes(image.size, given.crops))
    count, taken = flops(), measured(model, cut, given.repeats)
    over = {
        "FLOPs": count["crops"] / (count["prefill"] + count["decoding"]),
        "seconds": taken["crops"] / (taken["prefill"] + taken["decoding"]),
    }
    rows = [
        [name, f"{count[name] / 1e12:.2f}", f"{taken[name]:.1f}", f"{count[name] / taken[name] / 1e9:.0f}"]
        for name in taken
    ]
    title = f"{M} crops beside one prefill and {DECODED} decoded tokens (seconds scaled to full size)"
    llava.table(title, ["part", "TFLOPs", "seconds", "GFLOP/s"], rows)
    print(f"crops over prefill and decoding: {over['FLOPs']:.3f} in FLOPs, {over['seconds']:.3f} measured here")
    gpu = end_to_end_on_a_gpu(count)
    print(f"by arithmetic on a GPU (150 TFLOP/s, 1.5 TB/s), end to end over vanilla: {gpu:.3f}")
    each, encoded = six_questions(model, given.crops)
    later = llava.median(each[1:])
    print(
        f"\n{QUESTIONS} questions, one image, {given.crops} crops: encoded {encoded} time(s); first question "
        f"{each[0]:.2f} s, later ones {later:.3f} s ({each[0] / later:.0f} times less)"
    )
    llava.write(
        "crops",
        {
            "flops": count,
            "seconds_at_full_size": taken,
            "crops_over_prefill_and_decoding": over,
            "gpu_end_to_end_over_vanilla": gpu,
            "questions": {"crops": given.crops, "seconds": each, "images_encoded": encoded},
        },
    )


if __name__ == "__main__":
    main()
