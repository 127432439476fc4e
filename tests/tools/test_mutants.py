"""Mutation testing on a toy package: what is tested is caught, what is not survives, and a campaign resumes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import mutants

SOURCE = '''"""A toy."""


def clamp(x: int, low: int = 0) -> int:
    """1 if True."""
    if x < low and low is not None:
        return low
    return x - 0 * x


def untested(x: int, y: int) -> int:
    total = max(x, y)
    total += 3
    return -total
'''
TEST = """from toy.numbers.clamping import clamp


def test_clamp():
    assert [clamp(x, 2) for x in (1, 2, 3)] == [2, 2, 3]
    assert clamp(-1) == 0
    assert clamp(1) == 1
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("src/toy/numbers", "tests/numbers"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "src/toy/numbers/clamping.py").write_text(SOURCE)
    (tmp_path / "tests/numbers/test_clamping.py").write_text(TEST)
    return tmp_path


def changes(root: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for mutant in mutants.find_mutants(root, root / "src/toy/numbers/clamping.py"):
        found.setdefault(mutant.kind, set()).add(mutant.after.strip())
    return found


def test_every_kind_of_change_is_found_and_nothing_in_texts_or_annotations(root: Path) -> None:
    found = changes(root)
    assert {"if x <= low and low is not None:", "if x < low and low is None:"} <= found["comparison"]
    assert {"return x + 0 * x", "return x - 0 / x", "return total"} <= found["sign"]
    assert {"if x < low or low is not None:", "if x < low:", "if low is not None:"} <= found["condition"]
    assert "if not (x < low and low is not None):" in found["condition"]
    assert {"def clamp(x: int, low: int = 1) -> int:", "total += 4", "total += 2"} <= found["constant"]
    assert found["arguments"] == {"total = max(y, x)"}
    assert "pass" in found["statement"]
    assert not any("toy" in after or "if True" in after for kind in found.values() for after in kind)


def test_offsets_count_characters_that_take_several_bytes(tmp_path: Path) -> None:
    file = tmp_path / "text.py"
    file.write_text('τ = "×" if 1 < 2 else "°"\n')
    assert 'τ = "×" if 1 <= 2 else "°"' in {mutant.after for mutant in mutants.find_mutants(tmp_path, file)}


def test_a_seed_draws_the_same_mutants_and_another_does_not(root: Path) -> None:
    first, again, other = (mutants.draw(root, "toy", ["numbers"], seed, 6) for seed in (1, 1, 2))
    assert first == again
    assert len({mutant.id for mutant in first}) == 6
    assert first != other


def test_the_mirror_is_the_file_of_the_same_name_or_else_the_folder(root: Path) -> None:
    (root / "tests/numbers/test_more.py").write_text("")
    own = mutants.mirror_tests(root, "toy", "src/toy/numbers/clamping.py")
    assert own == ["tests/numbers/test_clamping.py"]
    assert mutants.mirror_tests(root, "toy", "src/toy/numbers/other.py") == [*own, "tests/numbers/test_more.py"]
    assert mutants.mirror_tests(root, "toy", "src/toy/elsewhere/other.py") == []


def run(root: Path, *options: str) -> tuple[dict[str, str], str]:
    """Statuses by changed line, and what the last lines print. In a process of its own: pytest runs in it."""
    log = root / "log.jsonl"
    command = [sys.executable, "-m", "tools.mutants", "--root", str(root), "--package", "toy", "--folders", "numbers"]
    result = subprocess.run(
        [*command, "--count", "100", "--log", str(log), *options], cwd=mutants.ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    rows = map(json.loads, log.read_text().splitlines())
    return {row["after"].strip(): row["status"] for row in rows}, result.stdout


@pytest.mark.slow
def test_a_campaign_lists_survivors_and_resumes(root: Path) -> None:
    found, printed = run(root)
    test = "tests/numbers/test_clamping.py::test_clamp"
    assert found["if x < low or low is not None:"] == f"caught by {test}"
    assert found["def clamp(x: int, low: int = 1) -> int:"] == f"caught by {test}"  # runs at import
    assert found["if x <= low and low is not None:"] == "survived"  # the same for every x
    assert found["total += 4"] == "not executed"
    assert "| src/toy/numbers/clamping.py:13 | constant | `total += 3` | `total += 4` | not executed |" in printed
    assert (root / "src/toy/numbers/clamping.py").read_text() == SOURCE  # only a copy is changed

    again, printed_again = run(root)
    assert again == found
    assert printed_again.strip() == printed[printed.index("| folder") :].strip()  # nothing ran

    # survivors run again when their tests change
    more = (
        "\n\ndef test_untested():\n    from toy.numbers.clamping import untested\n\n    assert untested(1, 2) == -5\n"
    )
    (root / "tests/numbers/test_clamping.py").write_text(TEST + more)
    found, _ = run(root)
    assert found["total += 4"] == "caught by tests/numbers/test_clamping.py::test_untested"
    assert found["if x <= low and low is not None:"] == "survived"


@pytest.mark.slow
def test_a_mutant_that_never_ends_or_breaks_down_counts_as_caught(tmp_path: Path) -> None:
    assert mutants.fork(lambda: "text", timeout=20) == "text"
    assert mutants.fork(lambda: time.sleep(60) or "", timeout=0.2) == "timeout"
    assert mutants.fork(lambda: os._exit(3) or "", timeout=20) == "crashed"
    assert all(mutants.is_caught({"status": status}) for status in ("timeout", "crashed", "caught by tests/a.py::b"))
    assert not any(mutants.is_caught({"status": status}) for status in ("", "survived", "not executed"))
