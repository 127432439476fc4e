"""Files over HTTP: downloads that resume, are tried again, and are checked by size and hash before they get their name.

A file that is being downloaded is called NAME.part. What a broken connection, a full disk or Ctrl-C leaves there is
continued by the next attempt if the server still has the same version (its ETag), and dropped otherwise.

AIRVLM_DATA_MIRROR=http://host/path replaces every address https://HOST/PATH by http://host/path/HOST/PATH, for machines
that reach the sources through a mirror only.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airvlm.tasks.files.reading import TaskDataMissing

__all__ = [
    "Checks",
    "DataDamaged",
    "DataUnreachable",
    "DiskFull",
    "check_room",
    "download_file",
    "download_images",
    "hash_file",
    "stop_on_full_disk",
]

ATTEMPTS = 5  # without a single new byte in between
PAUSE = 1.0  # seconds before the second attempt; doubles with each
TIMEOUT = 60.0  # seconds without a byte
CHUNK = 1 << 20
WORKERS = 8  # images at the same time
SPARE = 64 << 20  # bytes of a disk that are left alone
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
Advance = Callable[[int], Any]  # is told how many bytes have arrived


class DataUnreachable(TaskDataMissing):
    """A source cannot be reached, or does not have a file."""


class DataDamaged(TaskDataMissing):
    """What arrived is not what was asked for: its size, its hash or its kind is wrong."""


class DiskFull(TaskDataMissing):
    """There is no room for the data; what has arrived is kept."""


@dataclass(frozen=True)
class Checks:
    """What is known of a file before it is downloaded."""

    size: int | None = None
    sha256: str | None = None
    md5: str | None = None

    def find_fault(self, path: Path) -> str | None:
        """What is wrong with a file; None if nothing is."""
        size = path.stat().st_size
        if self.size is not None and size != self.size:
            return f"it has {size} bytes instead of {self.size}"
        for name, expected in (("sha256", self.sha256), ("md5", self.md5)):
            if expected is not None and (found := hash_file(path, name)) != expected:
                return f"its {name} is {found} instead of {expected}"
        return None


def hash_file(path: Path, name: str = "sha256") -> str:
    """The hash of a file's content, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(name, usedforsecurity=False)).hexdigest()


def check_room(folder: Path, size: int, variable: str = "AIRVLM_CACHE") -> None:
    """Raise DiskFull if a disk has no room for this many bytes; `variable` names the folder in the environment."""
    free = shutil.disk_usage(folder).free
    if size + SPARE > free:
        raise DiskFull(
            f"about {_format(size)} are needed in {folder}, and its disk has {_format(free)} left: free some room, or "
            f"set {variable} to a folder on another disk"
        )


def _format(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


@contextmanager
def stop_on_full_disk(folder: Path, variable: str = "AIRVLM_CACHE") -> Iterator[None]:
    """Raise DiskFull in place of the system's error; `variable` names the folder in the environment."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFull(
            f"the disk of {folder} is full. What has arrived is kept: free some room and run the same command again, "
            f"or set {variable} to a folder on another disk"
        ) from error


def download_file(url: str, path: Path, checks: Checks = Checks(), advance: Advance = lambda size: None) -> None:
    """Download a file unless it is there already.

    Args:
        url: an http or https address.
        path: where it goes; it has this name only when it is complete and checked.
        checks: its size and hash, as far as they are known.
        advance: is called with the number of bytes of every piece that arrives.

    Raises:
        DataUnreachable: the server cannot be reached, does not have the file, or breaks off again and again.
        DataDamaged: the file arrived twice with a wrong size or hash.
        DiskFull: there is no room.
    """
    if path.exists():
        advance(path.stat().st_size)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    fault = None
    with stop_on_full_disk(path.parent):
        for _ in range(2):
            _receive(url, part, advance)
            fault = checks.find_fault(part)
            if fault is None:
                part.replace(path)
                _get_tag_file(part).unlink(missing_ok=True)
                return
            _drop(part)
    raise DataDamaged(
        f"{url} is damaged or has changed: {fault}. Try again later; if it stays, get the file elsewhere and use --data"
    )


def _receive(url: str, part: Path, advance: Advance) -> None:
    """Receive a file whole, in as many connections as it takes."""
    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        if failures == 0:
            advance(before)
        try:
            _receive_once(url, part, before, advance)
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # nothing is left to send, or the part is longer than the file
                _drop(part)
            elif error.code not in (408, 425, 429) and error.code < 500:
                raise DataUnreachable(f"{url}: the server answers {error.code} {error.reason}") from None
            reason = f"the server answers {error.code}"
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = str(getattr(error, "reason", None) or error) or type(error).__name__
        after = part.stat().st_size if part.exists() else 0
        failures = 1 if after > before else failures + 1
        if failures >= ATTEMPTS:
            kept = f"; {_format(after)} have arrived and are kept" if after else ""
            raise DataUnreachable(f"{url} cannot be reached ({reason}){kept}. Run the same command again to resume")
        time.sleep(min(30.0, PAUSE * 2 ** (failures - 1)))


def _receive_once(url: str, part: Path, start: int, advance: Advance) -> None:
    """Receive what is missing of a file in one connection."""
    headers = {"User-Agent": "airvlm", "Accept-Encoding": "identity"}
    tag_file = _get_tag_file(part)
    tag = tag_file.read_text() if start and tag_file.exists() else ""
    if tag:
        # the server sends the rest if its file is still the same, and else all of it
        headers |= {"Range": f"bytes={start}-", "If-Range": tag}
    request = urllib.request.Request(_apply_mirror(url), headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        resumed = response.status == 206 and str(response.headers.get("Content-Range", "")).startswith(
            f"bytes {start}-"
        )
        if response.status == 206 and not resumed:
            raise http.client.HTTPException("another range than the one that was asked for")
        new_tag = response.headers.get("ETag", "")
        if not new_tag or new_tag.startswith("W/"):  # a weak tag does not promise the same bytes
            new_tag = response.headers.get("Last-Modified", "")
        tag_file.write_text(new_tag)
        expected = response.headers.get("Content-Length")
        received = 0
        with part.open("ab" if resumed else "wb") as file:
            while piece := response.read(CHUNK):
                file.write(piece)
                received += len(piece)
                advance(len(piece))
        if expected is not None and received != int(expected):
            raise http.client.IncompleteRead(b"", int(expected) - received)


def _apply_mirror(url: str) -> str:
    mirror = os.environ.get("AIRVLM_DATA_MIRROR")
    if not mirror:
        return url
    parts = urlsplit(url)
    return f"{mirror.rstrip('/')}/{parts.netloc}{parts.path}" + (f"?{parts.query}" if parts.query else "")


def _get_tag_file(part: Path) -> Path:
    return part.with_name(part.name + ".etag")


def _drop(part: Path) -> None:
    part.unlink(missing_ok=True)
    _get_tag_file(part).unlink(missing_ok=True)


def download_images(
    wanted: Iterable[tuple[Path, Sequence[str]]], advance: Advance = lambda size: None
) -> list[tuple[Path, str]]:
    """Download images one by one, several at the same time.

    Args:
        wanted: each image's path and its addresses, which are tried in turn.
        advance: is called with 1 for every image.

    Returns:
        The images that no address has, and why. An image that a server cannot deliver now is an error.
    """

    def get(path: Path, urls: Sequence[str]) -> str | None:
        reasons = []
        for url in urls:
            try:
                download_image(url, path)
                break
            except (DataUnreachable, DataDamaged) as error:
                if "cannot be reached" in str(error):
                    raise
                reasons.append(str(error))
        else:
            return "; ".join(reasons)
        advance(1)
        return None

    jobs = [(path, tuple(urls)) for path, urls in wanted]
    with ThreadPoolExecutor(WORKERS) as pool:
        futures = [pool.submit(get, *job) for job in jobs]
        try:
            answers = [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [(path, reason) for (path, _), reason in zip(jobs, answers, strict=True) if reason]


def download_image(url: str, path: Path) -> None:
    """Download an image unless it is there already; anything else is refused."""
    from PIL import Image  # lists of data sets do not need it

    if path.exists():
        return
    scratch = path.with_name(path.name + ".new")
    download_file(url, scratch)
    try:
        with Image.open(scratch) as image:
            image.verify()
    except Exception as error:  # Pillow raises errors of every kind
        scratch.unlink(missing_ok=True)
        raise DataDamaged(f"{url} is not an image ({type(error).__name__})") from None
    with suppress(FileNotFoundError):  # another process was faster
        scratch.replace(path)
