#!/usr/bin/env python3
"""Real jobs under faults drawn by seed; a table of what came of them.

    scripts/chaos.py --runs 40 --seed 0          one line a run, the table at the end
    scripts/chaos.py --replay 17                 the story of a seed, its directory kept

Exit code 1 if a run failed. The test bed is in tests/chaos.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.chaos.run import Outcome, draw, run
from tests.chaos.table import table


def main() -> int:
    """Parse, run, tell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=40, help="how many seeds")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--replay", type=int, metavar="SEED", help="tell this seed's story")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--json", action="store_true", help="one JSON object a run, no table")
    parser.add_argument("--only", default="", metavar="WORDS", help="seeds whose plan holds these")
    options = parser.parse_args()
    if options.replay is not None:
        return _tell(options.replay)
    seeds = [s for s in range(options.seed, options.seed + options.runs)]
    return _run_all([s for s in seeds if options.only in str(draw(s))], options)


def _tell(seed: int) -> int:
    outcome = run(seed, keep=True)
    print("\n".join(outcome.story))
    print(outcome.line())
    for problem in outcome.problems:
        print(problem)
    print(f"Its directory is kept: {outcome.directory}")
    return 0 if outcome.passed else 1


def _run_all(seeds: list[int], options: argparse.Namespace) -> int:
    outcomes = []
    # Fresh processes now and then: what leaks here must not add up.
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.jobs, maxtasksperchild=50) as pool:
        for outcome in pool.imap(run, seeds):
            outcomes.append(outcome)
            _show(outcome, options.json)
    if not options.json:
        print(f"\n{table(outcomes)}")
    return 0 if _all_well(outcomes) else 1


def _show(outcome: Outcome, as_json: bool) -> None:
    if as_json:
        print(json.dumps(outcome.json()), flush=True)
        return
    print(outcome.line(), flush=True)
    if outcome.problems:
        print("\n".join(f"    {line}" for line in outcome.story))
        print(f"    its directory is kept: {outcome.directory}", flush=True)


def _all_well(outcomes: Iterable[Outcome]) -> bool:
    return all(outcome.passed or outcome.skipped for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
