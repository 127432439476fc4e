"""Data sets of the Hugging Face hub: their files with sizes and hashes, and the rows of their parquet files.

Files go to the hub's own cache, which lmms-eval and others share: what is there already is not downloaded again, and
HF_HUB_OFFLINE=1, HF_ENDPOINT, HF_HUB_CACHE and HF_TOKEN mean what they always mean.
"""

from __future__ import annotations

import fnmatch
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from airvlm.data.download import Checks, DataDamaged, DataUnreachable, check_room, stop_on_full_disk

__all__ = ["HubRepository", "is_offline", "open_hub"]

ROWS = 16  # rows of a parquet file that are read together


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) forbids the network."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in names)


def _get_endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _get_cache() -> str | None:
    return os.environ.get("HF_HUB_CACHE") or None


def _find_cache() -> Path:
    """The hub's cache folder, or the first of its parents that exists."""
    cache = Path(_get_cache() or import_module("huggingface_hub.constants").HF_HUB_CACHE)
    return next(place for place in (cache, *cache.absolute().parents) if place.is_dir())


@dataclass(frozen=True)
class HubRepository:
    """A data set on the hub at one commit.

    Args:
        name: owner/name.
        commit: its commit.
        files: path -> what is known of the file.
        snapshot: the folder of the cache that has the files, if the network is not used.
    """

    name: str
    commit: str
    files: dict[str, Checks]
    snapshot: Path | None = None
    card: dict[str, Any] = field(default_factory=dict)

    def find_split(self, split: str, config: str | None = None) -> list[str]:
        """The parquet files of a split, as the data set's card lists them, or else by their usual names."""
        for entry in self.card.get("configs") or []:
            if config is not None and entry.get("config_name") != config:
                continue
            listed = entry.get("data_files")
            if isinstance(listed, list):
                patterns = [one["path"] for one in listed if isinstance(one, dict) and one.get("split") == split]
                found = self.match([path for one in patterns for path in ([one] if isinstance(one, str) else one)])
                if found:
                    return found
        folders = (config, "data") if config else ("data", ".", "default")
        usual = [f"{folder}/{split}-*.parquet".removeprefix("./") for folder in folders]
        usual += [f"{folder}/{split}/*.parquet".removeprefix("./") for folder in folders]
        for pattern in [*usual, f"{split}.parquet"]:
            if found := self.match([pattern]):
                return found
        raise DataUnreachable(
            f"the hub's data set {self.name} has no parquet files of split {split}"
            + (f" of {config}" if config else "")
            + f" (it has {', '.join(list(self.files)[:6]) or 'no files'}, ...): it must have changed"
        )

    def match(self, patterns: Sequence[str]) -> list[str]:
        """The files whose paths match one of some patterns, in order."""
        return [path for path in self.files if any(fnmatch.fnmatch(path, pattern) for pattern in patterns)]

    def announce(self, paths: Sequence[str], say: Callable[[str], Any]) -> None:
        """Say how much some files are before they are downloaded; an error if the disk has no room for them."""
        if self.snapshot is None:
            size = sum(self.files[path].size or 0 for path in paths if path in self.files)
            say(f"{self.name} on the hub: {len(paths)} files, {size / 1e6:.1f} MB")
            check_room(_find_cache(), size, "HF_HUB_CACHE")

    def get(self, path: str, *, quiet: bool = False) -> Path:
        """A file of the data set, in the hub's cache; downloaded and checked if it is not there.

        Args:
            path: in the data set.
            quiet: without the hub's progress bar, which also is left out if standard error is not a terminal.
        """
        if path not in self.files:
            raise DataUnreachable(f"the hub's data set {self.name} has no file {path}: it must have changed")
        if self.snapshot is not None:
            return self.snapshot / path
        utils = import_module("huggingface_hub.utils")
        shown = not utils.are_progress_bars_disabled()
        hide = shown and (quiet or not sys.stderr.isatty())
        if hide:
            utils.disable_progress_bars()
        try:
            return self._download(path)
        finally:
            if hide:
                utils.enable_progress_bars()

    def _download(self, path: str) -> Path:
        hub = import_module("huggingface_hub")
        arguments: dict[str, Any] = {"repo_type": "dataset", "revision": self.commit, "endpoint": _get_endpoint()}
        fault = None
        for again in (False, True):
            with stop_on_full_disk(_find_cache(), "HF_HUB_CACHE"), _explain(self.name):
                file = Path(
                    hub.hf_hub_download(self.name, path, cache_dir=_get_cache(), force_download=again, **arguments)
                )
            fault = self.files[path].find_fault(file)
            if fault is None:
                return file
        # the blob behind the link, so that nobody takes the damaged file from the cache
        file.resolve().unlink(missing_ok=True)
        file.unlink(missing_ok=True)
        raise DataDamaged(f"{path} of the hub's data set {self.name} is damaged: {fault}. Try again later")

    def read_rows(self, split: str, config: str | None = None, say: Callable[[str], Any] = print) -> Iterator[Any]:
        """The rows of a split, one by one, as dicts."""
        paths = self.find_split(split, config)
        parquet = _import_parquet()
        if self.snapshot is not None:
            _check_shards(self.name, paths)
        self.announce(paths, say)
        for path in paths:
            file = self.get(path)
            try:
                # pyarrow's errors are OSErrors and ValueErrors
                for batch in parquet.ParquetFile(file).iter_batches(batch_size=ROWS):
                    yield from batch.to_pylist()
            except (OSError, ValueError) as error:
                raise DataDamaged(f"{path} of the hub's data set {self.name} cannot be read: {error}") from None


def _import_parquet() -> Any:
    try:
        return import_module("pyarrow.parquet")
    except ImportError:
        raise ImportError("reading the hub's data sets needs pyarrow: pip install 'airvlm[data]'") from None


class _explain:
    """Turns the hub's errors into ours, with what to do."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, DataUnreachable | DataDamaged | KeyboardInterrupt):
            return
        errors = import_module("huggingface_hub.errors")
        if isinstance(error, errors.GatedRepoError):
            raise DataUnreachable(
                f"the hub's data set {self.name} asks for an agreement: accept it on its page and run `hf auth login`"
            ) from None
        if isinstance(error, errors.RepositoryNotFoundError | errors.EntryNotFoundError):
            raise DataUnreachable(f"the hub's data set {self.name} is not there, or not public any more") from None
        module = type(error).__module__.partition(".")[0]
        connection = module.startswith(("httpx", "requests", "huggingface_hub", "urllib3"))
        if connection or isinstance(error, ConnectionError | TimeoutError):
            reason = (str(error) or type(error).__name__).splitlines()[0][:200]
            raise DataUnreachable(
                f"the hub's data set {self.name} cannot be reached ({reason}). Run the same command again to resume"
            ) from None


def open_hub(names: Sequence[str]) -> HubRepository:
    """The first of some data sets that the hub has; the others are its older addresses.

    Raises:
        DataUnreachable: none can be reached; offline, none is in the cache.
    """
    reasons = []
    for name in names:
        try:
            return _open_offline(name) if is_offline() else _open(name)
        except DataUnreachable as error:
            reasons.append(str(error))
    raise DataUnreachable("; ".join(reasons))


def _open(name: str) -> HubRepository:
    hub = import_module("huggingface_hub")
    with _explain(name):
        api = hub.HfApi(endpoint=_get_endpoint())
        info = api.dataset_info(name)
        tree = api.list_repo_tree(name, repo_type="dataset", revision=info.sha, recursive=True)
        files = {
            entry.path: Checks(entry.size, entry.lfs.sha256 if entry.lfs else None)
            for entry in tree
            if hasattr(entry, "blob_id")
        }
        repository = HubRepository(name, info.sha, files)
    if "README.md" not in files:
        return repository
    return HubRepository(name, info.sha, files, card=_read_card(repository.get("README.md", quiet=True)))


def _open_offline(name: str) -> HubRepository:
    """What the hub's cache has of a data set: the commit of its main branch, or else the latest that was used."""
    hub = import_module("huggingface_hub.file_download")
    place = _find_cache() / hub.repo_folder_name(repo_id=name, repo_type="dataset")
    snapshots = sorted((place / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime)
    if not snapshots:
        raise DataUnreachable(f"HF_HUB_OFFLINE is set, and the hub's data set {name} is not in its cache")
    main = place / "refs" / "main"
    current = place / "snapshots" / (main.read_text().strip() if main.is_file() else "none")
    folder = current if current.is_dir() else snapshots[-1]
    files = {path.relative_to(folder).as_posix(): Checks() for path in sorted(folder.rglob("*")) if path.is_file()}
    card = _read_card(folder / "README.md") if "README.md" in files else {}
    return HubRepository(name, folder.name, files, folder, card)


def _check_shards(name: str, paths: Sequence[str]) -> None:
    """Refuse a cache that has only some of the files NAME-00000-of-00003.parquet, ..."""
    totals = [int(found[1]) for path in paths if (found := re.search(r"-of-(\d+)\b", path))]
    if totals and len(totals) < max(totals):
        raise DataUnreachable(
            f"HF_HUB_OFFLINE is set, and the cache has {len(totals)} of {max(totals)} files of the data set {name}"
        )


def _read_card(path: Path) -> dict[str, Any]:
    """The metadata at the top of a data set's README.md."""
    hub = import_module("huggingface_hub.repocard")
    try:
        found = hub.metadata_load(path)
    except Exception:  # a card that cannot be read is as good as none: the usual names of files are tried
        return {}
    return found if isinstance(found, dict) else {}
