"""`python -m tools.slow REPORT.xml`: which tests need half a second or more, from a junit report, to tests/slow.txt.

A test whose parameters need ten seconds together is slow too: 133 pairs of a method and a family, a tenth of a second
each, are no quick look.

`make test` writes the report, `make durations` calls this. Knows nothing of what the tests do.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

__all__ = ["slow_tests"]

LIMIT = 0.5  # seconds of a test, its fixtures included
TOGETHER = 10.0  # seconds of all its parameters
LIST = Path(__file__).parent.parent / "tests" / "slow.txt"
HEAD = (
    "# Tests that need half a second or more, or ten with all their parameters, as `make durations` measured them;\n"
    "# `make test-fast` leaves them out.\n"
)


def slow_tests(report: str, limit: float = LIMIT, together: float = TOGETHER) -> list[str]:
    """`path/to/test_file.py::test_name` of every slow test; one slow parameter makes its test slow."""
    seconds: dict[str, list[float]] = {}
    for case in ET.fromstring(report).iter("testcase"):
        path = case.get("classname", "").replace(".", "/") + ".py"
        name = f"{path}::{case.get('name', '').split('[')[0]}"
        seconds.setdefault(name, []).append(float(case.get("time", 0)))
    return sorted(name for name, own in seconds.items() if max(own) >= limit or sum(own) >= together)


def main(report: Path) -> None:
    """Write the list."""
    names = slow_tests(report.read_text())
    LIST.write_text(HEAD + "".join(f"{name}\n" for name in names))
    print(f"{len(names)} slow tests: {LIST}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
