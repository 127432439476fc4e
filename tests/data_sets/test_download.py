"""Downloads: torn, damaged, refused, resumed, and on a full disk."""

from __future__ import annotations

import errno
import hashlib
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airvlm.data import download
from airvlm.data.download import (
    Checks,
    DataDamaged,
    DataUnreachable,
    DiskFull,
    check_room,
    download_file,
    download_images,
)
from tests.data_sets.server import DataServer, Fault, make_image

CONTENT = bytes(range(256)) * 40
CHECKS = Checks(len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
URL, KEY = "https://example.org/a/file.bin", "example.org/a/file.bin"


def test_a_torn_transfer_goes_on_where_it_was(server: DataServer, tmp_path: Path) -> None:
    server.add_file(KEY, CONTENT)
    server.faults[KEY] = [Fault(cut=1000), Fault(status=503), Fault(cut=2000)]
    arrived: list[int] = []
    download_file(URL, tmp_path / "file.bin", CHECKS, arrived.append)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert [request.range for request in server.requests] == [None, "bytes=1000-", "bytes=1000-", "bytes=3000-"]
    assert sum(arrived) == len(CONTENT)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["file.bin"]


def test_what_was_left_is_continued_by_the_next_call(server: DataServer, tmp_path: Path) -> None:
    server.add_file(KEY, CONTENT)
    server.faults[KEY] = [Fault(cut=1000), *[Fault(status=500)] * download.ATTEMPTS]
    with pytest.raises(DataUnreachable, match="are kept"):
        download_file(URL, tmp_path / "file.bin", CHECKS)
    assert not (tmp_path / "file.bin").exists()
    server.faults.clear()
    download_file(URL, tmp_path / "file.bin", CHECKS)
    assert server.requests[-1].range == "bytes=1000-" and server.requests[-1].status == 206
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_new_version_is_not_appended_to_an_old_one(server: DataServer, tmp_path: Path) -> None:
    server.add_file(KEY, CONTENT)
    server.faults[KEY] = [Fault(cut=1000), *[Fault(status=500)] * download.ATTEMPTS]
    with pytest.raises(DataUnreachable):
        download_file(URL, tmp_path / "file.bin")
    server.faults.clear()
    server.add_file(KEY, b"another file, of another length" * 90)
    download_file(URL, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == b"another file, of another length" * 90


def test_a_wrong_hash_is_tried_once_more_and_then_refused(server: DataServer, tmp_path: Path) -> None:
    server.add_file(KEY, CONTENT)
    wrong = b"x" * len(CONTENT)
    server.faults[KEY] = [Fault(content=wrong)]
    download_file(URL, tmp_path / "file.bin", CHECKS)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    server.add_file(KEY, wrong)
    with pytest.raises(DataDamaged, match="its sha256 is"):
        download_file(URL, tmp_path / "second.bin", CHECKS)
    with pytest.raises(DataDamaged, match="10240 bytes instead of 3"):
        download_file(URL, tmp_path / "second.bin", Checks(size=3))
    with pytest.raises(DataDamaged, match="its md5 is"):
        download_file(URL, tmp_path / "second.bin", Checks(md5="0" * 32))
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["file.bin"]


def test_what_a_server_does_not_have_is_not_asked_for_again(server: DataServer, tmp_path: Path) -> None:
    with pytest.raises(DataUnreachable, match="404"):
        download_file(URL, tmp_path / "file.bin")
    assert len(server.requests) == 1


def test_a_server_that_is_away_is_named(server: DataServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRVLM_DATA_MIRROR", "http://127.0.0.1:9")
    with pytest.raises(DataUnreachable, match=r"example.org/a/file.bin cannot be reached .*refused"):
        download_file(URL, tmp_path / "file.bin")


def test_a_full_disk_keeps_what_has_arrived(
    server: DataServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add_file(KEY, CONTENT)
    server.faults[KEY] = [Fault(cut=1000)]
    real = Path.open

    def open_on_full_disk(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        if mode == "ab":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, mode, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_on_full_disk)
        with pytest.raises(DiskFull, match="free some room and run the same command again"):
            download_file(URL, tmp_path / "file.bin", CHECKS)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:1000]
    download_file(URL, tmp_path / "file.bin", CHECKS)
    assert server.requests[-1].range == "bytes=1000-"


def test_room_is_checked_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=200 << 20))
    check_room(tmp_path, 100 << 20)
    with pytest.raises(DiskFull, match=r"about 180 MB are needed .* has 210 MB left"):
        check_room(tmp_path, 180_000_000)


def test_images_come_from_the_first_address_that_has_them(server: DataServer, tmp_path: Path) -> None:
    server.add_file("second.org/1.jpg", make_image(1))
    server.add_file("first.org/2.jpg", make_image(2))
    server.add_file("first.org/3.jpg", b"<html>we have moved</html>")
    urls = ("https://first.org", "https://second.org")
    jobs = [(tmp_path / f"{n}.jpg", [f"{host}/{n}.jpg" for host in urls]) for n in (1, 2, 3)]
    lacking = download_images(jobs)
    assert [path.name for path, _ in lacking] == ["3.jpg"] and "not an image" in lacking[0][1]
    assert (tmp_path / "1.jpg").read_bytes() == make_image(1)
    before = len(server.requests)
    download_images(jobs[:2])
    assert len(server.requests) == before  # they are there


def test_images_that_cannot_be_delivered_now_are_an_error(server: DataServer, tmp_path: Path) -> None:
    server.add_file("first.org/1.jpg", make_image(1))
    server.faults["first.org/1.jpg"] = [Fault(status=503)] * 20
    with pytest.raises(DataUnreachable, match="503"):
        download_images([(tmp_path / "1.jpg", ["https://first.org/1.jpg"])])
