"""`python -m tools.walk`: what it counts."""

import threading
from pathlib import Path

from tools import walk

HERE = Path(__file__).parent
MOST = 18  # files that one answer may pass; lower it when it can be lowered, and do not raise it


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


def test_other_threads_are_watched_and_other_folders_are_not() -> None:
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


def test_one_answer_passes_few_files() -> None:
    seen = walk.answer()
    assert len(seen.files) <= MOST, list(seen.files)
    assert {"vlm.py", "hooks/run.py", "methods/air/transport.py"} <= set(seen.files)
