"""A worker's main thread: the user's loop, with the calls of training/manager.py.

It is a generator: it yields a time to compute (a float), or a condition to wait for (``Until``). It
holds the step lock between two yields, so every place where another thread could run has a yield.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator
from typing import TYPE_CHECKING

from ftrun.core import messages as m
from ftrun.core.agent.events import WorkerSent
from ftrun.core.data.spans import Spans
from ftrun.core.worker import events as e
from ftrun.core.worker.comparison import Shape
from ftrun.core.worker.facts import StepPhase
from ftrun.core.worker.under_way import Fate
from tests.sim.actor import OPERATION_TIMEOUT_S, QUORUM_TIMEOUT_S
from tests.sim.invariants import Violation
from tests.sim.keeping import is_last_of_loop, loop_ends
from tests.sim.parting import linger
from tests.sim.rings import Reduction
from tests.sim.until import INSTANT_S, Until, Wait

if TYPE_CHECKING:
    from tests.sim.worker import Worker

DRAINED_STATUS = 75
BOTH_TIMEOUTS_S = OPERATION_TIMEOUT_S + QUORUM_TIMEOUT_S


class Script:
    """The main thread of one worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._world = worker.world
        self._program = self._main()
        self._until: Until | None = None
        self._waiting_since = 0.0
        self._waking = False
        self._batch = 0
        self._drawn: Spans = ()
        self.stands = False
        self.mistake: list[Shape] | None = None  # the operations of its pass, if they are wrong
        self._missed = False
        self._tries = (-1, 0)  # a step, and how often it was computed before
        self._healed_to = -1

    def start(self) -> None:
        """Run until the first wait."""
        self._resume()

    def stop(self) -> None:
        """Raise an exception in the main thread, where it waits."""
        self._until = None
        if inspect.getgeneratorstate(self._program) != inspect.GEN_RUNNING:
            self._program.close()

    def stand_still(self) -> None:
        """Stall the main thread: only a kill or ``go_on`` ends that."""
        self.stands = True

    def go_on(self) -> None:
        """Resume the main thread, which was only slow."""
        if not self.stands:
            return
        self.stands = False
        if self._until is not None:
            self._world.at(self._until.timeout_s, self.worker, self._time_out, self._until)
            self.wake()
        elif self._missed:
            self._missed = False
            self._world.at(0.0, self.worker, self._resume)

    def wake(self) -> None:
        """A change has happened: check the condition soon, like a notified thread."""
        if self._until is None or self._waking:
            return
        if self.worker.fatal or self._until.condition():
            self._waking = True
            rng = self._world.rng
            delay_s = 0.00005 if rng.random() < 0.7 else rng.uniform(0.0, 0.005)
            self._world.at(delay_s, self.worker, self._look)

    def _look(self) -> None:
        self._waking = False
        if self._until is None or self.stands:
            return
        if self.worker.fatal:
            self._fail(self.worker.fatal)
        elif self._until.condition():
            self._until = None
            self._resume()

    def _time_out(self, until: Until) -> None:
        if self._until is not until or self.stands:
            return
        worker = self.worker
        if worker.machine.isolated:
            self._world.at(until.timeout_s, worker, self._time_out, until)
        elif not until.condition():
            self._fail(f"{until.what} did not come within {until.timeout_s:g} s")

    def _fail(self, reason: str) -> None:
        self._until = None
        self._program.close()
        self._world.note(self.worker.name, "raises", reason)
        self._world.invariants.raises(self.worker.key, reason)
        self._world.refusal_rules.raises(self.worker.key, reason)
        self.worker.crash(1)

    def _resume(self) -> None:
        worker, world = self.worker, self._world
        if self.stands:
            self._missed = True
            return
        for wait in self._program:
            if isinstance(wait, float):
                delay_s = wait
            elif worker.fatal:
                self._until = wait
                self._fail(worker.fatal)
                return
            elif wait.condition():
                delay_s = INSTANT_S
            else:
                self._until = wait
                world.at(wait.timeout_s, worker, self._time_out, wait)
                return
            if not (delay_s == INSTANT_S and world.pass_time(delay_s)):
                world.at(delay_s, worker, self._resume)
                return

    # ------------------------------------------------------------ the program

    def _main(self) -> Generator[Wait, None, None]:
        worker, job, rng = self.worker, self._world.job, self._world.rng
        machine = worker.machine
        yield rng.uniform(0.02, 0.2)
        if self._world.is_apart:
            worker.agent.handle(WorkerSent(worker.key, m.NoManager(True)))
            yield rng.uniform(0.02, 2.0)
        yield from self._set_up()
        while job.steps is None or machine.state.step < job.steps:
            if self._world.early.is_at(worker):
                break
            yield from self._begin()
            if machine.phase is StepPhase.LEFT:
                self._exit(DRAINED_STATUS)
                return
            is_at_end = job.steps is not None and machine.state.step >= job.steps
            if self._world.lingers and job.heal_first and is_at_end:
                break  # it has healed to the state of peers at their end
            base = worker.content
            self._drawn = worker.draw()
            self._batch += 1
            yield job.step_s * rng.uniform(0.3, 0.5)
            yield from self._exchange("in the step")
            yield from self._backward(base)
            step = machine.position
            yield from self._should_commit()
            yield from self._exchange("after the step")
            is_void = machine.state.step < step  # a quorum continued from there, and has ended
            if self._world.keeps and is_last_of_loop(step) and not is_void:
                yield from loop_ends(self, has_lost=machine.state.step == step)
                if machine.phase is StepPhase.LEFT:
                    self._exit(DRAINED_STATUS)
                    return
        yield rng.uniform(0.0, 0.01)
        if self._world.lingers:
            yield rng.choice((0.0, 0.3, 2.0))  # an evaluation
            is_early = yield from linger(worker)
            if machine.phase is StepPhase.LEFT:
                self._exit(DRAINED_STATUS)
                return
            if is_early:
                worker.close(m.LeaveReason.EARLY)
        worker.close(m.LeaveReason.FINISHED)
        yield rng.uniform(0.001, 0.05)
        self._exit(0)

    def _exit(self, status: int) -> None:
        worker, rng = self.worker, self._world.rng
        worker.close(m.LeaveReason.FINISHED if status == 0 else m.LeaveReason.DRAINED)
        # A worker that has left saves for a while, and may be killed then.
        delay_s = 0.0 if status == 0 else rng.choice((0.0, 0.0, 0.3, 5.0))
        self._world.at(delay_s, worker, worker.crash, status)

    def _set_up(self) -> Generator[Wait, None, None]:
        """Before the first step, ask where the training members stand."""
        if self._world.exchanges_at_all and self._world.job.heal_first:
            yield from self.worker.exchanges.look_for_peers()

    def _begin(self) -> Generator[Wait, None, None]:
        """Begin a step.

        An interrupted heal leaves nothing: the step is void, and the next one heals.
        """
        worker, machine = self.worker, self.worker.machine
        while True:
            yield from self.start_quorum()
            if machine.phase is StepPhase.LEFT or not self._world.exchanges_at_all:
                return
            if worker.exchanges.step_begun():
                return
            yield from self._should_commit()

    def _exchange(self, where: str) -> Generator[Wait, None, None]:
        """Make the script's exchanges at a place of its loop."""
        world, exchanges = self._world, self.worker.exchanges
        if not world.exchanges_at_all:
            return
        step, programme = self.worker.machine.position, exchanges.programme
        if where == "after the step":
            for number in range(programme.after(step)):
                yield from exchanges.exchange(f"{where} {number}")
        elif world.job.heal_first:
            for number in range(programme.in_step(step)):
                yield from exchanges.exchange(f"{where} {number} of {step}")

    def start_quorum(self, *, holds: bool = False) -> Generator[Wait, None, None]:
        """Begin a step. ``holds``: no newcomer joins at it."""
        worker, machine = self.worker, self.worker.machine
        worker.error = ""
        prepares = machine.quorums.awaits_newcomers
        worker.register()
        yield INSTANT_S
        freezes, rng = self._world.freezes, self._world.rng
        hold = holds or freezes.at(machine.state.step, rng, prepares=prepares)
        before = machine.state
        worker.feed(e.BoundaryReached(freeze_membership=hold, catches_up=holds))
        yield Until(
            lambda: machine.in_step or machine.phase is StepPhase.LEFT, QUORUM_TIMEOUT_S, "a quorum"
        )
        if machine.phase is StepPhase.LEFT:
            return
        assert machine.state == before or machine.healing, "the state changed at a boundary"
        worker.enters(is_held=hold)
        quorum = machine.in_force
        if quorum is not None and not holds:
            worker.together = frozenset(x.incarnation for x in quorum.members)
        if machine.heals_first:
            yield INSTANT_S
            yield from self.heal()

    def _backward(self, base: int) -> Generator[Wait, None, None]:
        worker, job, rng = self.worker, self._world.job, self._world.rng
        shapes = self._world.shapes.issued(
            worker.machine.position,
            job.operations,
            worker.key.incarnation,
            self._batch,
            right=self._world.calm,
        )
        right = self._world.shapes.of(worker.machine.position, job.operations)
        self.mistake = None if shapes == right else shapes
        last_held = min(job.operations, len(shapes)) - 1
        step, tries = self._tries
        position = worker.machine.position
        self._tries = (position, tries + 1 if step == position else 0)
        refused = ""
        for number, shape in enumerate(shapes):
            yield from self._be_late(number)
            if refused != "unissued":  # otherwise the next one follows at once
                yield job.step_s * rng.uniform(0.3, 0.5) / job.operations
            if not worker.machine.in_step:
                raise Violation("BUG", f"{worker.name} is in no step while it computes")
            batched = job.batched and number <= last_held
            closes = batched and number == last_held
            value = worker.mix(base, int(worker.key.incarnation, 16), self._batch, number)
            refused = "" if self._world.calm else self._refused(number)
            if refused == "unissued":
                worker.refuse()
                continue
            worker.issue(Reduction(batched, closes, base, value, shape, self._drawn, refused))
            if job.waits_each and not job.batched:
                yield self._released(len(worker.reductions) - 1)
        began = self._world.now
        yield Until(
            lambda: all(reduction.released for reduction in worker.reductions),
            2 * BOTH_TIMEOUTS_S,
            "the gradients",
        )
        if self._world.goes_well:
            self._world.lateness.waited(worker, self._world.now - began)

    def _be_late(self, number: int) -> Generator[Wait, None, None]:
        """Evaluate in the middle of a step, which delays peers; faults are over when the world is
        calm."""
        world, (step, tries) = self._world, self._tries
        late_s = world.lateness.of(self.worker.key.replica_id, step, tries, number)
        until = world.now + late_s
        while world.now < until and not world.calm:
            yield 0.5

    def _refused(self, number: int) -> str:
        step, tries = self._tries
        return self._world.refusals.of(self.worker.key.replica_id, step, tries, number)

    def _released(self, number: int) -> Until:
        reductions = self.worker.reductions
        return Until(lambda: reductions[number].released, 2 * BOTH_TIMEOUTS_S, "a result")

    def _should_commit(self) -> Generator[Wait, None, None]:
        world, worker, machine = self._world, self.worker, self.worker.machine
        yield world.rng.uniform(0.0, 0.002)
        if world.faults.strikes(world, "script_error"):
            worker.error = worker.error or "an error in the script"
        worker.feed(e.OperationsEnded())
        yield Until(lambda: machine.is_decidable or not machine.in_step, BOTH_TIMEOUTS_S, "results")
        if machine.healing:
            yield from self.heal()
        enough = worker.divisor >= world.job.min_size
        flag = enough and not worker.error and not machine.healing
        outcome: bool | None = flag
        if world.job.workers > 1 or world.job.is_kept:
            outcome = yield from self._vote(flag)
        yield INSTANT_S
        if self._decide(outcome, enough):
            yield world.rng.uniform(0.0, 0.002)
            self._step_optimizer()
            worker.exchanges.committed(machine.state)
            worker.marks.note(machine.state, lambda: "sound", f"{worker.content:x}")
            worker.streak += 1
        phase, since_s = machine.report_activity()
        worker.report(self._batch, phase, since_s)

    def _vote(self, flag: bool) -> Generator[Wait, None, bool | None]:
        worker, machine = self.worker, self.worker.machine
        worker.outcome = None
        worker.feed(e.VoteStarted())
        yield INSTANT_S
        flag = flag and machine.votes
        self._world.invariants.voted(worker.key, machine.commits_as, flag)
        worker.ballot.vote(worker, machine.commits_as, flag)
        yield Until(lambda: worker.outcome is not None, BOTH_TIMEOUTS_S, "a vote")
        assert worker.outcome is not None
        (outcome,) = worker.outcome
        yield Until(lambda: machine.verdict_known, BOTH_TIMEOUTS_S, "the verdict on a vote")
        return outcome

    def _decide(self, outcome: bool | None, enough: bool) -> bool:
        worker, machine, world = self.worker, self.worker.machine, self._world
        tag, before, was_void = machine.commits_as, machine.state, machine.fate is Fate.VOID
        out = machine.tag
        reason = worker.error or "voted against"
        results = list(worker.reductions)
        divisor = worker.divisor
        torn = outcome is None
        worker.feed(e.Decided(outcome is True, shared=not enough, reason=reason, torn=torn))
        committed = machine.state.step > before.step
        if committed and tag is not None:
            tries = None if tag.step == self._healed_to else self._tries[1]
            world.refusal_rules.commits(worker, tag, tries)
        if tag is not None:
            in_force = machine.in_force
            stays = in_force is not None and out is not None and in_force.attempt == out.attempt
            repeats = not committed and stays and (not enough or was_void)
            world.invariants.decided(worker.key, tag, committed, repeats)
        if committed:
            assert tag is not None, "a commit without a tag"
            finals = [(x.final[0], x.final[1]) if x.final else None for x in results]
            world.invariants.committed(
                worker.key, tag, before, machine.state, finals, divisor, worker.content
            )
            parts = results[0].final[0].parts if results and results[0].final else ()
            world.samples.committed(worker.key, before, machine.state, parts)
            if machine.isolated:  # its vote is void: it commits nothing more
                world.invariants.isolated(worker.key)
            world.note(worker.name, "commits", (tag, machine.state))
            world.commits += 1
            world.last_commit_at = world.now
            self._results = finals
        return committed

    def _step_optimizer(self) -> None:
        worker, state = self.worker, self.worker.machine.state
        numbers = [worker.content, state.step]
        for final in self._results:
            assert final is not None
            numbers += [final[0].total, final[1]]
        worker.content = worker.mix(*numbers)
        if worker.reductions:
            worker.position = self._world.plan.after(worker.position, worker.slots)
        self._world.invariants.holds(worker.key, state, worker.content)
        self._world.samples.holds(worker.key, state, worker.position)

    def heal(self) -> Generator[Wait, None, None]:
        """Wait for the state to heal from and apply it, unless an interrupt comes first."""
        worker, machine = self.worker, self.worker.machine
        yield Until(
            lambda: machine.heal.loaded is not None or not machine.may_issue,
            BOTH_TIMEOUTS_S,
            "the state to heal from",
        )
        if machine.heal.loaded is None or worker.fetched is None:
            return
        fetched, worker.fetched = worker.fetched, None
        yield self._world.rng.uniform(0.0, 0.01)
        worker.content, worker.position = fetched.content, fetched.position
        self._world.invariants.heals(worker.key)
        self._healed_to = machine.position
        worker.feed(e.StateApplied((fetched.donor,), 1, 0.001))
        if not machine.healing:
            worker.exchanges.healed(fetched.place)
            self._world.invariants.holds(worker.key, machine.state, worker.content)
            self._world.samples.holds(worker.key, machine.state, worker.position)
