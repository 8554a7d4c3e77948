#!/usr/bin/env python3
"""Run real jobs under faults drawn by seed; print a table of the outcomes.

    scripts/chaos.py --runs 40 --seed 0          one line per run, the table at the end
    scripts/chaos.py --replay 17                 the story of a seed; keeps its directory
    scripts/chaos.py --runs 500 --json > a.jsonl  a campaign, in any number of parts
    scripts/chaos.py table a.jsonl b.jsonl       the table of all parts
    scripts/chaos.py orphans                     processes left behind, by ftrun and torchrun
    scripts/chaos.py restarts --count 1000       one job, a thousand restarts: memory and more

Exit code 1 if a run failed. The test bed is in tests/chaos.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.chaos import orphans, plots, restarts
from tests.chaos.run import Outcome, draw, read, run
from tests.chaos.table import table


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = ("runs", "table", "orphans", "restarts")
    parser.add_argument("what", nargs="?", choices=what, default="runs")
    parser.add_argument("files", nargs="*", type=Path, help="table: files written by --json")
    parser.add_argument("--runs", type=int, default=40, help="number of seeds")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--replay", type=int, metavar="SEED", help="print the story of this seed")
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs")
    parser.add_argument("--json", action="store_true", help="one JSON object per run, no table")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="only seeds whose plan contains WORDS"
    )
    parser.add_argument("--count", type=int, default=1000, help="restarts: their number")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="restarts: file of the plot")
    options = parser.parse_args()
    _end_well()
    if options.files and options.what != "table":
        parser.error(f"{options.what} takes no files")
    if options.what == "table":
        return _table(options.files)
    if options.what == "orphans":
        return _orphans()
    if options.what == "restarts":
        return _restarts(options.count, options.plot)
    if options.replay is not None:
        return _tell(options.replay)
    seeds = range(options.seed, options.seed + options.runs)
    return _run_all([s for s in seeds if options.only in str(draw(s))], options)


def _table(paths: Iterable[Path]) -> int:
    """The runs of the files. If a seed occurs more than once, the last run counts."""
    lines = [line for path in paths for line in path.read_text().splitlines() if line]
    found = {outcome.plan.seed: outcome for line in lines for outcome in [read(json.loads(line))]}
    print(table(found.values()))
    for outcome in found.values():
        if not outcome.passed and not outcome.skipped:
            print(outcome.line())
    return 0 if _all_well(found.values()) else 1


def _orphans() -> int:
    rows = list(orphans.measure(lambda line: print(line, file=sys.stderr, flush=True)))
    print(orphans.table(rows))
    return 0 if all(row.left == 0 for row in rows if row.launcher == "ftrun") else 1


def _restarts(count: int, plot: Path | None) -> int:
    found = restarts.run_restarts(count, lambda line: print(line, flush=True))
    done, took = len(found.returns_s), found.returns_s or [0.0]
    print(f"\n{done} restarts in {found.seconds:.0f} s; SIGKILL to the replacement's first commit:")
    print(f"median {statistics.median(took):.2f} s, at most {max(took):.2f} s\n\n{found.table()}")
    print("\n".join(found.problems))
    if plot is not None:
        plots.draw(found, plot)
    return 1 if found.problems else 0


def _tell(seed: int) -> int:
    outcome = run(seed, keep=True)
    print("\n".join(outcome.story))
    print(outcome.line())
    for problem in outcome.problems:
        print(problem)
    print(f"Its directory is kept: {outcome.directory}")
    return 0 if outcome.passed else 1


def _run_all(seeds: list[int], options: argparse.Namespace) -> int:
    _end_well()  # so that the pool's processes end their own children
    outcomes = []
    # Fresh processes now and then, so that leaks here do not add up.
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.jobs, _end_well, maxtasksperchild=50) as pool:
        for outcome in pool.imap(run, seeds):
            outcomes.append(outcome)
            _show(outcome, options.json)
        pool.close()
        pool.join()
    if not options.json:
        print(f"\n{table(outcomes)}")
    return 0 if _all_well(outcomes) else 1


def _end_well() -> None:
    """At SIGTERM, also end all processes that were started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


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
