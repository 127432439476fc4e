"""The user's copies of the benchmarks' data: found, fetched once by any number of processes, and verified.

Every data set has a folder of its own in AIRVLM_CACHE/data, in the layout that its task reads from --data FOLDER. A
part of it (a data set of POPE, a split of CHAIR) is complete when its manifest is there, `.airvlm/PART.json`, which
lists its files with their sizes and hashes. One process fetches while others wait for it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airvlm.data.catalog import Fetch, Need, find_need
from airvlm.data.download import DataUnreachable, check_room, hash_file, stop_on_full_disk
from airvlm.data.hub import is_offline
from airvlm.storage.atomic import write_atomically
from airvlm.storage.cache import cache_folder
from airvlm.storage.jsonl import lock_file

__all__ = ["Status", "fetch_data", "find_data", "get_data_folder", "get_status", "verify_data"]

MANIFESTS = ".airvlm"
Say = Callable[[str], Any]


def get_data_folder() -> Path:
    """The folder of all data sets: `data` in the user's cache folder."""
    return cache_folder() / "data"


@dataclass(frozen=True)
class Status:
    """What is here of the data that a task needs."""

    folder: Path
    complete: bool
    files: int = 0
    size: int = 0  # bytes
    manifest: dict[str, Any] | None = None


def find_data(
    task: str,
    folder: str | Path | None = None,
    *,
    split: str = "test",
    variant: str | None = None,
    say: Say | None = None,
) -> Path | None:
    """The folder with a task's data, fetched into the user's cache if they are not there yet.

    Args:
        task: the task's name, as in `airvlm.tasks.TASKS`.
        folder: the user's own folder, which is returned as it is.
        split: the split of the task's items that is needed.
        variant: the variant of the task, where variants have other data.
        say: gets one line per step; default: standard error.

    Returns:
        The folder; None if the task needs no data, or if nobody offers them for download.

    Raises:
        TaskDataMissing: the data are not here and cannot be fetched.
    """
    if folder is not None:
        return Path(folder)
    need = find_need(task, split=split, variant=variant)
    return None if need is None else fetch_data(need, say)


def get_status(need: Need) -> Status:
    """Whether a part of a data set is complete: its manifest and every file in it, by their sizes."""
    folder = get_data_folder() / need.data.name
    manifest = _read_manifest(folder, need.part)
    if manifest is None:
        return Status(folder, False)
    files = manifest["files"]
    complete = all(_has_size(folder / name, facts["size"]) for name, facts in files.items())
    return Status(folder, complete, len(files), sum(facts["size"] for facts in files.values()), manifest)


def fetch_data(need: Need, say: Say | None = None) -> Path:
    """Fetch a part of a data set unless it is complete; its folder."""
    status = get_status(need)
    if status.complete:
        return status.folder
    say = say or _print
    folder, part = status.folder, need.data.parts[need.part]
    folder.mkdir(parents=True, exist_ok=True)
    with _wait_for_others(folder, need, say):
        if get_status(need).complete:
            return folder
        if not is_offline():
            size = "" if part.size is None else f"about {part.size / 1e6:.0f} MB "
            say(f"{need.task}: fetching {size}from {part.source}; license: {need.license}")
            check_room(folder, part.size or 0)
        fetch = Fetch(folder, say)
        try:
            with stop_on_full_disk(folder):
                need.data.build(need.part, fetch)
                _write_manifest(need, fetch)
        except DataUnreachable as error:
            advice = (
                ""
                if not is_offline()
                else (
                    f": unset HF_HUB_OFFLINE, run `airvlm data get {need.task}` on a machine with a network and copy "
                    f"{folder}, or give --data FOLDER"
                )
            )
            raise DataUnreachable(f"{need.task}: {error}{advice}") from None
        status = get_status(need)
        say(f"{need.task}: {status.files} files, {status.size / 1e6:.0f} MB, in {folder}")
    return folder


@contextmanager
def _wait_for_others(folder: Path, need: Need, say: Say) -> Iterator[None]:
    """Hold the data set's lock; say so if another process has it."""
    lock = lock_file(folder)
    try:
        lock.acquire(timeout=0)
    except TimeoutError:
        say(f"{need.task}: another process fetches the data; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def verify_data(need: Need, *, repair: bool = False) -> list[str]:
    """Compare every file of a part with its recorded size and hash.

    Args:
        need: what is verified.
        repair: delete what is wrong, so that `fetch_data` fetches it again.

    Returns:
        What is wrong, one line per file; an empty list if nothing is.
    """
    status = get_status(need)
    if status.manifest is None:
        return [f"the data of {need.task} are not in {status.folder}: airvlm data get {need.task}"]
    problems = []
    for name, facts in status.manifest["files"].items():
        path = status.folder / name
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif not _has_size(path, facts["size"]) or hash_file(path) != facts["sha256"]:
            problems.append(f"{path} is damaged")
            if repair:
                path.unlink()
    if problems and repair:
        _get_manifest_path(status.folder, need.part).unlink()
    return problems


# -- manifests


def _get_manifest_path(folder: Path, part: str) -> Path:
    return folder / MANIFESTS / f"{part}.json"


def _read_manifest(folder: Path, part: str) -> dict[str, Any] | None:
    try:
        content = json.loads(_get_manifest_path(folder, part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("files"), dict) else None


def _write_manifest(need: Need, fetch: Fetch) -> None:
    files = {
        path.relative_to(fetch.folder).as_posix(): {"size": path.stat().st_size, "sha256": hash_file(path)}
        for path in sorted(fetch.written)
    }
    content = {
        "data": need.data.name,
        "part": need.part,
        "license": need.license,
        "sources": sorted(fetch.sources),
        "date": time.strftime("%Y-%m-%d"),
        "files": files,
    }
    path = _get_manifest_path(fetch.folder, need.part)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, json.dumps(content, indent=1) + "\n")


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _print(line: str) -> None:
    sys.stderr.write(f"airvlm: {line}\n")
