"""A real Ray cluster of two workers on this machine: same answers, and a death costs nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from functools import partial
from pathlib import Path

import pytest
from commands import PACE, PIDS, running, wait_for_answers
from fake_models import FakeVLM, MortalVLM, PlainMethod, first_come

from airvlm.evaluation.evaluate import Evaluation
from airvlm.evaluation.plan import ModelInfo, TaskSpec
from airvlm.evaluation.ray_cluster import Cluster
from airvlm.evaluation.run import run_batches
from airvlm.evaluation.spread import Runner
from airvlm.evaluation.store import FILE

ray = pytest.importorskip("ray", reason="needs the ray extra")
pytestmark = pytest.mark.slow

METHODS = {"better": PlainMethod(0.7)}
TASKS = ["fake-captions", "fake-questions"]


def start(**options) -> None:
    """A small cluster; Ray gives up after 30 seconds, which a machine at its limits may need: then once more."""
    for _ in range(2):
        try:
            ray.init(
                address="local",
                num_cpus=2,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="warning",
                object_store_memory=80 * 2**20,
                **options,
            )
            return
        except Exception as error:
            ray.shutdown()
            if "timed out during startup" not in str(error):
                raise
    pytest.skip("Ray could not start a cluster within 30 seconds, twice: this machine is too busy")


@pytest.fixture(scope="module")
def ray_here(tmp_path_factory):
    """One cluster for all tests of this file: starting it costs more than they do."""
    sources = [Path(__file__).parent, Path(__file__).parents[2] / "src"]
    # in a folder of its own, with a short name (it holds sockets), and never in /dev/shm, which may be too small;
    # Ray's processes may still write there when it is removed
    place = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
    with place as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)  # or Ray would write one into the home folder
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, sources)))  # for the workers of every driver
        patch.setenv(PIDS, str(tmp_path_factory.mktemp("pids")))
        patch.setenv(PACE, "0.02")
        start(_temp_dir=folder, _plasma_directory=folder)
        try:
            yield
        finally:
            ray.shutdown()


def lines(folder: Path) -> dict[str, dict]:
    found = [json.loads(line) for line in (folder / FILE).read_bytes().splitlines()]
    assert len({record["key"] for record in found}) == len(found)
    return {record["key"]: {k: v for k, v in record.items() if k != "seconds"} for record in found}


def job(tasks=TASKS, methods=METHODS) -> Evaluation:
    return Evaluation([TaskSpec.of(task) for task in tasks], methods, curve=False)


def run(folder: Path, load, tasks=TASKS, methods=METHODS, workers=2):
    with Cluster(load, workers) as cluster:
        runner = Runner(cluster.run_batches, cluster.model(), cluster.depth(), folder, batch_size=16, progress=False)
        return job(tasks, methods).run(runner)


def run_alone(folder: Path) -> None:
    vlm = FakeVLM()
    job().run(Runner(partial(run_batches, vlm), ModelInfo.of(vlm), 6, folder, batch_size=16, progress=False))


def test_two_workers_write_the_records_of_one_process(ray_here, tmp_path):
    run_alone(tmp_path / "one")
    run(tmp_path / "two", FakeVLM)
    assert lines(tmp_path / "two") == lines(tmp_path / "one")


def test_a_worker_that_dies_is_restarted_and_loses_nothing(ray_here, tmp_path):
    (tmp_path / "deaths").mkdir()
    run_alone(tmp_path / "one")
    found = run(tmp_path / "two", partial(MortalVLM, tmp_path / "deaths", lives=2), workers=1)
    assert len(list((tmp_path / "deaths").iterdir())) == 2 and found.problems() == []
    assert lines(tmp_path / "two") == lines(tmp_path / "one")


def test_a_batch_that_always_kills_its_worker_ends_as_an_error_of_its_items(ray_here, tmp_path):
    (tmp_path / "deaths").mkdir()
    load = partial(MortalVLM, tmp_path / "deaths", lives=10**6)
    found = run(tmp_path / "out", load, tasks=["fake-captions"], methods={}, workers=1).tasks["fake-captions"]
    errors = {record.error for record in found.records("vanilla") if record.error}
    assert errors == {"the worker died 3 times on this batch"}
    assert found.count_failed("vanilla") == 16 and found.count_unanswered("vanilla") == 0
    assert len(list((tmp_path / "deaths").iterdir())) == 3


def test_a_worker_that_cannot_load_its_model_is_left_out(ray_here, tmp_path):
    (tmp_path / "room").mkdir()
    found = run(tmp_path / "out", partial(first_come, tmp_path / "room"))
    assert found.problems() == []


def test_no_model_at_all_is_an_error(ray_here, tmp_path):
    with pytest.raises(RuntimeError, match=r"no worker could load the model(.|\n)*FileNotFoundError"):
        run(tmp_path / "out", partial(first_come, tmp_path / "absent"))


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes as Linux shows them")
def test_a_driver_that_is_killed_leaves_no_worker_and_the_same_command_goes_on(ray_here, commands, tmp_path):
    evaluate_them = [
        "evaluate",
        *TASKS,
        "--method",
        "better:bias=0.7",
        "--no-curve",
        "--batch-size",
        "8",
        "--json",
    ]
    alone = commands.start(evaluate_them, tmp_path / "alone")
    expected = alone.communicate()[0]
    assert alone.returncode == 0
    # another driver of the cluster that is already there
    address = ray.get_runtime_context().gcs_address
    on_ray = [*evaluate_them, "--ray", "1", "--ray-address", address]
    holders = Path(os.environ[PIDS])
    before = set(holders.iterdir())
    driver = commands.start(on_ray, tmp_path / "out")
    wait_for_answers(tmp_path / "out", driver)
    workers = [int(path.name) for path in set(holders.iterdir()) - before]
    assert workers and all(map(running, workers)), driver.communicate()[1]
    time.sleep(random.Random(0).uniform(0, 0.2))
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    kept = lines(tmp_path / "out")
    assert 0 < len(kept) < len(lines(tmp_path / "alone")), "killed too early or too late to show anything"
    deadline = time.time() + 120
    while any(map(running, workers)) and time.time() < deadline:
        time.sleep(0.05)
    assert not any(map(running, workers))
    again = commands.start(on_ray, tmp_path / "out")
    said = again.communicate()
    assert again.returncode == 0, said[1]
    assert said[0] == expected
    assert lines(tmp_path / "out") == lines(tmp_path / "alone")


def test_no_worker_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        Cluster(FakeVLM, 0)
