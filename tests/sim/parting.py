"""The end of simulated scripts that linger, and the rules for it.

Some seeds have such scripts: all workers leave together, and one that dies meanwhile comes back and
heals. In some of these seeds one replica leaves the loop before the others, which train on without
it. Not here: the decisions (core/worker/parting.py); the rest of the script (script.py).
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ftrun.core.ids import StateId, WorkerKey
from ftrun.core.messages import Mark, Roster
from ftrun.core.quorum import Quorum
from ftrun.core.worker import events as e
from ftrun.core.worker.asking import AskLighthouse, AskPeer
from ftrun.core.worker.facts import StepPhase
from ftrun.core.worker.parting import Do, Parting, Stage, Stay
from tests.sim.exchanging import PATIENCE_S, Asked
from tests.sim.until import INSTANT_S, Until, Wait
from tests.sim.violation import require

if TYPE_CHECKING:
    from tests.sim.worker import Worker
    from tests.sim.world import Job

LINGERING_FROM, LINGERING_TO = 100_000_000, 200_000_000
"""Seeds between these have scripts that end early and linger. (No recorded seed is among them.)"""
EARLY_FROM = 150_000_000
"""From this seed on, one replica leaves the loop early."""
EARLY_PATIENCE_S = 20.0
BEGIN_S = ROSTER_S = 1.0


def lingers(seed: int) -> bool:
    """Whether the scripts of this seed linger."""
    return LINGERING_FROM <= seed < LINGERING_TO


def that_lingers(job: Job, rng: random.Random) -> Job:
    """A job that ends while faults still strike.

    Its newcomers heal first, as in unmodified scripts; or they heal in the step, and see only after
    it that the job is at its end. In the second case groups have one worker: workers of one group
    that learn of the end at different moments may begin again.
    """
    steps = rng.randint(1, 5)
    heal_first = rng.random() < 0.7 or job.workers > 1
    return replace(job, heal_first=heal_first, spares=False, steps=steps)


def with_steps(job: Job, seed: int) -> Job:
    """A job of which one replica can leave the loop before the others."""
    if seed < EARLY_FROM:
        return job
    job = replace(job, heal_first=True)
    accepts_fewer = random.Random(f"{seed}/fewer").random() < 0.3
    return replace(job, steps=max(2, job.steps or 0), accepts_fewer=accepts_fewer)


@dataclass(frozen=True)
class EarlyEnd:
    """The replica that leaves the loop at ``step``, if it has trained before; "": none."""

    slot: str = ""
    step: int = -1

    @staticmethod
    def draw(seed: int, job: Job) -> EarlyEnd:
        """Draw it from a seed."""
        if not (lingers(seed) and seed >= EARLY_FROM and job.steps):
            return EarlyEnd()
        rng = random.Random(f"{seed}/early")
        return EarlyEnd(str(rng.randrange(job.replicas)), rng.randrange(1, job.steps))

    def is_at(self, worker: Worker) -> bool:
        """Whether this worker's script leaves the loop here."""
        machine = worker.machine
        is_it = (worker.key.replica_id, machine.state.step) == (self.slot, self.step)
        return is_it and machine.heal.has_committed and not machine.healing

    def holds_up(self, quorum: Quorum) -> bool:
        """Whether a member of ``quorum`` may stand at its end at its first step."""
        return quorum.step == self.step and any(x.replica_id == self.slot for x in quorum.members)


class PartingRules:
    """Rules L4, L5 and Z2: when a worker may leave, and with which state.

    A worker that leaves knows that all have reached the end, and holds the state of all (L4);
    and the lighthouse has compared all at that state (Z2), unless it did not answer in time.

    Only a replica whose script leaves the loop before the others leaves early. It does not wait,
    unless all others have just healed to its state and may be on their way to the end.

    The oracle sees all processes. For each other slot one of these holds: its latest process has
    reached the end, an earlier one knew that all had, or the lighthouse has reported its part as
    over. Processes that lived at the same time leave with the same state. (If all holders die, the
    job starts over, and it may if people restart a drained replica.)
    """

    def __init__(self) -> None:
        self.left = 0
        self._latest: dict[str, str] = {}
        self._here: set[str] = set()
        self._knew: set[str] = set()
        self._over: set[str] = set()
        self._is_reopened = False
        self._early: set[str] = set()
        self._born: dict[str, int] = {}
        self._states: list[tuple[WorkerKey, StateId]] = []
        self.compared: set[str] = set()  # lineages, by a Roster
        self.has_timed_out = False  # one has left uncompared: those that it informs may, too

    def starts(self, key: WorkerKey) -> None:
        """A process starts."""
        self._early.discard(key.replica_id)
        if key.replica_id in self._over and key.incarnation != self._latest.get(key.replica_id):
            self._is_reopened = True
        self._latest[key.replica_id] = key.incarnation
        self._born.setdefault(key.incarnation, len(self._states))

    def shows(self, key: WorkerKey, stage: Stage | None) -> None:
        """A worker shows a stage."""
        if stage is not None:
            self._here.add(key.incarnation)
        if stage is not None and stage >= Stage.KNOWS:
            self._knew.add(key.replica_id)

    def told(self, slots: frozenset[str]) -> None:
        """The lighthouse reports the slots whose part is over."""
        self._over |= slots

    def leaves_early(self, key: WorkerKey, slot: str) -> None:
        """A worker leaves although others train on; ``slot``: the slot whose script leaves
        early."""
        require(key.replica_id == slot, "L4", f"{key} leaves early, and its script has not")
        self._early.add(key.replica_id)

    def ends(self, exit_code: int, *, is_known: bool) -> None:
        """The job ends. ``is_known``: the lighthouse must know which replicas have left early
        (L5)."""
        is_well = exit_code or not (self._early and is_known)
        require(bool(is_well), "L5", f"the job ends with 0, and {self._early} have left early")

    def leaves(self, key: WorkerKey, state: StateId, replicas: int) -> None:
        """A worker leaves."""
        self.left += 1
        is_known = self.has_timed_out or state.lineage in self.compared
        require(is_known, "Z2", f"{key} leaves, and nobody has compared all")
        for slot in map(str, range(replicas)):
            is_here = self._latest.get(slot) in self._here
            is_known = is_here or slot in self._knew or slot in self._over
            require(is_known, "L4", f"{key} leaves, and replica {slot} is not at the end")
        since = self._states[self._born[key.incarnation] :]
        for other, its in [] if self._is_reopened else since:
            require(its == state, "L4", f"{key} leaves with {state}, {other} with {its}")
        self._states.append((key, state))


def linger(worker: Worker) -> Generator[Wait, None, bool]:
    """The counterpart of training/lingering.py for a simulated worker; returns whether it leaves
    early."""
    world, machine, job = worker.world, worker.machine, worker.world.job
    parting = Parting(machine, job.replicas, worker.exchanges.stage)
    assert job.steps is not None, "a script that comes to its end"
    state = machine.state
    machine.ended_with = Mark(state.step, state.lineage, "", state.lineage)
    has_left_loop = world.early.slot == worker.key.replica_id and machine.state.step < job.steps
    deadline = world.now + (EARLY_PATIENCE_S if has_left_loop else PATIENCE_S)
    while world.now < deadline:
        move = parting.next(world.now)
        world.parting_rules.shows(worker.key, worker.exchanges.stage.stage)
        world.parting_rules.has_timed_out |= not parting.is_compared
        worker.exchanges.look()
        match move:
            case None:
                if parting.gone_on:
                    world.parting_rules.leaves_early(worker.key, world.early.slot)
                    return True
                world.parting_rules.leaves(worker.key, machine.state, job.replicas)
                return False
            case AskLighthouse():
                yield from _look(worker, parting)
            case AskPeer():
                asked = Asked(worker, move)
                yield asked.reply
                if asked.found:
                    parting.answered(move, asked.found, world.now)
                else:
                    parting.failed(move, world.now, reached=asked.is_reached)
            case Do.BEGIN:
                yield from _begin(worker)
                if machine.phase is StepPhase.LEFT:
                    return False
            case Do.HEAL:
                yield from worker.script.heal()
            case Do.END_TRY:
                worker.feed(e.Decided(False, shared=True, reason="replicas are missing"))
                yield INSTANT_S
            case Do.TELL:
                phase, since_s = machine.report_activity()
                worker.report(0, phase, since_s)
            case Stay(until):
                before = machine.fate, machine.in_force
                yield _until(worker, lambda: (machine.fate, machine.in_force) != before, until)  # noqa: B023
    others = [x for x in world.workers() if x.alive and x.key.replica_id != worker.key.replica_id]
    have_healed = all(x.machine.late_to >= machine.state.step for x in others)
    text = f"{worker.name} waits at the end for {parting.awaited} for ever"
    require(has_left_loop and have_healed, "L1", text)
    return False


def _until(worker: Worker, condition: object, until_s: float) -> Until:
    """Wait for ``condition``, or until that time."""
    world = worker.world
    world.at(max(0.0, until_s - world.now), worker, worker.script.wake)
    assert callable(condition)
    return Until(lambda: condition() or world.now >= until_s, PATIENCE_S, "the other replicas")


def _look(worker: Worker, parting: Parting) -> Generator[Wait, None, None]:
    world = worker.world
    worker.peers = None
    worker.feed(e.PeersAsked())
    yield _until(worker, lambda: worker.peers is not None, world.now + ROSTER_S)
    roster: Roster | None = worker.peers
    world.parting_rules.compared.update({roster.compared} if roster is not None else ())
    world.parting_rules.told(frozenset(roster.finished if roster is not None else ()))
    parting.are_over(roster, world.now)


def _begin(worker: Worker) -> Generator[Wait, None, None]:
    machine, world = worker.machine, worker.world
    worker.register()
    yield INSTANT_S
    worker.feed(e.BoundaryReached(freeze_membership=False))
    is_there = lambda: machine.in_step or machine.phase is StepPhase.LEFT  # noqa: E731
    yield _until(worker, is_there, world.now + BEGIN_S)
    if machine.in_step and machine.heals_first:
        yield INSTANT_S
        yield from worker.script.heal()
    if machine.in_step and world.exchanges_at_all:
        worker.exchanges.step_begun()
