"""The user's cache folder, for files that can be made or downloaded again."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """AIRVLM_CACHE, else airvlm in XDG_CACHE_HOME or ~/.cache. The folder may not exist yet."""
    if named := os.environ.get("AIRVLM_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "airvlm"
