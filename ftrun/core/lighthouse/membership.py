"""Decides who trains together: takes what workers say and what becomes of replicas.

The theory and the table of phases are in phases.py. Handlers only note what has happened;
``settle`` then applies the rules of the phase until nothing changes any more. The rules that start
from a standstill are in forming.py, those of switches in switching.py, the first one of a restarted
lighthouse in takeover.py. Not here: agents, streams, heartbeats and slots (machine.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.ids import Attempt, replica_order
from ftrun.core.lighthouse.choice import group_state
from ftrun.core.lighthouse.events import JournalState
from ftrun.core.lighthouse.forming import Forming
from ftrun.core.lighthouse.history import replicas, sentence
from ftrun.core.lighthouse.phases import IN_QUORUM, Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.state import Stage
from ftrun.core.lighthouse.switching import Switching
from ftrun.core.lighthouse.takeover import Takeover

TRAINING = frozenset({Phase.STEADY, Phase.PREPARE, Phase.PROPOSE, Phase.SWITCH})
HEALED_NOTICES_MAX = 16
RULES_MAX = 100
"""So many rules in a row mean that they go round in circles."""


class Membership:
    """The phase machine. What follows from an event is in the stage's outbox after ``settle``."""

    def __init__(self, stage: Stage, journal: JournalState) -> None:
        self.stage = stage
        self.forming = Forming(stage)
        self.switching = Switching(stage)
        self.takeover = Takeover(stage, journal)
        self._finish_at: float | None = None
        self._handlers: dict[type, Callable[[Replica, int, Any], None]] = {
            m.Report: self._on_report,
            m.Built: self._on_built,
            m.BuildFailed: self._on_build_failed,
            m.Promised: self._on_promised,
            m.Refused: self._on_refused,
            m.InForce: self._on_in_force,
            m.Errored: self._on_errored,
            m.Healed: self._on_healed,
            m.Leaving: self._on_leaving,
            m.Progress: self._on_progress,
        }
        self._rules: dict[Phase, Callable[[], bool]] = {
            Phase.TAKEOVER: self._take_over,
            Phase.EMPTY: self.forming.gather,
            Phase.BUILD: self.forming.build,
            Phase.STEADY: self._steady,
            Phase.PREPARE: self.switching.prepare,
            Phase.PROPOSE: self.switching.propose,
            Phase.SWITCH: self.switching.complete,
            Phase.REJOIN: self.forming.rejoin,
            Phase.FENCE: self.forming.departed,
        }

    # ------------------------------------------------------------ the rules

    def settle(self) -> None:
        """All of an event is noted: go on as far as the rules lead."""
        for _ in range(RULES_MAX):
            if self.stage.phase is Phase.ENDED or not self._apply_rules():
                self.stage.is_dirty = False
                return
        raise AssertionError(f"the rules of {self.stage.phase} do not come to an end")

    @property
    def may_move(self) -> bool:
        """Whether ``settle`` has anything to do but to look at the time.

        As long as answers are outstanding, one that is not the last one moves nothing.
        """
        stage = self.stage
        return (
            stage.is_dirty
            or stage.waiting.done
            or bool(stage.removed or stage.failure or stage.replacements)
        )

    def _apply_rules(self) -> bool:
        """One rule; False if none had anything to do."""
        stage = self.stage
        if stage.replacements:
            losses, stage.replacements = stage.replacements, []
            self.lose(losses, is_dead=False, restart=True)
            return True
        if self._is_over():
            self.switching.abandon()
            stage.end(0, "all replicas have finished")
            return True
        if self._finish_at is not None and stage.now >= self._finish_at:
            self._remove_finished()
        if stage.phase in IN_QUORUM and (stage.removed or stage.failure):
            return self._break_up()
        if stage.too_few and self._are_others_here():
            return self._take_others()
        return self._rules[stage.phase]()

    def next_deadline(self) -> float | None:
        """When time alone will make a rule apply."""
        if self.stage.phase is Phase.ENDED:
            return None
        times = [t for t in (self.stage.deadline, self._finish_at) if t is not None]
        return min(times, default=None)

    def _break_up(self) -> bool:
        """The attempt cannot go on: interrupt everyone; or replace whoever is in the way."""
        stage = self.stage
        if not stage.removed and self.forming.is_exhausted():
            stage.failure = ""
            self.forming.replace_worst()
            return True
        self.switching.abandon()
        causes = [f"replica {loss.replica_id}: {loss.cause}" for loss in stage.removed]
        kind = "shrink" if stage.removed else "retry"
        stage.history.begin(stage.now, kind, "; ".join(causes) or stage.failure)
        self._remove_finished()
        lost, stage.removed = tuple(stage.removed), []
        self.forming.interrupt(lost)
        return True

    def _are_others_here(self) -> bool:
        """A quorum stands that commits nothing, and there are more who would make it enough."""
        stage = self.stage
        if stage.phase is Phase.SWITCH and stage.quorum is not None and stage.quorum.newcomers:
            return True
        return stage.phase in TRAINING and bool(stage.replicas.ready)

    def _take_others(self) -> bool:
        """Nobody comes to a later step to switch at: who is ready joins at this one."""
        stage = self.stage
        self.switching.abandon()
        stage.history.begin(stage.now, "grow", f"too few contribute at step {stage.step_max}")
        self.forming.interrupt(())
        return True

    # ------------------------------------------------------------ what workers say

    def heard(self, replica: Replica, rank: int, message: m.FromWorker) -> None:
        """One worker of a living replica has said something."""
        self._handlers[type(message)](replica, rank, message)

    def _on_report(self, replica: Replica, rank: int, report: m.Report) -> None:
        stage = self.stage
        stage.outrun(report)
        replica.reports[rank] = report
        if replica.replica_id in stage.live:
            self._member_reported(replica, rank, report)
        elif stage.phase is Phase.TAKEOVER:
            self.takeover.heard(report)
            stage.is_dirty |= replica.is_known(stage.workers)
        else:
            self._admit(replica)

    def _member_reported(self, replica: Replica, rank: int, report: m.Report) -> None:
        stage = self.stage
        stage.step_max = max(stage.step_max, report.state.step)
        if stage.phase is Phase.REJOIN:
            if report.interrupted >= stage.interrupt:
                stage.waiting.answer(replica.replica_id, rank)
        elif any(report.interrupted >= attempt for attempt in stage.attempts_of(replica)):
            self._fail(replica, "a worker has given the quorum up")

    def _admit(self, replica: Replica) -> None:
        """A replica outside the quorum has reported: is it ready to join one?"""
        stage, plan = self.stage, self.switching.plan
        if plan is not None and replica.replica_id in plan.quorum.newcomers:
            return
        if replica.leaving or not replica.is_known(stage.workers):
            return
        if not replica.is_in_quorum():
            stage.replicas.ready.add(replica.replica_id)
            return
        stage.replicas.ready.discard(replica.replica_id)
        if not replica.was_interrupted:
            replica.was_interrupted = True
            stage.tell([replica.replica_id], m.Interrupt(stage.attempts.highest))

    def _on_built(self, replica: Replica, rank: int, built: m.Built) -> None:
        self._answered(replica, rank, built.attempt, Phase.BUILD)
        self.switching.on_built(replica.replica_id, rank, built.attempt)

    def _answered(self, replica: Replica, rank: int, attempt: Attempt, asked: Phase) -> None:
        if self.stage.phase is asked and self._is_current(attempt):
            self.stage.waiting.answer(replica.replica_id, rank)

    def _is_current(self, attempt: Attempt) -> bool:
        return self.stage.quorum is not None and attempt == self.stage.quorum.attempt

    def _on_build_failed(self, replica: Replica, rank: int, failure: m.BuildFailed) -> None:
        was_of_switch = self.switching.on_build_failed(replica.replica_id, failure)
        if not was_of_switch and failure.attempt in self.stage.attempts_of(replica):
            self._fail(replica, f"it could not build the group: {failure.reason}")

    def _on_promised(self, replica: Replica, rank: int, promise: m.Promised) -> None:
        self.switching.on_promised(replica.replica_id, rank, promise)

    def _on_refused(self, replica: Replica, rank: int, refusal: m.Refused) -> None:
        self.switching.on_refused(replica.replica_id, refusal)

    def _on_in_force(self, replica: Replica, rank: int, word: m.InForce) -> None:
        stage = self.stage
        if stage.phase is Phase.TAKEOVER:
            replica.reports.pop(rank, None)  # what it has said before is out of date
            stage.tell([replica.replica_id], m.AskReport())
        elif self._is_current(word.attempt):
            self._at_step(replica, word.step)
            self._answered(replica, rank, word.attempt, Phase.BUILD)
            self._answered(replica, rank, word.attempt, Phase.SWITCH)

    def _at_step(self, replica: Replica, step: int) -> None:
        if replica.replica_id in self.stage.live:
            self.stage.step_max = max(self.stage.step_max, step)

    def _on_progress(self, replica: Replica, rank: int, word: m.Progress) -> None:
        if rank == 0:
            replica.progress = word
            self._note_stall(replica, word)
            self._note_too_few(replica, word)
        self._at_step(replica, word.step)

    def _note_stall(self, replica: Replica, word: m.Progress) -> None:
        stage = self.stage
        if word.phase == Activity.WAITING.value and replica.replica_id in stage.live:
            stage.stalled.setdefault(replica.replica_id, stage.now - word.since_s)
        else:
            stage.stalled.pop(replica.replica_id, None)

    def _note_too_few(self, replica: Replica, word: m.Progress) -> None:
        stage, name = self.stage, replica.replica_id
        if word.phase != Activity.TOO_FEW.value or name not in stage.live:
            stage.too_few.pop(name, None)
        elif name not in stage.too_few:
            stage.too_few[name] = stage.now - word.since_s
            stage.is_dirty = True

    def _on_errored(self, replica: Replica, rank: int, error: m.Errored) -> None:
        if self.stage.phase is Phase.TAKEOVER:
            self.takeover.is_disturbed = True
        elif error.attempt in self.stage.attempts_of(replica):  # C3
            self._fail(replica, f"step {error.step}: {error.reason}")

    def _on_healed(self, replica: Replica, rank: int, healed: m.Healed) -> None:
        quorum = self.stage.quorum
        if rank != 0 or quorum is None or healed.attempt != quorum.attempt or healed.step == 0:
            return  # at step 0 nothing was lost: all take one replica's weights
        if len(quorum.newcomers) > HEALED_NOTICES_MAX:
            return  # nobody reads so many lines
        text = (
            f"Replica {replica.replica_id} healed from {replicas(healed.donors)}: step "
            f"{healed.step}, {healed.nbytes / 1e6:.1f} MB in {healed.duration_s:.3f} s."
        )
        self.stage.outbox.notice("healed", [replica.replica_id], text)

    def _fail(self, replica: Replica, reason: str) -> None:
        """The attempt has failed without a loss, so far; the first one to say so is blamed."""
        stage = self.stage
        if stage.phase in IN_QUORUM and replica.replica_id in stage.live and not stage.failure:
            self.forming.blame(replica.replica_id)
            stage.failure = f"replica {replica.replica_id}: {reason}"

    # ------------------------------------------------------------ who is lost

    def lose(self, losses: Sequence[m.Loss], *, is_dead: bool, restart: bool = False) -> None:
        """These incarnations are out; what is known already, or of old, changes nothing.

        ``is_dead``: their processes cannot act any more. ``restart``: their agents shall kill them.
        """
        stage = self.stage
        stage.is_dirty = True
        known: list[m.Loss] = []
        news: list[m.Loss] = []  # that somebody has drained is told already
        members = set(stage.live)
        for loss in losses:
            if is_dead:
                stage.departed.died(loss.replica_id, loss.incarnation)
            replica = stage.replicas.find(loss.replica_id, loss.incarnation)
            if replica is None:
                continue
            known.append(loss)
            if replica.leaving != "drained" or loss.killed:
                news.append(loss)
            if restart:
                stage.outbox.restart(replica, loss.cause)
            stage.drains.discard(loss.replica_id)
            if loss.replica_id in stage.live:
                stage.remove_member(replica, loss.cause, is_dead=is_dead)
            stage.replicas.remove(loss.replica_id)
        if stage.phase is Phase.TAKEOVER and known:
            self.takeover.is_disturbed = True
        if stage.phase is not Phase.ENDED:
            self._notice_lost(news, bool(members - stage.live))

    def _notice_lost(self, losses: list[m.Loss], of_quorum: bool) -> None:
        stage = self.stage
        by_cause: dict[str, list[str]] = {}
        for loss in losses:
            by_cause.setdefault(loss.cause, []).append(loss.replica_id)
        rest = ""
        if of_quorum:
            rest = f" Left in the quorum: {replicas(stage.live)}."
        killed = {loss.cause for loss in losses if loss.killed}
        for cause, ids in by_cause.items():
            verb = "" if cause in killed else "lost: "
            text = f"{replicas(ids)} {verb}{cause}.{rest}"
            stage.outbox.notice("lost", ids, sentence(text))

    # ------------------------------------------------------------ who leaves, and the end

    def drain(self, replica_ids: Iterable[str]) -> None:
        """These replicas shall leave at a boundary; those that are in no quorum leave now.

        But where no quorum stands, who has trained may hold what the job goes on with: it leaves
        when one does.
        """
        stage = self.stage
        stage.is_dirty = True
        for replica_id in replica_ids:
            replica = stage.replicas.at(replica_id)
            is_member = replica_id in stage.live or stage.phase is Phase.TAKEOVER
            if is_member or (replica is not None and self._may_be_needed(replica)):
                stage.drains.add(replica_id)
            elif replica is not None:
                loss = m.Loss(replica_id, replica.incarnation, "it was drained before it joined")
                self.lose([loss], is_dead=False)

    def _may_be_needed(self, replica: Replica) -> bool:
        stage = self.stage
        stands = stage.phase not in (Phase.EMPTY, Phase.FENCE, Phase.REJOIN)
        if stands or not replica.is_known(stage.workers):
            return False
        state = group_state(replica.reports.values())
        return state is not None and state.step > 0

    def _steady(self) -> bool:
        """A quorum stands: who was to leave and is not in it goes now, the others by a switch.

        One that all have left is none: the next replicas that come begin another.
        """
        if not self.stage.live:
            self.forming.interrupt(())
            return True
        late = self.stage.drains - self.stage.live
        if late:
            self.stage.drains -= late
            self.drain(sorted(late, key=replica_order))
            return True
        return self.switching.consider()

    def _on_leaving(self, replica: Replica, rank: int, word: m.Leaving) -> None:
        if word.reason == "finished":
            self._finishing(replica)
        elif word.reason == "drained":
            replica.left.add(rank)
            if len(replica.left) == self.stage.workers and replica.leaving != "drained":
                self._drained(replica)
        else:
            loss = m.Loss(replica.replica_id, replica.incarnation, f"it went away ({word.reason})")
            self.lose([loss], is_dead=False)

    def _drained(self, replica: Replica) -> None:
        """All its workers have stopped at a boundary; by an agreed switch that harms nobody."""
        stage, name = self.stage, replica.replica_id
        replica.leaving = "drained"
        stage.is_dirty = True
        stage.slots[name].has_left = True
        stage.reassigned.add(replica.agent_id)
        stage.replicas.ready.discard(name)
        stage.outbox.notice("drained", [name], f"Replica {name} has left: drained.")
        stays = stage.quorum is not None and stage.quorum.index(name, replica.incarnation)
        if name in stage.live:
            if stage.phase is Phase.SWITCH and stays is None:
                stage.retire(replica, is_dead=True)
            else:
                stage.remove_member(replica, "drained", is_dead=True)

    def _finishing(self, replica: Replica) -> None:
        """The script has ended: strike it soon, but not before others had time to end too."""
        stage = self.stage
        stage.is_dirty = True
        replica.leaving = replica.leaving or "finished"
        stage.replicas.ready.discard(replica.replica_id)
        if self._finish_at is None:
            self._finish_at = stage.now + stage.settings.finish_grace_s

    def _remove_finished(self) -> None:
        """Take those who have finished out of the quorum: they commit no more.

        When all have, there is nobody to interrupt: they stay, and the job ends with them.
        """
        stage = self.stage
        self._finish_at = None
        in_order = sorted(stage.live, key=replica_order)
        done = [r for name in in_order if (r := stage.replicas[name]).leaving]
        if stage.phase in IN_QUORUM and len(done) == len(stage.live) and not stage.removed:
            return
        for replica in done:
            stage.remove_member(replica, "finished", is_dead=True)
            if replica.has_ended:
                stage.replicas.remove(replica.replica_id)

    def ended(self, replica_id: str, incarnation: str) -> None:
        """All processes of a replica are gone, with exit code 0."""
        stage = self.stage
        replica = stage.replicas.at(replica_id)
        if replica is not None and replica.incarnation != incarnation:
            return  # of old: another one runs in its slot
        stage.is_dirty = True
        stage.departed.died(replica_id, incarnation)
        if stage.slots.finish(replica_id):
            stage.outbox.notice("finished", [replica_id], f"Replica {replica_id} has finished.")
            stage.journal()
        if replica is not None:
            replica.has_ended = True
            self._finishing(replica)
            if replica_id not in stage.live:
                stage.replicas.remove(replica_id)

    def _is_over(self) -> bool:
        """Nobody trains any more, and whoever has left is gone."""
        stage = self.stage
        if not stage.is_dirty or stage.phase is Phase.TAKEOVER or not len(stage.slots):
            return False
        if any(r.leaving and not r.has_ended for r in stage.replicas):
            return False
        if stage.phase in IN_QUORUM:
            trains = any(not stage.replicas[name].has_ended for name in stage.live)
            return bool(stage.live) and not trains and not stage.removed
        return stage.slots.open_count == 0

    # ------------------------------------------------------------ takeover

    def _take_over(self) -> bool:
        """Once all are back, or the grace is over: the quorum in force, or what is left of it."""
        stage = self.stage
        takeover = self.takeover
        may_end = (stage.is_due and not takeover.put_off()) or (
            stage.is_dirty and takeover.is_complete()
        )
        if not may_end:
            return False
        drains = tuple(stage.drains)
        stage.drains.clear()
        self.takeover.conclude(self.forming, self.switching)
        for replica in list(stage.replicas):
            if replica.replica_id not in stage.live:
                self._admit(replica)
            elif replica.leaving:
                self._finishing(replica)
        self.drain(drains)
        return True
