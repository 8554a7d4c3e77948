"""The messages of workers to their agent: progress, failures, and the form that the run should
have.

Not here: the consequences of a failure (failed_slots.py, restarts.py), silent workers
(hang_watch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ftrun.base.errors import ExitCode
from ftrun.core import messages as m
from ftrun.core.activity import NOT_ITS_OWN, Activity
from ftrun.core.agent import events as e
from ftrun.core.agent import words
from ftrun.core.agent.ending import Ending
from ftrun.core.agent.failed_slots import FailedSlots, failure_of
from ftrun.core.agent.on_request import OnRequest
from ftrun.core.agent.part import Part
from ftrun.core.agent.restarts import Restart
from ftrun.core.agent.slot_state import SlotPhase, SlotState
from ftrun.core.failure_kinds import TOGETHER
from ftrun.core.forms import UNFIT, Form, parse
from ftrun.core.ids import WorkerKey

UNREADY = int(ExitCode.USAGE)
"""The exit code of a job in which no worker could ever train."""


@dataclass(eq=False, repr=False)
class FromWorkers(Part):
    """Handles the messages of workers.

    ``_is_in_quorum``: called when an incarnation is in a quorum. ``_gives_up``: restarts an
    incarnation, for a reason.

    Attributes:
        is_without_manager: the replica groups train separately.
        fails_as_one: the script trains as one world in processes without a Manager, so a failure of
            one is a failure of all.
    """

    _failures: FailedSlots
    _ending: Ending
    _on_request: OnRequest
    _is_in_quorum: Callable[[str], None]
    _gives_up: Callable[[str, str], None]
    is_without_manager: bool = False
    fails_as_one: bool = False
    _has_gone_on: bool = True  # since all replicas last resumed together

    def received(
        self,
        key: WorkerKey,
        message: m.FromWorker | m.ToItsAgent,
        held: Sequence[tuple[str, int]] = (),
    ) -> None:
        """A worker has sent this message; see WorkerSent."""
        match message:
            case m.FailureReport():
                self._failure_reported(key, message)
            case m.NoManager(has_stepped):
                self._no_manager_made(key, has_stepped)
            case m.AnotherForm():
                self._form_wanted(key, message, held)
            case m.Beat():
                self._loop_beat(key, message)
            case _:
                self._worker_sent(key, message)

    def disconnected(self, key: WorkerKey) -> None:
        """Its connection has ended."""
        slot = self._slots.of_incarnation(key.incarnation)
        if slot is not None:
            slot.hang_watch.disconnected(key.group_rank)

    def other_world_made(self, is_open: bool) -> None:
        """The script trains in processes that have no Manager, as one world."""
        if self._settings.replicas > 1 and not self._ending.has_begun:
            self.fails_as_one = is_open and self._settings.alone
            self._out.add(words.elsewhere(self.fails_as_one))

    def begin_again(self, slot: SlotState, form: Form, reason: str, why: str = "") -> None:
        """Begin the run again in another form. ``why``: the reason to begin at its first step."""
        workers = self._settings.replicas * self._settings.workers_per_replica
        has_committed = any(one.has_committed for one in self._slots)
        why = f", from step 0 (or the script's own checkpoint){why}" if has_committed else ""
        self._out.add(words.begins_again(slot.replica_id, form, reason, workers, why))
        self._ending.begin_again(form, reason)

    def _failure_reported(self, key: WorkerKey, report: m.FailureReport) -> None:
        slot = self._slots.of_incarnation(key.incarnation)
        if slot is None or key.group_rank not in slot.living:
            return
        if report.step is not None and not report.heals:
            slot.budget.progressed(report.step)
        slot.failure_reports[key.group_rank] = report
        raised = failure_of(slot, e.WorkerExited(key.incarnation, key.group_rank, 0, 1))
        slot.ends.note(self._out.now, raised)
        if slot.phase is not SlotPhase.RUNNING:
            return
        # A script that has raised may still hang at exit, on a thread or a child process.
        if slot.kill_at is None:
            slot.kill_at = self._out.now + self._settings.grace_s
        is_group = self._settings.workers_per_replica > 1
        if slot.mending is not None and (self._settings.replicas == 1 or not raised.is_of_script):
            return  # it alone may be replaced
        if slot.is_at_start and is_group:
            return  # no peer trains with it yet, and another worker's death may be the cause
        # Its peers should not wait while the interpreter ends, which takes half a second.
        self._failures.report(slot, raised)
        slot.stands(self._out.now)

    def _no_manager_made(self, key: WorkerKey, has_stepped: bool) -> None:
        """Several groups without a Manager train separately: show that once it is certain."""
        slot = self._slots.of_incarnation(key.incarnation)
        if slot is not None and has_stepped:
            slot.steps_alone = slot.has_stepped = True
            slot.goes_on(self._out.now)
        is_newcomer = slot is not None and slot.is_unjoined
        if slot is not None and not slot.has_manager and not is_newcomer:
            # A group that has ended well without a step ran apart for all of its life.
            since_s = 0.0 if has_stepped else self._out.now - slot.begun_at
            self._out.send(runs_apart(slot, since_s))
        if self._settings.replicas < 2 or self.is_without_manager or self._ending.has_begun:
            return
        if any(one.has_trained for one in self._slots):
            return  # a newcomer that has ended before it made a Manager
        self.is_without_manager = True
        target, replicas = self._settings.target, self._settings.replicas
        self._out.add(words.apart(key.replica_id, target, replicas, has_stepped))

    def _form_wanted(
        self, key: WorkerKey, wanted: m.AnotherForm, held: Sequence[tuple[str, int]]
    ) -> None:
        """Begin the run again in another form, if this agent alone can decide that.

        One world of workers on several nodes is not a replica group: the job ends then. Exception:
        if a replica that was restarted asks, the others may train on. A form that the user has
        chosen and that does not suit the script ends the job too, at the first start.
        """
        slot = self._slots.of_incarnation(key.incarnation)
        form = parse(wanted.form)
        if slot is None or self._ending.has_begun:
            return
        settings, who = self._settings, slot.replica_id
        if wanted.form == UNFIT and slot.started == 1:
            self._out.add(words.job_ends(who, wanted.reason))
            self._ending.end_job(UNREADY, wanted.reason)
        if form is None or (form is Form.TOGETHER and slot.phase is not SlotPhase.RUNNING):
            return  # it begins again already, as another worker has asked
        self._slots.note(self._out.now, slot, f"asks for the form {form.value}: {wanted.reason}")
        if form is Form.TOGETHER and settings.alone:
            self._begin_together(slot, wanted.reason, held)
        elif settings.alone:
            self.begin_again(slot, form, wanted.reason)
        elif slot.started > 1:
            self._out.add(words.cannot_join(who, wanted.reason))
        else:
            reason = words.cannot_begin_again(form, wanted.reason)
            self._out.add(words.job_ends(who, reason))
            self._ending.end_job(UNREADY, reason)

    def _is_sound(self, replica_id: str, step: int) -> bool:
        slot = self._slots.get(replica_id)
        mending = None if slot is None else slot.mending
        return mending is not None and step <= mending.sound_until

    def _begin_together(
        self, slot: SlotState, reason: str, held: Sequence[tuple[str, int]]
    ) -> None:
        """All replicas resume in the form that they have, from the newest state that is held.

        This is what happens if all of them have died. It is not a failure of theirs, so only a
        replica whose script has failed counts a restart.
        """
        sound = [(whose, step) for whose, step in held if not whose or self._is_sound(whose, step)]
        why = "" if sound else words.nothing_held(self._settings.has_memory_snapshots)
        if sound and not self._has_gone_on:
            why = words.IN_VAIN
        if any(x.phase is SlotPhase.ENDED or x.done or x.left_early for x in self._slots):
            why = words.HAS_ENDED
        if why:
            self.begin_again(slot, Form.ONE_WORLD, reason, why)
            return
        of_step = {step: [whose for whose, x in sound if x == step] for _, step in sound}
        whole = [step for step, known in of_step.items() if len(known) == len(self._slots)]
        step = max(whole or of_step)  # each resumes from its own state, if it can
        whose = of_step[step][0]
        is_all = step in whole
        self._out.add(words.begins_together(slot.replica_id, reason, whose, step, is_all))
        self._has_gone_on = False
        if whose:
            self._out.add(e.ShareMemory(whose, step))
        for one in self._slots:
            if one.phase is SlotPhase.RUNNING and one.alive:
                if not one.failure_reports:
                    one.verdict = Restart(0.0, one.budget.spent)
                self._gives_up(one.incarnation, f"{TOGETHER} all replicas")

    def _loop_beat(self, key: WorkerKey, beat: m.Beat) -> None:
        slot = self._slots.of_incarnation(key.incarnation)
        if slot is None or key.group_rank not in slot.alive:
            return
        if beat.pause:
            slot.loop_watch.paused(key.group_rank, beat.limit_s, self._out.now)
        else:
            slot.loop_watch.beat(key.group_rank, self._out.now)

    def _worker_sent(self, key: WorkerKey, message: m.FromWorker) -> None:
        slot = self._slots.of_incarnation(key.incarnation)
        if slot is None or key.group_rank in slot.dying:
            return
        is_first, slot.has_manager = not slot.has_manager, True
        slot.hang_watch.received(key.group_rank, self._out.now)
        match message:
            case m.Progress():
                slot.loop_watch.progress(key.group_rank, message, self._out.now)
                slot.has_committed |= message.steps > 0
                self._has_gone_on |= message.steps > 0 and slot.phase is SlotPhase.RUNNING
                if message.phase not in NOT_ITS_OWN:
                    slot.budget.progressed(message.step)
                if key.group_rank == 0:
                    slot.account(message, self._out.now)
            case m.Healed(step=step):
                slot.budget.healed(step)
            case m.Report():
                slot.hang_watch.back(key.group_rank)
            case m.InForce():
                slot.has_trained = slot.has_joined = True
                slot.goes_on(self._out.now)
                self._is_in_quorum(slot.incarnation)
            case m.Leaving(reason, step):
                slot.hang_watch.gone(key.group_rank)
                slot.loop_watch.gone(key.group_rank)
                if reason is m.LeaveReason.EARLY:
                    slot.left_early = step
                if reason is m.LeaveReason.DRAINED:
                    slot.left.add(key.group_rank)
                if reason is m.LeaveReason.FINISHED and slot.phase is SlotPhase.RUNNING:
                    slot.done.add(key.group_rank)
                self._on_request.left(slot)
            case _:
                pass
        if is_first:
            self._ending.manager_came(slot)


def runs_apart(slot: SlotState, since_s: float = 0.0) -> m.Heartbeat:
    """The activity of workers that cannot report it, without a Manager; ``since_s``: its age."""
    progress = m.Progress(slot.budget.mark, 0, Activity.APART, since_s=since_s)
    return m.Heartbeat(
        (m.ReplicaProgress(slot.replica_id, slot.incarnation, progress),), quiet=True
    )
