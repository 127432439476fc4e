"""`airvlm bench`: what methods cost in time and memory, measured on this machine in one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airvlm.cli import common
from airvlm.cli.console import Failure, emit, print_columns
from airvlm.cli.options import JsonOption, ModelOptions, methods_option, option

if TYPE_CHECKING:
    from airvlm.bench.efficiency import Cost, Subject
    from airvlm.bench.methods import MethodCost

__all__ = ["bench"]

DEFAULT = ("vanilla", "crop-blend", "air:keep=3", "air-memory:keep=3", "memvr", "vaf", "vcd")
WIDE = "wide"
PHASES = ("prefill", "decode", "total")
MODEL_HELP = "photo, tiny, wide (LLaVA-7B's widths, random weights), a folder, or a name on the hub. Repeatable."


def bench(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="methods", help="With `methods`, every method is measured, prefill and decode apart, in batches."
        ),
    ] = None,
    model: Annotated[list[str] | None, option("--model -m", "NAME", MODEL_HELP, show_default="tiny and wide")] = None,
    method: Annotated[list[str] | None, methods_option(f"{', '.join(DEFAULT)}; with `methods`, all")] = None,
    repeats: Annotated[int, option("--repeats", "N", "Rounds after the warm-up.", min=1)] = 5,
    tokens: Annotated[int, option("--tokens", "N", "Tokens of every answer.", min=1)] = 32,
    batch: Annotated[
        list[int] | None,
        option("--batch", "N", "With `methods`: batch sizes. Repeatable.", min=1, show_default="1 and 16"),
    ] = None,
    markdown: Annotated[bool, option("--markdown", None, "With `methods`: print Markdown tables.")] = False,
    cpu_time: Annotated[
        bool, option("--cpu-time", None, "With `methods`: count this process's CPU time, on a CPU that is shared.")
    ] = False,
    layers: Annotated[int, option("--layers", "N", "Decoder layers of the model wide.", min=2)] = 2,
    json: JsonOption = False,
) -> None:
    """Measure the speed and memory of methods against vanilla.

    The methods take turns, each answer is about a new image and has the same number of tokens. Ratios are to the first
    method in the same round; medians with their range are printed. `airvlm bench methods` measures every method of the
    registry, prefill and decode apart, for one image and in batches.

    \b
    Examples:
      airvlm bench --model tiny --repeats 2 --tokens 8
      airvlm bench --model photo --method vanilla --method crop-blend --repeats 2
      airvlm bench methods --model tiny --method vcd --method pai --batch 1 --repeats 1 --tokens 4
    LLaVA-1.5-7B's widths need 4 GB of memory and minutes:
      airvlm bench --model wide --method vanilla --method crop-blend
    """
    import torch
    from tqdm import tqdm

    from airvlm.bench.efficiency import count_answers, measure

    if what is not None:
        if what != "methods":
            raise Failure(
                f"unknown argument {what!r}; models are given by --model, and `methods` measures every method"
            )
        _bench_methods(
            model or ["tiny"],
            method,
            batch or [1, 16],
            repeats,
            tokens,
            cpu_time=cpu_time,
            json=json,
            markdown=markdown,
        )
        return

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


def _bench_methods(
    models: Sequence[str],
    names: Sequence[str] | None,
    batches: Sequence[int],
    repeats: int,
    tokens: int,
    *,
    cpu_time: bool,
    json: bool,
    markdown: bool,
) -> None:
    import tempfile
    import time
    from pathlib import Path

    import torch
    from tqdm import tqdm

    from airvlm.bench.efficiency import noise_image, scene_image
    from airvlm.bench.methods import count_batches, measure_methods
    from airvlm.evaluation.plan import TaskSpec
    from airvlm.leaderboard.methods import choose_methods, make_artifacts

    chosen, skipped = choose_methods(names or ["all"])
    results = []
    for name in models:
        vlm = common.load_model(ModelOptions(model=name))
        with tempfile.TemporaryDirectory() as folder:  # artifacts of a few images: what they hold costs nothing
            made = make_artifacts(vlm, chosen, [TaskSpec.of("tiny-chair", limit=1)], Path(folder))
            methods: dict[str, Any] = {"vanilla": None, **made}
            image = scene_image if vlm.name == "tiny" else noise_image
            with tqdm(total=count_batches(methods, repeats, batches), unit="batch", disable=None) as bar:

                def show(what: str, bar: Any = bar) -> None:
                    bar.set_description(what, refresh=False)
                    bar.update()

                costs = measure_methods(
                    vlm,
                    methods,
                    image,
                    batches=batches,
                    repeats=repeats,
                    tokens=tokens,
                    clock=time.process_time if cpu_time else None,
                    progress=show,
                )
        results.append((vlm.name, costs))
    threads = torch.get_num_threads()
    if json:
        found = [{"model": name, "methods": [cost.to_json() for cost in costs]} for name, costs in results]
        emit({"threads": threads, "tokens": tokens, "repeats": repeats, "results": found, "skipped": skipped})
        return
    for name, costs in results:
        if markdown:
            print(f"{name}: {tokens} tokens per answer, {repeats} rounds, {threads} thread(s)\n")
            _print_markdown(costs, batches)
            continue
        for size in batches:
            print(f"{name}, batch of {size}: {tokens} tokens per answer, {repeats} rounds, {threads} thread(s)\n")
            _print_phases([cost for cost in costs if cost.batch == size], repeats)
    for name, why in skipped.items():
        print(f"{name}: {why}")


def _print_markdown(costs: Sequence[MethodCost], batches: Sequence[int]) -> None:
    """One row per method, medians with their ranges, as docs/results/methods-cost.md has them."""
    print("| method | " + " | ".join(f"{phase}, batch {size}" for size in batches for phase in PHASES[:2]) + " |")
    print("|---|" + "---:|" * (2 * len(batches)))
    for label in dict.fromkeys(cost.method for cost in costs):
        cells = [f"`{label}`"]
        for cost in costs:
            if cost.method == label:
                row = cost.to_json()
                for phase in PHASES[:2]:
                    span = row.get(f"{phase}_range")
                    cells.append("{:.2f} [{:.2f}, {:.2f}]".format(row[phase], *span) if span else "")
        print("| " + " | ".join(cells) + " |")
    print()
    for cost in costs:
        if cost.problem is not None:
            print(f"`{cost.method}`, batch {cost.batch}: {cost.problem}")


def _print_phases(costs: Sequence[MethodCost], repeats: int) -> None:
    rows: list[tuple[str, ...]] = [("method", "prefill", "range", "decode", "range", "all", "range", "acted")]
    for cost in costs:
        if cost.problem is not None:
            rows.append((cost.method, *[""] * 6, cost.problem[:80]))
            continue
        row = cost.to_json()
        cells = [
            f"{row[n]:.2f}" if k == 0 else "{:.2f}-{:.2f}".format(*row[f"{n}_range"]) for n in PHASES for k in (0, 1)
        ]
        rows.append((cost.method, *cells, "" if cost.method == "vanilla" else f"{cost.acted} of {repeats}"))
    print_columns(rows, indent=2, right=range(1, 8))
    print()


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
