"""A worker is replaced inside its group (ftrun/inject/zero_edit/in_place.py).

Its successor has a new machine. The successor begins at a step that the lost worker has begun, and
repeats its script's actions since, with the results from a log: those that were handed out.
Messages to and from the lost worker are lost. Results that a worker of its rank in another replica
has handed out are in that worker's log. Then the successor answers late, like a worker that was
interrupted. Its script holds the same as the lost one's, because it repeats it.

The agent keeps the generations of a group that has ended. The slot's next group claims the newest
one that all ranks have left, as if it had loaded it. The claim counts only if no other replica
holds the job's state.

Not here: when it strikes (faults.py), calls within the group (tests/sim/replay/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING

from ftrun.core import messages as m
from ftrun.core.agent.slot_state import SlotPhase
from ftrun.core.data.plan import DataPosition
from ftrun.core.ids import Attempt, StateId
from ftrun.core.quorum import Quorum
from ftrun.core.replay.log_rules import may_take
from ftrun.core.replay.settling import Generation, common
from ftrun.core.worker import events as e
from ftrun.core.worker.facts import StepPhase
from ftrun.core.worker.machine import StepMachine
from tests.sim.rings import Result
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.worker import Worker
    from tests.sim.world import World

MEND = "mend"
"""In ``focus``: workers are replaced inside their group."""
FALL = "fall"
"""The same, where the group cannot be mended."""
OF_SCRIPT = (e.OperationIssued, e.OperationsEnded, e.VoteStarted, e.Decided)
KEPT = 2
MEND_S = (0.02, 0.1, 0.3, 0.7, 1.4)
OWN = ("vote_decided", "_tick", "lost_agent", "asked_to_stop", "crash")
"""Events that come neither from the lighthouse nor from peers, or that are in a log."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A result that was handed out, its quorum, and the highest attempt that was known then."""

    quorum: Quorum
    seen: Attempt
    result: Result


@dataclass(frozen=True, slots=True)
class Kept:
    """A generation."""

    state: StateId
    content: int
    position: DataPosition


class Left:
    """What an agent's groups have left, by slot: the generations of each rank."""

    def __init__(self) -> None:
        self._of: dict[str, list[list[Kept]]] = {}
        self._ends: dict[str, dict[int, list[Kept]]] = {}

    def ended(self, worker: Worker) -> None:
        """A worker's process has ended."""
        key, workers = worker.key, worker.world.job.workers
        ends = self._ends.setdefault(key.incarnation, {})
        ends[key.group_rank] = worker.log.kept
        if len(ends) == workers:
            ranks = [ends[rank] for rank in range(workers)]
            if boundary(ranks, inf) is not None:
                self._of[key.replica_id] = ranks
            del self._ends[key.incarnation]

    def claims(self, replica_id: str, until: float) -> list[Kept] | None:
        """The state with which the slot's next group begins, by rank; None: it begins at the
        start."""
        ranks = self._of.get(replica_id, [])
        step = boundary(ranks, until) if ranks else None
        if step is None:
            self._of.pop(replica_id, None)
            return None
        return [[x for x in known if x.state.step == step][-1] for known in ranks]


def boundary(ranks: Sequence[Sequence[Kept]], until: float) -> int | None:
    """The boundary, found as by the agent (agent/group_memory.py)."""
    found = [[Generation(n, x.state.step) for n, x in enumerate(known)] for known in ranks]
    return common(found, until=until)


@dataclass
class Log:
    """A worker's log: a generation, its script's actions since, and the results it was given.

    ``seed``: None: a successor could not begin. ``handed``: by step and index, the quorum.
    ``results``: by the step's number and index, from the newest attempt of this step and of the one
    before. ``is_lost``: a step was lost since, so a successor falls there. ``kept``: the newest
    generations.
    """

    seed: e.Succeeds | None = None
    begun: int = 0
    events: list[e.Event] = field(default_factory=list)
    handed: dict[tuple[int, int], Quorum] = field(default_factory=dict)
    results: dict[tuple[int, int], Noted] = field(default_factory=dict)
    is_lost: bool = False
    kept: list[Kept] = field(default_factory=list)
    _step: int = -1

    def note(self, worker: Worker, event: e.Event, instructions: list[e.Instruction]) -> None:
        """The machine has handled one more event."""
        machine = worker.machine
        if isinstance(event, OF_SCRIPT):
            self.events.append(event)
        if isinstance(event, e.Decided) and machine.state.step == self._step:
            self.is_lost = True
        for instruction in instructions:
            tag, quorum = machine.commits_as, machine.in_force
            if isinstance(instruction, e.HandOut) and tag is not None and quorum is not None:
                quorum = replace(quorum, attempt=tag.attempt)
                for index in instruction.indices:
                    self.handed[machine.begun, index] = quorum
                    result = worker.reductions[index].buffer
                    if result is not None:
                        noted = Noted(quorum, machine.quorums.seen, result)
                        self.results.setdefault((machine.position, index), noted)
        if machine.begun != self.begun:
            self._begins(worker)

    def _begins(self, worker: Worker) -> None:
        machine = worker.machine
        self.begun, self._step = machine.begun, machine.state.step
        self.results = {x: y for x, y in self.results.items() if x[0] == machine.position - 1}
        quorum = machine.in_force
        is_whole = not (machine.healing or machine.heal.torn) and quorum is not None
        is_other = self.seed is not None and (
            quorum is None or self.seed.quorum.attempt.quorum_id != quorum.attempt.quorum_id
        )
        if not is_whole:
            self.seed = None
        elif self.seed is None or is_other or self.is_lost or worker.world.mend_rng.random() < 0.5:
            self.seed, self.events = machine.seed(), []
            self.handed.clear()
            self.is_lost = False
            kept = Kept(machine.state, worker.content, worker.position)
            self.kept = [*self.kept, kept][-KEPT:]
        self.events.append(e.BoundaryReached(machine.freezes_membership))


def mend(world: World) -> None:
    """Replace one worker; do nothing where that would be a fall."""
    workers = [worker for host in world.hosts for worker in host.workers()]
    fit = [x for x in workers if x.log.seed is not None and _may_be_replaced(x)]
    if fit:
        _replace(world, world.mend_rng.choice(fit))


def fall(world: World) -> None:
    """Kill a worker of each replica at about the same moment: none of them can be replaced."""
    workers = {x.key.replica_id: x for host in world.hosts for x in host.workers()}
    within_s = world.mend_rng.choice((0.0, 0.01, 0.3))
    for worker in workers.values():
        world.at(world.mend_rng.uniform(0.0, within_s), worker, worker.crash)


def _may_be_replaced(worker: Worker) -> bool:
    machine = worker.machine
    is_well = worker.registered and machine.phase is not StepPhase.LEFT
    is_apart = worker.hangs or worker.is_pressed or worker.paused_until > worker.world.now
    return is_well and not (is_apart or machine.healing or machine.heal.torn)


def _replace(world: World, worker: Worker) -> None:
    lost, machine = worker.machine, worker.new_machine()
    duration_s = world.mend_rng.choice(MEND_S)
    world.note(worker.name, "is replaced in place", duration_s)
    world.invariants.excuse(worker.key.incarnation, "it is replaced in place")
    _repeat(worker.log, machine, world.now)
    if worker.log.is_lost:
        worker.crash()
        return
    if (machine.state, machine.begun) != (lost.state, lost.begun):
        raise Violation("S1", f"{worker.name} holds {machine.state}, and the lost one {lost.state}")
    worker.mends = lost.quorums.seen
    worker.waits = lost.phase is StepPhase.WAITING
    known = logged(worker.log)
    for index, reduction in enumerate(worker.reductions):
        if (machine.begun, index) not in known:
            reduction.released, reduction.final, reduction.buffer = False, None, None
        elif reduction.final is not None and machine.contributors():
            reduction.final = reduction.final[0], len(machine.contributors())
    worker.succeeds(machine)
    worker.pause(duration_s)
    tell(worker)


def tell(worker: Worker) -> None:
    """Its agent reports to the lighthouse whether a worker of the replica is being replaced."""
    key, agent = worker.key, worker.agent
    group = [x for x in agent.workers.values() if x.key.incarnation == key.incarnation]
    mends = any(x.mends is not None for x in group)
    slot = agent.supervisor.slots.of_incarnation(key.incarnation)
    if agent.alive and slot is not None and slot.phase is SlotPhase.RUNNING:
        agent.tell(m.ReplicaStarted(key.replica_id, key.incarnation, 0, mends=mends))


def highest_of(worker: Worker, own: Attempt) -> Attempt:
    """The highest attempt that the lost worker, or another worker of its group, has seen."""
    mates = [
        x for x in worker.agent.workers.values() if x.key.incarnation == worker.key.incarnation
    ]
    return max([own, *(x.machine.quorums.seen for x in mates)])


def logged(log: Log) -> dict[tuple[int, int], Quorum]:
    """All results that were handed out."""
    return log.handed


def _repeat(log: Log, machine: StepMachine, now: float) -> None:
    assert log.seed is not None
    machine.handle(log.seed, now)
    index, known = 0, logged(log)
    for event in list(log.events):
        sent = machine.handle(event, now)
        index = 0 if isinstance(event, e.BoundaryReached) else index
        if isinstance(event, e.OperationIssued):
            quorum = known.get((machine.begun, index))
            if quorum is not None:
                machine.handle(e.WentOut(quorum), now)
                sent += machine.handle(e.OperationCompleted(quorum.attempt, index), now)
            index += 1
        if any(isinstance(x, e.Send) for x in sent):
            raise Violation("Q2", f"a successor sends {sent} while it repeats")


def goes_on(worker: Worker) -> None:
    """A successor has caught up with the lost worker; messages in flight to the lost one are
    lost."""
    assert worker.mends is not None, "it is replaced"
    highest, worker.mends = highest_of(worker, worker.mends), None
    tell(worker)
    held, worker._held = worker._held, []
    for action, args in held:
        owner, name = getattr(action, "__self__", None), getattr(action, "__name__", "")
        if owner in (worker.script, worker.exchanges) or (owner is worker and name in OWN):
            worker._held.append((action, args))
    worker.from_agent.forget()
    _begins_like_mates(worker)
    _takes_results(worker, highest)
    if not worker.agent.alive:
        worker.crash()
        return
    lease = worker.agent.supervisor.lease
    if lease is not None:
        worker.feed(lease)
    answers(worker, highest)
    if worker.waits and worker.alive:
        worker.feed(e.BoundaryReached(worker.machine.freezes_membership))


def _begins_like_mates(worker: Worker) -> None:
    """Begin a step that a mate has begun, if the lost worker was at its boundary."""
    mates, step = worker.agent.workers.values(), worker.machine.position
    if not worker.waits:
        return
    group = [x for x in mates if x.key.incarnation == worker.key.incarnation and x is not worker]
    if any(x.machine.in_step and x.machine.position == step for x in group):
        worker.waits = False
        worker.feed(e.BoundaryReached(worker.machine.freezes_membership))


def _takes_results(worker: Worker, highest: Attempt) -> None:
    """Take results from the logs of other replicas, up to the first one that none has."""
    machine = worker.machine
    others = [x for host in worker.world.hosts for x in host.workers() if x is not worker]
    column = [x.log.results for x in others if x.key.group_rank == worker.key.group_rank]
    for index, reduction in enumerate(worker.reductions):
        if reduction.released or machine.tag is None:
            continue
        if machine.tries_again:
            return
        known = [found for x in column if (found := x.get((machine.position, index)))]
        in_force = machine.in_force
        of_this = [x for x in known if in_force and x.quorum.has_same_members(in_force)]
        noted = next((x for x in of_this if may_take(x.seen, highest)), None)
        if noted is None:
            return
        worker.world.note(worker.name, "has from another replica", noted)
        reduction.buffer = noted.result
        worker.feed(e.WentOut(noted.quorum))
        worker.feed(e.OperationCompleted(noted.quorum.attempt, index))


def answers(worker: Worker, highest: Attempt) -> None:
    """Report to the lighthouse."""
    worker.feed(m.Interrupt(highest))
