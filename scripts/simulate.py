#!/usr/bin/env python3
"""Run simulated schedules of the protocol, or tell the story of one.

    scripts/simulate.py --schedules 20000 --seed 0 --jobs 2
    scripts/simulate.py --replay 4711

One line per failure; exit code 1 if there was one. The world is in tests/sim.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.sim.run import Outcome, outcome_of, replay, settle_memory

CHUNK = 50
SHOWN_MAX = 200


def main() -> int:
    """Parse, run, tell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--schedules", type=int, default=2000, help="how many seeds")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--replay", type=int, metavar="SEED", help="tell this seed's story")
    parser.add_argument("--mutant", default="", help="with a planted bug of tests/sim/mutants.py")
    parser.add_argument(
        "--focus", default="", metavar="KINDS", help="faults of these kinds only: cut,kill_worker"
    )
    options = parser.parse_args()
    options.focus = tuple(kind for kind in options.focus.split(",") if kind)
    if options.replay is not None:
        return _tell(options.replay, options)
    return _simulate(range(options.seed, options.seed + options.schedules), options)


def _tell(seed: int, options: argparse.Namespace) -> int:
    lines, outcome = replay(seed, options.mutant, options.focus)
    for text in lines:
        print(text)
    print(outcome)
    return 1 if outcome.failure else 0


def _simulate(seeds: range, options: argparse.Namespace) -> int:
    started = time.monotonic()
    work = [(seed, options.mutant, options.focus) for seed in seeds]
    with multiprocessing.Pool(options.jobs, settle_memory) as pool:
        outcomes = pool.imap(_one, work, chunksize=CHUNK)
        codes: Counter[str] = Counter()
        events = commits = 0
        for outcome in outcomes:
            events += outcome.events
            commits += outcome.commits
            if outcome.failure:
                codes[outcome.code] += 1
                if codes.total() <= SHOWN_MAX:
                    print(outcome, flush=True)
    elapsed_s = time.monotonic() - started
    found = ", ".join(f"{code} {count}" for code, count in sorted(codes.items())) or "none"
    print(
        f"{len(seeds)} schedules ({events} events, {commits} commits) in {elapsed_s:.1f} s, "
        f"{len(seeds) / elapsed_s:.0f}/s: {codes.total()} violations ({found})"
    )
    return 1 if codes else 0


def _one(work: tuple[int, str, tuple[str, ...]]) -> Outcome:
    return outcome_of(*work)


if __name__ == "__main__":
    sys.exit(main())
