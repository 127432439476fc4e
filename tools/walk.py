"""`python -m tools.walk`: the files and functions of airvlm that one answer passes, in order, with counts.

One `VLM.ask` under `crop-blend` on the smallest embedded model, watched by sys.setprofile in every thread.
Comprehensions and lambdas count as the function around them. A return is a change to a file that was left before.

    python -m tools.walk                 the files, each with its functions in the order of their first call
    python -m tools.walk --calls         every change of file, in order
    python -m tools.walk --method none   another method, as the command line spells it
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["Walk", "answer", "watching"]

PACKAGE = "airvlm"
QUESTION = "Is there a cup in the image?"


@dataclass
class Walk:
    """What was called: {file: {function: calls}}, in the order of first calls, and every change of file."""

    files: dict[str, dict[str, int]] = field(default_factory=dict)
    switches: list[str] = field(default_factory=list)

    def step(self, file: str, function: str) -> None:
        """One call."""
        functions = self.files.setdefault(file, {})
        functions[function] = functions.get(function, 0) + 1
        if self.switches[-1:] != [file]:
            self.switches.append(file)

    @property
    def functions(self) -> int:
        """Different functions, over all files."""
        return sum(map(len, self.files.values()))

    @property
    def changes(self) -> int:
        """Changes of file."""
        return len(self.switches) - 1

    @property
    def returns(self) -> int:
        """Changes to a file that was left before."""
        return len(self.switches) - len(self.files)


@contextmanager
def watching(package: Path) -> Iterator[Walk]:
    """Record every call into a file under `package`, of this thread and of those started meanwhile."""
    walk, root = Walk(), str(package)

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(root):
            return
        parts = [part for part in code.co_qualname.split(".") if not part.startswith("<")]
        if parts:  # not a module's own body
            walk.step(code.co_filename[len(root) + 1 :], ".".join(parts))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None switches it off


def answer(method: str = "crop-blend") -> Walk:
    """One question under a method on the embedded model, on an image that it has not seen."""
    import airvlm
    from airvlm import VLM, get_method, tiny

    vlm, chosen = VLM.load("tiny"), get_method(method)
    first, second = (scene.path for scene in tiny.scenes("test")[:2])  # drawn here, where that is needed
    # once before: what is imported and built at the first answer is not part of the way
    vlm.ask(first, QUESTION, method=chosen)
    assert airvlm.__file__ is not None, "the package has a folder"
    with watching(Path(airvlm.__file__).parent) as walk:
        vlm.ask(second, QUESTION, method=chosen)
    return walk


def show(walk: Walk, say: Callable[[str], None], *, calls: bool = False) -> None:
    """Print the walk."""
    if calls:
        for file in walk.switches:
            say(file)
    else:
        for file, functions in walk.files.items():
            say(file)
            for name, count in functions.items():
                say(f"    {name}" + (f"  × {count}" if count > 1 else ""))
    say(f"{len(walk.files)} files, {walk.functions} functions, {walk.changes} changes of file, {walk.returns} returns")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.walk", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--method", default="crop-blend", help="as the command line spells it (default: crop-blend)")
    parser.add_argument("--calls", action="store_true", help="every change of file, in order")
    given = parser.parse_args()
    show(answer(given.method), print, calls=given.calls)


if __name__ == "__main__":
    main()
