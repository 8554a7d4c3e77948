"""A worker's step machine keeps its invariants, in whatever order events come.

``World`` plays lighthouse, script, backend and donors at once: mostly with sensible moves, so that
steps are made, otherwise with random ones. ``Watch`` is a deliberately dumb oracle for the
instructions. Hypothesis finds short failures; the marathons reach many states.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.core import messages as m
from ftrun.core.ids import NO_ATTEMPT, Attempt, StateId, Tag, WorkerKey, pack_quorum_id
from ftrun.core.quorum import Endpoint, Quorum
from ftrun.core.worker import events as e
from ftrun.core.worker.facts import StepPhase
from ftrun.core.worker.machine import StepMachine
from ftrun.core.worker.under_way import Fate
from tests.suite.properties import examples
from tests.unit.core.worker import alike
from tests.unit.core.worker.step_script import member

T = TypeVar("T")
Choose = Callable[[Sequence[T]], T]
Move = Callable[[], None]

OTHERS = ("1", "2", "3")
FAR_S = 1e6


class Watch:
    """The instructions so far, and assertions about them."""

    def __init__(self, machine: StepMachine, workers: int) -> None:
        self.machine = machine
        self.workers = workers
        self.alive: set[Attempt] = set()  # groups that are built or being built
        self.built: set[Attempt] = set()
        self.used: Attempt | None = None
        self.promise: tuple[Attempt, int] | None = None
        self.is_confirmed = False
        self.offered: Tag | None = None
        self.tag: Tag | None = None
        self.state = machine.state
        self.has_held_state = False  # the job's state, not only the one it started with
        self.reset_step()

    def reset_step(self) -> None:
        self.issued = 0
        self.done: dict[Tag, set[int]] = {}
        self.handed: set[int] = set()
        self.failed = False
        self.voted: Tag | None = None
        self.entered_healing = self.machine.healing

    # ------------------------------------------------------------ before and after an event

    def before(self, event: e.Event) -> None:
        machine = self.machine
        self.was = (machine.quorums.seen, machine.quorums.interrupted, machine.in_step, machine.tag)
        self.was_isolated, self.was_healing = machine.isolated, machine.healing
        if isinstance(event, e.OperationIssued):
            self.issued += 1
        if isinstance(event, e.OperationCompleted) and machine.may_issue:
            assert machine.tag is not None
            if event.attempt == machine.tag.attempt:
                self.done.setdefault(machine.tag, set()).add(event.index)
        if isinstance(event, e.VoteStarted) and machine.in_step:
            self.voted = machine.tag
        if isinstance(event, m.Switch) and self.promise is not None:
            attempt, step = self.promise
            is_later = event.step > step and self.joins(attempt)
            if event.attempt == attempt and (event.step == step or is_later):
                self.promise, self.is_confirmed = (attempt, event.step), True

    def joins(self, attempt: Attempt) -> bool:
        """Whether the replica is a newcomer of that attempt: it may also join at a later step."""
        pending = self.machine.pending
        if pending is None or pending.attempt != attempt or self.machine.in_force is not None:
            return False
        return self.machine.key.replica_id in pending.quorum.newcomers

    def after(self, event: e.Event, instructions: list[e.Instruction]) -> None:
        machine = self.machine
        seen, interrupted, was_in_step, was_tag = self.was
        assert machine.quorums.seen >= seen and machine.quorums.interrupted >= interrupted, (
            "Q2: an attempt fell"
        )
        for instruction in instructions:
            self.note(instruction)
        if was_in_step and (not machine.in_step or isinstance(event, e.BoundaryReached)):
            assert self.failed or len(self.handed) >= self.issued, "an operation is never released"
        if machine.state != self.state:
            self.state_changed(event, was_tag)
        began = machine.in_step and (not was_in_step or isinstance(event, e.BoundaryReached))
        if began:
            self.reset_step()
        self.keeps_promise(event)
        if machine.in_step and machine.tag != self.tag:
            self.tag_changed(machine.tag)
        self.tag, self.state = machine.tag, machine.state
        if machine.phase is not StepPhase.LEFT:
            assert self.alive == self.wanted(), "a group leaks or is missing"

    def wanted(self) -> set[Attempt]:
        machine, key = self.machine, self.machine.key
        quorums = [machine.in_force, machine.pending.quorum if machine.pending else None]
        mine = [q for q in quorums if q and q.index(key.replica_id, key.incarnation) is not None]
        return {quorum.attempt for quorum in mine}

    # ------------------------------------------------------------ instructions

    def note(self, instruction: e.Instruction) -> None:
        machine = self.machine
        match instruction:
            case e.BuildGroup(quorum):
                assert quorum.attempt > self.was[1], "C3: builds a group that it gave up"
                assert quorum.attempt not in self.alive, "built twice"
                self.alive.add(quorum.attempt)
            case e.AbortGroup(attempt):
                assert attempt in self.alive
                self.forget(attempt)
            case e.DropGroup(attempt):
                self.forget(attempt)
            case e.UseGroup(quorum):
                assert quorum.attempt in self.built & self.alive, "used but not built"
                assert quorum.attempt > self.was[1], "C3: uses a group that it gave up"
                self.used = quorum.attempt
            case e.Reissue():
                assert not self.handed, "S7: a result that was handed out is reduced again"
                assert machine.in_force is not None and self.used == machine.in_force.attempt
            case e.HandOut(indices):
                self.hand_out(indices)
            case e.FailOperations():
                self.failed = True
            case e.OfferState(tag, state):
                assert self.offered is None and state == machine.state and not machine.healing
                assert not machine.heal.torn, "S3: gives a state that is half written"
                self.offered = tag
            case e.RetireState(tag):
                assert tag == self.offered
                self.offered = None
            case e.LoadState(tag, quorum, in_place):
                assert machine.key.replica_id in quorum.newcomers and tag.step == quorum.step
                assert not (in_place and self.has_held_state), "C6: writes over the job's state"
            case e.Send(message):
                self.sent(message)

    def forget(self, attempt: Attempt) -> None:
        self.alive.discard(attempt)
        self.built.discard(attempt)
        if self.used == attempt:
            self.used = None

    def hand_out(self, indices: tuple[int, ...]) -> None:
        assert indices and not self.handed & set(indices), "handed out twice"
        assert not self.failed, "S7: handed out after it was failed"
        assert self.was[3] is not None and set(indices) <= self.done[self.was[3]], "C3"
        self.handed |= set(indices)

    def sent(self, message: m.FromWorker) -> None:
        had_given_up, gave_up = self.was[1], self.machine.quorums.interrupted
        match message:
            case m.Built(attempt):
                assert attempt > had_given_up, "C3"
            case m.InForce(attempt, step):
                assert attempt > had_given_up and attempt == self.used, "C3"
                assert step >= 0
            case m.Promised(attempt, step):
                assert attempt > had_given_up, "C3"
                assert (
                    self.promise is None or self.promise[0] != attempt or (step >= self.promise[1])
                ), "a promise shrinks"
                self.is_confirmed &= self.promise == (attempt, step)
                self.promise = (attempt, step)
            case m.Refused(_, step, current, later):
                assert current >= 0, "no step has a negative number"
                if later:
                    self.promise, self.is_confirmed = None, False
            case m.Leaving(m.LeaveReason.DRAINED):
                assert self.is_confirmed, "leaves before the switch is confirmed"
            case m.Errored(attempt):
                assert attempt <= gave_up
            case m.Report():
                assert message.state.step >= 0
                assert message.reduced is None or message.reduced == self.machine.tag

    # ------------------------------------------------------------ steps, promises, commits

    def tag_changed(self, tag: Tag | None) -> None:
        assert tag is not None
        if self.promise is not None:
            attempt, step = self.promise
            assert tag.attempt >= attempt or tag.step < step, (
                "Q5: a promised step under the old quorum"
            )
            assert tag.attempt != attempt or tag.step >= step, (
                "Q5: an earlier step under the new one"
            )
            assert tag.attempt != attempt or self.is_confirmed, "Q5: a switch that is not confirmed"

    def keeps_promise(self, event: e.Event) -> None:
        """A promise is void once its attempt is neither pending nor in force."""
        machine = self.machine
        if machine.phase is StepPhase.LEFT or self.promise is None:
            return
        attempt = self.promise[0]
        if attempt in {q.attempt for q in (machine.in_force, self.pending_quorum()) if q}:
            return
        was_given_up = machine.quorums.interrupted >= attempt or isinstance(event, m.Prepare)
        assert was_given_up or not self.is_confirmed, "a confirmed promise is forgotten"
        self.promise, self.is_confirmed = None, False

    def pending_quorum(self) -> Quorum | None:
        return self.machine.pending.quorum if self.machine.pending is not None else None

    def state_changed(self, event: e.Event, tag: Tag | None) -> None:
        machine = self.machine
        if isinstance(event, e.StateReset):
            return
        if isinstance(event, e.StateApplied):
            assert tag is not None
            spoiled = machine.healing and machine.state.step == self.state.step
            assert spoiled or machine.state.step == tag.step, "C2: jumps by a heal only"
            self.has_held_state |= not spoiled
            return
        self.has_held_state = True
        assert isinstance(event, e.Decided) and event.commit and tag is not None
        assert machine.state == self.state.committed(tag), "C2"
        assert self.state.step == tag.step, "S1: commits on top of another step"
        assert self.done.get(tag, set()) >= set(range(self.issued)), "C1: an operation is missing"
        assert not self.failed and not self.was_healing
        if self.workers == 1:
            assert not self.was_isolated, "Q3: commits in isolation"
        else:
            assert self.voted == tag, "C1: commits without the vote of its group"


class World:
    """One worker, replica 0, and all its peers. ``choose`` decides what happens next."""

    def __init__(self, choose: Choose[Any]) -> None:
        self.choose = choose
        self.now = 0.0
        workers = choose([1, 1, 2])
        self.machine = StepMachine(
            WorkerKey("0", "i0", 0),
            Endpoint("h", "h:1"),
            StateId(choose([5, 0]), "A"),
            workers_per_replica=workers,
            repair=choose([True, True, False]),
            heal_first=choose([False, False, True]),
            contributors_max=choose([None, None, 2]),
        )
        self.watch = Watch(self.machine, workers)
        self.attempts = [NO_ATTEMPT]
        self.last_tag = Tag(NO_ATTEMPT, 0)

    def play(self, moves: int) -> None:
        """Make ``moves`` moves, and then end."""
        for _ in range(moves):
            if self.machine.phase is not StepPhase.LEFT:
                self.choose(self.sensible() if self.choose(range(10)) < 6 else self.anything())()
        self.end()

    def feed(self, event: e.Event) -> None:
        machine = self.machine
        self.watch.before(event)
        self.watch.after(event, alike.handle(machine, event, self.now))
        if machine.tag is not None:
            self.last_tag = machine.tag
        machine.check()
        assert machine.may_issue == (machine.fate is Fate.OPEN)
        assert list(machine.contributors()) == sorted(set(machine.contributors()))
        assert not (machine.is_decidable and machine.isolated)

    # ------------------------------------------------------------ what happens next

    def sensible(self) -> list[Move]:
        """Moves that fit the machine's situation."""
        machine, pending = self.machine, self.machine.pending
        moves: list[Move] = [self.interrupt]
        if machine.isolated:
            moves += [self.isolation] * 3
        if self.watch.alive - self.watch.built:
            moves += [self.build] * 4
        if machine.in_force is None and pending is None:
            moves += [self.new_quorum] * 3 + [self.prepare]
        if machine.in_force is not None and pending is None:
            moves += [self.prepare]
        if pending is not None and pending.is_switch and pending.built:
            moves += [self.propose] if pending.promise is None else [self.confirm] * 2
            moves += [self.propose, self.boundary, self.cancel]
        if machine.phase is StepPhase.IDLE:
            moves += [self.boundary] * 4
        if machine.in_step:
            moves += [self.issue, self.issue, self.complete, self.complete_all]
            moves += [self.load, self.apply] if machine.healing else []
            moves += [self.vote_and_decide] * 3 if machine.is_decidable else []
        return moves

    def anything(self) -> list[Move]:
        """All moves, whether or not they fit: early, late, twice, in vain."""
        lighthouse = [self.new_quorum, self.prepare, self.interrupt, self.propose, self.switch]
        script = [self.boundary, self.issue, self.vote, self.decide, self.apply]
        threads = [self.complete, self.fail, self.load, self.build, self.tick]
        seldom = [
            self.cancel,
            self.ask,
            self.isolation,
            self.keep_state,
            self.reset,
            self.fail_heal,
        ]
        seldom += [self.overwrite]
        return [*lighthouse, *script, *threads, *seldom, self.build_again, self.fail_to_build]

    def end(self) -> None:
        """No wait lasts for ever (L2): in the end the script can decide, and leave."""
        machine = self.machine
        if machine.phase is StepPhase.LEFT:
            return
        self.feed(m.Lease(math.inf))
        for _ in range(3):
            self.now += FAR_S
            self.feed(e.Ticked())
        waits_for_script = machine.fate in (Fate.OPEN, Fate.STANDS, Fate.VOID)
        assert waits_for_script or machine.is_decidable or machine.verdict_known
        self.feed(e.Decided(False))
        assert not machine.in_step
        self.feed(e.WentAway(m.LeaveReason.LEFT))
        assert self.watch.offered is None

    # ------------------------------------------------------------ the lighthouse

    def attempt(self, age: int) -> Attempt:
        """A new attempt (0), the newest (1), or an older one."""
        if age == 0:
            seq = len(self.attempts)
            self.attempts.append(Attempt(pack_quorum_id(1, seq), 1 + seq % 2))
            age = 1
        return self.attempts[-min(age, len(self.attempts))]

    def states(self) -> list[StateId]:
        """States that a quorum may begin with: the one held, its successor, an unknown one."""
        machine = self.machine
        tag, batched = machine.tag or self.last_tag, machine.state
        after = batched.committed(replace(tag, step=batched.step))
        loaded = (
            [machine.heal.loaded, machine.heal.loaded.committed(tag)] if machine.heal.loaded else []
        )
        return [batched, batched, batched, after, after, held_otherwise(batched), *loaded]

    def quorum(self) -> Quorum:
        ids = [name for name in ("0", *OTHERS) if name == "0" or self.choose([True, False])]
        role = self.choose(["member", "member", "newcomer", "none"])
        newcomers = [x for x in ids if x != "0" and self.choose([True, False])]
        newcomers += ["0"] if role == "newcomer" else []
        ids = ids[1:] if role == "none" else ids
        return Quorum(
            self.attempt(self.choose([0, 0, 0, 0, 1, 2])),
            tuple(map(member, ids)),
            "s:1",
            newcomers=tuple(sorted(newcomers)),
        )

    def new_quorum(self) -> None:
        state = self.choose(self.states())
        self.feed(m.NewQuorum(replace(self.quorum(), step=state.step, state=state)))

    def prepare(self) -> None:
        self.feed(m.Prepare(self.quorum()))

    def interrupt(self) -> None:
        self.feed(m.Interrupt(self.attempt(self.choose([0, 1, 1, 2]))))

    def pending_attempt(self) -> Attempt:
        pending = self.machine.pending
        return pending.attempt if pending is not None else self.attempt(1)

    def propose(self) -> None:
        step = self.machine.position + self.choose([1, 2, 0])
        self.feed(m.ProposeSwitch(self.pending_attempt(), step))

    def confirm(self) -> None:
        pending = self.machine.pending
        assert pending is not None and pending.promise is not None
        self.feed(m.Switch(pending.attempt, pending.promise))

    def switch(self) -> None:
        self.feed(m.Switch(self.pending_attempt(), self.machine.position + self.choose([0, 1])))

    def cancel(self) -> None:
        self.feed(m.Cancel(self.pending_attempt()))

    def ask(self) -> None:
        self.feed(m.AskReport())

    def keep_state(self) -> None:
        self.feed(e.StateKept())

    def isolation(self) -> None:
        self.feed(m.Lease(math.inf if self.machine.isolated else self.now))

    # ------------------------------------------------------------ the script

    def boundary(self) -> None:
        self.feed(e.BoundaryReached(self.choose([False, False, True])))

    def issue(self) -> None:
        batched = self.choose([True, False])
        self.feed(e.OperationIssued(batched, batched and self.choose([True, False])))

    def vote(self) -> None:
        self.feed(e.VoteStarted())

    def decide(self) -> None:
        torn = self.watch.workers > 1 and self.choose([False] * 5 + [True])
        self.feed(e.Decided(self.choose([True, True, False]), self.choose([False, True]), "", torn))

    def vote_and_decide(self) -> None:
        if self.watch.workers > 1:
            self.vote()
        self.decide()

    def apply(self) -> None:
        self.feed(e.StateApplied(("1",), 1, 0.1))

    def reset(self) -> None:
        self.feed(e.StateReset(StateId(self.choose([0, 5, 9]), "R")))

    # ------------------------------------------------------------ other threads

    def attempt_at_work(self) -> Attempt:
        return self.choose([self.last_tag.attempt] * 4 + [self.attempt(1), self.attempt(2)])

    def complete(self) -> None:
        self.feed(e.OperationCompleted(self.attempt_at_work(), self.choose([0, 1, 2])))

    def complete_all(self) -> None:
        for index in range(self.watch.issued):
            self.feed(e.OperationCompleted(self.last_tag.attempt, index))

    def fail(self) -> None:
        self.feed(e.OperationFailed(self.attempt_at_work(), 0, "connection reset"))

    def load(self) -> None:
        quorum, tag = self.machine.in_force, self.last_tag
        known = quorum.state if quorum is not None else None
        right = known or StateId(tag.step, "D")
        self.feed(e.StateLoaded(tag, self.choose([right, right, held_otherwise(right)])))

    def overwrite(self) -> None:
        self.feed(e.OverwriteBegun(self.last_tag))
        assert not (self.machine.heal.torn and self.watch.has_held_state), "C6"
        if self.machine.may_overwrite(self.last_tag):
            assert self.machine.heal.torn and self.machine.tag == self.last_tag, "S3"

    def fail_heal(self) -> None:
        self.feed(e.HealFailed(self.last_tag, "no donor answers"))

    def build(self) -> None:
        building = sorted(self.watch.alive - self.watch.built)
        if building:
            attempt = self.choose(building)
            self.watch.built.add(attempt)
            self.feed(m.Built(attempt))

    def build_again(self) -> None:
        attempt = self.choose([*sorted(self.watch.built), self.attempt(2)])
        if attempt in self.watch.built or attempt not in self.watch.alive:
            self.feed(m.Built(attempt))

    def fail_to_build(self) -> None:
        building = sorted(self.watch.alive - self.watch.built)
        self.feed(m.BuildFailed(self.choose([*building, self.attempt(2)]), "no route"))

    def tick(self) -> None:
        self.now += self.choose([1.0, 61.0])
        self.feed(e.Ticked())


def held_otherwise(state: StateId) -> StateId:
    """A state of another lineage, of the same step or the next one."""
    return StateId(state.step + state.step % 2, "Z")


@given(st.data())
@settings(max_examples=examples(40))
def test_short_stories(data: st.DataObject) -> None:
    World(lambda options: data.draw(st.sampled_from(options))).play(25)


@pytest.mark.parametrize("seed", range(8))
def test_marathon(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        World(rng.choice).play(100)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 108))
def test_long_marathon(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        World(rng.choice).play(200)
