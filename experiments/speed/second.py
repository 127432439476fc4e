"""Cost of the second question about an image: crops and transport are cached, and should cost almost nothing.

Measured on the embedded models, whose whole answer takes milliseconds, and on a LLaVA with a quarter of the 7B
model's widths (or all of them: --scale 1), which is closer to what users run. Vanilla and crop-blend alternate.

    python -m experiments.speed.second [--rounds 20] [--scale 4] [--layers 4]
"""

from __future__ import annotations

from collections.abc import Callable

from airvlm import VLM, CropBlend, Method
from airvlm.bench.efficiency import Subject, vlm_subject, wide_subject
from airvlm.bench.wide import WideLlava
from experiments.speed import timing

LENGTHS = (1, 12)  # tokens per answer


def ask_job(subject: Subject, method: Method | None, tokens: int) -> Callable[[], float]:
    """Seconds of an answer about an image that was asked about before."""
    image = subject.image(0)
    return lambda: timing.time_job(lambda: subject.ask(method, image, tokens))


def main() -> None:
    given = timing.parse_arguments(__doc__ or "", rounds=20, scale=4, layers=4)
    wide = wide_subject(WideLlava(given.layers, 2, given.scale), "")
    cases = {
        "tiny": (vlm_subject(VLM.load("tiny")), given.rounds),
        "photo": (vlm_subject(VLM.load("photo")), given.rounds),
        f"LLaVA, widths / {given.scale}, {given.layers} layers": (wide, max(1, given.rounds // 4)),
    }
    rows, result = [], {}
    for name, (subject, rounds) in cases.items():
        for tokens in LENGTHS:
            jobs = {"vanilla": ask_job(subject, None, tokens), "crop-blend": ask_job(subject, CropBlend(), tokens)}
            taken = timing.interleave(jobs, rounds)  # the round that is not recorded asks the first question
            vanilla, blend = (timing.median(taken[job]) * 1e3 for job in jobs)
            over = result[f"{name}, {tokens} tokens"] = timing.ratios(taken, "vanilla")["crop-blend"]
            rows.append([name, str(tokens), f"{vanilla:.1f}", f"{blend - vanilla:.1f}", timing.show(over)])
    head = ["model", "tokens", "vanilla, ms", "more, ms", "ratio to vanilla: median [range]"]
    timing.print_table("The second question about an image, crop-blend over vanilla", head, rows)
    timing.write_result("second", {"ratios": result})


if __name__ == "__main__":
    main()
