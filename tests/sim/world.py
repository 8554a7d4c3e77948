"""The simulated world: one seeded queue of events, virtual time, and all actors.

The cores are the real ones. All else is modelled: the network (network.py), the lighthouse's
process (lighthouse.py), agents (node.py), workers (worker.py, script.py), process groups
(rings.py), healing (healing.py) and faults (faults.py). Not here: invariants (invariants.py).

A seed always gives the same schedule: nothing here reads a clock or iterates over a set. An actor
never calls another one: all interaction is by events in the queue.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ftrun.core.lighthouse.events import JournalState, OperatorAsked, Request
from ftrun.core.lighthouse.standstill import limit_s
from ftrun.core.messages import JobSpec
from ftrun.core.worker.facts import StepPhase
from ftrun.core.worker.machine import GROUP_TIMEOUT_S
from tests.sim.actor import (
    BUILD_TIMEOUT_S,
    HANG_TIMEOUT_S,
    HANG_TIMEOUT_SHORT_S,
    HEARTBEAT_TIMEOUT_S,
    ISOLATION_LIMIT_S,
    JOIN_TIMEOUT_S,
    OPERATION_TIMEOUT_S,
    SETTINGS,
    STANDSTILL_LIMIT_S,
    Actor,
    Crashed,
)
from tests.sim.coverage import Coverage
from tests.sim.exchange_rules import ExchangeRules
from tests.sim.exchanging import Programme
from tests.sim.fault_kinds import LATE_KINDS, SERVING_KINDS, STANDSTILL_KINDS
from tests.sim.faults import Faults
from tests.sim.freezes import Freezes
from tests.sim.invariants import Invariants, Violation
from tests.sim.keeping import keeps, that_keeps
from tests.sim.lateness import LATENESS, WINDOW_S, Lateness, is_late
from tests.sim.lighthouse import LighthouseProcess
from tests.sim.mending import MEND
from tests.sim.node import Agent, Host
from tests.sim.parting import EarlyEnd, PartingRules, lingers, that_lingers, with_steps
from tests.sim.records import Records
from tests.sim.refusals import REFUSALS, RefusalRules, Refusals, refuses
from tests.sim.rings import Rings
from tests.sim.samples import SampleRules, plan_of
from tests.sim.shapes import Shapes
from tests.sim.story import line
from tests.sim.worker import Worker

EVENTS_MAX = 60_000
EVENTS_MAX_HUNG = 300_000
RESTORED_AFTER_S = 0.5
RECOVERY_S = 15.0
CALENDAR_S = 20_000.0
"""The day on which every schedule begins, after the lighthouse's day zero."""
NAMES = re.compile(r"\b[A-Za-z_]\w*[(=]|<\w+\.\w+: ")
"""Names of classes and fields in a ``repr``."""


PLENTY = 1000
"""A restart budget that no schedule exhausts."""
SHORT_BUDGET_SEEDS = (8, 22, 26)
"""Modulo 32: the agents have small restart budgets and give replicas up. The values keep the
schedule of every older seed."""
APART_SEEDS = (16, 20, 37)
"""Modulo 64, from 1000 on: scripts whose optimizers step before they make their Manager."""

EXCHANGE_SEEDS = (5, 13, 27)
"""Modulo 32, from 1000 on: scripts that exchange values beside their steps."""
EXCHANGES = "exchanges"
"""In ``focus``: the script exchanges."""
KEPT_AGENTS = "kept_agents"
"""In ``focus``: a host's next agent keeps the name of the dead one, as if a supervisor restarted
it."""

Entry = tuple[float, int, Actor | None, Callable[..., None], tuple[Any, ...]]


@dataclass(frozen=True)
class Job:
    """The job, drawn from the seed. ``steps``: the last step of the script; None: it has no end."""

    replicas: int
    min_replicas: int
    workers: int
    agents: int
    operations: int
    batched: bool
    waits_each: bool
    heal_first: bool
    init_sync: bool
    repair: bool
    spares: bool
    min_size: int
    step_s: float
    steps: int | None
    accepts_fewer: bool = True
    is_kept: bool = False

    @staticmethod
    def draw(rng: random.Random) -> Job:
        """Draw a small world: small worlds find most bugs, and many run in a second."""
        replicas = rng.choice((2, 2, 3, 3, 4))
        min_replicas = rng.randint(1, replicas)
        return Job(
            replicas=replicas,
            min_replicas=min_replicas,
            workers=2 if rng.random() < 0.25 else 1,
            agents=rng.choice((1, 2, 2, 3)),
            operations=rng.choice((1, 2, 2, 3)),
            batched=rng.random() < 0.6,
            waits_each=rng.random() < 0.3,
            heal_first=rng.random() < 0.3,
            init_sync=rng.random() < 0.7,
            repair=rng.random() < 0.8,
            spares=rng.random() < 0.15,
            min_size=rng.randint(1, min_replicas),
            step_s=rng.uniform(0.12, 0.4),
            steps=rng.randint(3, 9) if rng.random() < 0.3 else None,
        )

    def asking_for_more(self, rng: random.Random) -> Job:
        """In one job of five, the script may want more contributors than the job wants members."""
        if rng.random() > 0.2:
            return self
        return replace(self, min_size=rng.randint(1, self.replicas))

    def that_mends(self, rng: random.Random) -> Job:
        """In half of the jobs, groups have two workers and the script issues a step's operations
        one by one: most of these deaths fall between two operations."""
        if rng.random() < 0.5:
            return replace(self, is_kept=True)
        return replace(self, workers=2, operations=3, batched=False, waits_each=True, is_kept=True)

    def that_exchanges(self, rng: random.Random) -> Job:
        """A job whose script exchanges values. Its steps are repaired: a replica that recomputed a
        step alone would exchange more often than the others."""
        return replace(self, repair=True, workers=1, heal_first=rng.random() < 0.5, spares=False)

    @property
    def contributors_max(self) -> int | None:
        """The number of contributors; the other replicas are spares. None: no spares."""
        return self.min_size if self.spares else None

    @property
    def waits_for_mends(self) -> bool:
        return self.is_kept and self.workers == 1

    def spec(self, standstill_limit_s: float = 0.0) -> JobSpec:
        """The job as agents announce it."""
        return JobSpec(
            job_id="job",
            replicas=self.replicas,
            workers_per_replica=self.workers,
            min_replicas=self.min_replicas,
            join_timeout_s=JOIN_TIMEOUT_S,
            heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S,
            isolation_limit_s=ISOLATION_LIMIT_S,
            nodes=self.agents,
            hang_timeout_s=standstill_limit_s,
            accepts_fewer=self.accepts_fewer,
            waits_for_mends=self.waits_for_mends,
        )


class World:
    """One schedule. ``run()`` raises a Violation if an invariant is broken.

    ``batches``: all messages queued on an agent's stream are one event for the lighthouse.
    """

    def __init__(
        self,
        seed: int,
        *,
        job: Job | None = None,
        faults: Faults | None = None,
        focus: tuple[str, ...] = (),
        batches: bool = False,
    ) -> None:
        self.seed = seed
        self.batches = batches
        self.rng = random.Random(seed)
        self.job = job or Job.draw(self.rng).asking_for_more(random.Random(f"{seed}/few"))
        self.exchanges_at_all = seed >= 1000 and seed % 32 in EXCHANGE_SEEDS and not focus
        self.exchanges_at_all = self.exchanges_at_all or EXCHANGES in focus
        has_refusals = REFUSALS in focus or refuses(seed)
        has_lateness = LATENESS in focus or is_late(seed)
        goes_well = focus in ((REFUSALS,), (LATENESS,))
        self.keeps_agents = KEPT_AGENTS in focus
        self.mends, self.mend_rng = MEND in focus, random.Random(f"{seed}/mend")
        if self.mends:
            self.job = self.job.that_mends(random.Random(f"{seed}/mending"))
        others = (EXCHANGES, REFUSALS, LATENESS, KEPT_AGENTS)
        focus = tuple(kind for kind in focus if kind not in others)
        if self.exchanges_at_all:
            self.job = self.job.that_exchanges(random.Random(f"{seed}/exchange"))
        self.lingers = lingers(seed)
        if self.lingers:
            self.job = with_steps(that_lingers(self.job, random.Random(f"{seed}/end")), seed)
        self.keeps = keeps(seed) and not self.exchanges_at_all
        if self.keeps:
            self.job = that_keeps(self.job)
        self.early = EarlyEnd.draw(seed, self.job)
        self.parting_rules = PartingRules()
        self.has_places = self.exchanges_at_all and self.job.heal_first
        self.programme = Programme(seed)
        self.exchange_rules = ExchangeRules()
        self.now = 0.0
        self.trace: list[tuple[float, str, str, object]] = []
        self.events = 0
        self.calm = False
        self.commits = 0
        self.last_commit_at = 0.0
        self._queue: list[
            tuple[float, int, Actor | None, Callable[..., None], tuple[Any, ...]]
        ] = []
        self._count = 0
        self.refusals = Refusals()
        if has_refusals:
            self.refusals = Refusals.draw(seed, self.job.replicas, self.job.operations)
        self.lateness = Lateness()
        if has_lateness:
            self.lateness = Lateness.draw(seed, self.job.replicas, self.job.operations)
        self.goes_well = goes_well
        self.refusal_rules = RefusalRules(is_well=goes_well)
        self.invariants = Invariants(
            self.job.replicas,
            self.job.workers,
            max(self.job.min_replicas, self.job.min_size),  # reported by the script
            self.job.contributors_max,
        )
        self.plan = plan_of(self.job.replicas, repairs=self.job.repair)
        self.samples = SampleRules(self.plan)
        # A replica in the right must be able to commit alone: no other replica repeats its step.
        self.shapes = Shapes.draw(seed, may_err=self.job.min_replicas == 1 and not goes_well)
        self.freezes = Freezes.draw(seed, max(self.job.min_replicas, self.job.min_size))
        self.rings = Rings(self)
        self.endpoints: dict[str, Any] = {}
        self.disk = JournalState()
        self.account: tuple[dict[str, Any], float] | None = None  # and the time it was written
        self.records = Records()
        self.acknowledged: dict[str, Request] = {}
        self.disk_full_until = 0.0
        self.tears_journal = False
        self.journals_lost = 0
        self.state_is_not_carried = False
        self.hung = 0
        self.calendar_offset_s = 0.0
        self.links_cut_until = 0.0
        self.coverage: Coverage | None = None
        self.lighthouse: LighthouseProcess | None = None
        self.hosts = [Host(self, number) for number in range(self.job.agents)]
        self.hosts_left = len(self.hosts)
        if goes_well:
            faults = Faults(window_s=WINDOW_S if has_lateness else self.rng.uniform(2.0, 8.0))
        self.faults = faults or Faults.draw(self.rng, focus, of_all=bool(seed % 2))
        self.hang_timeout_s = HANG_TIMEOUT_S
        late = random.Random(f"{seed}/late")
        may_hang = bool(set(focus) & set(LATE_KINDS))
        may_stand = bool(set(focus) & set(STANDSTILL_KINDS))
        serves_badly = bool(set(focus) & set(SERVING_KINDS))
        if faults is None and not focus and seed % 2 and not self.exchanges_at_all:
            may_hang = self.faults.add_late_kinds(late)
            if not self.keeps:  # a worker that waits outside a step needs no peers
                may_stand = self.faults.add_standstill(random.Random(f"{seed}/stand"))
            self.faults.add_operators(random.Random(f"{seed}/operators"))
            serves_badly = self.faults.add_serving(random.Random(f"{seed}/serving"))
        if may_hang and late.random() < 0.5:
            self.hang_timeout_s = HANG_TIMEOUT_SHORT_S
        self.max_restarts = PLENTY
        if seed % 32 in SHORT_BUDGET_SEEDS and not focus:
            self.max_restarts = random.Random(f"{seed}/budget").choice((0, 1, 2))
        self.is_apart = seed >= 1000 and seed % 64 in APART_SEEDS and not focus
        self.standstill_limit_s = STANDSTILL_LIMIT_S if may_stand else 0.0
        self.gives_up = serves_badly or self.max_restarts != PLENTY or bool(self.shapes.wrong)

    # ------------------------------------------------------------ time

    def next_number(self) -> int:
        """A number that is unique in this world."""
        self._count += 1
        return self._count

    def at(
        self, delay_s: float, actor: Actor | None, action: Callable[..., None], *args: Any
    ) -> None:
        """Call ``action`` in ``delay_s``, unless ``actor`` is dead; its pauses delay the call."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._count, actor, action, args))

    def run_until(self, deadline: float, done: Callable[[], bool] | None = None) -> bool:
        """Run the world; True if ``done`` became true before ``deadline``."""
        queue = self._queue
        while queue and queue[0][0] <= deadline:
            if done is not None and done():
                return True
            when, _, actor, action, args = heapq.heappop(queue)
            if actor is not None:
                if not actor.alive:
                    continue
                if actor.paused_until > when:
                    actor.hold(action, args)
                    continue
            self.now = when
            self._act(actor, action, args)
        self.now = max(self.now, deadline)
        return done is not None and done()

    def _act(self, actor: Actor | None, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.events += 1
        if self.events > (EVENTS_MAX_HUNG if self.hung or self.standstill_limit_s else EVENTS_MAX):
            raise Violation("L2", f"{self.events} events: the world runs in circles")
        try:
            action(*args)
        except Crashed:
            pass
        except AssertionError as error:
            raise Violation("CHECK", f"{actor.name if actor else '?'}: {error!r}") from error

    def pass_time(self, delay_s: float) -> bool:
        """Let ``delay_s`` pass at once, unless there is another event within it."""
        if self._queue and self._queue[0][0] <= self.now + delay_s:
            return False
        self.now += delay_s
        self.events += 1
        return True

    # ------------------------------------------------------------ a schedule

    def run(self) -> None:
        """Boot, inject faults, stop them, and check that the job recovers (L1)."""
        try:
            self._boot()
            self.faults.plan(self)
            self.run_until(self.faults.window_s, self._is_over)
            self._calm_down()
            self._reach_the_end()
        except Violation as violation:
            violation.seed = self.seed
            raise

    def _boot(self) -> None:
        self.start_lighthouse()
        for host in self.hosts:
            self.at(self.rng.uniform(0.0, 0.1), None, host.start_agent)

    def start_lighthouse(self) -> None:
        """Start a lighthouse process with the journal on disk."""
        if self.lighthouse is None or not self.lighthouse.alive:
            self.lighthouse = LighthouseProcess(self)
            self.lighthouse.start(self.disk)

    def lose_disk(self) -> None:
        """Delete the lighthouse's state directory."""
        self.note("world", "loses", "the journal")
        self.invariants.journal_lost()
        self.journals_lost += 1
        self.records.lose()
        self.acknowledged.clear()
        seconds = CALENDAR_S + self.calendar_offset_s + self.now
        self.disk = JournalState(
            epoch=int(1000 * seconds)
        )  # Q1: like lighthouse/main.py, with more detail

    def write_disk(self, record: JournalState) -> bool:
        """Write the journal's record to disk; False if the lighthouse cannot continue."""
        if self.disk_full_until > self.now and not self.calm:
            self.note("world", "refuses", "the disk is full")
            return False
        if self.tears_journal:
            self.tears_journal = False
            self.lose_disk()
            return False
        self.disk = record
        return True

    def phase_name(self) -> str:
        """The lighthouse's phase."""
        lighthouse = self.lighthouse
        return (
            lighthouse.core.state.phase.value
            if lighthouse is not None and lighthouse.alive
            else "down"
        )

    def _is_over(self) -> bool:
        return self.hosts_left == 0

    def _calm_down(self) -> None:
        """End all faults: processes come back, and the network works."""
        self.calm = True
        self.note("world", "calm", "faults stop")
        self.start_lighthouse()
        self.tears_journal = False
        self.links_cut_until = 0.0
        for actor in self._actors():
            actor.spare()
            actor.go_on()
        self.state_is_not_carried = False
        for worker in (worker for host in self.hosts for worker in host.workers()):
            worker.serves_nothing = False
        for host in self.hosts:
            host.mend()
        for worker in self.standing():
            if self.lingers or not self.would_be_found(worker):
                worker.script.go_on()
        for worker in self._lasting_mistakes():
            worker.crash()
        self.at(RESTORED_AFTER_S, None, self._restore)

    def _lasting_mistakes(self) -> list[Worker]:
        """The workers whose mistake no majority of right ones can correct: people must."""
        workers = [worker for host in self.hosts for worker in host.workers()]
        wrong = [worker for worker in workers if worker.script.mistake]
        mistakes = [worker.script.mistake for worker in wrong]
        right = sum(worker.machine.in_step for worker in workers) - len(wrong)
        if right <= len(wrong):
            return wrong
        return [worker for worker in wrong if mistakes.count(worker.script.mistake) > 1]

    def _restore(self) -> None:
        """People restart what they have drained, because the script may want all of its replicas.

        A new lighthouse may give a replica up or drain it late, after its takeover: because of its
        restart budget, because the same error has ended it twice, or because people asked.
        """
        assert self.lighthouse is not None
        drains_late = any(not x.has_ended for x in self.lighthouse.core.state.operations.values())
        if self.gives_up or drains_late:
            self.at(RESTORED_AFTER_S, None, self._restore)
        for worker in self._lasting_mistakes():  # it has reached its turn since
            worker.crash()
        for replica_id in self.lighthouse.core.state.slots.withdrawn:
            self.lighthouse.feed(OperatorAsked(self.next_number(), Request("restart", replica_id)))

    def receives(self, agent: Agent) -> bool:
        """The lighthouse and an agent have an open stream."""
        lighthouse, stream = self.lighthouse, agent.stream
        if lighthouse is None or not lighthouse.alive or stream is None or not stream.open:
            return False
        return lighthouse.sessions.get(agent.agent_id) is stream

    def living(self, replica_id: str, *, heard: bool = False) -> list[str]:
        """The living incarnations of a slot; ``heard``: only at agents whose messages reach the
        lighthouse."""
        agents = [host.agent for host in self.hosts if host.agent is not None]
        near = [agent for agent in agents if self.receives(agent) or not heard]
        workers = [w for agent in near for w in agent.workers.values() if w.alive]
        found = {w.key.incarnation: None for w in workers if w.key.replica_id == replica_id}
        return list(found)

    def add_host(self) -> None:
        """Add a machine."""
        host = Host(self, len(self.hosts))
        self.hosts.append(host)
        self.hosts_left += 1
        host.start_agent()

    def _actors(self) -> list[Actor]:
        agents = [host.agent for host in self.hosts if host.agent is not None]
        workers = [worker for host in self.hosts for worker in host.workers()]
        return [*agents, *workers, *([self.lighthouse] if self.lighthouse is not None else [])]

    def _reach_the_end(self) -> None:
        """L1: a commit within the bound; then all train together, with one state."""
        if self._is_done():
            return
        began, before = self.now, self.commits
        bound_s = JOIN_TIMEOUT_S + 2 * HEARTBEAT_TIMEOUT_S + ISOLATION_LIMIT_S
        bound_s += 2 * (SETTINGS.takeover_grace_s + SETTINGS.rejoin_timeout_s + BUILD_TIMEOUT_S)
        if self.job.workers > 1 or self.job.is_kept:
            # Ranks of a group that are one step apart find out by a timeout.
            bound_s += 2 * GROUP_TIMEOUT_S
        if self.hung:  # peers notice only by a timeout of its part of a sum
            bound_s += OPERATION_TIMEOUT_S + JOIN_TIMEOUT_S  # perhaps its only holder

        if self.hung and self.standing():  # a worker in a stalled loop does not miss a hung peer
            bound_s += self.hang_timeout_s
        for worker in self.standing():
            bound_s += self._standstill_s(worker) + OPERATION_TIMEOUT_S

        if self.lingers:
            self._wait_for("not at the end", began, bound_s + 60.0, self._is_over)
            return
        bound_s = self._wait_for("no commit", began, bound_s, lambda: self.commits > before)
        self._wait_for("not all together", began, bound_s + 20.0, self._together)
        self._wait_for("not all requests answered", began, bound_s + 40.0, self._answered)

    def _answered(self) -> bool:
        """Each acknowledged request is known, in whichever lighthouse's life, and has ended."""
        assert self.lighthouse is not None
        operations = {x: self.lighthouse.core.operation(0, x) for x in self.acknowledged}
        forgotten = [x for x, operation in operations.items() if operation is None]
        if forgotten:
            raise Violation("CHECK", f"{self.acknowledged[forgotten[0]]} is forgotten")
        return all(operation and operation.has_ended for operation in operations.values())

    def _wait_for(
        self, what: str, began: float, bound_s: float, reached: Callable[[], bool]
    ) -> float:
        """Returns the bound, which is longer if only its own agent can find a hung worker.

        A loop that stalls after its peers have finished is not detected; it resumes by itself.
        """

        def is_done() -> bool:
            return reached() or self._is_done()

        # A worker that is found late, perhaps by a script's deadline, leaves little time to
        # recover.
        if self.run_until(began + bound_s - RECOVERY_S, is_done):
            return bound_s
        was_unmissed = self._hangs_unmissed()
        if not self.run_until(began + bound_s, is_done):
            if was_unmissed or self._hangs_unmissed():
                bound_s += self.hang_timeout_s
            bound_s += self._go_on_alone()
            if not self.run_until(began + bound_s, is_done):
                raise Violation("L1", f"{what} within {bound_s:g} s after the last fault")
        return bound_s

    def _go_on_alone(self) -> float:
        """Resume the stalled loops whose peers have finished; returns the time for the rest."""
        alone = [worker for worker in self.standing() if not self.would_be_found(worker)]
        for worker in alone:
            worker.script.go_on()
        return RECOVERY_S if alone else 0.0

    def workers(self) -> list[Worker]:
        """All workers of all machines."""
        return [worker for host in self.hosts for worker in host.workers()]

    def standing(self) -> list[Worker]:
        """The workers whose main thread is stalled."""
        return [worker for worker in self.workers() if worker.script.stands]

    def would_be_found(self, worker: Worker) -> bool:
        """Whether others train with it, and the lighthouse has received a report of its loop."""
        lighthouse = self.lighthouse
        if lighthouse is None or not lighthouse.alive:
            return False
        state = lighthouse.core.state
        replica = state.replicas.find(worker.key.replica_id, worker.key.incarnation)
        is_member = worker.key.replica_id in state.live and len(state.live) > 1
        is_heard = replica is not None and replica.progress is not None
        machine = worker.machine
        trains = machine.in_force is not None and not machine.healing
        trains = trains and machine.phase is not StepPhase.LEFT
        return is_member and is_heard and trains

    def _standstill_s(self, worker: Worker) -> float:
        """The longest time until a stalled loop is detected."""
        assert self.lighthouse is not None
        replica = self.lighthouse.core.state.replicas.get(worker.key.replica_id)
        assert replica is not None
        assert replica.progress is not None
        now = worker.machine.activity()[0]  # it may have changed since the report
        both = (replica.progress, replace(replica.progress, phase=now))
        return 1.3 * max(limit_s(progress, self.standstill_limit_s) for progress in both)

    def _hangs_unmissed(self) -> bool:
        """A worker hangs and no member waits for it, so that only its agent can detect that."""
        workers = [worker for host in self.hosts for worker in host.workers()]
        hung = {worker.key.replica_id for worker in workers if worker.hangs}
        members = set(self.lighthouse.core.state.live) if self.lighthouse is not None else set()
        return bool(hung) and (bool(hung - members) or members <= hung)

    @property
    def open_slots(self) -> int:
        """The number of slots that have not ended."""
        return self.job.replicas - len(self.invariants.quorums.ended)

    def _is_done(self) -> bool:
        """True if nothing more can happen: all have ended, or too few are left to commit."""
        return self._is_over() or self.open_slots < self.job.min_size

    def _together(self) -> bool:
        if self._is_done():
            return True
        workers = [worker for host in self.hosts for worker in host.workers()]
        if len(workers) < self.open_slots * self.job.workers:
            return False
        quorums = {w.machine.in_force.attempt if w.machine.in_force else None for w in workers}
        return len(quorums) == 1 and None not in quorums and all(w.streak >= 2 for w in workers)

    # ------------------------------------------------------------ the trace

    def note(self, actor: str, kind: str, detail: object = "") -> None:
        """Add a line to the trace."""
        self.trace.append((self.now, actor, kind, detail))

    def trace_hash(self) -> str:
        """A hash of the trace: the same for the same seed and code, in any process.

        It covers values only: names of classes, fields and kinds of lines may change.
        """
        digest = hashlib.blake2b(digest_size=16)
        for when, actor, _, detail in self.trace:
            digest.update(f"{when:.9f}|{actor}|{NAMES.sub('', repr(detail))}\n".encode())
        return digest.hexdigest()

    def story(self) -> list[str]:
        """The trace as text."""
        return [line(*entry) for entry in self.trace]
