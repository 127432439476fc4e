"""What `evaluate` and `ablate` share: tasks by name, processes that answer them, and how it ends when it is stopped.

Knows the options; the evaluation itself is in airvlm.evaluation.
"""

from __future__ import annotations

import functools
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airvlm.cli import asking
from airvlm.cli.console import Failure
from airvlm.cli.options import Evaluating, Loading

if TYPE_CHECKING:  # torch takes seconds to import: each function imports what it runs, so that --help does not
    from airvlm.evaluation.plan import Asked, ModelFacts
    from airvlm.evaluation.results import Results
    from airvlm.evaluation.shards import Shard
    from airvlm.vlm import VLM

__all__ = [
    "RowsOption",
    "WorkersOption",
    "answer",
    "ask_tasks",
    "default_folder",
    "gpu_of",
    "loader_of",
    "place",
]

OWN_IMAGES = 500  # of one's own that are asked about; more with a larger --limit
RowsOption = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, help="Questions that run together. Default: what fits the memory."),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="Processes of this machine that share the work. Default: one a core for a small model, else one.",
    ),
]


def loader_of(how: Loading, tasks: Sequence[str]) -> Callable[..., VLM]:
    """Loads the command's model on a device; picklable, so that other processes can call it."""
    _check_device(how.device)
    model = asking.model_for(tasks, how.model)
    return functools.partial(asking.load, model, how.adapter, how.dtype, **asking.loading_options(how))


def _check_device(device: str | None) -> None:
    """A device that is not there ends the command in one line, before anything is loaded."""
    if device is None:
        return
    import torch

    try:
        torch.empty(0, device=device)
    except Exception as error:  # torch says it in several ways, by its kind and by the device
        raise Failure(f"--device {device} cannot be used here: {str(error).splitlines()[0]}") from error


def answer(
    vlm: VLM | None,
    loader: Callable[..., VLM],
    asked: list[Asked],
    methods: dict[str, Any],
    out_folder: Path | None,
    *,
    place_here: Shard,
    workers: int | None = None,
    batch_size: int | None = None,
    ray: int = 0,
    ray_address: str | None = None,
    device: str | None = None,
    **how: Any,
) -> tuple[Results, Shard]:
    """The evaluation, by as many processes as asked for or as suit the model; and which part of it was ours."""
    from airvlm.evaluation.plan import ModelFacts
    from airvlm.evaluation.resources import chosen
    from airvlm.evaluation.workers import working_together

    check_spread(ray, workers, place_here)
    how["command"] = {
        "command": shlex.join(["airvlm", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }
    if ray:
        from airvlm.evaluation.ray_cluster import Cluster

        with Cluster(functools.partial(loader, device), ray, ray_address) as cluster:
            facts = cluster.facts()
            folder = out_folder or default_folder(facts)
            with stoppable(folder):
                size = batch_size or chosen(None, 0).batch_size
                run = answer_part(
                    None,
                    asked,
                    methods,
                    folder,
                    place_here,
                    worker=cluster.work,
                    model=facts,
                    batch_size=size,
                    **how,
                )
                return run, place_here
    vlm = vlm or loader(device or gpu_of(place_here))
    folder = out_folder or default_folder(ModelFacts.of(vlm))
    share = _left(asked, methods, folder) // place_here.count
    alone = 1 if not place_here.whole else workers
    use = chosen(vlm, share, workers=alone, batch_size=batch_size)
    how["batch_size"] = use.batch_size
    others = functools.partial(_other_part, loader, asked, methods, folder, device, how)
    with stoppable(folder), working_together(use.workers, others, use.threads) as part:
        part = part if use.workers > 1 else place_here
        return answer_part(vlm, asked, methods, folder, part, **how), part


def check_spread(ray: int, workers: int | None, place_here: Shard) -> None:
    """Two ways to spread the work at once end the command."""
    if sum([bool(ray), (workers or 1) > 1, not place_here.whole]) > 1:
        raise Failure("one of --workers, --ray, --shard and accelerate launch spreads the work, not two of them")


def _left(asked: list[Asked], methods: dict[str, Any], folder: Path) -> int:
    """About how many answers are still to be given; the curve's controls counted as some more methods."""
    from airvlm.evaluation.store import Store, StoreError

    wanted = sum(len(one.items) * (1 + len(methods if one.methods is None else one.methods)) for one in asked)
    try:
        return max(0, wanted - len(Store(folder, readonly=True)))
    except StoreError:
        return wanted


def answer_part(
    vlm: VLM | None, asked: list[Asked], methods: dict[str, Any], folder: Path, part: Shard, **how: Any
) -> Results:
    """Our part of an evaluation."""
    from airvlm.evaluation.evaluate import evaluate as run_evaluation

    return run_evaluation(vlm, asked, methods, folder, shard=part, **how)


def _other_part(
    loader: Callable[..., VLM],
    asked: list[Asked],
    methods: dict[str, Any],
    folder: Path,
    device: str | None,
    how: dict[str, Any],
    part: Shard,
) -> Results:
    """Another process's part, with a model of its own, on its device."""
    return answer_part(loader(device or gpu_of(part)), asked, methods, folder, part, **{**how, "progress": False})


@contextmanager
def stoppable(folder: Path) -> Iterator[None]:
    """Stopped by Ctrl-C or SIGTERM, the command says what was kept and how to go on."""
    from airvlm.evaluation.store import Store, StoreError
    from airvlm.evaluation.workers import terminated_as_interrupted

    try:
        with terminated_as_interrupted():
            yield
    except KeyboardInterrupt:
        try:
            kept = f"{len(Store(folder, readonly=True))} answers are kept in {folder}"
        except StoreError:
            kept = "nothing was answered yet"
        raise Failure(f"stopped; {kept}; the same command goes on from there", code=130) from None


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
            options: dict[str, Any] = {"objects": str(how.objects.absolute())} if how.objects else {}
            if how.objects and how.limit and how.limit > OWN_IMAGES:
                options["count"] = how.limit
            spec = ({"variant": how.variant} if how.variant else {}) | ({"options": options} if options else {})
            task = load_task(name, how.data, variant=how.variant, **options)
            asked.append(Asked.of(name, task, spec=spec, split=how.split, limit=how.limit, **more))
        except (ValueError, OSError, NotImplementedError) as error:
            raise Failure(str(error) or f"{name} cannot be evaluated") from error
        if not asked[-1].items:
            raise Failure(f"{name} has no items in its {how.split} split")
    return asked


def default_folder(facts: ModelFacts) -> Path:
    """A folder of the model's own under the working directory."""
    name = "".join(c if c.isalnum() or c in "-._" else "-" for c in Path(facts.name).name) or "model"
    return Path("airvlm-runs") / f"{name}-{facts.fingerprint[:8]}"
