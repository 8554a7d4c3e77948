"""Replicas that leave in order: drained at a boundary or finished; and the end of the job.

A drain is a switch without the replica (switching.py). A replica whose script has ended is removed
a moment later, so that others can end too; when all have ended, the job ends with them. A replica
whose script has ended although its peers train on leaves *early*. Not here: replicas that are lost
(losses.py), whether the job continues without one (giving_up.py), how an agent's slots are
reassigned (assignment.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from ftrun.core import messages as m
from ftrun.core.ids import replica_order
from ftrun.core.lighthouse.choice import group_state
from ftrun.core.lighthouse.losses import Losses
from ftrun.core.lighthouse.phases import IN_QUORUM, Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.slots import IDLE
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.messages import LeaveReason


class Leaving:
    """Takes leavers out of the quorum. ``finish_at``: when finished ones are removed.

    ``early``: the slots that have left early, with the step, until giving_up.py has judged that.
    ``gathered_at``: when the nodes that leave are drained; None: there are none.
    """

    def __init__(self, state: MembershipState, losses: Losses) -> None:
        self.finish_at: float | None = None
        self.early: dict[str, int] = {}
        self.gathered_at: float | None = None
        self._gathered: set[str] = set()  # agents
        self._state = state
        self._losses = losses

    # ------------------------------------------------------------ drains

    def gather(self, agent_id: str) -> None:
        """A node leaves: others that leave a moment later share its boundary.

        An engine signals all nodes of a job within a fraction of a second. Without this each node
        would leave at its own boundary, and its script would see another end of the job there.
        """
        state = self._state
        self._gathered.add(agent_id)
        if self.gathered_at is None:
            self.gathered_at = state.now + state.settings.drain_gather_s

    def drain_gathered(self, *, are_all_here: bool) -> None:
        """Drain the nodes that leave, once the time is over or every node leaves."""
        if self.gathered_at is None or not (are_all_here or self._state.now >= self.gathered_at):
            return
        agents, self._gathered, self.gathered_at = self._gathered, set(), None
        found = [name for agent_id in agents for name in self._state.slots.of(agent_id)]
        self.drain(sorted(found, key=replica_order))

    def drain(self, replica_ids: Iterable[str]) -> None:
        """These replicas are to leave at a boundary; those that are in no quorum leave now.

        While no quorum is in force, a replica that has trained may hold the state that the job
        needs: it leaves once a quorum is in force.
        """
        state = self._state
        state.note_drains(())
        for replica_id in replica_ids:
            replica = state.replicas.get(replica_id)
            is_member = replica_id in state.live or state.phase is Phase.TAKEOVER
            if is_member or (replica is not None and self._may_be_needed(replica)):
                state.note_drains([replica_id])
            elif replica is not None:
                loss = m.Loss(replica_id, replica.incarnation, "it was drained before it joined")
                self._losses.lose([loss], is_dead=False)

    def _may_be_needed(self, replica: Replica) -> bool:
        state = self._state
        stands = state.phase not in (Phase.EMPTY, Phase.FENCE, Phase.REJOIN)
        if stands or not replica.is_known(state.workers):
            return False
        held = group_state(replica.reports.values())
        return held is not None and held.step > 0

    def drain_outsiders(self) -> bool:
        """A quorum is in force: replicas that were to leave and are not in it leave now."""
        late = self._state.drains - self._state.live
        if not late:
            return False
        self._state.drains -= late
        self.drain(sorted(late, key=replica_order))
        return True

    # ------------------------------------------------------------ replicas that have left

    def on_leaving(self, replica: Replica, rank: int, word: m.Leaving) -> None:
        """One worker has stopped: its script finished, it was drained, or it went away."""
        if word.reason is LeaveReason.FINISHED:
            self.finishing(replica)
        elif word.reason is LeaveReason.EARLY:
            if replica.leaving is None:
                self.early[replica.replica_id] = word.step or 0
            self.finishing(replica, LeaveReason.EARLY)
        elif word.reason is LeaveReason.DRAINED:
            replica.left.add(rank)
            if (
                len(replica.left) == self._state.workers
                and replica.leaving is not LeaveReason.DRAINED
            ):
                self._drained(replica)
        else:
            loss = m.Loss(
                replica.replica_id, replica.incarnation, f"it went away ({word.reason.value})"
            )
            self._losses.lose([loss], is_dead=False)

    def _drained(self, replica: Replica) -> None:
        """All its workers have stopped.

        If they left at an agreed switch, no replica is interrupted.
        """
        state, name = self._state, replica.replica_id
        state.note_leaving(replica, LeaveReason.DRAINED)
        state.slots[name].has_left = True
        state.reassigned.add(replica.agent_id)
        state.outbox.notice("drained", [name], f"Replica {name} has left: drained.")
        stays = state.quorum is not None and state.quorum.index(name, replica.incarnation)
        if name in state.live:
            if state.phase is Phase.SWITCH and stays is None:
                state.retire(replica, is_dead=True)
            else:
                state.remove_member(replica, "drained", is_dead=True)

    def finishing(self, replica: Replica, how: LeaveReason = LeaveReason.FINISHED) -> None:
        """The script has ended: remove the replica after a grace period; others may end too."""
        state = self._state
        state.note_leaving(replica, replica.leaving or how)
        if self.finish_at is None:
            self.finish_at = state.now + state.settings.finish_grace_s

    def begins_anew(self, replica: Replica) -> Replica:
        """Its script has shut its Manager down and made another one, which is a newcomer like any
        other.

        The process is the same, and the former Manager's state is gone. It commits nothing more, so
        it is not waited for like a removed member (Q3).
        """
        state, name = self._state, replica.replica_id
        if name in state.live:
            state.remove_member(replica, "its Manager was shut down", is_dead=True)
        if state.departed.contains(name, replica.incarnation):
            state.departed.release(name, replica.incarnation)
        fresh = Replica(name, replica.incarnation, replica.agent_id, replica.store)
        fresh.facts, fresh.is_anew = replica.facts, True
        state.replicas.remove(name)
        state.replicas.add(fresh)
        return fresh

    def remove_finished(self) -> None:
        """Take replicas that have finished out of the quorum, because they commit no more.

        When all have finished, none is left to interrupt: they stay, and the job ends with them.
        """
        state = self._state
        self.finish_at = None
        in_order = sorted(state.live, key=replica_order)
        done = [r for name in in_order if (r := state.replicas[name]).leaving]
        if state.phase in IN_QUORUM and len(done) == len(state.live) and not state.removed:
            return
        for replica in done:
            state.remove_member(replica, "finished", is_dead=True)
            if replica.has_ended:
                state.replicas.remove(replica.replica_id)

    # ------------------------------------------------------------ the end

    def ended(self, replica_id: str, incarnation: str) -> None:
        """All processes of a replica are gone, with exit code 0."""
        state = self._state
        replica = state.replicas.get(replica_id)
        if replica is not None and replica.incarnation != incarnation:
            return  # an earlier one: another incarnation runs in its slot
        state.is_dirty = True
        state.departed.died(replica_id, incarnation)
        state.slots.finish(replica_id)
        absence = state.slots[replica_id].absence
        if absence is None or absence.how == IDLE:
            text = f"Replica {replica_id} has finished."
            state.outbox.notice("finished", [replica_id], text)
        state.journal()
        if replica is not None:
            replica.has_ended = True
            self.finishing(replica)
            if replica_id not in state.live:
                state.replicas.remove(replica_id)

    def is_over(self) -> bool:
        """Whether no replica trains any more, and all that have left are gone."""
        state = self._state
        if state.phase is Phase.TAKEOVER or not len(state.slots):
            return False
        if any(r.leaving and not r.has_ended for r in state.replicas.values()):
            return False
        if state.phase in IN_QUORUM:
            trains = any(not state.replicas[name].has_ended for name in state.live)
            return bool(state.live) and not trains and not state.removed
        return state.slots.open_count == 0
