"""What the attacks share: canaries that tell of an import or an opened file, and servers to attack."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.serve.conftest import address, serve, vlm

__all__ = ["address", "serve", "vlm"]


@dataclass(frozen=True)
class Canary:
    """A module, files and a pipe that no request may touch."""

    module: str  # importable, as all of sys.path is
    imported: Path  # exists if the module was imported
    secret: Path  # a text file
    calibration: Path  # a JSON file in the form of a calibration
    pipe: Path  # a FIFO: who opens it waits for ever

    def spellings(self) -> list[str]:
        """Texts that would reach a module or a file, if anything parsed them as the command line does."""
        targets = [f"{self.module}:X", f"{self.module}:X:a=1", f"@{self.secret}", f"@{self.calibration}"]
        targets += [f"@{self.pipe}", "@/dev/zero", "@/etc/passwd", "@~/.profile"]
        spelled = [*targets, self.module, "os:system", "builtins:eval", "airvlm.methods.vaf:VAF"]
        for target in targets:
            spelled += [
                f"crop-blend+{target}",
                f"vanilla+{target}",
                f"none+{target}",
                f"crop-blend:weight=0.4+{target}",
            ]
            spelled += [
                f"random-crops({target})",
                f"random-crops(crop-blend+{target})",
                f"0.4+{target}",
                f"0.4,{target}",
            ]
        dunders = ["__class__", "__init__", "__dict__", "__import__", "__call__.__globals__", "__post_init__"]
        # look-alikes: full-width, Cyrillic, a non-breaking hyphen, invisible and control characters
        lookalikes = [
            "ｃrop-blend",
            "сrop-blend",
            "crop‑blend",
            "crop-blend\u200b",
            "crop-blend\x00",
            "\ufeffcrop-blend",
        ]
        others = ["CROP-BLEND", " crop-blend", "../crop-blend", "crop-blend/../vaf", "", "+", "crop-blend+", "composed"]
        return [*spelled, *dunders, *lookalikes, *others, "+".join(["vaf"] * 5), "x" * 200]


@pytest.fixture(scope="session")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canary]:
    folder = tmp_path_factory.mktemp("canary")
    module, imported = "airvlm_canary", folder / "imported"
    (folder / f"{module}.py").write_text(
        f"from pathlib import Path\nPath({str(imported)!r}).touch()\nfrom airvlm import VAF\nclass X(VAF): name = 'x'\n"
    )
    secret, calibration, pipe = folder / "secret", folder / "calibration.json", folder / "pipe"
    secret.write_text("hunter2")
    calibration.write_text('{"method": {"name": "hunter2"}}')
    os.mkfifo(pipe)
    sys.path.insert(0, str(folder))
    yield Canary(module, imported, secret, calibration, pipe)
    sys.path.remove(str(folder))


class Audit:
    """Imports and opened files of all threads but the test's own."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.active = False
        self.thread = threading.get_ident()

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        watched = self.active and event in ("import", "open", "os.listdir", "os.scandir")
        if watched and threading.get_ident() != self.thread:
            self.events.append((event, str(arguments[0])[:200]))

    @contextmanager
    def watch(self) -> Iterator[list[tuple[str, str]]]:
        self.events.clear()
        self.thread = threading.get_ident()
        self.active = True
        try:
            yield self.events
        finally:
            self.active = False


_audit = Audit()
sys.addaudithook(_audit.hook)  # cannot be removed, only switched off


@pytest.fixture
def audit() -> Audit:
    return _audit
