"""Every benchmark in turn, each in a process of its own, and the total time: python -m experiments.speed [--quick].

`airvlm bench methods` is the last of them. A full run takes each in few turns, 25 minutes of one core in all; by itself
(`python -m experiments.speed.decode --repeats 9`) each takes more. `--quick` only shows that they still run.
"""

from __future__ import annotations

import subprocess
import sys
import time

# turns of a full run, where a benchmark's own are more
FULL: dict[str, list[str]] = {
    "decode": ["--repeats", "3"],
    "prefill": ["--repeats", "2"],
    "crops": ["--crops", "2", "--repeats", "1"],
    "memvr": ["--repeats", "2", "--prefill-repeats", "1"],
}
# each benchmark with what makes it short
QUICK: dict[str, list[str]] = {
    "transport": ["--images", "8", "--repeats", "1"],
    "second": ["--repeats", "4", "--layers", "2"],
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
    started = time.perf_counter()
    commands = {
        name: [f"benchmarks.{name}", *(short if quick else FULL.get(name, []))] for name, short in QUICK.items()
    }
    if not quick:
        commands["airvlm bench methods"] = ["airvlm", "bench", "methods", "--repeats", "3", "--tokens", "16"]
    for number, (name, command) in enumerate(commands.items(), start=1):
        print(f"\n== {number} of {len(commands)}: {name}", flush=True)
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", *command])
        failed += [name] if done.returncode else []
        print(f"{name} took {(time.perf_counter() - began) / 60:.1f} minutes", flush=True)
    print(f"\nAll of them took {(time.perf_counter() - started) / 60:.1f} minutes.")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
