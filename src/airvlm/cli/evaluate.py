"""`airvlm evaluate`: benchmarks under methods, every answer kept, tables that say what they are worth.

Knows the options and what to print; the evaluation itself is in airvlm.evaluation.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airvlm.cli import asking
from airvlm.cli.console import Failure, emit, err, out
from airvlm.cli.options import BatchOption, CurveOption, Evaluating, JsonOption, MethodsOption
from airvlm.evaluation import BATCH_SIZE

if (
    TYPE_CHECKING
):  # torch takes seconds to import: each function imports what it runs, so that --help does not
    from airvlm.evaluation.plan import Asked, ModelFacts
    from airvlm.evaluation.run import Run, TaskRun
    from airvlm.evaluation.shards import Shard
    from airvlm.vlm import VLM

__all__ = [
    "ask_tasks",
    "conclude",
    "default_folder",
    "evaluate",
    "place",
    "print_tables",
]

WIDE = 160  # characters of a table in a file


def evaluate(
    task: Annotated[list[str], typer.Argument(help="Tasks by name, as in tiny-chair tiny-pope.")],
    method: MethodsOption = None,
    how: Evaluating = Evaluating(),
    batch_size: BatchOption = BATCH_SIZE,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Processes of this machine that share the work.")
    ] = 1,
    shard: Annotated[str | None, typer.Option("--shard", help="Do part i of n only, as in 0/4.")] = None,
    ray: Annotated[int, typer.Option("--ray", min=0, help="Spread over N workers of a Ray cluster.")] = 0,
    ray_address: Annotated[
        str | None,
        typer.Option("--ray-address", help="Of a running cluster, or auto; else one is started here."),
    ] = None,
    curve: CurveOption = True,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    json: JsonOption = False,
) -> None:
    """Run benchmarks under methods and keep the answers.

    Plain greedy decoding (vanilla) always runs beside the methods. Without --method: air. Answers go to one file,
    one line each, as they come: stop it whenever you like, and the same command goes on. Ends with code 1 when more
    than 1 % of the answers failed or could not be read, or when a method never acted.

    Under [bold]accelerate launch -m airvlm.cli evaluate ...[/bold] the processes share the work.

    [bold]Examples[/bold]

    airvlm evaluate tiny-chair tiny-pope --method air --method memvr --method vcd --workers 2

    airvlm evaluate chair --data coco --model llava-hf/llava-1.5-7b-hf --max-new-tokens 64 --out runs/llava

    airvlm evaluate tiny-chair --shard 0/4 --out runs/tiny
    """
    from airvlm.evaluation.ray_cluster import Cluster
    from airvlm.evaluation.workers import working_together

    methods = {name: asking.chosen_method(name) for name in (method or ["air"])}
    place_here = place(shard)
    asked = ask_tasks(task, how, max_new_tokens=how.max_new_tokens)
    if sum([bool(ray), workers > 1, not place_here.whole]) > 1:
        raise Failure(
            "one of --workers, --ray, --shard and accelerate launch spreads the work, not two of them"
        )
    model = asking.model_for(task, how.model)
    loader = functools.partial(asking.load, model, how.adapter, how.dtype, **asking.loading_options(how))
    chosen = {name: one for name, one in methods.items() if one is not None}
    job = functools.partial(
        answer_part,
        loader,
        asked,
        chosen,
        how.out_folder,
        device=how.device,
        batch_size=batch_size,
        curve=curve,
    )
    if ray:
        with Cluster(functools.partial(loader, how.device), ray, ray_address) as cluster:
            run = job(place_here, worker=cluster.work, model=cluster.facts())
    elif workers > 1:
        with working_together(workers, functools.partial(job, progress=False)) as place_here:
            run = job(place_here)
    else:
        run = job(place_here)
    conclude(run, place_here, json=json, markdown=markdown)


def answer_part(
    loader: Callable[..., VLM],
    asked: list[Asked],
    methods: dict[str, Any],
    out_folder: Path | None,
    part: Shard,
    *,
    device: str | None,
    model: ModelFacts | None = None,  # of a cluster's workers; else the model is loaded here
    **how: Any,
) -> Run:
    """Our part of an evaluation, on our device; a function of its own, so that other processes can call it."""
    from airvlm.evaluation.evaluate import evaluate as run_evaluation
    from airvlm.evaluation.plan import ModelFacts

    vlm = None if model else loader(device or gpu_of(part))
    facts = model or ModelFacts.of(vlm)
    return run_evaluation(
        vlm, asked, methods, out_folder or default_folder(facts), shard=part, model=facts, **how
    )


def gpu_of(part: Shard) -> str | None:
    """The GPU that a part's process takes; with more processes than GPUs some share one."""
    import torch

    gpus = torch.cuda.device_count()
    return None if part.device is None or not gpus else f"cuda:{part.device % gpus}"


def place(shard: str | None) -> Shard:
    """Our part of the work, from --shard or from the launcher."""
    from airvlm.evaluation.shards import Shard

    try:
        launched = Shard.launched()
        if shard is None:
            return launched
        if not launched.whole:
            raise Failure("--shard under a launcher: one of the two says which part is ours, not both")
        return Shard.parse(shard)
    except ValueError as error:
        raise Failure(str(error)) from error


def ask_tasks(names: Sequence[str], how: Evaluating, **more: Any) -> list[Asked]:
    """The tasks with their items; anything missing ends the command before a model is loaded."""
    from airvlm.evaluation.plan import Asked
    from airvlm.tasks import load_task

    if len(set(names)) < len(names):
        raise Failure("the same task is named twice")
    asked = []
    for name in names:
        try:
            options = {"objects": str(how.objects.absolute())} if how.objects else {}
            spec = ({"variant": how.variant} if how.variant else {}) | (
                {"options": options} if options else {}
            )
            task = load_task(name, how.data, variant=how.variant, **options)
            asked.append(Asked.of(name, task, spec=spec, split=how.split, limit=how.limit, **more))
        except (ValueError, OSError) as error:
            raise Failure(str(error)) from error
        if not asked[-1].items:
            raise Failure(f"{name} has no items in its {how.split} split")
    return asked


def default_folder(facts: ModelFacts) -> Path:
    """A folder of the model's own under the working directory."""
    name = "".join(c if c.isalnum() or c in "-._" else "-" for c in Path(facts.name).name) or "model"
    return Path("airvlm-runs") / f"{name}-{facts.fingerprint[:8]}"


def print_tables(task: TaskRun) -> None:
    """A task's figures; where nobody watches (a file, a pipe) they may be wide."""
    from airvlm.reporting import tables

    console = out()
    console.width = console.width if console.is_terminal else max(console.width, WIDE)
    for table in tables.rich_tables(task, console.width):
        console.print(table, "")


def conclude(run: Run, shard: Shard, *, json: bool, markdown: bool = False) -> None:
    """Print the result; end with code 1 where it cannot be trusted."""
    from airvlm.reporting import tables

    left = sum(task.unanswered(label) for task in run.tasks.values() for label in task.methods)
    if not shard.gathers:
        if shard.helps:
            return  # the first process of the launch speaks for all
        err().print(
            f"part {shard.index}/{shard.count} is done; {left} answers of other parts are missing in {run.folder}"
        )
    if json:
        emit(tables.to_json(run))
    for task in run.tasks.values() if not json else ():
        if markdown:
            print(tables.markdown(task) + "\n")
        else:
            print_tables(task)
    if not json and not markdown:
        for line in tables.legend(run):
            out().print(line, style="dim")
    problems = run.problems()
    if not shard.gathers:
        problems = [problem for problem in problems if "nothing answered" not in problem]
    if problems:
        sys.stdout.flush()
        err().print(tables.problem_table(problems))
        raise typer.Exit(1)
