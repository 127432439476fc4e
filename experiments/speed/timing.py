"""Timing for the benchmarks: one clock, interleaved rounds, ratios with median and range, tables and result files."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tqdm import tqdm

RESULTS = Path(__file__).parent / "results"


def clock() -> float:
    """Seconds: processor time with one thread, which other programs hardly disturb, wall-clock time otherwise."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


@contextmanager
def one_clock() -> Iterator[None]:
    """Make reports inside count their seconds by `clock`, so that they may be compared with what `clock` timed."""
    single = torch.get_num_threads() == 1
    with mock.patch.object(time, "perf_counter", time.process_time if single else time.perf_counter):
        yield


def time_job(job: Callable[[], Any]) -> float:
    """Seconds of one call."""
    started = clock()
    job()
    return clock() - started


def interleave(jobs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run all jobs in every round, so that a slow moment of the machine affects all of them.

    Args:
        jobs: name -> function that returns the seconds to record.
        rounds: recorded rounds; one more is run first and not recorded.
    """
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    # A log file needs a line now and then only
    interval = 1 if sys.stderr.isatty() else 30
    with tqdm(total=(rounds + 1) * len(jobs), unit="job", leave=False, mininterval=interval) as bar:
        for number in range(rounds + 1):
            for name, job in jobs.items():
                bar.set_postfix_str(f"round {number} of {rounds}, {name}", refresh=False)
                seconds = job()
                bar.update()
                if number:
                    taken[name].append(seconds)
    return taken


def ratios(taken: Mapping[str, list[float]], base: str) -> dict[str, list[float]]:
    """The ratio to `base` in the same round."""
    return {name: [t / b for t, b in zip(own, taken[base], strict=True)] for name, own in taken.items()}


def median(values: Sequence[float]) -> float:
    """The median, as a float."""
    return float(statistics.median(values))


def show(values: Sequence[float], digits: int = 3) -> str:
    """Median and range: `1.012 [1.008, 1.020]`."""
    low, middle, high = (f"{value:.{digits}f}" for value in (min(values), median(values), max(values)))
    return f"{middle} [{low}, {high}]"


def parse_arguments(description: str, **defaults: int) -> argparse.Namespace:
    """Command-line options with integer defaults: `--name value`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"default: {value}")
    return parser.parse_args()


def print_table(title: str, head: list[str], rows: list[list[str]]) -> None:
    """Print an aligned table."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    print(f"\n{title}")
    for row in [head, ["-" * w for w in widths], *rows]:
        print("  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


def write_result(name: str, result: Mapping[str, Any]) -> None:
    """Write the figures of a benchmark to results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, **result}, indent=1) + "\n")
    print(f"written to {path}")
