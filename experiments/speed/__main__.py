"""Run every benchmark, each in a process of its own: `python -m experiments.speed [--quick]`.

A full run has few rounds per benchmark and takes about half an hour of one core; each takes more by itself, as in
`python -m experiments.speed.decode --rounds 9`. `--quick` only shows that they work.
"""

from __future__ import annotations

import subprocess
import sys
import time

# Options that shorten a full run
FULL: dict[str, list[str]] = {
    "start": ["--rounds", "3"],
    "decode": ["--rounds", "3"],
    "prefill": ["--rounds", "2"],
    "crops": ["--crops", "2", "--rounds", "1"],
    "memvr": ["--rounds", "2", "--prefill-rounds", "1"],
}
# All benchmarks, with the options of a quick run
QUICK: dict[str, list[str]] = {
    "start": ["--rounds", "1"],
    "transport": ["--images", "8", "--rounds", "1"],
    "new_image": ["--rounds", "2"],
    "second": ["--rounds", "4", "--layers", "2"],
    "decode": ["--layers", "8", "--rounds", "1"],
    "prefill": ["--rounds", "1"],
    "crops": ["--crops", "1", "--rounds", "1"],
    "memory": [],
    "memvr": ["--rounds", "1", "--prefill-rounds", "1"],
    "runner": ["--items", "32"],
}


def main() -> None:
    quick = "--quick" in sys.argv
    options = {name: short if quick else FULL.get(name, []) for name, short in QUICK.items()}
    failed, started = [], time.perf_counter()
    for number, (name, own) in enumerate(options.items(), start=1):
        print(f"\n== {number} of {len(options)}: {name}", flush=True)
        began = time.perf_counter()
        if subprocess.run([sys.executable, "-m", f"experiments.speed.{name}", *own]).returncode:
            failed.append(name)
        print(f"{name} took {(time.perf_counter() - began) / 60:.1f} minutes", flush=True)
    print(f"\nAll benchmarks took {(time.perf_counter() - started) / 60:.1f} minutes.")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
