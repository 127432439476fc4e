"""The user's copies: interrupted, damaged, repaired, shared by processes, and without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airvlm.data import (
    DataUnreachable,
    DiskFull,
    Need,
    download,
    fetch_data,
    find_data,
    find_need,
    get_data_folder,
    get_status,
    verify_data,
)
from airvlm.storage.jsonl import lock_file
from tests.data_sets import sources
from tests.data_sets.server import DataServer, Fault, make_image

IMAGE = "images.cocodataset.org/val2014/COCO_val2014_000000000001.jpg"


@pytest.fixture
def pope(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> Need:
    sources.add_pope(server, monkeypatch)
    need = find_need("pope")
    assert need is not None
    return need


def quiet(line: str) -> None:
    pass


def test_an_interrupted_fetch_goes_on_with_what_is_missing(server: DataServer, pope: Need) -> None:
    server.faults[IMAGE] = [Fault(status=503)] * 10
    with pytest.raises(DataUnreachable, match="pope: "):
        fetch_data(pope, quiet)
    assert not get_status(pope).complete
    server.faults.clear()
    asked = len(server.requests)
    folder = fetch_data(pope, quiet)
    assert get_status(pope).complete
    again = [request.path for request in server.requests[asked:]]
    assert IMAGE in again and not any("coco_pope" in path for path in again)
    assert (folder / "val2014/COCO_val2014_000000000001.jpg").read_bytes() == make_image(1)
    assert not list(folder.rglob("*.part*"))


def test_repope_shares_the_images_of_pope(server: DataServer, pope: Need) -> None:
    folder = fetch_data(pope, quiet)
    before = server.count("val2014")
    assert find_data("repope", say=quiet) == folder
    assert server.count("val2014") == before + 1  # the one image that POPE does not ask about


def test_the_manifest_names_license_sources_and_hashes(pope: Need, server: DataServer) -> None:
    folder = fetch_data(pope, quiet)
    manifest = json.loads((folder / ".airvlm/coco.json").read_text())
    assert manifest["license"].startswith("questions Apache-2.0") and len(manifest["files"]) == 6
    assert "http://images.cocodataset.org/val2014/" in manifest["sources"]
    facts = manifest["files"]["val2014/COCO_val2014_000000000001.jpg"]
    assert facts["size"] == len(make_image(1)) and len(facts["sha256"]) == 64


def test_verify_finds_and_repairs_what_is_damaged_or_missing(server: DataServer, pope: Need) -> None:
    folder = fetch_data(pope, quiet)
    assert verify_data(pope) == []
    damaged, missing = (folder / f"val2014/COCO_val2014_00000000000{n}.jpg" for n in (1, 2))
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + b"x")
    missing.unlink()
    assert [line.rsplit(" ", 1)[1] for line in verify_data(pope)] == ["damaged", "missing"]
    assert damaged.exists()
    before = len(server.requests)
    verify_data(pope, repair=True)
    fetch_data(pope, quiet)
    assert damaged.read_bytes() == content and missing.exists() and verify_data(pope) == []
    assert len(server.requests) == before + 2


def test_a_file_that_was_cut_makes_the_data_incomplete(server: DataServer, pope: Need) -> None:
    folder = fetch_data(pope, quiet)
    questions = folder / "coco_pope_random.json"
    whole = questions.read_bytes()
    questions.write_bytes(whole[:-9])
    assert not get_status(pope).complete
    fetch_data(pope, quiet)
    assert questions.read_bytes() == whole


def test_a_full_disk_is_told_before_anything_is_fetched(
    server: DataServer, pope: Need, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "SPARE", 1 << 60)
    with pytest.raises(DiskFull, match="AIRVLM_CACHE"):
        fetch_data(pope, quiet)
    assert not server.requests


def test_without_a_network_what_is_here_is_used(
    server: DataServer, pope: Need, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataUnreachable, match=r"airvlm data get pope.*or give --data FOLDER"):
        fetch_data(pope, quiet)
    assert not server.requests
    monkeypatch.delenv("HF_HUB_OFFLINE")
    folder = fetch_data(pope, quiet)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_data("pope") == folder


@pytest.mark.slow
def test_a_process_waits_for_the_one_that_fetches(server: DataServer, pope: Need, tmp_path: Path) -> None:
    """A second process starts while the first holds the lock; it finds the data complete and asks for nothing."""
    folder = get_data_folder() / "pope"
    folder.mkdir(parents=True)
    with lock_file(folder):
        command = [sys.executable, "-c", "from airvlm.data import find_data; print(find_data('pope'))"]
        second = subprocess.Popen(
            command, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert second.stderr is not None
        assert "another process fetches the data" in second.stderr.readline()
        from airvlm.data.catalog import Fetch
        from airvlm.data.store import _write_manifest

        first = Fetch(folder, quiet)
        pope.data.build(pope.part, first)
        _write_manifest(pope, first)
        asked = len(server.requests)
    out, _ = second.communicate(timeout=60)
    assert second.returncode == 0 and out.strip() == str(folder)
    assert len(server.requests) == asked
