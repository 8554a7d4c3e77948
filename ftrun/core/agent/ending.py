"""The end of this agent: by the job's end, a drain, a second request, or a lost spawner.

The first cause counts, because later ones are its consequences. Only a run that is to begin again
is stopped by a later request to stop. After the first cause nothing is started, and the agent ends
when nothing runs any more. Without a cause it ends some seconds after its last slot has ended, but
not while it is connected to a lighthouse that other agents share. After a drain it may stay until
the job ends (``exits_with_job``), because an engine takes an exit code other than 0 as the result
of the whole job.

Not here: how one slot is stopped (stopping.py), the consequences of a slot's end (supervisor.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.base.errors import assert_never
from ftrun.core.agent import words
from ftrun.core.agent.events import SIGTERM, EndAgent, PassSignal, ShowStacks
from ftrun.core.agent.failures import exit_code_of, signal_name
from ftrun.core.agent.part import Part
from ftrun.core.agent.signals import Reaction
from ftrun.core.agent.slot_state import Outcome, SlotPhase, SlotState
from ftrun.core.agent.stopping import Stopping
from ftrun.core.failure_kinds import ALL_LEFT
from ftrun.core.forms import Form
from ftrun.core.messages import AgentLeaving, Goodbye

ALL_FINISHED = "all replicas have finished"
ECHO_S = 0.2
"""A signal that is repeated within this time is the same one, sent by a terminal and a wrapper."""
RECORDS_WAIT_S = 2.0


@dataclass(eq=False, repr=False)
class Ending(Part):
    """Whether and why this agent ends.

    ``outcome``: the outcome of the slots that end with it. ``end_at``: when the agent ends without
    a cause; None: not set. ``is_over``: ``EndAgent`` was returned.
    """

    _stopping: Stopping
    _records_wanted: bool = False
    _result: EndAgent | None = None
    _is_notice: bool = False
    _waits_for_job: bool = False
    _latest: tuple[int, float] | None = None
    outcome: Outcome = Outcome.STOPPED
    end_at: float | None = None
    is_over: bool = False

    @property
    def has_begun(self) -> bool:
        """True once this agent is to end, by any cause."""
        return self._result is not None

    def end_job(self, exit_code: int, reason: str, kind: str = "") -> None:
        """The job has ended: ask all that runs to stop.

        There will be no agreement on a boundary.
        """
        if self._waits_for_job and self._result is not None:
            self._waits_for_job = False
            if kind != ALL_LEFT:
                self._result = EndAgent(exit_code, reason, kind)
        if not self.has_begun:
            self._records_wanted = exit_code != 0
        self._begin(exit_code, reason, Outcome.STOPPED, kind)
        for slot in self._slots:
            if slot.phase is SlotPhase.RUNNING and slot.alive:
                self._stopping.ask(slot)
                self._stopping.leave_now(slot)

    def signalled(self, number: int) -> None:
        """The agent has received a signal: leave, stop at once, or continue (signals.py)."""
        rules, name = self._settings.signals, signal_name(number)
        match reaction := rules.reaction(number):
            case Reaction.SHOW_STACKS:
                self._out.add(words.stacks_wanted(name))
                self._out.add(ShowStacks())
            case Reaction.PASS_ON:
                self._out.add(PassSignal(number))
            case Reaction.STOP | Reaction.LEAVE if self._result and self._result.again:
                # All workers are killed already, and a run that is to end does not begin again.
                self._out.add(words.does_not_begin(name))
                self._result = EndAgent(rules.exit_code(number), name)
            case Reaction.STOP:
                self._out.add(words.not_handled(name))
                self.stop_now(rules.exit_code(number), name)
            case Reaction.LEAVE:
                self._leave(number, name)
            case _:
                assert_never(reaction)

    def _leave(self, number: int, name: str) -> None:
        """The first request asks, a second one stops at once. An echo of the first is ignored."""
        rules, now = self._settings.signals, self._out.now
        latest, self._latest = self._latest, (number, now)
        if not self.has_begun:
            code = rules.exit_code(number)
            self.drain(name, code, number, is_notice=number == rules.preempt)
        elif self._settings.exits_with_job and number == SIGTERM:
            self._waits_for_job = False  # an engine repeats it, and kills by itself
            self._is_notice = False
        elif self._is_notice:
            self._is_notice = False
            self._out.add(words.leaves_already(name))
        elif latest is None or latest[0] != number or now - latest[1] >= ECHO_S:
            self._out.add(words.second_request(name))
            self.stop_now()

    def drain(
        self, reason: str, exit_code: int, number: int = SIGTERM, *, is_notice: bool = False
    ) -> None:
        """Ask every script to stop; those with a Manager leave at a boundary that all agree on.

        Without a lighthouse no agreement is possible, and each leaves at its own next boundary.
        Without a quorum it depends on whether other nodes may need the state that is here: if there
        are none, the group leaves at once.
        """
        if self.has_begun:
            return
        self._begin(exit_code, reason, Outcome.DRAINED)
        self._is_notice = is_notice
        self._waits_for_job = self._settings.exits_with_job and not self._settings.alone
        self._out.add(words.draining(reason, self._settings.grace_s))
        for slot in self._slots:
            if slot.phase is SlotPhase.RUNNING:
                self._stopping.ask(slot, number)
                self._leave_without_agreement(slot)
        self._out.send(AgentLeaving(reason, self._slots.running()))

    def manager_came(self, slot: SlotState) -> None:
        """A script that was asked to stop just before its first step begins it now.

        It waits for a quorum, and no lighthouse forms one any more.
        """
        if not self.has_begun or slot.phase is not SlotPhase.STOPPING:
            return
        if self.outcome is Outcome.DRAINED:
            self._leave_without_agreement(slot)
        else:
            self._stopping.leave_now(slot)

    def _leave_without_agreement(self, slot: SlotState) -> None:
        """Let the slot's replica leave at once if no lighthouse will agree on a boundary."""
        if not self._lease.is_connected or self._settings.alone:
            self._stopping.leave_now(slot, in_quorum=not self._lease.is_connected)

    def stop_now(self, exit_code: int = exit_code_of(-SIGTERM), reason: str = "stopped") -> None:
        """Kill every group that still runs, and report that it was killed."""
        how = "a second request to stop" if self.has_begun else reason
        self._begin(exit_code, reason, Outcome.STOPPED)
        self._records_wanted = self._waits_for_job = False
        for slot in self._slots:
            if slot.alive:
                slot.killed = f"was killed by {how}"
                self._stopping.report_lost(slot, slot.killed, killed=True)
                self._stopping.kill(slot)

    def begin_again(self, form: Form, reason: str) -> None:
        """Kill every group: the run begins again in another form, and keeps nothing of this one."""
        self._begin(0, reason, Outcome.STOPPED, again=form)
        for slot in self._slots:
            if slot.alive:
                slot.killed = "was killed to restart with the job"
                self._stopping.report_lost(slot, slot.killed, killed=True)
                self._stopping.kill(slot)

    def resize(self, text: str) -> None:
        """The group's nodes have changed: ask all that runs to stop, and begin again, uncounted."""
        if self.has_begun:
            return
        self._out.add(words.resized(text))
        self._begin(0, text, Outcome.STOPPED, again=Form.RESIZED)
        for slot in self._slots:
            if slot.phase is SlotPhase.RUNNING and slot.alive:
                self._stopping.ask(slot)

    def spawner_lost(self, reason: str, exit_code: int) -> None:
        """The kernel kills the workers with their spawner; the shell sweeps the rest."""
        self._out.add(words.job_ends_here(reason))
        self._begin(exit_code, reason, Outcome.FAILED)
        for slot in self._slots:
            if slot.alive:
                self._stopping.report_lost(slot, reason)
                slot.alive.clear()
                slot.end(Outcome.FAILED, self._out.now)

    def lighthouse_came(self) -> None:
        """A lighthouse may still need this agent. The wait for its records is not prolonged."""
        if not self.has_begun:
            self.end_at = None

    def conclude(self) -> None:
        """End when nothing runs: at once if there is a cause, else after ``end_grace_s``."""
        if self.is_over:
            return
        if not self._slots.all_ended():
            self.end_at = None
            return
        if self._result is None:
            if not self._slots or (self._lease.is_connected and not self._settings.alone):
                self.end_at = None  # not by itself: the slots may have gone to others
                return
            if self.end_at is None:
                self.end_at = self._out.now + self._settings.end_grace_s
            if self._out.now < self.end_at:
                return
            self._result = self._without_cause()
        elif self._waits_for_records() or self._stays():
            return
        self.is_over = True
        self._out.send(Goodbye())
        self._out.add(self._result)

    def _without_cause(self) -> EndAgent:
        """Nothing runs any more, and no lighthouse has answered what was given up, if anything."""
        for slot in self._slots:
            if slot.given_up is not None:
                return EndAgent(slot.given_up.exit_code, slot.given_up.reason, slot.given_up.kind)
        return EndAgent(0, ALL_FINISHED)

    def _stays(self) -> bool:
        """Whether the job continues without this node, whose exit code must be the job's.

        A lighthouse that has gone may be back within the isolation limit.
        """
        if not self._waits_for_job or self._lease.renewed_at is None:
            return False
        if self._lease.is_connected:
            self.end_at = None
        elif self.end_at is None:
            self.end_at = self._out.now + self._settings.isolation_limit_s
        return self.end_at is None or self._out.now < self.end_at

    def _waits_for_records(self) -> bool:
        """Whether the lighthouse is about to send the record of the failure that ends the job.

        The record is for the report and the log directory, so the agent waits for it for a moment.
        """
        if not (self._records_wanted and self._lease.is_connected and len(self._unconfirmed)):
            return False
        if self.end_at is None:
            self.end_at = self._out.now + RECORDS_WAIT_S
        return self._out.now < self.end_at

    def _begin(
        self,
        exit_code: int,
        reason: str,
        outcome: Outcome,
        kind: str = "",
        again: Form | None = None,
    ) -> None:
        """Only the first cause counts, because later ones are its consequences."""
        if self._result is None:
            self._result = EndAgent(exit_code, reason, kind, again)
            self.outcome = outcome
        for slot in self._slots:
            if slot.phase is SlotPhase.WAITING:
                slot.end(slot.outcome_ahead or outcome, self._out.now)
