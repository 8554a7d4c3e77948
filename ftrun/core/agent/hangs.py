"""Workers that make no progress: their stacks are taken, then their replica is given up.

A worker is found by its silence (hang_watch.py), by its loop (loop_watch.py), or by a timer of its
script (script_timers.py). Or the lighthouse finds it: it did not answer, or peers wait for it. The
stacks are evidence and end with the process, so they are taken before it is killed. That takes a
moment, and at most ``STACKS_WAIT_S``.

Not here: the consequences (supervisor.py), how stacks are taken (agent/stacks.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ftrun.core import messages as m
from ftrun.core.agent import events as e
from ftrun.core.agent import words
from ftrun.core.agent.part import Part
from ftrun.core.agent.slot_state import SlotPhase, SlotState
from ftrun.core.agent.stack_words import innermost
from ftrun.core.agent.stopping import SIGKILL
from ftrun.core.failure_kinds import CORRUPTED, DIVERGED, TOGETHER
from ftrun.core.ids import WorkerKey
from ftrun.core.replay.falls import Fall

WHOLE = CORRUPTED, TOGETHER
STACKS_WAIT_S = 2.0
"""The longest wait for stacks. After that the replica is killed without them."""


@dataclass(eq=False, repr=False)
class Hangs(Part):
    """Finds workers that hang, and gives their replicas up by ``fail``."""

    _fail: Callable[[SlotState, e.WorkerExited], None]

    def ask_the_silent(self, slot: SlotState) -> None:
        for rank in slot.hang_watch.ask(self._out.now):
            self._out.add(e.AskWorker(WorkerKey(slot.replica_id, slot.incarnation, rank)))

    def check_loops(self, slot: SlotState) -> None:
        """Give the replica up if the loop of one of its workers stands still."""
        found = slot.loop_watch.standing(self._out.now) if slot.hung is None else None
        if found is not None:
            rank, why = found
            slot.loop_watch.gone(rank)
            slot.stands(self._out.now)
            self._give_up(slot, e.WorkerExited(slot.incarnation, rank, 0, -SIGKILL, why))

    def timer_changed(self, event: e.ScriptTimerSet | e.ScriptTimerReleased) -> None:
        slot = self._slots.of_incarnation(event.key.incarnation)
        rank = event.key.group_rank
        if slot is None or rank not in slot.alive:
            return
        if isinstance(event, e.ScriptTimerSet):
            due_at = self._out.now + event.left_s
            slot.script_timers.set(rank, event.pid, event.scope, due_at, event.number)
        else:
            slot.script_timers.release(rank, event.pid, event.scope)

    def check_timers(self, slot: SlotState) -> None:
        """If a timer of the script has expired: send its signal.

        SIGKILL, torch's default, gives the whole replica up, with its stacks. A script that asks
        for another signal has a handler for it, and receives it.
        """
        found = slot.script_timers.expired(self._out.now) if slot.hung is None else None
        if found is None:
            return
        rank, why = found.group_rank, words.timer_expired(found.scope)
        if found.number == SIGKILL:
            slot.stands(self._out.now)
            gone = e.WorkerExited(slot.incarnation, rank, found.pid, -SIGKILL, f"hangs: {why}")
            self._give_up(slot, gone)
            return
        self._out.add(words.timer_signal(slot.replica_id, rank, why, found.number))
        if found.number > 0:
            slot.script_timers.signalled(rank, found.number, f"hangs: {why}")
            key = WorkerKey(slot.replica_id, slot.incarnation, rank)
            self._out.add(e.SignalWorker(key, found.number))

    def used(self, event: m.WorkerUsed) -> None:
        """A worker's processor time, at the moment of a question."""
        key = event.key
        slot = self._slots.of_incarnation(key.incarnation)
        if slot is None or slot.phase is not SlotPhase.RUNNING:
            return
        silent_s = slot.hang_watch.used(key.group_rank, event.cpu_s, self._out.now)
        if silent_s is not None:
            slot.stands(self._out.now - silent_s)
            why = f"hangs: it has not answered ftrun for {silent_s:.0f} s"
            gone = e.WorkerExited(key.incarnation, key.group_rank, event.pid, -SIGKILL, why)
            self._give_up(slot, gone)

    def given_up(self, incarnation: str, reason: str) -> None:
        """The lighthouse continues without this replica, for this ``reason``."""
        slot = self._slots.of_incarnation(incarnation)
        if slot is not None and slot.phase is SlotPhase.RUNNING:
            why = reason if reason.startswith(WHOLE) else f"was given up: {reason}"
            gone = e.WorkerExited(incarnation, min(slot.alive), 0, -SIGKILL, why)
            if reason.startswith((DIVERGED, CORRUPTED)) and slot.mending is not None:
                slot.mending.fallen = Fall.UNLIKE
            if reason.startswith((DIVERGED, *WHOLE)):
                self._fail(slot, gone)  # its stacks have nothing to do with it
            else:
                self._give_up(slot, gone)

    def stacks_taken(self, incarnation: str, stacks: tuple[tuple[int, str], ...]) -> None:
        """The stacks are here: kill the replica."""
        slot = self._slots.of_incarnation(incarnation)
        if slot is None or slot.hung is None:
            return
        slot.ends.stacks.update(stacks)
        places = [(rank, innermost(text)) for rank, text in stacks]
        self._out.add(words.stands_in(slot.replica_id, places))
        self._fail(slot, slot.hung)

    def overdue(self, slot: SlotState) -> None:
        """The stacks did not arrive in time."""
        assert slot.hung is not None, "its deadline is on while it hangs"
        self._fail(slot, slot.hung)

    def _give_up(self, slot: SlotState, gone: e.WorkerExited) -> None:
        if slot.hung is not None:
            return
        slot.hung = gone
        slot.stacks_at = self._out.now + STACKS_WAIT_S
        self._out.add(e.TakeStacks(slot.replica_id, slot.incarnation))
