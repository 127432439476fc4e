"""`airvlm bench`: what methods cost in time and memory, measured on this machine in one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from airvlm.cli import common
from airvlm.cli.console import Failure, emit, print_columns
from airvlm.cli.options import JsonOption, MethodsOption, ModelOptions, option

if TYPE_CHECKING:
    from airvlm.bench.efficiency import Cost, Subject

__all__ = ["bench"]

DEFAULT = ("vanilla", "crop-blend", "air:keep=3", "air-memory:keep=3", "memvr", "vaf", "vcd")
WIDE = "wide"
MODEL_HELP = "photo, tiny, wide (LLaVA-7B's widths, random weights), a folder, or a name on the hub. Repeatable."


def bench(
    model: Annotated[list[str] | None, option("--model -m", "NAME", MODEL_HELP, show_default="tiny and wide")] = None,
    method: MethodsOption = None,
    repeats: Annotated[int, option("--repeats", "N", "Rounds after the warm-up.", min=1)] = 5,
    tokens: Annotated[int, option("--tokens", "N", "Tokens of every answer.", min=1)] = 32,
    layers: Annotated[int, option("--layers", "N", "Decoder layers of the model wide.", min=2)] = 2,
    json: JsonOption = False,
) -> None:
    """Measure the speed and memory of methods against vanilla.

    The methods take turns, each answer is about a new image and has the same number of tokens. Ratios are to the first
    method in the same round; medians with their range are printed. Without --method all published methods are measured.

    \b
    Examples:
      airvlm bench --model tiny --repeats 2 --tokens 8
      airvlm bench --model photo --method vanilla --method crop-blend --repeats 2
    LLaVA-1.5-7B's widths need 4 GB of memory and minutes:
      airvlm bench --model wide --method vanilla --method crop-blend
    """
    import torch
    from tqdm import tqdm

    from airvlm.bench.efficiency import count_answers, measure

    chosen = [common.choose_method(name) for name in method or DEFAULT]
    methods = {"vanilla" if one is None else one.label: one for one in chosen}
    if len(methods) < len(chosen):
        raise Failure("--method: the same method is given twice")
    subjects = [_load_subject(name, layers) for name in model or ("tiny", WIDE)]
    measured = []
    with tqdm(total=len(subjects) * count_answers(methods, repeats), unit="answer", disable=None) as bar:

        def show(what: str) -> None:
            bar.set_description(what, refresh=False)
            bar.update()

        for subject in subjects:
            measured.append((subject, measure(subject, methods, repeats=repeats, tokens=tokens, progress=show)))
    threads = torch.get_num_threads()
    if json:
        results = [
            {"model": s.name, "note": s.note, "tokens": tokens, "methods": [cost.to_json() for cost in costs]}
            for s, costs in measured
        ]
        emit({"threads": threads, "results": results})
        return
    for subject, costs in measured:
        print(f"{subject.name} ({subject.note}): {tokens} tokens per answer, {repeats} rounds, {threads} thread(s)")
        _print_table(costs, repeats)


def _load_subject(name: str, layers: int) -> Subject:
    from airvlm.bench.efficiency import vlm_subject, wide_subject
    from airvlm.bench.wide import WideLlava

    if name == WIDE:
        note = f"random weights, {layers} of 32 decoder layers and 2 of 24 in the vision tower, 576 visual tokens"
        return wide_subject(WideLlava(layers), note)
    return vlm_subject(
        common.load_model(ModelOptions(model=name)), "its own images" if name == "tiny" else "noise images"
    )


def _print_table(costs: Sequence[Cost], repeats: int) -> None:
    rows = [("method", "s / answer", "tokens / s", "peak memory", f"x {costs[0].method}", "range", "acted")]
    for cost in costs:
        row = cost.to_json()
        low, high = row["ratio_range"]
        rows.append(
            (
                cost.method,
                f"{row['seconds']:.3f}",
                f"{row['tokens_per_second']:.1f}",
                "?" if cost.memory is None else f"{cost.memory / 2**20:.0f} MiB",
                f"{row['ratio']:.2f}",
                f"{low:.2f}-{high:.2f}",
                "" if cost.method == "vanilla" else f"{cost.acted} of {repeats}",
            )
        )
    print_columns(rows, indent=2, right=range(1, 7))
    print()
