"""`airvlm bench methods`: the paper's efficiency table, measured on this machine in one interleaved run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from airvlm import tiny
from airvlm.cli.asking import chosen_method, load
from airvlm.cli.console import Failure, emit, out, warn
from airvlm.cli.options import JsonOption

if TYPE_CHECKING:  # torch takes seconds to import: each function imports what it runs, so that --help does not
    from airvlm.bench.efficiency import Cost, Subject

__all__ = ["bench"]

DEFAULT = ("vanilla", "air", "air-paper:keep=3", "air-lineage:keep=3", "memvr", "vaf", "vcd")
EMBEDDED, WIDE = "embedded", "wide"


def bench(
    what: Annotated[str, typer.Argument(help="What to measure: methods.")] = "methods",
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="embedded, wide (LLaVA-7B's widths, random weights), a folder or a name. Repeatable. Default: both.",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help=f"Which; repeat it. Ratios are to the first. Default: {', '.join(DEFAULT)}."),
    ] = None,
    methods: Annotated[str | None, typer.Option("--methods", help="Deprecated: the same, separated by commas.")] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="ModelLock after the warm-up.")] = 5,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens of every answer.")] = 32,
    layers: Annotated[int, typer.Option("--layers", min=2, help="Decoder layers of the wide model.")] = 2,
    json: JsonOption = False,
) -> None:
    """Measure speed and memory against vanilla.

    All methods answer in turns, each answer about a new image and of the same length; medians with their spread.

    [bold]Examples[/bold]

    airvlm bench methods

    airvlm bench methods --model wide --layers 4 --method vanilla --method air --method vcd

    airvlm bench methods --model llava-hf/llava-1.5-7b-hf --tokens 64
    """
    import torch
    from tqdm import tqdm

    from airvlm.bench.efficiency import answers, measure

    if what != "methods":
        raise Failure(f"bench cannot measure {what!r}; it measures: methods")
    if methods is not None:
        method = [*(method or ()), *split(methods)]
        if not method:
            raise Failure("--methods is empty: name at least one, as in --method vanilla --method air")
    named = {name: chosen_method(name) for name in method or DEFAULT}
    if methods is not None:
        warn("--methods is deprecated: repeat --method, as in --method vanilla --method air")
    subjects = [_subject(name, layers) for name in model or _present()]
    measured = []
    with tqdm(total=len(subjects) * answers(named, repeats), unit="answer") as bar:

        def begun(what: str) -> None:
            bar.set_description(what, refresh=False)
            bar.update()

        for subject in subjects:
            measured.append((subject, measure(subject, named, repeats=repeats, tokens=tokens, progress=begun)))
    if not json:
        for subject, costs in measured:
            _show(subject, costs, repeats, tokens)
        return
    results = [
        {
            "model": subject.name,
            "note": subject.note,
            "tokens": tokens,
            "methods": [cost.to_json() for cost in costs],
        }
        for subject, costs in measured
    ]
    emit({"threads": torch.get_num_threads(), "results": results})


def split(text: str) -> list[str]:
    """Method names at commas; a comma inside a method's own fields belongs to it (`air:keep=3,eps=0.1,vcd`)."""
    parts: list[str] = []
    depth = 0
    for piece in text.split(","):
        # `field=value` goes on with the method before it, and so does anything inside parentheses.
        goes_on = parts and (depth > 0 or ("=" in piece.split(":")[0] and ":" in parts[-1]))
        if goes_on:
            parts[-1] += "," + piece
        elif piece.strip():
            parts.append(piece.strip())
        depth += piece.count("(") - piece.count(")")
    return parts


def _present() -> list[str]:
    """The models to measure when none is named."""
    return [EMBEDDED, WIDE] if (Path(tiny.model_path()) / "config.json").is_file() else [WIDE]


def _subject(name: str, layers: int) -> Subject:
    from airvlm.bench.efficiency import vlm_subject, wide_subject
    from airvlm.bench.wide import WideLlava

    if name == WIDE:
        note = f"random weights, {layers} of 32 decoder layers and 2 of 24 in the vision tower, 576 visual tokens"
        return wide_subject(WideLlava(layers), note)
    if name == EMBEDDED:
        return vlm_subject(load("tiny"), "the embedded model, on its own scenes")
    return vlm_subject(load(name))


def _show(subject: Subject, costs: Sequence[Cost], repeats: int, tokens: int) -> None:
    import torch

    console = out()
    console.print(f"[bold]{escape(subject.name)}[/bold]  {escape(subject.note)}")
    console.print(
        f"[dim]{tokens} tokens an answer, median of {repeats} turns, {torch.get_num_threads()} thread(s)[/dim]"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("method")
    for title in ("s / answer", "tokens / s", "peak memory", f"x {costs[0].method}", "spread", "acted"):
        table.add_column(title, justify="right")
    for cost in costs:
        row = cost.to_json()
        low, high = row["ratio_spread"]
        table.add_row(
            escape(cost.method),
            f"{row['seconds']:.3f}",
            f"{row['tokens_per_second']:.1f}",
            _bytes(cost.memory),
            f"{row['ratio']:.2f}",
            f"{low:.2f}–{high:.2f}",
            "" if cost.method in ("vanilla", "none") else f"{cost.acted} of {repeats}",
        )
    console.print(table)
    console.print()


def _bytes(count: Any) -> str:
    return "?" if count is None else f"{count / 2**20:.0f} MiB"
