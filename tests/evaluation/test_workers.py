"""Which part of the work a process takes."""

from __future__ import annotations

import pytest

from airvlm.evaluation.workers import Shard


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("first", [0, 1])
def test_shards_cover_the_work_once_whether_counted_from_zero_or_one(count, first):
    parts = [Shard.parse(f"{i}/{count}").share(range(11)) for i in range(first, first + count)]
    assert sorted(i for part in parts for i in part) == list(range(11))


@pytest.mark.parametrize("text", ["", "3", "4/3", "a/b", "0/0", "-1/2", "1/2/3"])
def test_a_shard_that_cannot_be_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="as in 0/4"):
        Shard.parse(text)


def test_a_launcher_is_recognized_by_its_environment():
    shard = Shard.of(None, {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})
    assert (shard.index, shard.count, shard.device, shard.helps) == (5, 8, 1, True)
    assert Shard.of(None, {}) == Shard.of(None, {"RANK": "0", "WORLD_SIZE": "1"}) == Shard()
    with pytest.raises(ValueError, match="WORLD_SIZE"):
        Shard.of(None, {"RANK": "x", "WORLD_SIZE": "2"})
    with pytest.raises(ValueError, match="under a launcher"):
        Shard.of("0/2", {"RANK": "0", "WORLD_SIZE": "2"})
    assert Shard.of("1/2", {}) == Shard.of(Shard(1, 2), {}) == Shard(1, 2)


def test_one_process_of_a_launch_gathers_and_no_scheduled_shard_does():
    assert [Shard(i, 3, helps=True).gathers for i in range(3)] == [True, False, False]
    assert Shard().gathers and not Shard.parse("0/3").gathers


def test_who_helps_does_its_own_part_first_and_the_others_from_their_far_end():
    shard = Shard(0, 2, helps=True)
    assert shard.share(range(6)) == [0, 2, 4, 5, 3, 1]


@pytest.mark.parametrize(
    ("device", "gpus", "name"), [(None, 2, None), (1, 0, None), (1, 2, "cuda:1"), (3, 2, "cuda:1")]
)
def test_processes_share_the_gpus(device, gpus, name, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert Shard(device=device).gpu() == name
