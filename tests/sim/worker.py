"""One worker process: the real step machine in a modelled engine (training/engine.py).

``feed`` is the engine's: it feeds one event, then carries out the machine's instructions in order.
The worker can die between any two of them. Not here: its main thread (script.py).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.data.spans import Spans
from ftrun.core.ids import SHARED_LINEAGE, Attempt, StateId, Tag, WorkerKey, fresh_lineage
from ftrun.core.quorum import Endpoint, Quorum
from ftrun.core.worker import events as e
from ftrun.core.worker.facts import StepPhase
from ftrun.core.worker.machine import NOBODY_JOINS, StepMachine
from ftrun.core.worker.marks import Marks
from tests.sim import comparing, mending
from tests.sim.actor import QUORUM_TIMEOUT_S, Actor
from tests.sim.deaths import TEARDOWNS_S, dies_slowly
from tests.sim.exchanging import SimulatedExchanges
from tests.sim.freezes import Barred, enters, spares
from tests.sim.healing import Fetch, Fetched, Offer
from tests.sim.network import Pipe
from tests.sim.rings import Ballot, Contribution, End, Reduction, Result
from tests.sim.script import Script

if TYPE_CHECKING:
    from tests.sim.node import Agent
    from tests.sim.world import World

NO_STATE = StateId(0, "")
LOCAL_DELAY_S = (0.0001, 0.002)
TICK_S = 1.0
_MASK = (1 << 61) - 1


class Worker(Actor):
    """A process of the script, with its engine and its step machine.

    ``content`` stands for all its weights; ``streak``: steps committed since the last quorum;
    ``evaluated``: the last step at which it has waited for its peers; ``together``: the
    incarnations with which it began a step last; ``heard`` and ``said``: its messages from and to
    the lighthouse, which faults may repeat. ``log``, ``mends``, ``waits``: see mending.py.
    ``lives``: the number of processes so far.
    """

    role = "worker"

    def __init__(self, world: World, agent: Agent, key: WorkerKey, ballot: Ballot) -> None:
        super().__init__()
        self.world = world
        self.agent = agent
        self.key = key
        self.ballot = ballot
        self.name = f"{key.replica_id}/{key.group_rank}-{key.incarnation[:4]}"
        self.to_agent = Pipe(world, agent, self._told_agent, LOCAL_DELAY_S)
        self.from_agent = Pipe(world, self, self._from_agent, LOCAL_DELAY_S)
        self.serves_nothing = world.state_is_not_carried
        self.heard: list[m.ToWorker] = []
        self.said: list[m.FromWorker] = []
        self.offers: dict[Tag, Offer] = {}
        self.fetched: Fetched | None = None
        self.outcome: tuple[bool | None] | None = None
        self.fatal = ""
        self.error = ""
        self.divisor = 0
        self.rank: int | None = None
        self.slots: tuple[int, ...] = ()
        self.position = world.plan.start()
        self.reductions: list[Reduction] = []
        self.evaluated = -1
        self.together: frozenset[str] = frozenset()
        self._begun = 0
        self.registered = False
        self.marks = Marks()
        self.streak = 0
        self.launched_under: Attempt | None = None
        self._failed: tuple[int, int, int] | None = None  # a quorum, a step and an operation
        self._failed_under: Attempt | None = None
        self.peers: m.Roster | None = None
        self.exchanges = SimulatedExchanges(self, world.programme)
        self._stop_requests = 0
        self._events: deque[e.Event] = deque()
        self._busy = False
        self._ends: dict[Attempt, End] = {}
        self._dropped: list[End] = []
        self._end: End | None = None
        self._lease_until = 0.0
        self._built_last: Quorum | None = None
        self._built_when = 0  # the number of journals a lighthouse had lost by then
        self._barred: Barred | None = None
        self._entered: Quorum | None = None
        self._fetch: Fetch | None = None
        self._afterwards: deque[tuple[Reduction, int | None]] = deque()
        self.log = mending.Log()
        self.mends: Attempt | None = None
        self.lives = 0
        self.waits = False
        self._build_state()

    def _build_state(self) -> None:
        world, key, job = self.world, self.key, self.world.job
        own = job.init_sync
        lineage = fresh_lineage(key.incarnation) if own else SHARED_LINEAGE
        seed = int(key.incarnation, 16) if own else 7
        self.content = self.mix(seed, key.group_rank)
        self.machine = self.new_machine(StateId(0, lineage))
        world.invariants.holds(key, self.machine.state, self.content)
        self.script = Script(self)

    def claims(self, kept: mending.Kept) -> None:
        """Begin with the memory that the slot's last group has left, if no other replica holds the
        job's state."""
        self.content, self.position = kept.content, kept.position
        self.machine = self.new_machine(kept.state)
        self.world.note(self.name, "claims", kept.state)
        self.world.invariants.claims(self.key, kept.state)

    @property
    def _heal_at(self) -> str:
        return f"{self.key.incarnation}:{self.key.group_rank}:{self.lives}"

    def new_machine(self, state: StateId = NO_STATE) -> StepMachine:
        """The machine of a new process of this worker, which serves heals at its own address."""
        world, job = self.world, self.world.job
        self.lives += 1
        world.endpoints[self._heal_at] = self
        return StepMachine(
            self.key,
            Endpoint(self.agent.host.name, self._heal_at),
            state,
            workers_per_replica=job.workers,
            is_kept=job.is_kept,
            repair=job.repair,
            heal_first=job.heal_first,
            contributors_max=job.contributors_max,
            contributors_min=job.min_size,
            operation_timeout_s=world.lateness.operation_timeout_s,
            quorum_timeout_s=QUORUM_TIMEOUT_S,
            results_timeout_s=world.lateness.results_timeout_s,
        )

    def succeeds(self, machine: StepMachine) -> None:
        """Another process takes this one's place, with this machine (mending.py)."""
        self.alive = False  # an ended process feeds nothing
        self._leave_all()
        self.alive = True
        if self._fetch is not None:
            self._fetch.cancel()
        self.error = ""
        facts = vars(machine)
        facts.pop("_handlers", None)  # they belong to the other object
        vars(self.machine).clear()
        vars(self.machine).update(facts)

    def go_on(self) -> None:
        if self.mends is not None and not self.hangs:
            mending.goes_on(self)
        super().go_on()

    @property
    def is_pressed(self) -> bool:
        """It was asked to leave."""
        return self._stop_requests > 0

    @staticmethod
    def mix(*numbers: int) -> int:
        """A hash of numbers that is the same in every process."""
        state = 0x9E3779B97F4A7C15
        for number in numbers:
            state = (state ^ number) * 0x2545F4914F6CDD1D & _MASK
            state ^= state >> 29
        return state

    def start(self) -> None:
        """Run the script; the link ticks."""
        self.world.note(self.name, "starts", self.key)
        self.world.parting_rules.starts(self.key)
        self.script.start()
        self.world.at(TICK_S, self, self._tick)

    def attached(self, lease: m.Lease | None) -> None:
        """The agent's first message: how long the worker may commit (Q3)."""
        if lease is not None:
            self.feed(lease)

    def crash(self, status: int = -9) -> None:
        """Die: the kernel notifies the agent, and peers see broken connections or nothing."""
        if not self.alive:
            return
        world = self.world
        world.note(self.name, "dies", status)
        self.alive = False
        world.invariants.died(self.key)
        self._leave_all()
        gone_in_s = world.rng.uniform(0.001, 0.01)
        if status != 0 and dies_slowly(world.seed):
            world.at(gone_in_s, self.agent, self.agent.worker_dying, self, status)
            gone_in_s += world.rng.choice(TEARDOWNS_S)
        world.at(gone_in_s, self.agent, self.agent.worker_exited, self, status)

    def vanish(self) -> None:
        """End with the machine: neither peers nor the agent are notified."""
        self.world.note(self.name, "vanishes")
        self.alive = False
        self.world.invariants.died(self.key)
        for end in [*self._ends.values(), *self._dropped]:
            end.ring.vanish(end)

    def _leave_all(self) -> None:
        for end in [*self._ends.values(), *self._dropped]:
            end.ring.leave(end)
        self._ends.clear()
        self._dropped.clear()
        self._end = None

    def asked_to_stop(self) -> None:
        """Ask it to leave. A training Manager leaves at a boundary, or at once at a second request.

        A worker that has left saves for a while, and may be killed then.
        """
        rng = self.world.rng
        if not self.registered:
            self.crash(143)
            return
        self._stop_requests += 1
        if self._stop_requests > 1 and self.machine.phase is not StepPhase.LEFT:
            self.script.stop()
            self.close(m.LeaveReason.DRAINED)
            self.world.at(rng.choice((0.01, 0.3, 5.0)), self, self.crash, 75)

    def lost_agent(self) -> None:
        """The link broke: the main thread raises when it next waits."""
        self.fatal = "lost its agent"
        self.script.wake()

    # ------------------------------------------------------------ the engine

    def feed(self, event: e.Event) -> None:
        """Feed the machine one event and carry out its instructions."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            self._drain()
        finally:
            self._busy = False
        while self._afterwards:
            reduction, divisor = self._afterwards.popleft()
            if not reduction.released:
                reduction.released = True
                if divisor is not None and reduction.buffer is not None:
                    reduction.final = (reduction.buffer, divisor)
        self.exchanges.look()
        self.script.wake()

    def _drain(self) -> None:
        world, machine = self.world, self.machine
        while self._events:
            event = self._events.popleft()
            world.note(self.name, "event", event)
            self._before(event)
            instructions = machine.handle(event, world.now)
            if world.mends:
                self.log.note(self, event, instructions)
            machine.check()
            if world.coverage is not None:
                world.coverage.fates[machine.phase.value, machine.fate.value] += 1
            for instruction in instructions:
                self.before_instruction(instruction)
                world.note(self.name, "does", instruction)
                self._carry_out(instruction)
            if machine.begun != self._begun:
                self._begin_step()

    def _before(self, event: e.Event) -> None:
        invariants = self.world.invariants
        if isinstance(event, (m.Interrupt, m.Cancel)):
            invariants.promise_void(self.key, event.attempt)
        elif isinstance(event, m.NewQuorum):
            invariants.promise_void(self.key, event.quorum.attempt)
        elif isinstance(event, m.Switch):
            invariants.switch_received(self.key, event.attempt)
        elif isinstance(event, m.Lease):
            self._lease_until = event.until_s
            invariants.lease(self.key.incarnation, event.until_s)
            if self.world.now >= event.until_s:
                invariants.isolated(self.key)
            # From then on this process commits nothing, whatever happens.
            left_s = max(0.0, event.until_s - self.world.now)
            self.world.at(left_s, None, self._lease_over, event.until_s)

    def _lease_over(self, until_s: float) -> None:
        if self.alive and until_s == self._lease_until:
            self.world.invariants.isolated(self.key)

    def _carry_out(self, instruction: e.Instruction) -> None:
        match instruction:
            case e.Send(message):
                self._send(message)
            case e.BuildGroup(quorum):
                self.world.invariants.acts_on(self.key, quorum.attempt, "builds")
                self._ends[quorum.attempt] = self.world.rings.join(self, quorum)
                self._built_last, self._built_when = quorum, self.world.journals_lost
            case e.AbortGroup(attempt):
                if self._end is not None and self._end.ring.attempt == attempt:
                    self._end = None
                self._leave(attempt)
            case e.DropGroup(attempt):
                end = self._ends.pop(attempt, None)
                if end is not None:
                    self._dropped.append(end)
            case e.UseGroup(quorum):
                self._use(quorum)
            case e.Reissue(first):
                self.world.refusal_rules.repairs(self)
                self.take_stock()
                for index, reduction in enumerate(self.reductions[first:], first):
                    self._hands_out(index, again=reduction.final is not None)
                    reduction.buffer = None
            case e.Launch(first, stop):
                for index in range(first, stop):
                    self._launch(index, self.reductions[index])
            case e.Ask():
                comparing.ask(self, instruction)
            case e.FailScript(reason):
                self.fatal = reason
            case e.HandOut(indices):
                self.take_stock()
                for index in indices:
                    self._hands_out(index, again=self.reductions[index].final is not None)
                    self._afterwards.append((self.reductions[index], self.divisor))
            case e.FailOperations(reason):
                self.error = self.error or reason
                self._afterwards.extend((reduction, None) for reduction in self.reductions)
            case e.LoadState(tag, quorum, in_place, catches_up):
                if self._fetch is not None:
                    self._fetch.cancel()
                self._fetch = Fetch(self, tag, quorum, in_place, catches_up)
            case e.OfferState(tag, state, receivers, kept):
                self.world.invariants.offers(self.key, tag, state, self.content)
                self.offers[tag] = Offer(self, tag, state, receivers, kept)
                if self.serves_nothing or self.world.faults.strikes(self.world, "serving_error"):
                    self.cannot_serve(tag)
            case e.RetireState(tag):
                self.offers[tag].retire()
            case e.ShowPeers(roster):
                self.peers = roster
            case e.ShowProgress(activity, since_s):
                self.report(self.machine.position, activity, since_s)

    def cannot_serve(self, tag: Tag) -> None:
        """Its state function raises: it reports that to each receiver, and trains on."""
        self.offers[tag].is_refused = True
        self.world.invariants.cannot_serve(self.key)

    def report(self, batches: int, activity: Activity, since_s: float) -> None:
        """Report its progress, as training/progress.py does."""
        times, step = self.machine.step_times, self.machine.position
        self.to_agent.send(
            m.Progress(
                step,
                batches,
                activity,
                since_s=since_s,
                steps=times.steps,
                usual_s=times.median,
                longest_s=times.longest,
                marks=self.marks.shown(),
            )
        )

    def _hands_out(self, index: int, *, again: bool) -> None:
        self.world.invariants.hands_out(self.key, self.machine.tag, index, again=again)

    def _send(self, message: m.FromWorker) -> None:
        if isinstance(message, m.Promised):
            self.world.invariants.promised(self.key, message.attempt, message.step)
        elif isinstance(message, m.Refused) and message.later:
            self.world.invariants.promise_void(self.key, message.attempt)
        elif isinstance(message, m.Report):
            self.world.invariants.gave_up(self.key, message.interrupted)
            self.world.invariants.too_few(self.key, message.too_few)
            if message.freezes_membership:
                for incarnation in self._joining():
                    self.world.invariants.excuse(incarnation, "its join was taken back")
        elif isinstance(message, m.Errored) and message.reason == NOBODY_JOINS:
            self._barred = Barred(message.step, self._joining(), self._built_when)
        self.to_agent.send(message)
        self.said.append(message)

    def _joining(self) -> frozenset[str]:
        """The newcomers of the last quorum whose group it has built."""
        quorum = self._built_last
        if quorum is None:
            return frozenset()
        joining = [x for x in quorum.members if x.replica_id in quorum.newcomers]
        return frozenset(member.incarnation for member in joining)

    def _enters_held(self) -> None:
        quorum, tag = self.machine.in_force, self.machine.tag
        if quorum is not None and tag is not None and quorum.step == tag.step:
            if self.world.early.holds_up(quorum):
                return  # others have to join here, because that member reaches no later step
            barred = self._barred
            if barred is not None and barred.journals != self.world.journals_lost:
                barred = None
            job = self.world.job
            enters(self.key, quorum, barred, max(job.min_replicas, job.min_size))
            if self.world.freezes.spares and self._entered != quorum:
                spares(self.key, quorum, self._entered)

    def enters(self, *, is_held: bool) -> None:
        """The script is in a step. ``is_held``: its boundary permitted no join."""
        if is_held:
            self._enters_held()
        self._entered = self.machine.in_force

    def _leave(self, attempt: Attempt) -> None:
        end = self._ends.pop(attempt, None)
        if end is not None:
            end.ring.leave(end)

    def _use(self, quorum: Quorum) -> None:
        self.world.invariants.acts_on(self.key, quorum.attempt, "uses")
        self.world.invariants.in_force(quorum)
        self.exchanges.in_force(quorum)
        self.streak = 0
        end = self._ends.get(quorum.attempt)
        assert end is not None and end.built, f"{quorum.attempt} is used but was not built"
        self._end = end

    # ------------------------------------------------------------ operations

    def issue(self, reduction: Reduction) -> None:
        """Add a reduction: it is issued now, or kept until there is a group."""
        self.reductions.append(reduction)
        self.feed(e.OperationIssued(reduction.batched, reduction.closes, reduction.shape))

    def refuse(self) -> None:
        """Add a reduction that is refused before it is issued."""
        tag = self.machine.tag
        if tag is not None and self.machine.may_issue:
            self.world.refusal_rules.refused(self, tag.attempt, tag.step)
        self.error = self.error or "refused"
        self.feed(e.OperationRefused("refused before it was issued"))

    def fails(
        self, attempt: Attempt, index: int, is_known: bool | None, *, is_refused: bool
    ) -> None:
        """An operation fails, and not because its group was aborted.

        If a group does not know whether it supports the operation, the next failure shows it: the
        same operation fails again.
        """
        place = attempt.quorum_id, self.machine.position, index
        if is_refused and (is_known or (is_known is None and place == self._failed)):
            self.world.refusal_rules.refused(self, attempt, self.machine.position)
        if attempt != self._failed_under:
            self._failed_under, self._failed = attempt, place

    def _launch(self, index: int, reduction: Reduction) -> None:
        tag, end = self.machine.tag, self._end
        assert tag is not None and end is not None, "an operation was issued without a group"
        self.world.invariants.reduces(self.key, tag)
        self.launched_under = tag.attempt
        counts = self.rank is not None
        part = Contribution(
            self.key,
            tag,
            index,
            reduction.base,
            reduction.value,
            counts,
            reduction.shape,
            reduction.drawn,
            reduction.refused,
        )
        if end.size == 1:
            reduction.buffer = Result(tag.attempt, (part,))
            self.feed(e.OperationCompleted(tag.attempt, index))
        else:
            end.ring.launch(end, index, part)

    def completed(self, attempt: Attempt, index: int, result: Result) -> None:
        """The backend's thread: the sum is in the buffer; the thread waits for the lock."""
        rng = self.world.rng
        if index < len(self.reductions):
            self.reductions[index].buffer = result
        if rng.random() < 0.1:
            self.world.at(rng.uniform(0.0, 0.06), self, self._complete, attempt, index)
        else:
            self._complete(attempt, index)

    def _complete(self, attempt: Attempt, index: int) -> None:
        self.feed(e.OperationCompleted(attempt, index))
        dropped, self._dropped = self._dropped, []
        for end in dropped:
            end.ring.leave(end)

    def take_stock(self) -> None:
        """Read the contributors of the current step, and this worker's index among them (C4)."""
        ranks = self.machine.contributors()
        quorum = self.machine.in_force
        if quorum is None or not ranks:
            return
        own = quorum.index(self.key.replica_id, self.key.incarnation)
        self.divisor = len(ranks)
        self.rank = ranks.index(own) if own in ranks else None
        self.slots = tuple(int(quorum.members[rank].replica_id) for rank in ranks)

    def draw(self) -> Spans:
        """The samples of the step that begins, like training/elastic_sampler.py."""
        slices = self.world.plan.slices(self.position, self.slots)
        drawn = slices.get(int(self.key.replica_id), ())
        if self.rank is not None:
            self.world.samples.drew(self.key, self.machine.state, drawn)
        return drawn

    def _begin_step(self) -> None:
        """Forget the last step at once, like training/engine.py: the script may stall."""
        self._begun = self.machine.begun
        self.reductions = []
        self.launched_under = None
        self.take_stock()

    def register(self) -> None:
        """The first message to the lighthouse."""
        if not self.registered:
            self.registered = True
            self.feed(m.AskReport())

    def close(self, reason: m.LeaveReason) -> None:
        """Leave the job and release everything."""
        if self.registered and self.machine.phase is not StepPhase.LEFT:
            self.feed(e.WentAway(reason))
        self.world.invariants.isolated(self.key)  # it commits nothing more
        self._leave_all()

    # ------------------------------------------------------------ other threads

    def vote_decided(self, outcome: bool | None) -> None:
        """The control group's all-reduce is complete; None: the tags differed."""
        self.outcome = (outcome,)
        self.script.wake()

    def _told_agent(self, message: Any) -> None:
        self.agent.worker_sent(self, message)

    def _from_agent(self, message: Any) -> None:
        if self.registered or isinstance(message, (m.Lease, m.LeaveNow, m.Roster)):
            self.feed(message)
        elif isinstance(message, m.AskReport) and self.machine.has_asked_for_peers:
            self.feed(e.PeersAsked())  # a new lighthouse is there: peers wait for this one

    def _tick(self) -> None:
        if self.registered:
            self.feed(e.Ticked())
        self.world.at(TICK_S, self, self._tick)
