"""A worker that died is replaced inside its group, while the others wait in their call.

This needs the worker's state in the agent's memory (``WorkerExited.kept``). If there are several
replicas, it is not done if the script itself has failed: it would fail again in the same step,
which a replica that heals from the others does not repeat. The survivors are informed at once, by a
decree. The replacement starts when the dead process is gone. Then the board is checked until all
are in one group again.

If the mend fails, all processes are ended, and all resume from the last step that each has in
memory. After a mend the board is checked for some steps more, because all may be connected and wait
in calls that cannot match. If memory cannot be used, the failure is an ordinary one: the whole
group is started again, and its notice has the reason. If a node of the group is lost, and other
nodes have its ranks' states, the group waits for a node to replace it.

Not here: the decision by what is in memory (core/replay/mending.py), budgets (restarts.py), the
failure of a group (failed_slots.py), its texts (mend_words.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ftrun.core.agent import events as e
from ftrun.core.agent import mend_words as words
from ftrun.core.agent.ending import Ending
from ftrun.core.agent.evidence import Ends
from ftrun.core.agent.failed_slots import FailedSlots, failure_of
from ftrun.core.agent.hangs import WHOLE
from ftrun.core.agent.part import Part
from ftrun.core.agent.restarts import NotWanted, Restart
from ftrun.core.agent.slot_state import Mend, Replaced, SlotPhase, SlotState
from ftrun.core.agent.standby import StandbyPool
from ftrun.core.agent.stopping import SIGKILL
from ftrun.core.failure_kinds import DIVERGED, HEAL, REPORT, STOP
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import ReplicaStarted
from ftrun.core.replay.afterwards import Apart, StepVerdict
from ftrun.core.replay.alike import NEVER, Unlike
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.mending import Decree, Mended, Mending
from ftrun.core.replay.settling import Generation

LOOK_S = 0.02
NODE_LOOK_S = 0.1
AFTER_LOOK_S = 1.0
SLOW_S = 3.0
"""A replacement that takes longer than this is reported before it has joined."""
REJOIN_S = 5.0
"""The lighthouse's value (core/lighthouse/events.py: rejoin_timeout_s) without
``waits_for_mends``.
"""


@dataclass(eq=False, repr=False)
class Replacing(Part):
    """Replaces workers.

    ``fail``: called for a group in which one cannot be replaced; ``group_ended``: called once all
    of its processes are gone.
    """

    _standbys: StandbyPool
    _failures: FailedSlots
    _ending: Ending
    _fail: Callable[[SlotState, e.WorkerExited], None]
    _group_ended: Callable[[SlotState], None]

    _is_over: bool = False

    @property
    def _is_one(self) -> bool:
        return self._settings.replicas == 1

    def begin(self, slot: SlotState) -> float:
        """Begin a new incarnation with new memory.

        Returns the newest step whose memory of the incarnation before is sound.
        """
        last = slot.mending
        if self._settings.has_memory_snapshots and not self._is_over:
            s = self._settings
            was_late = last is not None and last.is_late(self._out.now)
            rejoin_s = s.join_timeout_s if s.waits_for_mends else REJOIN_S
            limits = s.join_timeout_s, s.spans, s.replicas, rejoin_s, s.hang_timeout_s
            slot.mending = Mending(*limits, was_late=was_late)
        return slot.begins_from if last is None or self._is_one else last.sound_until

    def ends(self) -> None:
        """The script keeps its state itself: from now on there are no memory snapshots."""
        self._is_over = True
        for slot in self._slots:
            slot.mending = None

    def takes(self, slot: SlotState, end: e.WorkerExited) -> bool:
        """Replace a worker that has died or is dying. Returns False if its group has failed."""
        kept, mending, rank = end.kept, slot.mending, end.group_rank
        if kept is None or mending is None or self._ending.has_begun or slot.leaves is not None:
            return False
        if slot.corrupted is not None and slot.corrupted[0] == rank:
            if self._settings.on_corruption == STOP:
                slot.verdict = NotWanted()
                return False
            kept = replace(kept, place=Fall.CORRUPTED)
            end = replace(end, kept=kept)
        if slot.hung is not None and slot.hung.group_rank == rank:
            slot.hung = end = replace(slot.hung, pid=end.pid, kept=kept)
        failure = failure_of(slot, end)
        if failure.is_of_script and not self._is_one:
            slot.fall = words.WOULD_FAIL_AGAIN if isinstance(kept.place, Generation) else ""
            return False
        if slot.lost:
            return False
        is_counted, verdict = mending.counts(rank), None
        if is_counted and mending.fallen is None and isinstance(kept.place, Generation):
            verdict = slot.budget.failed(failure)
            if not isinstance(verdict, Restart):
                slot.verdict, slot.fall = verdict, words.would_have_gone_on(kept.step)
                return False
            slot.restarts, slot.booked = slot.restarts + 1, verdict.number
        died_at = self._out.now - end.ago_s
        outcome = mending.died(rank, kept.place, died_at, kept.set_up_s, kept.reached)
        if not isinstance(outcome, Decree):
            if is_counted and verdict is None and self._can_begin_again(slot, rank):
                verdict = slot.budget.failed(failure)
                slot.restarts += isinstance(verdict, Restart)
            why = rank, mending.fallen, kept.why
            slot.fall = words.not_replaced(*why, is_one=self._is_one)
            slot.verdict = verdict if is_counted else Restart(0.0, slot.budget.spent)
            if kept.place is Fall.NODES and not isinstance(slot.verdict, Restart | None):
                slot.fall = words.would_have_gone_on(kept.step)
            if not isinstance(slot.verdict, Restart) or not self._can_begin_again(slot, rank):
                return False
        is_gone = rank not in slot.alive
        slot.alive.add(rank)
        slot.ends.note(self._out.now, failure)
        slot.replaced[rank] = Replaced(end, failure, died_at, kept.step, kept.reached)
        slot.stands(died_at)
        slot.loop_watch.rest()
        self._forget(slot, rank)
        if not isinstance(outcome, Decree):
            self._end_all(slot, slot.alive - {rank} if is_gone else slot.alive)
            return True
        self._out.add(e.MakeDecree(slot.replica_id, slot.incarnation, outcome.number, rank))
        if not self._is_one:
            self._out.send(mend_of(slot))
        slot.look_at = self._out.now + LOOK_S
        slot.slow_at = self._out.now + SLOW_S if slot.slow_at is None else slot.slow_at
        if is_gone:
            self.gone(slot, rank)
        return True

    def _can_begin_again(self, slot: SlotState, rank: int) -> bool:
        """Whether all may resume from memory. None may have ended well."""
        assert slot.mending is not None, "it has fallen"
        return slot.mending.can_rewind and len(slot.alive | {rank}) == len(slot.lives)

    def _end_all(self, slot: SlotState, ranks: set[int]) -> None:
        """End all processes of the group. When they are gone, all resume from memory."""
        slot.ending, slot.look_at, slot.slow_at = set(ranks), None, None
        slot.stuck_at = self._out.now + self._settings.stuck_after_s
        self._out.add(e.HoldGroup(slot.replica_id, slot.incarnation))
        self._out.add(e.SignalReplica(slot.replica_id, slot.incarnation, SIGKILL))

    def ended(self, slot: SlotState, rank: int) -> bool:
        """A process has ended.

        Returns False unless its end was awaited in order to resume from memory.
        """
        if slot.ending is None:
            return False
        slot.ending.discard(rank)
        slot.dying.discard(rank)
        if slot.phase is not SlotPhase.RUNNING:
            slot.alive = slot.ending | {rank}  # without those that were to be started again
            return False
        if not slot.ending:
            if slot.corrupted is not None and slot.odd and self._settings.spans:
                self._out.add(e.SetNodesAside(slot.odd))
            self._out.add(e.LookAtBoard(slot.replica_id, slot.incarnation))
        return True

    def _begin_again(self, slot: SlotState, event: e.BoardSeen) -> None:
        """All processes of the group are gone, so none writes to its memory any more."""
        assert slot.mending is not None, "it has fallen"
        slot.stuck_at = None
        if event.waits and event.boundary is not None and slot.phase is SlotPhase.RUNNING:
            if slot.waits_from is None:
                self._out.add(words.waits_for_node(slot.replica_id, event.boundary))
            slot.waits_from, slot.look_at = event.boundary, self._out.now + NODE_LOOK_S
            return
        slot.ending = slot.waits_from = None
        for known in slot.replaced.values():
            known.is_gone = True
        if slot.phase is not SlotPhase.RUNNING:
            slot.alive.clear()
            self._group_ended(slot)
            return
        decree = slot.mending.rewind(event.boundary, len(slot.lives), self._out.now)
        if decree is None or event.boundary is None:
            slot.alive.clear()
            self._fail(slot, next(iter(slot.replaced.values())).end)
            self._group_ended(slot)
            return
        slot.rewound_to, slot.corrupted = event.boundary, None
        place = slot.replica_id, slot.incarnation
        self._out.add(e.RewindMemory(*place, decree.number, event.boundary))
        for rank in sorted(slot.lives):
            self._replace(slot, rank)
        slot.look_at, slot.slow_at = self._out.now + LOOK_S, self._out.now + SLOW_S

    def unlike(self, incarnation: str, found: Unlike) -> None:
        """Workers do not hold the same parameters any more: react as --on-corruption says.

        To heal or stop, one of them is killed. Then the job ends, or all resume from the last step
        at which they were equal: what the odd one has computed since is in the others' averages. If
        the workers are on several nodes, other ones take the places of the odd ones' nodes.
        """
        slot = self._slots.of_incarnation(incarnation)
        if slot is None or slot.phase is not SlotPhase.RUNNING or self._ending.has_begun:
            return
        if slot.corrupted is not None or slot.replaced or slot.ending is not None:
            return
        action = self._settings.on_corruption
        cause = words.corrupted(found)
        is_again = found.agreed <= slot.agreed and found.odd == slot.odd
        if found.agreed == NEVER or (action == HEAL and is_again):
            action, cause = REPORT, words.differ_by_script(found)
        elif action == REPORT:
            cause = f"{cause}. Training continues, and they are not compared any more"
        rank = (found.odd or found.mates)[-1]
        who = f"worker {slot.replica_id}.{rank}"
        if action == REPORT:
            self._out.add(e.ShowNotice("diverged", (slot.replica_id,), f"{who} {cause}."))
            self._out.add(e.LetDiffer(slot.replica_id, incarnation))
            return
        slot.corrupted, slot.agreed, slot.odd = (rank, cause), found.agreed, found.odd
        self._out.add(e.SignalWorker(WorkerKey(slot.replica_id, incarnation, rank), SIGKILL))

    def was_late(self, incarnation: str, reason: str) -> bool:
        """The other replicas continue without this one, for a ``reason``: was its mend the cause?

        Then it restarts, and the restart of the death pays for that. The mend is the cause if one
        of its workers is being replaced, or was replaced too late and the step since is not
        decided. Returns False otherwise.
        """
        slot = self._slots.of_incarnation(incarnation)
        if slot is None or slot.phase is not SlotPhase.RUNNING or self._is_one:
            return False
        if reason.startswith((DIVERGED, *WHOLE)) or not (slot.replaced or slot.untold):
            return False
        if not slot.replaced:
            if slot.mending is None or not slot.mending.is_late(self._out.now):
                return False
            slot.untold.pop()
            slot.replaced = slot.mended
            for known in slot.replaced.values():
                slot.ends.note(known.at, known.failure)
        slot.fall, slot.verdict = words.WAS_LATE, Restart(0.0, slot.budget.spent)
        self._fail(slot, next(iter(slot.replaced.values())).end)
        return True

    def gone_badly(self, slot: SlotState, end: e.WorkerExited) -> None:
        """A worker of a failed group has ended.

        The reason that it wrote last counts, because no look at the board may have seen it.
        """
        mending, kept = slot.mending, end.kept
        if mending is None or mending.fallen or kept is None or kept.written is None:
            return
        mending.fallen = kept.written
        if slot.fall == words.WAS_LATE:
            slot.fall = self._why_not(slot, kept.why)

    def lets_go(self, slot: SlotState) -> None:
        """The replica is not started here any more: its memory is not needed."""
        if slot.mending is not None and not (self._is_one or self._ending.has_begun):
            slot.mending, slot.replaced = None, {}
            self._out.add(e.DropMemory(slot.replica_id))

    def stops_waiting(self, slot: SlotState) -> None:
        """The group must stop while it waits for a node, and nothing of it runs."""
        if slot.waits_from is not None and slot.phase is not SlotPhase.RUNNING:
            self._out.add(words.would_go_on(slot.replica_id, slot.waits_from))
            slot.ending = slot.waits_from = None
            slot.alive.clear()
            self._group_ended(slot)

    def waits_for_end(self, slot: SlotState, rank: int) -> bool:
        """Whether a process that is to be replaced is not gone yet."""
        known = slot.replaced.get(rank)
        return slot.phase is SlotPhase.RUNNING and known is not None and not known.is_gone

    def gone(self, slot: SlotState, rank: int) -> None:
        """The process is gone, and its threads too: its replacement may use its memory."""
        slot.replaced[rank].is_gone = True
        slot.dying.discard(rank)
        self._replace(slot, rank)

    def _replace(self, slot: SlotState, rank: int) -> None:
        slot.lives[rank] = slot.started
        slot.started += 1
        standby = "".join(self._standbys.take(1, self._out.now))
        key = WorkerKey(slot.replica_id, slot.incarnation, rank)
        self._out.add(e.ReplaceWorker(key, slot.lives[rank], standby))

    def kill(self, slot: SlotState) -> bool:
        """A worker hangs, or has raised and does not end: kill it, so that it is replaced.

        Returns False if the whole group has failed. With several replicas it always has, because
        the others have continued without it.
        """
        can = self._is_one and slot.mending is not None and slot.mending.fallen is None
        if not can or slot.phase is not SlotPhase.RUNNING:
            return False
        slot.kill_at = slot.stacks_at = None
        self._out.add(e.LookAtBoard(slot.replica_id, slot.incarnation))
        return True

    def look(self, slot: SlotState) -> None:
        slot.look_at = None
        self._out.add(e.LookAtBoard(slot.replica_id, slot.incarnation))
        if slot.slow_at is not None and slot.slow_at <= self._out.now:
            slot.slow_at = None
            for known in slot.replaced.values():
                step = known.step if slot.rewound_to is None else slot.rewound_to
                self._out.add(words.is_replaced(known.failure, step))

    def seen(self, event: e.BoardSeen) -> None:
        """The board was read, while a replacement has not joined yet."""
        slot = self._slots.of_incarnation(event.incarnation)
        if slot is None or slot.mending is None:
            return
        if slot.ending is not None:
            if not slot.ending:
                self._begin_again(slot, event)
            return
        if slot.phase is not SlotPhase.RUNNING:
            return
        self._end_who_holds_up(slot, event)
        now, steps = self._out.now, event.steps
        if slot.mending.is_under_way and slot.awaited is None and not self._is_one:
            slot.awaited = StepVerdict(steps, event.lost)  # before it can be decided
        words_of = event.board, event.joined, event.falls, now, event.broken, steps
        outcome = slot.mending.look(*words_of)
        is_over = outcome is None and not slot.mending.is_under_way
        if is_over and slot.awaited is not None:
            lost = slot.awaited.known(event.board, steps, event.lost)
            if lost is not None:
                self._tell(slot, lost)
        if isinstance(outcome, Fall):
            self._falls(slot, event.why, slot.mending.staying(event.board))
        elif isinstance(outcome, Mended):
            self._mended(slot, event, outcome.after_s)
        elif slot.mending.is_under_way:
            slot.look_at = now + LOOK_S
            if isinstance(outcome, Decree):
                place = slot.replica_id, slot.incarnation
                self._out.add(e.MakeDecree(*place, outcome.number, -1))
        elif slot.mending.is_watched:
            self._seen_after(slot, event)
        if slot.awaited is not None and slot.mending.fallen is None:
            slot.look_at = now + LOOK_S

    def _seen_after(self, slot: SlotState, event: e.BoardSeen) -> None:
        """The board was read after a mend: check that all make progress."""
        assert slot.mending is not None, "it is watched"
        found = slot.mending.look_after(event.board, event.steps, event.calls, self._out.now)
        slot.look_at = self._out.now + AFTER_LOOK_S if slot.mending.is_watched else None
        if isinstance(found, Apart):
            slot.replaced = slot.mended
            for known in slot.replaced.values():
                slot.ends.note(known.at, known.failure)
            slot.stands(self._out.now - found.still_s)
            self._falls(slot, words.where_all_are(event.board.done, found.waits), [])
        elif found is not None:
            ranks = sorted(slot.mended)
            still = slot.replica_id, ranks, found.still_s, event.board.done, found.waits
            self._out.add(words.do_not_go_on(*still))

    def _falls(self, slot: SlotState, why: str, staying: Sequence[int]) -> None:
        """A mend has failed: all start again, from memory if that is sound."""
        first = next(iter(slot.replaced.values())).end
        slot.fall = self._why_not(slot, why, staying)
        slot.verdict = Restart(0.0, slot.budget.spent)
        if self._can_begin_again(slot, first.group_rank):
            self._end_all(slot, slot.alive)
            return
        self._fail(slot, first)
        then = slot.fall + words.restarted_with(first.group_rank)
        for rank, known in sorted(slot.replaced.items()):
            if known.incident and rank != first.group_rank:
                self._failures.was_replaced(slot, slot.ends, known, then, 0, 0.0)

    def _why_not(self, slot: SlotState, why: str, staying: Sequence[int] = ()) -> str:
        """Why a mend has failed; ``why``, ``staying``: see words.not_replaced."""
        assert slot.mending is not None, "it has fallen"
        known = next(iter(slot.replaced.values()))
        rank = known.end.group_rank
        started = slot.lives[rank] if slot.lives[rank] > known.failure.restarts else None
        reason = rank, slot.mending.fallen, why, started, staying
        return words.not_replaced(*reason, is_one=self._is_one)

    def _end_who_holds_up(self, slot: SlotState, event: e.BoardSeen) -> None:
        """End the workers that have raised. If all wait, the one with the fewest calls hangs.

        This does not work over several nodes, because no board has the calls of all ranks then.
        """
        ranks = [] if slot.kill_at is not None else sorted(slot.failure_reports)
        if slot.hung is not None and slot.stacks_at is None:
            done, found = event.board.done, slot.hung.group_rank
            known = set() if self._settings.spans else slot.living
            made = {rank: (sum(done[rank].values()), rank != found) for rank in known}
            last = min(made, key=lambda rank: made[rank], default=found)
            slot.hung = replace(slot.hung, group_rank=last)
            ranks = [last]
        for rank in ranks:
            key = WorkerKey(slot.replica_id, slot.incarnation, rank)
            self._out.add(e.SignalWorker(key, SIGKILL))

    def _mended(self, slot: SlotState, event: e.BoardSeen, after_s: float) -> None:
        known = (slot.ends, slot.replaced, dict(slot.lives))
        # Steps that were made since may have refunded a restart.
        number = slot.booked or slot.budget.spent
        mend = Mend(*known, after_s, number, slot.rewound_to, slot.fall)
        slot.untold.append(mend)
        if slot.awaited is None:
            self._tell(slot, 0)
        else:
            slot.awaited = replace(slot.awaited, steps=event.steps)
        slot.ends = Ends()
        slot.mended, slot.replaced = slot.replaced, {}
        slot.fall, slot.verdict, slot.rewound_to = "", None, None
        is_watched = slot.mending is not None and slot.mending.is_watched
        slot.look_at = self._out.now + AFTER_LOOK_S if is_watched else None
        slot.slow_at = None
        slot.goes_on(self._out.now)
        self._out.send(mend_of(slot))

    def _tell(self, slot: SlotState, lost: int | None) -> None:
        """Report the cost of the last mends.

        ``lost``: the number of lost steps; None: not known.
        """
        for mend in slot.untold:
            self._tell_one(slot, mend, lost)
        slot.awaited, slot.untold = None, []

    def _tell_one(self, slot: SlotState, mend: Mend, lost: int | None) -> None:
        after_s, number, budget = mend.after_s, mend.number, self._settings.restarts.max_restarts
        reached = max(known.reached for known in mend.replaced.values())
        steps = 0 if mend.rewound_to is None else max(0, reached - mend.rewound_to)
        stood_s = after_s
        for rank, known in sorted(mend.replaced.items()):
            then = words.went_on(known.step, after_s, number, budget, lost)
            if mend.rewound_to is not None:
                again = words.began_again(mend.rewound_to, known.reached, after_s, number, budget)
                then = mend.fall + again
            self._out.add(words.replaced(known.failure, then, is_told=bool(known.incident)))
            if not known.incident:
                known.incident = f"{slot.incarnation}-{mend.lives[rank]}"
                slot.failures.append(known.failure)
            self._failures.was_replaced(slot, mend.ends, known, then, steps, stood_s)
            steps, stood_s = 0, 0.0  # for all of them together

    def group_ended(self, slot: SlotState) -> None:
        """All processes of the group are gone: report those that were to be replaced.

        The failure that has ended the group is reported separately.
        """
        self._tell(slot, None)
        first = slot.ends.first() if slot.is_failing else None
        for rank, known in sorted(slot.replaced.items()):
            is_first = first is not None and (first.group_rank, first.pid) == (rank, known.end.pid)
            if not (is_first or known.failure in slot.failures):
                slot.failures.append(known.failure)
                self._out.add(words.replaced(known.failure, words.WAS_TO_BE_REPLACED))
        if slot.replaced and first is None and self._ending.has_begun:
            self._failures.ended(slot)

    def _forget(self, slot: SlotState, rank: int) -> None:
        """Drop what is known of the dead process, because it is not true of its replacement."""
        slot.failure_reports.pop(rank, None)
        slot.killed_on_request.discard(rank)
        slot.done.discard(rank)
        slot.hung = slot.stacks_at = None
        if not slot.failure_reports:
            slot.kill_at = None


def mend_of(slot: SlotState) -> ReplicaStarted:
    """The message whether workers of a replica are being replaced."""
    counts = slot.restarts, slot.budget.left, bool(slot.replaced)
    return ReplicaStarted(slot.replica_id, slot.incarnation, *counts)
