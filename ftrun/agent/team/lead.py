"""The lead's end of its hands: who is in the team, and what goes to and comes from each.

It outlives an Agent: when the team changes its size, the next one has other settings. Not here: the
decisions about nodes (core/teams/gathering.py), the streams (door.py), the hand (hand.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ftrun.agent.team.door import Door, HandStream
from ftrun.agent.team.port import TeamPort
from ftrun.base import clock
from ftrun.base.errors import ExitCode, assert_never
from ftrun.base.timer import DeadlineTimer
from ftrun.config.rendezvous import Rendezvous, Span
from ftrun.config.settings import RunSettings
from ftrun.core.agent.events import (
    DrainAsked,
    EndAgent,
    JobEnded,
    Kept,
    TeamChanged,
    WorkerDisconnected,
    WorkerDying,
    WorkerExited,
    WorkerUsed,
)
from ftrun.core.agent.events import Event as AgentEvent
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import (
    AskLease,
    AskStacks,
    EndJob,
    FailureEvidence,
    FromHand,
    HandHello,
    HandLeaving,
    HandPlace,
    Lease,
    LeaseLeft,
    RankDisconnected,
    RankEnded,
    RankFacts,
    RankMessage,
    RanksKept,
    RankUsed,
    Rejected,
    ReplaceRank,
    StartRanks,
    ToHand,
    WorkerFacts,
    WorkerMessage,
    WorkerStacks,
)
from ftrun.core.teams.gathering import Gathering
from ftrun.core.teams.nodes import (
    Event,
    GiveUp,
    Node,
    NodeCame,
    NodeGone,
    RefuseNode,
    Show,
    TeamFormed,
    TeamRules,
    TimerFired,
)
from ftrun.core.version import unlike_version
from ftrun.protocol.tls import TlsFiles

STACKS_TIMEOUT_S = 2.5
SILENT_S = 0.4
UNHEARD_S = 3.0
KILLED = -9


class LeadingAgent(Protocol):
    """What a lead asks of its node's Agent (agent/shell.py), and tells it."""

    @property
    def lease(self) -> Lease | None:
        """Until when workers may commit (Q3)."""

    @property
    def restarts(self) -> int:
        """How many restarts of the budget are used."""

    async def run(self) -> EndAgent:
        """Serve until its end."""

    async def close(self) -> None:
        """End all its parts."""

    def kept(self, incarnation: str, group_rank: int) -> Kept | None:
        """What the memories of the nodes have of a worker."""

    def ranks_kept(self, node_id: str, report: RanksKept) -> None:
        """What the memory of another node has."""

    def node_gone(self, node_id: str) -> None:
        """Another node is lost."""

    def team_event(self, event: AgentEvent) -> None:
        """Something that another node has seen, or that concerns the team."""

    def ended_elsewhere(self, end: WorkerExited) -> None:
        """A worker of another node has ended."""

    def team_complete(self) -> None:
        """Workers may be started again."""

    def worker_message(self, key: WorkerKey, message: Any) -> None:
        """A message of a worker of another node."""

    def facts_elsewhere(self, facts: tuple[WorkerFacts, ...]) -> None:
        """What another node has measured of its workers."""

    def show(self, text: str) -> None:
        """A line on the terminal."""


class Lead:
    """The hands of this node.

    ``is_complete``: workers may be started. ``gave_up``: see ``first``. ``leaver``: the hand whose
    node was asked to stop, if one was. ``lost`` is called with the place of a hand that is lost.
    ``port``: by which its nodes and workers come, if by one.
    """

    def __init__(
        self, rendezvous: Rendezvous, own: Node, door: Door, port: TeamPort | None = None
    ) -> None:
        self._rendezvous = rendezvous
        self._own = own
        rules = TeamRules(
            rendezvous.least, rendezvous.most, rendezvous.join_timeout_s, rendezvous.last_call_s
        )
        self._gathering = Gathering(rules, own, clock.now())
        self._timer = DeadlineTimer(lambda: self._handle(TimerFired()))
        self._door = door
        door.listener = self
        self._port = port
        self._agent: LeadingAgent | None = None
        self._team: tuple[Node, ...] = ()
        self._places: dict[str, HandPlace] = {}
        self._job_id = ""
        self._ranks: dict[WorkerKey, str] = {}
        self._outputs: dict[WorkerKey, str] = {}
        self._where: dict[tuple[str, int, int], str] = {}
        self._stacks: dict[int, dict[WorkerKey, asyncio.Future[str]]] = {}
        self._requests = 0
        self._silent: dict[str, asyncio.TimerHandle] = {}
        self.lost: Callable[[int, str], None] = lambda place, reason: None
        self._settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_over = False
        self.gave_up = ""
        self.leaver: tuple[str, HandLeaving] | None = None
        self.is_complete = False
        self._set_timer()

    # ------------------------------------------------------------ its life

    async def first(self) -> None:
        """Wait for the first team; ``gave_up`` has the reason if there was none in time."""
        await self._settled

    def interrupt(self, reason: str) -> None:
        """Wait for nobody any more."""
        self.gave_up = reason
        if not self._settled.done():
            self._settled.set_result(None)

    async def close(self, ending: EndAgent | None) -> None:
        """The job has ended: tell the hands, whose exit code it is too.

        None: only this team has, and the hands but the one that leaves are free.
        """
        self._timer.close()
        for timer in self._silent.values():
            timer.cancel()
        self._agent, self._is_over = None, True
        if ending is not None:
            for stream in self._door.streams.values():
                stream.send(EndJob(ending.exit_code, ending.reason, ending.kind))
        elif self.leaver is not None:
            node_id, leaving = self.leaver
            self._send(node_id, EndJob(leaving.exit_code, leaving.reason))
        await self._door.dismiss()

    def settings(self, settings: RunSettings) -> RunSettings:
        """The settings of the next Agent, for the team that there is now."""
        self._job_id = settings.job_id
        world = sum(node.workers for node in self._team)
        number = self._team.index(self._own)
        span = Span(number, len(self._team), self._first(number), self._own.workers, self._own.host)
        # The lighthouse of one group alone is this agent's own.
        tls = TlsFiles() if settings.lighthouse is None else settings.tls
        return replace(settings, workers_per_replica=world, span=span, tls=tls)

    def attach(self, agent: LeadingAgent) -> None:
        """An Agent for this team begins."""
        self._agent = agent
        self._ranks.clear()
        self._where.clear()
        self.is_complete = True
        self._send_places()

    def detach(self) -> None:
        """It has ended."""
        self._agent = None

    # ------------------------------------------------------------ for the spanning parts

    def order(self, message: ToHand) -> None:
        """Send to every hand that has a place."""
        for node_id in self._places:
            self._send(node_id, message)

    def order_for(self, key: WorkerKey, message: ToHand) -> bool:
        """Send to the hand that runs this worker; False: none does."""
        node_id = self._ranks.get(key, "")
        return self._send(node_id, message)

    def start(self, order: StartRanks) -> int:
        """Have the hands start their workers of an incarnation, whose store has ``order.port``.

        Returns the port at which workers find it.
        """
        if self._port is not None:
            self._port.store = self._own.host, order.port
            order = replace(order, port=self._rendezvous.port)
        for number, node in enumerate(self._team):
            if node is not self._own:
                first = self._first(number)
                for rank in range(first, first + node.workers):
                    key = WorkerKey(order.replica_id, order.incarnation, rank)
                    self._ranks[key] = node.node_id
                    self._where[order.replica_id, order.restarts, rank] = node.name
                self._send(node.node_id, order)
        return order.port

    def node_of(self, replica_id: str, restarts: int, group_rank: int) -> str:
        """The name of the node that has run this worker; "": it was this one."""
        return self._where.get((replica_id, restarts, group_rank), "")

    def workers(self) -> list[WorkerKey]:
        """The workers of other nodes."""
        return list(self._ranks)

    async def stacks(self, keys: Sequence[WorkerKey]) -> dict[WorkerKey, str]:
        """The stacks of workers of other nodes; "" for those whose node does not answer."""
        if not keys:
            return {}
        self._requests += 1
        request, loop = self._requests, asyncio.get_running_loop()
        waiting = self._stacks[request] = {key: loop.create_future() for key in keys}
        self.order(AskStacks(request, tuple(keys)))
        await asyncio.wait(waiting.values(), timeout=STACKS_TIMEOUT_S)
        del self._stacks[request]
        return {key: one.result() if one.done() else "" for key, one in waiting.items()}

    def replace(self, key: WorkerKey, restarts: int) -> None:
        """Have a worker of another node started again."""
        node = next(node_id for node_id, ranks in self.places().items() if key.group_rank in ranks)
        name = next(one.name for one in self._team if one.node_id == node)
        self._ranks[key] = node
        self._where[key.replica_id, restarts, key.group_rank] = name
        place = key.replica_id, key.incarnation
        if not self._send(node, ReplaceRank(*place, restarts, key.group_rank)):
            asyncio.get_running_loop().call_soon(self._loses, key, node, "it is gone")

    @property
    def token(self) -> str:
        """Of the team: that of this node's own lighthouse is another one."""
        return self._door.token

    @property
    def own_id(self) -> str:
        """Of this node."""
        return self._own.node_id

    def places(self) -> dict[str, range]:
        """The ranks of each node, in order."""
        firsts = ((node, self._first(number)) for number, node in enumerate(self._team))
        return {node.node_id: range(first, first + node.workers) for node, first in firsts}

    def name_of(self, node_id: str) -> str:
        """For people."""
        return next((node.words() for node in self._team if node.node_id == node_id), node_id)

    def order_at(self, node_id: str, message: ToHand) -> None:
        """Send to one hand."""
        self._send(node_id, message)

    def with_output(self, evidence: FailureEvidence) -> FailureEvidence:
        """The evidence with the last lines of workers of other nodes, and the nodes' names."""
        name, workers = evidence.replica_id, []
        for worker in evidence.workers:
            node = self.node_of(name, evidence.restarts, worker.group_rank)
            key = WorkerKey(name, evidence.incarnation, worker.group_rank)
            where = f", on {node}" if node and node not in worker.cause else ""
            output = worker.output or self._outputs.get(key, "")
            workers.append(replace(worker, output=output, cause=worker.cause + where))
        return replace(evidence, workers=tuple(workers))

    # ------------------------------------------------------------ from the door

    def hand_came(self, stream: HandStream, hello: HandHello) -> None:
        """A node offers itself."""
        if self._is_over:
            return
        reason = unlike_version(hello.version, "the first node")
        if not reason and hello.size != self._rendezvous.size:
            reason = (
                f"its --nnodes is {hello.size}, and that of {self._own.name} is "
                f"{self._rendezvous.size}"
            )
        if reason:
            self._refuse(stream.node_id, reason)
            return
        is_placed = self._own.is_placed
        node = Node(
            stream.node_id, hello.node, hello.host, hello.workers, hello.rank, is_placed=is_placed
        )
        self._forget_former(node)
        self._handle(NodeCame(node))

    def _forget_former(self, came: Node) -> None:
        """A node that was cut off comes again, perhaps before its former stream has ended here.

        A hand with a place asks for a lease every second, so one that does is another node.
        """
        for node in self._team:
            stream = self._door.streams.get(node.node_id)
            is_same = (node.name, node.host, node.rank) == (came.name, came.host, came.rank)
            if is_same and stream is not None and clock.now() - stream.heard_at > UNHEARD_S:
                stream.end()
                self.hand_gone(stream, "it was cut off, and comes again")

    def hand_gone(self, stream: HandStream, reason: str) -> None:
        """A node is lost: its workers have ended, for all that is known here."""
        self._places.pop(stream.node_id, None)
        if self._is_over:
            return
        node = next((x for x in self._team if x.node_id == stream.node_id), None)
        self.is_complete = self.is_complete and node is None
        lost = [key for key, node_id in self._ranks.items() if node_id == stream.node_id]
        for key in lost:
            self._loses(key, stream.node_id, reason)
        if self._agent is not None:
            self._agent.node_gone(stream.node_id)
        if node is not None:
            self.lost(self._team.index(node), reason)
        self._handle(NodeGone(stream.node_id, reason))

    def _loses(self, key: WorkerKey, node_id: str, reason: str) -> None:
        if key not in self._ranks:
            return
        why = f"is lost with its node {self.name_of(node_id)}: {reason}"
        kept = self._kept(key.incarnation, key.group_rank)
        end = WorkerExited(key.incarnation, key.group_rank, 0, KILLED, why, kept=kept)
        self._ended(key, end)

    def _kept(self, incarnation: str, group_rank: int) -> Kept | None:
        return None if self._agent is None else self._agent.kept(incarnation, group_rank)

    def hand_said(self, stream: HandStream, message: FromHand) -> None:
        """A hand's message; that of a node without a place means nothing."""
        agent = self._agent
        if agent is None or stream.node_id not in self._places:
            return
        match message:
            case RankEnded():
                self._rank_ended(stream.node_id, message)
            case WorkerMessage(key, said) | RankMessage(key, said):
                agent.worker_message(key, said)
            case RankDisconnected(key):
                agent.team_event(WorkerDisconnected(key))
            case RankFacts(workers):
                name = next(x.name for x in self._team if x.node_id == stream.node_id)
                agent.facts_elsewhere(tuple(replace(one, node=name) for one in workers))
            case RanksKept():
                agent.ranks_kept(stream.node_id, message)
            case RankUsed(key, pid, cpu_s):
                agent.team_event(WorkerUsed(key, pid, cpu_s))
            case WorkerStacks(request, key, text):
                waiting = self._stacks.get(request, {}).get(key)
                if waiting is not None and not waiting.done():
                    waiting.set_result(text)
            case AskLease(asked_at):
                lease = agent.lease
                if lease is not None:
                    left_s = max(0.0, lease.until_s - clock.now())
                    self._send(stream.node_id, LeaseLeft(asked_at, left_s))
            case HandLeaving(reason, exit_code, number, is_notice):
                self.leaver = stream.node_id, message
                node = next(x for x in self._team if x.node_id == stream.node_id)
                why = f"{reason} at {node.words()}"
                agent.team_event(DrainAsked(why, exit_code, number, is_notice=is_notice))
            case HandHello():
                pass
            case _:
                assert_never(message)

    def _rank_ended(self, node_id: str, ended: RankEnded) -> None:
        rank = ended.group_rank
        key = next((k for k, at in self._ranks.items()
                    if (k.incarnation, k.group_rank, at) == (ended.incarnation, rank, node_id)),
                   None)  # fmt: skip
        if key is None or self._agent is None:
            return
        self._outputs[key] = ended.output
        end = WorkerExited(
            ended.incarnation, rank, ended.pid, ended.exit_code, ended.reason, ended.memory,
            ended.recorded, self._kept(ended.incarnation, rank),
        )  # fmt: skip
        if ended.is_dying:
            self._agent.team_event(WorkerDying(end))
        else:
            self._ended(key, end)

    def _ended(self, key: WorkerKey, end: WorkerExited) -> None:
        del self._ranks[key]
        if not self._ranks:
            self._outputs = {k: x for k, x in self._outputs.items() if k == key}
        if self._agent is not None:
            self._agent.ended_elsewhere(end)

    def hosts_silent(self, hosts: Sequence[str]) -> None:
        """The kernel's word that these acknowledge nothing; hands there are lost, if it stays so.

        Their connections would end much later.
        """
        for host in [host for host in self._silent if host not in hosts]:
            self._silent.pop(host).cancel()
        here = {node.host for node in self._team if node is not self._own}
        for host in here.intersection(hosts) - self._silent.keys():
            loop = asyncio.get_running_loop()
            self._silent[host] = loop.call_later(SILENT_S, self._is_silent, host)

    def _is_silent(self, host: str) -> None:
        for node in self._team:
            stream = self._door.streams.get(node.node_id)
            if node.host == host and stream is not None:
                stream.cut(f"its host, {host}, acknowledges nothing")

    # ------------------------------------------------------------ the team

    def _handle(self, event: Event) -> None:
        for instruction in self._gathering.handle(event, clock.now()):
            match instruction:
                case RefuseNode(node_id, reason):
                    self._refuse(node_id, reason)
                case TeamFormed(nodes, again):
                    self._formed(nodes, again)
                case GiveUp(reason):
                    self._give_up(reason)
                case Show(text):
                    self._show(text)
                case _:
                    assert_never(instruction)
        self.is_complete = self.is_complete and self._gathering.is_formed
        self._set_timer()

    def _formed(self, nodes: tuple[Node, ...], again: str) -> None:
        self._team = nodes
        if not self._settled.done():
            self._settled.set_result(None)
        if self._agent is None:
            return
        if again:
            self.is_complete = False
            words = f"All workers begin again, and no restart is counted: {again}."
            self._agent.team_event(TeamChanged(words))
        else:
            self.is_complete = True
            self._send_places()
            self._agent.team_complete()

    def _give_up(self, reason: str) -> None:
        if self._agent is None:
            self.interrupt(reason)
        else:
            self._agent.team_event(JobEnded(ExitCode.NO_QUORUM, reason))

    def _send_places(self) -> None:
        """Tell each hand its place, unless it has it."""
        world = sum(node.workers for node in self._team)
        for number, node in enumerate(self._team):
            place = HandPlace(
                self._job_id, number, len(self._team), self._first(number), world, self._own.host
            )
            if node is not self._own and self._places.get(node.node_id) != place:
                self._places[node.node_id] = place
                self._send(node.node_id, place)

    def _first(self, number: int) -> int:
        """The group rank of the first worker of this node."""
        return sum(node.workers for node in self._team[:number])

    def _send(self, node_id: str, message: Any) -> bool:
        stream = self._door.streams.get(node_id)
        if stream is not None:
            stream.send(message)
        return stream is not None

    def _refuse(self, node_id: str, reason: str) -> None:
        stream = self._door.streams[node_id]
        self._show(f"A node is refused: {reason}.")
        stream.send(Rejected(reason))
        stream.end()

    def _show(self, text: str) -> None:
        if self._agent is not None:
            self._agent.show(text)
        else:
            say(text)

    def _set_timer(self) -> None:
        self._timer.set(self._gathering.next_deadline())


def say(text: str, node: str = "") -> None:
    """A line of ftrun's own, where there is no Agent with a terminal."""
    import sys

    print(f"ftrun {node}: {text}" if node else f"ftrun: {text}", file=sys.stderr, flush=True)
