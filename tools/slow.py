"""`python -m tools.slow REPORT.xml`: which tests need a second or more, from a junit report, to tests/slow.txt.

`make test` writes the report, `make durations` calls this. Knows nothing of what the tests do.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

__all__ = ["slow_tests"]

LIMIT = 1.0  # seconds of a test, its fixtures included
LIST = Path(__file__).parent.parent / "tests" / "slow.txt"
HEAD = "# Tests that need a second or more, as `make durations` measured them; `make test-fast` leaves them out.\n"


def slow_tests(report: str, limit: float = LIMIT) -> list[str]:
    """`path/to/test_file.py::test_name` of every slow test; one slow parameter makes its test slow."""
    found = set()
    for case in ET.fromstring(report).iter("testcase"):
        if float(case.get("time", 0)) >= limit:
            path = case.get("classname", "").replace(".", "/") + ".py"
            found.add(f"{path}::{case.get('name', '').split('[')[0]}")
    return sorted(found)


def main(report: Path) -> None:
    """Write the list."""
    names = slow_tests(report.read_text())
    LIST.write_text(HEAD + "".join(f"{name}\n" for name in names))
    print(f"{len(names)} slow tests: {LIST}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
