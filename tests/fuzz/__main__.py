"""A long campaign: `python -m tests.fuzz --minutes 10 [--seed N]`; ends with code 1 if anything was handled badly."""

from __future__ import annotations

import argparse
import random
import time

from tests.fuzz.campaign import Case, cases, run_case
from tests.fuzz.mutations import MUTATIONS


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    rng, known = random.Random(asked.seed), list(cases())
    end, count, bad = time.monotonic() + 60 * asked.minutes, 0, list[str]()
    while time.monotonic() < end:
        one = rng.choice(known)
        wrong = run_case(Case(one.kind, one.file, rng.choice(list(MUTATIONS)), rng.randrange(1 << 30)))
        count += 1
        if wrong is not None:
            bad.append(wrong)
            print(wrong, flush=True)
    print(f"{count} cases from seed {asked.seed}, {len(bad)} handled badly")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
