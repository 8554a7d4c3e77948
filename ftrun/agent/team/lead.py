"""The lead's side of its hands: the members of the team, and the messages to and from each.

It outlives an Agent: when the size of the team changes, the next Agent has other settings. Not
here: the decisions about nodes (core/teams/gathering.py), the streams (door.py), the hand
(hand.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftrun.agent.team.door import Door
from ftrun.agent.team.port import TeamPort
from ftrun.agent.team.storing import take_mark
from ftrun.base import clock
from ftrun.base.errors import ExitCode, assert_never
from ftrun.base.timer import DeadlineTimer
from ftrun.config.rendezvous import Rendezvous, Span
from ftrun.config.settings import RunSettings
from ftrun.core import messages as m
from ftrun.core.agent import events as e
from ftrun.core.ids import WorkerKey
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.settling import Generation
from ftrun.core.teams import nodes as team
from ftrun.core.teams.gathering import Gathering, why_unlike
from ftrun.core.teams.ranks import Ranks, first_rank, places, ranks_of
from ftrun.protocol.serving import Host, Session
from ftrun.protocol.tls import TlsFiles

if TYPE_CHECKING:
    from ftrun.agent.shell import Agent

STACKS_TIMEOUT_S = 2.5
KILLED = -9


class Lead(Host):
    """The hands of this node.

    ``is_complete``: workers may be started. ``gave_up``: see ``first``. ``leaver``: the hand whose
    node was asked to stop, if one was. ``lost``: called with the place of a lost hand. ``port``:
    the one port for its nodes and workers, if there is one. ``ranks``: the hands' workers.
    ``stored``: called with the result of a hand's part of a snapshot, even if there is no Agent any
    more. ``snapshots``: the directory that all nodes must share, if there is one.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        own: team.Node,
        door: Door,
        silence_s: float,
        port: TeamPort | None = None,
        snapshots: Path | None = None,
    ) -> None:
        self._rendezvous = rendezvous
        self._own = own
        self._snapshots = snapshots
        rules = team.TeamRules(
            rendezvous.least,
            rendezvous.most,
            rendezvous.join_timeout_s,
            rendezvous.last_call_s,
            silence_s,
        )
        self._gathering = Gathering(rules, own, clock.now())
        self._timer = DeadlineTimer(self._look)
        self._door = door
        door.listener = self
        self._port = port
        self._agent: Agent | None = None
        self._team: tuple[team.Node, ...] = ()
        self._places: dict[str, m.HandPlace] = {}
        self._job_id = ""
        self.ranks = Ranks()
        self._stacks: dict[int, dict[WorkerKey, asyncio.Future[str]]] = {}
        self._requests = 0
        self.lost: Callable[[int, str], None] = lambda place, reason: None
        self.stored: Callable[[str, m.RanksStored], None] = lambda node_id, report: None
        self._checks: set[asyncio.Task[None]] = set()
        self._settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_over = False
        self.gave_up = ""
        self.leaver: tuple[str, m.DrainAsked] | None = None
        self.is_complete = False
        self._set_timer()

    # ------------------------------------------------------------ its life

    async def first(self) -> None:
        """Wait for the first team. ``gave_up`` has the reason if there was none in time."""
        await self._settled

    def interrupt(self, reason: str) -> None:
        """Stop waiting for nodes."""
        self.gave_up = reason
        if not self._settled.done():
            self._settled.set_result(None)

    async def close(self, ending: e.EndAgent | None) -> None:
        """The job has ended: inform the hands, which get the same exit code.

        None: only this team has ended, and the hands except the one that leaves are free.
        """
        self._timer.close()
        self._agent, self._is_over = None, True
        if ending is not None:
            for stream in self._door.streams.values():
                stream.send(m.EndJob(ending.exit_code, ending.reason, ending.kind))
        elif self.leaver is not None:
            node_id, leaving = self.leaver
            self._send(node_id, m.EndJob(leaving.exit_code, leaving.reason))
        await self._door.dismiss()

    def settings(self, settings: RunSettings) -> RunSettings:
        """The settings of the next Agent, for the present team."""
        self._job_id = settings.job_id
        world = first_rank(self._team, len(self._team))
        number = self._team.index(self._own)
        first = first_rank(self._team, number)
        span = Span(number, len(self._team), first, self._own.workers, self._own.host)
        # The lighthouse of one group alone is this agent's own.
        tls = TlsFiles() if settings.lighthouse is None else settings.tls
        return replace(settings, workers_per_replica=world, span=span, tls=tls)

    def attach(self, agent: Agent) -> None:
        """An Agent for this team begins."""
        self._agent = agent
        self.ranks.clear()
        self.is_complete = self._gathering.is_formed  # a node may be lost since the first team
        self._send_places()

    def detach(self) -> None:
        """The Agent has ended."""
        self._agent = None

    # ------------------------------------------------------------ for the spanning parts

    def order(self, message: m.ToHand) -> None:
        """Send to every hand that has a place."""
        for node_id in self._places:
            self._send(node_id, message)

    def order_for(self, key: WorkerKey, message: m.ToHand) -> bool:
        """Send to the hand that runs this worker. Returns False if none does."""
        return self._send(self.ranks.node_of(key), message)

    def start(self, order: m.StartRanks) -> int:
        """Let the hands start their workers of an incarnation, whose store has ``order.port``.

        Returns the port at which workers find the store.
        """
        if self._port is not None:
            self._port.store = self._own.host, order.port
            order = replace(order, port=self._rendezvous.port)
        for node_id in self.ranks.start(order, self._team, self._own):
            self._send(node_id, order)
        return order.port

    async def stacks(self, keys: Sequence[WorkerKey]) -> dict[WorkerKey, str]:
        """The stacks of workers of other nodes; "" if their node does not answer."""
        if not keys:
            return {}
        self._requests += 1
        request, loop = self._requests, asyncio.get_running_loop()
        waiting = self._stacks[request] = {key: loop.create_future() for key in keys}
        self.order(m.AskStacks(request, tuple(keys)))
        await asyncio.wait(waiting.values(), timeout=STACKS_TIMEOUT_S)
        del self._stacks[request]
        return {key: one.result() if one.done() else "" for key, one in waiting.items()}

    def replace(self, key: WorkerKey, restarts: int) -> None:
        """Let a worker of another node be started again."""
        node_id = self.ranks.restart(key, restarts, self._team)
        order = m.ReplaceRank(key.replica_id, key.incarnation, restarts, key.group_rank)
        if not self._send(node_id, order):
            loop = asyncio.get_running_loop()
            loop.call_soon(self._lose_ranks, node_id, self.name_of(node_id), "it is gone")

    @property
    def token(self) -> str:
        """The team's token; the one of this node's own lighthouse differs."""
        return self._door.token

    @property
    def own_id(self) -> str:
        """The id of this node."""
        return self._own.node_id

    def ranks_of_nodes(self) -> dict[str, range]:
        """The ranks of each node, in order."""
        return {node.node_id: ranks_of(self._team, n) for n, node in enumerate(self._team)}

    def name_of(self, node_id: str) -> str:
        """The node's name, for people."""
        return next((node.words() for node in self._team if node.node_id == node_id), node_id)

    def set_aside(self, ranks: Sequence[int]) -> None:
        """The nodes of these ranks have altered their parameters. None of their processes runs."""
        for node_id, own in self.ranks_of_nodes().items():
            odd = tuple(rank for rank in ranks if rank in own)
            if odd and self._agent is not None:
                is_copied = self._agent.spanning.can_lose(node_id)
                self._handle(team.NodeAltered(node_id, odd, is_copied))

    def order_at(self, node_id: str, message: m.ToHand) -> None:
        """Send to one hand."""
        self._send(node_id, message)

    # ------------------------------------------------------------ from the door

    def attached(self, session: Session, hello: m.HandHello) -> None:
        """A node offers itself."""
        if self._snapshots is None or not hello.mark:
            self._let_in(session, hello, sees=False)
            return
        task = asyncio.get_running_loop().create_task(self._check(self._snapshots, session, hello))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check(self, where: Path, session: Session, hello: m.HandHello) -> None:
        loop = asyncio.get_running_loop()
        sees = await loop.run_in_executor(None, take_mark, where, hello.mark)
        if self._door.streams.get(session.peer_id) is session:
            self._let_in(session, hello, sees=sees)

    def _let_in(self, session: Session, hello: m.HandHello, *, sees: bool) -> None:
        if self._is_over:
            return
        writes = self._snapshots is not None
        reason = why_unlike(hello, self._own, self._rendezvous.size, writes=writes, sees=sees)
        if reason:
            self._refuse(session.peer_id, reason)
            return
        is_placed = self._own.is_placed
        node = team.Node(
            session.peer_id, hello.node, hello.host, hello.workers, hello.rank, is_placed=is_placed
        )
        self._look()
        self._handle(team.NodeCame(node))

    def detached(self, session: Session, reason: str) -> None:
        """A hand's stream has ended."""
        self._places.pop(session.peer_id, None)
        if not self._is_over:
            self._handle(team.NodeGone(session.peer_id, reason))

    def _look(self) -> None:
        streams = self._door.streams.items()
        self._handle(team.NodesHeard({node_id: one.heard_at for node_id, one in streams}))

    def hosts_silent(self, hosts: Sequence[str]) -> None:
        """By the kernel's counts these hosts, and no others, acknowledge nothing."""
        self._handle(team.HostsSilent(tuple(hosts)))

    def received(self, session: Session, *messages: m.FromHand) -> None:
        """A hand's messages. Those of a node without a place are ignored."""
        for message in messages:
            self._said(session, message)

    def _said(self, session: Session, message: m.FromHand) -> None:
        agent = self._agent
        if isinstance(message, m.RanksStored):
            self.stored(session.peer_id, message)
            return
        if agent is None or session.peer_id not in self._places:
            return
        match message:
            case m.RankEnded():
                self._rank_ended(session.peer_id, message)
            case m.WorkerMessage(key, said) | m.RankMessage(key, said):
                agent.worker_message(key, said)
            case m.WorkerDisconnected() | m.WorkerUsed():
                agent.handle(message)
            case m.RankFacts(workers):
                name = next(x.name for x in self._team if x.node_id == session.peer_id)
                agent.link.note_facts(tuple(replace(one, node=name) for one in workers))
            case m.RanksKept() | m.GroupWords():
                agent.spanning.ranks_kept(session.peer_id, message)
            case m.WorkerStacks(request, key, text):
                waiting = self._stacks.get(request, {}).get(key)
                if waiting is not None and not waiting.done():
                    waiting.set_result(text)
            case m.AskLease(asked_at):
                lease = agent.lease
                if lease is not None:
                    left_s = max(0.0, lease.until_s - clock.now())
                    self._send(session.peer_id, m.LeaseLeft(asked_at, left_s))
            case m.DrainAsked():
                self.leaver = session.peer_id, message
                node = next(x for x in self._team if x.node_id == session.peer_id)
                agent.handle(replace(message, reason=f"{message.reason} at {node.words()}"))
            case m.HandHello():
                pass
            case _:
                assert_never(message)

    def _rank_ended(self, node_id: str, ended: m.RankEnded) -> None:
        key, rank = self.ranks.reported(node_id, ended), ended.group_rank
        if key is None or self._agent is None:
            return
        end = e.WorkerExited(
            ended.incarnation, rank, ended.pid, ended.exit_code, ended.reason, ended.memory,
            ended.recorded, self._kept(key),
        )  # fmt: skip
        if ended.is_dying:
            self._agent.handle(e.WorkerDying(end))
        else:
            self._ended(key, end)

    def _kept(self, key: WorkerKey) -> e.Kept | None:
        agent = self._agent
        return (
            None if agent is None else agent.spanning.memory.kept(key.incarnation, key.group_rank)
        )

    def _ended(self, key: WorkerKey, end: e.WorkerExited) -> None:
        self.ranks.end(key)
        if self._agent is not None:
            self._agent.spanning.ended_elsewhere(end)

    # ------------------------------------------------------------ the team

    def _handle(self, event: team.Event) -> None:
        for instruction in self._gathering.handle(event, clock.now()):
            match instruction:
                case team.RefuseNode(node_id, reason):
                    self._refuse(node_id, reason)
                case team.LoseNode():
                    self._lose(instruction)
                case team.TeamFormed(nodes, again):
                    self._formed(nodes, again)
                case team.GiveUp(reason):
                    self._give_up(reason)
                case team.Show(text):
                    self._show(text)
                case _:
                    assert_never(instruction)
        self.is_complete = self.is_complete and self._gathering.is_formed
        self._set_timer()

    def _lose(self, lost: team.LoseNode) -> None:
        """Treat the workers of a lost node as ended."""
        node, number, reason = lost.node, lost.number, lost.reason
        self.is_complete = self.is_complete and number is None
        self._places.pop(node.node_id, None)
        self._lose_ranks(node.node_id, node.words(), reason, lost.ago_s)
        if self._agent is not None:
            self._agent.spanning.node_gone(node.node_id)
        stream = self._door.streams.get(node.node_id)
        if stream is not None:
            stream.close(reason)
        if number is not None:
            self.lost(number, reason)

    def _lose_ranks(self, node_id: str, name: str, reason: str, ago_s: float = 0.0) -> None:
        why = f"is lost with its node {name}: {reason}"
        for key in self.ranks.of_node(node_id):
            kept, rank = self._kept(key), key.group_rank
            is_unknown = kept is not None and kept.place is Fall.NO_GENERATION  # it has just joined
            if kept is not None and (is_unknown or isinstance(kept.place, Generation)):
                kept = replace(kept, place=Fall.NODES)  # other nodes may have its states
            end = e.WorkerExited(key.incarnation, rank, 0, KILLED, why, kept=kept)
            self._ended(key, replace(end, ago_s=ago_s))

    def _formed(self, nodes: tuple[team.Node, ...], again: str) -> None:
        self._team = nodes
        if not self._settled.done():
            self._settled.set_result(None)
        if self._agent is None:
            return
        if again:
            self.is_complete = False
            words = f"All workers restart, and no restart is counted: {again}."
            self._agent.handle(e.TeamChanged(words))
        else:
            self.is_complete = True
            self._send_places()
            self._agent.spanning.begin_waiting()

    def _give_up(self, reason: str) -> None:
        if self._agent is None:
            self.interrupt(reason)
        else:
            self._agent.handle(m.EndJob(ExitCode.NO_QUORUM, reason))

    def _send_places(self) -> None:
        """Send each hand its place, unless it has it already."""
        for node_id, place in places(self._team, self._own, self._job_id).items():
            if self._places.get(node_id) != place:
                self._places[node_id] = place
                self._send(node_id, place)

    def _send(self, node_id: str, message: Any) -> bool:
        stream = self._door.streams.get(node_id)
        if stream is not None:
            stream.send(message)
        return stream is not None

    def _refuse(self, node_id: str, reason: str) -> None:
        stream = self._door.streams[node_id]
        self._show(f"A node is refused: {reason}.")
        stream.send(m.Rejected(reason))
        stream.close("it was sent away")

    def _show(self, text: str) -> None:
        if self._agent is not None:
            self._agent.show(text)
        else:
            say(text)

    def _set_timer(self) -> None:
        self._timer.set(self._gathering.next_deadline())


def say(text: str, node: str = "") -> None:
    """Print a line of ftrun, if there is no Agent with a terminal."""
    import sys

    print(f"ftrun {node}: {text}" if node else f"ftrun: {text}", file=sys.stderr, flush=True)
