"""`python -m tools.walk`: what it counts, and how far one answer may go."""

import threading
from pathlib import Path

from tools import walk

HERE = Path(__file__).parent
# What one answer may pass: lower these when they can be lowered, and raise them only for what an answer gains
FILES, FUNCTIONS, CHANGES, RETURNS = 20, 165, 93, 74


def first() -> list[int]:
    return [second(n) for n in range(3)]


def second(n: int) -> int:
    return n


def test_functions_are_counted_in_the_order_of_their_first_call() -> None:
    with walk.watching(HERE) as seen:
        first()
    assert list(seen.files) == ["test_walk.py"]
    functions = seen.files["test_walk.py"]
    assert list(functions)[:2] == ["first", "second"]
    assert functions["second"] == 3
    assert seen.switches == ["test_walk.py"]


def test_changes_of_file_and_returns_are_counted() -> None:
    seen = walk.Walk()
    for file in ("a", "a", "b", "a", "c", "b"):
        seen.step(file, "f")
    assert seen.switches == ["a", "b", "a", "c", "b"]
    assert (len(seen.files), seen.functions, seen.changes, seen.returns) == (3, 3, 4, 2)


def test_other_threads_are_recorded_and_other_folders_are_not() -> None:
    with walk.watching(HERE) as seen:
        thread = threading.Thread(target=second, args=(1,))
        thread.start()
        thread.join()
        len(str(Path("a") / "b"))
    assert seen.files == {"test_walk.py": {"second": 1}}


def test_nothing_is_recorded_after_the_block() -> None:
    with walk.watching(HERE) as seen:
        pass
    second(1)
    assert not seen.functions


def test_one_answer_passes_few_files_and_rarely_comes_back() -> None:
    seen = walk.answer()
    assert {"vlm.py", "runtime/session.py", "methods/evidence/transport.py"} <= set(seen.files)
    assert len(seen.files) <= FILES, list(seen.files)
    assert seen.functions <= FUNCTIONS
    assert seen.changes <= CHANGES
    assert seen.returns <= RETURNS
