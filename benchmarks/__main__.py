"""Every benchmark in turn, each in a process of its own: python -m benchmarks [--quick].

A full run takes tens of minutes; `--quick` only shows that all of them still run.
"""

from __future__ import annotations

import subprocess
import sys

# each benchmark with what makes it short
QUICK: dict[str, list[str]] = {
    "transport": ["--repeats", "1"],
    "decode": ["--layers", "8", "--repeats", "1"],
    "prefill": ["--repeats", "1"],
    "crops": ["--crops", "1", "--repeats", "1"],
    "memory": [],
    "memvr": ["--repeats", "1", "--prefill-repeats", "1"],
    "runner": ["--items", "32"],
}


def main() -> None:
    quick = "--quick" in sys.argv
    failed = []
    for name, options in QUICK.items():
        print(f"\n== {name}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *(options if quick else [])])
        failed += [name] if done.returncode else []
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
