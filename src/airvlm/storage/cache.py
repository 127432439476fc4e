"""Where files are kept that can be made again: the user's cache folder, the same on every system."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """AIRVLM_CACHE, or airvlm in XDG_CACHE_HOME or ~/.cache; nobody has made it yet, nor looked whether one may."""
    named = os.environ.get("AIRVLM_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "airvlm"
