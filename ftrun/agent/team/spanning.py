"""The lead's fleet and workers' socket: orders and messages for other nodes go to its hands.

Not here: the hands (lead.py), this node's own workers (agent/fleet.py, agent/workers.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ftrun.agent.fleet import Fleet
from ftrun.agent.team.copies import SpannedMemory
from ftrun.agent.team.keeping import Keeping
from ftrun.agent.team.storing import Storing
from ftrun.agent.workers import WorkerServer
from ftrun.config.forms import why_no_memory_snapshots
from ftrun.core import messages as m
from ftrun.core.agent.events import StartReplica, WorkerExited
from ftrun.core.ids import WorkerKey

if TYPE_CHECKING:
    from ftrun.agent.team.lead import Lead


class SpanningFleet(Fleet):
    """Runs this node's workers itself, and the others through its hands.

    ``lead``: has the hands.
    """

    lead: Lead

    def led_by(self, lead: Lead) -> None:
        """Use the hands of this lead from now on."""
        self.lead = lead
        self.meet = self._start_elsewhere
        self._copies: SpannedMemory | None = None
        if self._settings.spans and not why_no_memory_snapshots(self._settings):
            host, notes = self._machine.host, self._runtime_dir
            tell_people = self._output.terminal.event_line
            self.memory = copies = SpannedMemory(self._settings, notes, tell_people, lead)
            tell = partial(copies.has, lead.own_id)
            copies.keeping = Keeping(self, self._settings, lead.token, host, notes, tell)
            self._copies = copies
            if copies.spanned is not None:
                stored = copies.spanned.stored
                lead.stored = stored
                own = partial(stored, lead.own_id)
                copies.spanned.storing = Storing(self, self._settings, notes, own)

    def ranks_kept(self, node_id: str, report: m.RanksKept | m.GroupWords) -> None:
        """Another node has reported the states in its memory, or the words of its ranks."""
        if self._copies is not None and isinstance(report, m.RanksKept):
            self._copies.has(node_id, report)
        elif self._copies is not None and isinstance(report, m.GroupWords):
            self._copies.say(node_id, report)

    def can_lose(self, node_id: str) -> bool:
        """Whether all can resume from memory without what this node has."""
        return self._copies is not None and self._copies.can_lose(node_id)

    def node_gone(self, node_id: str) -> None:
        """Another node is lost."""
        if self._copies is not None:
            self._copies.gone(node_id)

    def replace_worker(self, key: WorkerKey, restarts: int, standby: str) -> None:
        """Start one worker of a running incarnation again, here or elsewhere."""
        if key.group_rank in self._settings.ranks_here:
            super().replace_worker(key, restarts, standby)
            return
        self._groups[key.incarnation].expected.add(key.group_rank)
        self.lead.replace(key, restarts)

    def begin_waiting(self) -> None:
        """The team is complete: start the incarnations that wait for it."""
        self._start_waiting()

    def ended_elsewhere(self, end: WorkerExited) -> None:
        """A worker of another node has ended. The group's store is kept until the last one has."""
        group = self._groups.get(end.incarnation)
        if group is None:
            return
        group.expected.discard(end.group_rank)
        if not (group.workers or group.expected or group.is_held):
            self._close_group(end.incarnation)
        self._emit(end)

    def signal_replica(self, incarnation: str, number: int) -> None:
        """Send a signal to the process groups of its workers, on all nodes."""
        is_started = incarnation in self._groups
        super().signal_replica(incarnation, number)
        if is_started:
            self.lead.order(m.SignalRanks("", incarnation, number))

    def ask_to_stop(self, incarnation: str, number: int) -> None:
        """Ask its workers to stop, on all nodes."""
        is_started = incarnation in self._groups
        super().ask_to_stop(incarnation, number)
        if is_started:
            self.lead.order(m.SignalRanks("", incarnation, number, asks=True))

    def signal_worker(self, key: WorkerKey, number: int) -> bool:
        """Send a signal to one worker process, here or elsewhere."""
        if key.group_rank in self._settings.ranks_here:
            return super().signal_worker(key, number)
        order = m.SignalRanks(key.replica_id, key.incarnation, number, key.group_rank)
        return self.lead.order_for(key, order)

    def sweep_replica(self, incarnation: str) -> None:
        """End the processes that an ended incarnation has left behind, on all nodes."""
        super().sweep_replica(incarnation)
        self.lead.order(m.SweepRanks(incarnation))

    async def stacks(self, keys: Iterable[WorkerKey]) -> dict[WorkerKey, str]:
        """The Python stacks of these workers."""
        wanted = list(keys)
        elsewhere = [key for key in wanted if key.group_rank not in self._settings.ranks_here]
        taken = await super().stacks(wanted)
        return taken | await self.lead.stacks(elsewhere)

    def all_workers(self) -> list[WorkerKey]:
        """All workers of the group whose end is not known yet."""
        return [*super().all_workers(), *self.lead.ranks.all()]

    def _next_start(self) -> StartReplica | None:
        start = super()._next_start() if self.lead.is_complete else None
        if start is None or self._copies is None or not self._copies.lacks_states:
            return start
        self._held.add(start.incarnation)
        self._in_background(self._start_when_free(start, ()))
        return None

    def _start_elsewhere(self, start: StartReplica, port: int) -> int:
        order = m.StartRanks(
            start.replica_id, start.incarnation, start.restarts, port, self.lighthouse,
            self._assignments.world_port,
        )  # fmt: skip
        port = self.lead.start(order)
        if self._copies is not None:
            self._copies.started[start.incarnation] = replace(order, port=port)
        return port


class SpanningServer(WorkerServer):
    """Sends messages to workers to the hands too. A hand asks for leases by its own clock."""

    lead: Lead

    def send(self, replica_id: str, incarnation: str, message: Any) -> int:
        """Send to every connected worker of an incarnation. Returns the number of these here."""
        self._pass_on(m.ToRanks(replica_id, incarnation, None, message))
        return super().send(replica_id, incarnation, message)

    def broadcast(self, message: Any) -> None:
        """Send to every connected worker."""
        self._pass_on(m.ToRanks("", "", None, message))
        super().broadcast(message)

    def send_to(self, key: WorkerKey, message: Any) -> None:
        """Send to one worker, if it is connected."""
        self._pass_on(m.ToRanks(key.replica_id, key.incarnation, key.group_rank, message))
        super().send_to(key, message)

    def _pass_on(self, message: m.ToRanks) -> None:
        if not isinstance(message.message, m.Lease):
            self.lead.order(message)
