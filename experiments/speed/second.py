"""The second question about an image, with AIR over without: crops and transport are kept, and should cost nothing.

On the embedded model, whose whole answer takes milliseconds, and on a LLaVA of a quarter of the 7B model's widths (or
--scale 1: all of them), which is nearer to what users run. The image is new to no answer that is measured. Both ask in
turns; seconds are of the processor where there is one thread, by the clock on the wall otherwise.

    python -m experiments.speed.second [--repeats 20] [--scale 4] [--layers 4]
"""

from __future__ import annotations

from collections.abc import Callable

from airvlm import AIR, VLM
from airvlm.bench.efficiency import Subject, vlm_subject, wide_subject
from airvlm.bench.wide import WideLlava
from airvlm.methods.base import Method
from experiments.speed import llava_widths as llava

TARGET = 1.02


def asking(subject: Subject, method: Method | None, tokens: int) -> Callable[[], float]:
    image = subject.image(0)
    return lambda: llava.seconds(lambda: subject.ask(method, image, tokens))


def main() -> None:
    given = llava.arguments(__doc__ or "", repeats=20, scale=4, layers=4)
    wide = WideLlava(given.layers, 2, given.scale)
    cases = {
        "embedded": (vlm_subject(VLM.load("tiny")), (1, 12), given.repeats),
        f"LLaVA, widths / {given.scale}, {given.layers} layers": (
            wide_subject(wide, ""),
            (1, 12),
            max(1, given.repeats // 4),
        ),
    }
    rows, result = [], {}
    for name, (subject, lengths, repeats) in cases.items():
        for tokens in lengths:
            jobs = {"vanilla": asking(subject, None, tokens), "air": asking(subject, AIR(), tokens)}
            taken = llava.interleaved(jobs, repeats)  # its warm-up is the first question
            vanilla, air = (llava.median(taken[who]) for who in jobs)
            over = llava.median(llava.ratios(taken, "vanilla")["air"])
            result[f"{name}, {tokens} tokens"] = over
            more = f"{(air - vanilla) * 1e3:.1f}"
            rows.append([name, str(tokens), f"{vanilla * 1e3:.1f}", more, f"{over:.3f}", str(TARGET)])
    head = ["model", "tokens", "vanilla, ms", "more, ms", "over vanilla", "at most"]
    llava.table("The second question about an image, AIR() over vanilla", head, rows)
    llava.write("second", {"over_vanilla": result})


if __name__ == "__main__":
    main()
