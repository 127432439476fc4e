"""Every benchmark in turn, each in a process of its own: python -m benchmarks [--quick]."""

from __future__ import annotations

import subprocess
import sys

QUICK = {"transport": ["--repeats", "1"], "decode": ["--layers", "8", "--repeats", "1"]}
QUICK |= {"prefill": ["--repeats", "1"], "crops": ["--crops", "1", "--repeats", "1"], "memory": []}


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
