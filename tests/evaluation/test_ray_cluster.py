"""A real Ray cluster of two workers on this machine: same answers, and a death costs nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fakes import FakeMethod, FakeVLM

from airvlm.evaluation.evaluate import evaluate
from airvlm.evaluation.ray_cluster import Cluster
from airvlm.evaluation.store import FILE

ray = pytest.importorskip("ray", reason="needs the ray extra")
pytestmark = pytest.mark.slow

METHODS = {"better": FakeMethod("better", 0.7)}
TASKS = ["fake-captions", "fake-questions"]


class Mortal(FakeVLM):
    """Kills its process on one picture, `lives` times over all workers; the folder remembers."""

    def __init__(self, folder: Path, lives: int) -> None:
        super().__init__()
        self.folder, self.lives = folder, lives

    def batch(self, requests, **options):
        requests = list(requests)
        dead = len(list(self.folder.iterdir()))
        if any(str(picture) == "test/11.png" for picture, _ in requests) and dead < self.lives:
            (self.folder / f"death-{dead}").touch()
            os._exit(1)
        return super().batch(requests, **options)


@pytest.fixture(scope="module")
def ray_here():
    """One cluster for all tests of this file: starting it costs more than they do."""
    tests = str(Path(__file__).parent)
    sources = str(Path(__file__).parents[2] / "src")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    environment = {"PYTHONPATH": os.pathsep.join([tests, sources])}
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80 * 2**20,
        runtime_env={"env_vars": environment},
    )
    yield
    ray.shutdown()


def lines(folder: Path) -> dict[str, dict]:
    found = [json.loads(line) for line in (folder / FILE).read_bytes().splitlines()]
    assert len({record["key"] for record in found}) == len(found)
    return {record["key"]: {k: v for k, v in record.items() if k != "seconds"} for record in found}


def run(folder: Path, load, tasks=TASKS, methods=METHODS):
    with Cluster(load, workers=2) as cluster:
        facts = cluster.facts()
        return evaluate(
            None, tasks, methods, folder, worker=cluster.work, model=facts, curve=False, progress=False
        )


def test_two_workers_write_the_records_of_one_process(ray_here, tmp_path):
    evaluate(FakeVLM(), TASKS, METHODS, tmp_path / "one", curve=False, progress=False)
    run(tmp_path / "two", FakeVLM)
    assert lines(tmp_path / "two") == lines(tmp_path / "one")


def test_a_worker_that_dies_is_restarted_and_loses_nothing(ray_here, tmp_path):
    (tmp_path / "deaths").mkdir()
    evaluate(FakeVLM(), TASKS, METHODS, tmp_path / "one", curve=False, progress=False)
    found = run(tmp_path / "two", lambda: Mortal(tmp_path / "deaths", lives=2))
    assert len(list((tmp_path / "deaths").iterdir())) == 2 and found.problems() == []
    assert lines(tmp_path / "two") == lines(tmp_path / "one")


def test_a_batch_that_always_kills_its_worker_ends_as_an_error_of_its_items(ray_here, tmp_path):
    (tmp_path / "deaths").mkdir()
    load = lambda: Mortal(tmp_path / "deaths", lives=10**6)  # noqa: E731  # as the other test has it
    found = run(tmp_path / "out", load, tasks=["fake-captions"], methods={}).tasks["fake-captions"]
    errors = {record.error for record in found.records("vanilla") if record.error}
    assert errors == {"the worker died 3 times on this batch"}
    assert found.failed("vanilla") == 16 and found.unanswered("vanilla") == 0


def test_no_worker_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        Cluster(FakeVLM, 0)
