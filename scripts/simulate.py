#!/usr/bin/env python3
"""Run simulated schedules of the protocol, or tell the story of one.

    scripts/simulate.py --schedules 20000 --seed 0 --jobs 2
    scripts/simulate.py --replay 4711
    scripts/simulate.py --recovery --schedules 20000
    scripts/simulate.py --coverage --schedules 2000
    scripts/simulate.py --hash --schedules 2000
    scripts/simulate.py --exhaustive --faults 2 --jobs 2
    scripts/simulate.py --mutants --jobs 2 --write-docs

One line per failure; exit code 1 if there was one (with --mutants: if one was not found). A long
run reports its progress on stderr every ten seconds. The world is in tests/sim; --write-docs
replaces the table in docs/TESTING_LOG.md.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.sim import exhaustive
from tests.sim.coverage import Coverage
from tests.sim.faults import all_faults
from tests.sim.mutants import MUTANTS
from tests.sim.run import (
    Outcome,
    covered,
    first_found,
    hashed,
    outcome_of,
    recovered,
    recovery_outcome,
    replay,
    settle_memory,
)

ROOT = Path(__file__).resolve().parent.parent
CHUNK = 50
PROGRESS_EVERY_S = 10.0
SHOWN_MAX = 200
MUTANT_SCHEDULES = 20_000
LOG = ROOT / "docs" / "TESTING_LOG.md"


def main() -> int:
    """Parse the options and run."""
    options = _parser().parse_args()
    options.focus = tuple(kind for kind in options.focus.split(",") if kind)
    if options.replay is not None:
        return _tell(options.replay, options)
    if options.mutants:
        return _find_mutants(options)
    if options.exhaustive:
        return _exhaust(options)
    seeds = range(options.seed, options.seed + options.schedules)
    if options.hash:
        return _hash(seeds, options)
    return _cover(seeds, options) if options.coverage else _simulate(seeds, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--schedules", type=int, default=2000, help="number of seeds")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=1, help="parallel processes")
    parser.add_argument("--replay", type=int, metavar="SEED", help="print the story of this seed")
    parser.add_argument("--mutant", default="", help="with a planted bug of tests/sim/mutants.py")
    parser.add_argument(
        "--recovery", action="store_true", help="of one group that recovers without replicas"
    )
    parser.add_argument(
        "--focus", default="", metavar="KINDS", help="faults of these kinds only: cut,kill_worker"
    )
    parser.add_argument(
        "--batches", action="store_true", help="messages piled up on a stream are one event"
    )
    parser.add_argument(
        "--hash", action="store_true", help="one hash of all traces; moving code must not change it"
    )
    parser.add_argument("--coverage", action="store_true", help="count where the faults strike")
    parser.add_argument(
        "--mutants", action="store_true", help="seeds until each planted bug is found"
    )
    parser.add_argument(
        "--exhaustive", action="store_true", help="a small job, with faults at every place"
    )
    parser.add_argument(
        "--faults", type=int, default=1, choices=(1, 2), help="faults per run of --exhaustive"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="write the table to docs/TESTING_LOG.md"
    )
    return parser


def _tell(seed: int, options: argparse.Namespace) -> int:
    if options.recovery:
        lines, outcome = recovered(seed, options.mutant)
    else:
        lines, outcome = replay(seed, options.mutant, options.focus, options.batches)
    for text in lines:
        print(text)
    print(outcome)
    return 1 if outcome.failure else 0


class Progress:
    """Reports the progress of a long run on stderr."""

    def __init__(self, what: str, total: int) -> None:
        self.done = 0
        self._what = what
        self._total = total
        self._began = self._said = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def one_more(self, violations: int) -> None:
        """Count one more; report now and then."""
        self.done += 1
        now = time.monotonic()
        if now < self._said + PROGRESS_EVERY_S:
            return
        self._said = now
        rate = self.done / self.elapsed_s
        left_s = (self._total - self.done) / rate
        print(
            f"{self.done} of {self._total} {self._what}, {rate:.0f}/s, {violations} violations, "
            f"{left_s / 60:.0f} min left",
            file=sys.stderr,
            flush=True,
        )


# ---------------------------------------------------------------- swarms


def _simulate(seeds: range, options: argparse.Namespace) -> int:
    one: Callable[[int], Outcome] = partial(
        outcome_of, mutant=options.mutant, focus=options.focus, batches=options.batches
    )
    if options.recovery:
        one = partial(recovery_outcome, mutant=options.mutant)
    codes: Counter[str] = Counter()
    events = commits = 0
    progress = Progress("schedules", len(seeds))
    with multiprocessing.Pool(options.jobs, settle_memory) as pool:
        for outcome in pool.imap(one, seeds, chunksize=CHUNK):
            events += outcome.events
            commits += outcome.commits
            _note_failure(outcome, codes)
            progress.one_more(codes.total())
    elapsed_s = progress.elapsed_s
    print(
        f"{len(seeds)} schedules ({events} events, {commits} commits) in {elapsed_s:.1f} s, "
        f"{len(seeds) / elapsed_s:.0f}/s: {_found(codes)}"
    )
    return 1 if codes else 0


def _note_failure(outcome: Outcome, codes: Counter[str]) -> None:
    if outcome.failure:
        codes[outcome.code] += 1
        if codes.total() <= SHOWN_MAX:
            print(outcome, flush=True)


def _found(codes: Counter[str]) -> str:
    found = ", ".join(f"{code} {count}" for code, count in sorted(codes.items())) or "none"
    return f"{codes.total()} violations ({found})"


def _hash(seeds: range, options: argparse.Namespace) -> int:
    codes: Counter[str] = Counter()
    digest = hashlib.blake2b(digest_size=16)
    progress = Progress("schedules", len(seeds))
    with multiprocessing.Pool(options.jobs, settle_memory) as pool:
        for outcome in pool.imap(hashed, seeds, chunksize=CHUNK):
            digest.update(outcome.trace_hash.encode())
            _note_failure(outcome, codes)
            progress.one_more(codes.total())
    print(f"traces of seeds {seeds.start} to {seeds.stop - 1}: {digest.hexdigest()}")
    return 1 if codes else 0


def _cover(seeds: range, options: argparse.Namespace) -> int:
    codes: Counter[str] = Counter()
    coverage = Coverage()
    progress = Progress("schedules", len(seeds))
    with multiprocessing.Pool(options.jobs, settle_memory) as pool:
        for outcome, hit in pool.imap(covered, seeds, chunksize=CHUNK):
            coverage.add(hit)
            _note_failure(outcome, codes)
            progress.one_more(codes.total())
    missed = coverage.missed(all_faults())
    span = f"seeds {seeds.start} to {seeds.stop - 1}"
    told = f"{len(seeds)} schedules ({span}): {_found(codes)}; never hit: {missed or 'none'}"
    _show("coverage", [told, "", *coverage.tables(all_faults())], options)
    return 1 if codes or missed else 0


# ---------------------------------------------------------------- every place


def _exhaust(options: argparse.Namespace) -> int:
    started = time.monotonic()
    run = partial(exhaustive.run_case, options.seed)
    calm = run(())
    histories = {calm.history}
    failures = [calm.failure] if calm.failure else []
    cases = 1
    with multiprocessing.Pool(options.jobs, settle_memory) as pool:
        work: list[tuple[exhaustive.Point, ...]] = [(point,) for point in calm.points]
        for number in range(1, options.faults + 1):
            following: list[tuple[exhaustive.Point, ...]] = []
            progress = Progress(f"cases of {number} faults", len(work))
            for done in pool.imap(run, work, chunksize=CHUNK):
                cases += 1
                progress.one_more(len(failures))
                if done.failure:
                    failures.append(done.failure)
                    print(f"{done.faults}: {done.failure}", flush=True)
                elif done.history not in histories and number < options.faults:
                    following += exhaustive.second_faults(done)
                histories.add(done.history)
            work = following
    told = (
        f"2 groups of 2 ranks, 2 steps, seed {options.seed}: {cases} cases with up to "
        f"{options.faults} faults at {len(calm.points)} places, {len(histories)} unlike histories "
        f"in {time.monotonic() - started:.0f} s: {len(failures)} violations"
    )
    _show(f"exhaustive-{options.faults}", [told], options)
    return 1 if failures else 0


# ---------------------------------------------------------------- planted bugs


def _find_mutants(options: argparse.Namespace) -> int:
    rows = []
    missed = 0
    find = partial(first_found, schedules=MUTANT_SCHEDULES)
    with multiprocessing.Pool(options.jobs, settle_memory) as pool:
        for name, outcome in zip(MUTANTS, pool.imap(find, MUTANTS), strict=True):
            mutant = MUTANTS[name]
            missed += outcome is None
            code, after = ("not found", "")
            if outcome is not None:
                code, after = outcome.code, str(outcome.seed + 1 - mutant.start)
            focus = ", ".join(mutant.focus) or "all kinds"
            rows.append(f"| {name} | {mutant.breaks} | {code} | {after} | {focus} |")
            print(rows[-1], flush=True)
    head = [
        "| planted bug | breaks | found by | after schedules | faults drawn |",
        "|---|---|---|---|---|",
    ]
    told = f"{len(rows) - missed} of {len(rows)} found within {MUTANT_SCHEDULES} schedules each"
    _show("mutants", [told, "", *head, *rows], options)
    return 1 if missed else 0


# ---------------------------------------------------------------- docs


def _show(name: str, lines: Sequence[str], options: argparse.Namespace) -> None:
    print("\n".join(lines))
    if not options.write_docs:
        return
    begin, end = f"<!-- simulate.py: {name} -->", f"<!-- end: {name} -->"
    table = "\n".join([begin, *lines, end])
    text = LOG.read_text()
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{LOG} has no place for it: {begin} … {end}")
    LOG.write_text(pattern.sub(lambda _: table, text))


if __name__ == "__main__":
    sys.exit(main())
