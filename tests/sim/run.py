"""One schedule from its seed to its outcome: for the tests and for scripts/simulate.py."""

from __future__ import annotations

import gc
import sys
import traceback
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from tests.sim.coverage import Coverage
from tests.sim.invariants import Violation
from tests.sim.replay.mutants import world as recovery_world
from tests.sim.world import World


@dataclass(frozen=True)
class Outcome:
    """The outcome of a seed. ``code``: of the broken invariant, or the exception's name."""

    seed: int
    events: int
    commits: int
    code: str = ""
    failure: str = ""
    trace_hash: str = ""

    def __str__(self) -> str:
        if not self.failure:
            return f"seed {self.seed}: {self.commits} commits in {self.events} events, all holds"
        return f"seed {self.seed}: {self.failure}"


def settle_memory() -> None:
    """Exempt all loaded objects from garbage collection, before very many schedules.

    PyPy, which runs these schedules several times as fast, has another collector.
    """
    if sys.implementation.name != "cpython":
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 1000)


def outcome_of(
    seed: int,
    mutant: str = "",
    focus: tuple[str, ...] = (),
    coverage: Coverage | None = None,
    batches: bool = False,
) -> Outcome:
    """Run one schedule; any failure is in the outcome, the strikes are in ``coverage``."""
    with _planted(mutant):
        world = World(seed, focus=focus, batches=batches)
        world.coverage = coverage
        return _run(world)


def recovered(seed: int, mutant: str = "") -> tuple[list[str], Outcome]:
    """Run one schedule of a recovery without replicas; ``commits``: the number of resumes."""
    world = recovery_world(seed, mutant)
    try:
        world.run()
    except (Violation, AssertionError) as error:
        code = error.code if isinstance(error, Violation) else "AssertionError"
        return world.story, Outcome(seed, world.steps, world.mends, code, f"{error}")
    return world.story, Outcome(seed, world.steps, world.mends)


def recovery_outcome(seed: int, mutant: str = "") -> Outcome:
    """The outcome alone."""
    return recovered(seed, mutant)[1]


def covered(seed: int) -> tuple[Outcome, Coverage]:
    """Run one schedule and count the strikes of its faults."""
    coverage = Coverage()
    outcome = outcome_of(seed, coverage=coverage)
    return outcome, coverage


def first_found(mutant: str, schedules: int, start: int = 0) -> Outcome | None:
    """The first of ``schedules``, from ``start`` after its first one, that finds a planted bug."""
    from tests.sim.mutants import MUTANTS

    focus, first = MUTANTS[mutant].focus, MUTANTS[mutant].start + start
    seeds = range(first, first + schedules)
    outcomes = (outcome_of(seed, mutant, focus) for seed in seeds)
    return next((outcome for outcome in outcomes if outcome.failure), None)


def hashed(seed: int) -> Outcome:
    """Run one schedule; the outcome has the hash of its trace."""
    world = World(seed)
    return replace(_run(world), trace_hash=world.trace_hash())


def replay(
    seed: int, mutant: str = "", focus: tuple[str, ...] = (), batches: bool = False
) -> tuple[list[str], Outcome]:
    """Run one schedule; returns its story too."""
    with _planted(mutant):
        world = World(seed, focus=focus, batches=batches)
        outcome = _run(world)
    return [str(world.job), str(world.faults), *world.story()], outcome


def _planted(mutant: str) -> AbstractContextManager[None]:
    if not mutant:
        return nullcontext()
    from tests.sim.mutants import planted  # it patches the cores: import it only when needed

    return planted(mutant)


def _run(world: World) -> Outcome:
    try:
        world.run()
    except Violation as violation:
        return Outcome(world.seed, world.events, world.commits, violation.code, str(violation))
    except Exception as error:  # noqa: BLE001  # a core that raises is a finding like any other
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        return Outcome(world.seed, world.events, world.commits, type(error).__name__, text)
    return Outcome(world.seed, world.events, world.commits)
