"""Data sets of the hub: cards, hashes, renamed repositories, and the cache without a network."""

from __future__ import annotations

import errno
from pathlib import Path

import huggingface_hub.constants
import pytest

from airvlm.data.download import DataDamaged, DataUnreachable, DiskFull
from airvlm.data.hub import open_hub
from tests.data_sets.server import COMMIT, DataServer, Fault, make_parquet

ROWS = [{"id": n, "text": "x" * 30} for n in range(40)]
CARD = b"""---
configs:
- config_name: default
  data_files:
  - split: test
    path: data/test-*
- config_name: Full
  data_files:
  - split: random
    path: odd/place-*
---
# A data set
"""


def quiet(line: str) -> None:
    pass


def add(server: DataServer, name: str = "lab/Set", card: bytes = CARD) -> None:
    files = {
        "data/test-00000-of-00001.parquet": ROWS[:5],
        "odd/place-00000-of-00002.parquet": ROWS[5:15],
        "odd/place-00001-of-00002.parquet": ROWS[15:],
    }
    server.add_repository(name, {"README.md": card, **{path: make_parquet(rows) for path, rows in files.items()}})


def test_rows_of_the_files_that_the_card_lists(server: DataServer) -> None:
    add(server)
    repository = open_hub(["lab/Set"])
    said: list[str] = []
    assert list(repository.read_rows("random", "Full", said.append)) == ROWS[5:]
    assert repository.commit == COMMIT
    size = sum(len(content) for path, content in server.repositories["lab/Set"].items() if path.startswith("odd/"))
    assert said == [f"lab/Set on the hub: 2 files, {size / 1e6:.1f} MB"]


def test_without_a_usable_card_the_usual_names_are_tried(server: DataServer) -> None:
    add(server, card=b"no metadata")
    repository = open_hub(["lab/Set"])
    assert list(repository.read_rows("test", say=quiet)) == ROWS[:5]
    with pytest.raises(DataUnreachable, match=r"no parquet files of split random of Full .*it must have changed"):
        list(repository.read_rows("random", "Full", quiet))


def test_a_renamed_repository_is_found_by_its_other_name(server: DataServer) -> None:
    add(server, "old/Set")
    assert open_hub(["new/Set", "old/Set"]).name == "old/Set"
    with pytest.raises(DataUnreachable, match=r"new/Set is not there.*newer/Set is not there"):
        open_hub(["new/Set", "newer/Set"])


def test_a_torn_file_is_completed_and_a_damaged_one_fetched_again(server: DataServer) -> None:
    add(server)
    key = "lab/Set/odd/place-00000-of-00002.parquet"
    content = server.repositories["lab/Set"]["odd/place-00000-of-00002.parquet"]
    server.faults[key] = [Fault(cut=300)]
    assert open_hub(["lab/Set"]).get("odd/place-00000-of-00002.parquet").read_bytes() == content
    assert server.count("place-00000") == 2
    other = server.repositories["lab/Set"]["odd/place-00001-of-00002.parquet"]
    server.faults["lab/Set/odd/place-00001-of-00002.parquet"] = [Fault(content=b"x" * len(other))]
    assert open_hub(["lab/Set"]).get("odd/place-00001-of-00002.parquet").read_bytes() == other


def test_a_file_that_stays_damaged_is_refused_and_leaves_the_cache(server: DataServer, tmp_path: Path) -> None:
    add(server)
    content = server.repositories["lab/Set"]["odd/place-00000-of-00002.parquet"]
    server.faults["lab/Set/odd/place-00000-of-00002.parquet"] = [Fault(content=b"x" * len(content))] * 5
    with pytest.raises(DataDamaged, match="its sha256 is"):
        open_hub(["lab/Set"]).get("odd/place-00000-of-00002.parquet")
    server.faults.clear()
    assert open_hub(["lab/Set"]).get("odd/place-00000-of-00002.parquet").read_bytes() == content


def test_a_full_disk_is_told_with_what_to_do(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    add(server)
    repository = open_hub(["lab/Set"])

    def fill(*arguments: object, **options: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fill)
    with pytest.raises(DiskFull, match=r"free some room.*HF_HUB_CACHE"):
        list(repository.read_rows("test", say=quiet))


def test_what_is_cached_is_read_without_a_network(
    server: DataServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server)
    list(open_hub(["lab/Set"]).read_rows("random", "Full", quiet))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    before = len(server.requests)
    assert list(open_hub(["other/Set", "lab/Set"]).read_rows("random", "Full", quiet)) == ROWS[5:]
    assert len(server.requests) == before
    with pytest.raises(DataUnreachable, match="HF_HUB_OFFLINE is set"):
        open_hub(["other/Set"])
    next((tmp_path / "hub").rglob("place-00001-of-00002.parquet")).unlink()
    with pytest.raises(DataUnreachable, match="1 of 2 files"):
        list(open_hub(["lab/Set"]).read_rows("random", "Full", quiet))


def test_a_hub_that_is_away_is_named(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataUnreachable, match="lab/Set cannot be reached"):
        open_hub(["lab/Set"])
