"""Where the nodes of large groups come first: who is told what, by streams that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ftrun.core.messages import (
    EndJob,
    JobSpec,
    MemberGone,
    NodeFree,
    NodeHello,
    Notice,
    Rejected,
    TeamPlace,
    Welcome,
)
from ftrun.lighthouse.registrar import Registrar
from ftrun.protocol.serving import Session
from ftrun.protocol.streams import StreamCodec

SPEC = JobSpec("job", 2, 4, 1, 60.0, 5.0, 20.0, nodes=2)
ENDED = EndJob(0, "all replicas have finished")


class Shell:
    """What a registrar asks of the lighthouse's shell."""

    def __init__(self) -> None:
        self.outcome: EndJob | None = None
        self.looked: Callable[[], None] = lambda: None
        self.closed: Callable[[int | None, str], None] = lambda rank, reason: None
        self.idle_nodes: Callable[[], list[str]] = list
        self.welcome = Welcome(7, "10.0.0.9:29511")


class Nodes:
    """A registrar with nodes of two workers each; ``expected`` of them."""

    def __init__(self, expected: int = 4) -> None:
        self.shell = Shell()
        shell: Any = self.shell
        self.registrar = Registrar(shell)
        self.expected = expected
        self.sessions: dict[str, Session] = {}
        self.placed: list[int] = []

    def hello(self, name: str) -> NodeHello:
        rank = int(name[1:])
        door = f"10.0.0.{rank}:7"
        return NodeHello(
            name, name, f"10.0.0.{rank}", door, "pem", 2, rank, "", SPEC, self.expected, 0
        )

    def come(self, name: str, **changes: Any) -> Session:
        session = self.sessions[name] = Session(name, StreamCodec())
        self.registrar.attached(session, replace(self.hello(name), **changes))
        return session

    def leave(self, name: str) -> None:
        self.registrar.detached(self.sessions[name], "its machine is gone")

    async def heard(self, name: str) -> list[Any]:
        """What was sent to a node since the last time, but for greetings and lines for people.

        ``placed``: as the last place had it, and 0 in what is returned.
        """
        session, found = self.sessions[name], []
        while True:
            try:
                data = await asyncio.wait_for(session.next(), 0.01)
            except asyncio.TimeoutError:
                break
            if data is None:
                break
            found += StreamCodec().decode(data)
        self.placed = [x.placed for x in found if isinstance(x, TeamPlace)][-1:] or self.placed
        found = [replace(x, placed=0) if isinstance(x, TeamPlace) else x for x in found]
        return [x for x in found if not isinstance(x, Notice | Welcome)]


def place(team: int, number: int, *members: str) -> TeamPlace:
    lead = int(members[0][1:])
    return TeamPlace(team, number, members, f"10.0.0.{lead}", f"10.0.0.{lead}:7", "pem")


def test_nodes_that_follow_each_other_are_a_group_and_a_lost_one_frees_the_other() -> None:
    async def run() -> None:
        nodes = Nodes()
        for name in ("n3", "n0", "n2"):
            nodes.come(name)
        assert await nodes.heard("n0") == []
        nodes.come("n1")
        assert await nodes.heard("n0") == [place(0, 0, "n0", "n1")]
        assert await nodes.heard("n1") == [place(0, 1, "n0", "n1")]
        assert await nodes.heard("n3") == [place(1, 1, "n2", "n3")]
        assert nodes.placed == [2]
        assert nodes.shell.idle_nodes() == []
        nodes.leave("n0")
        (free,) = await nodes.heard("n1")
        assert free == NodeFree("node n0 (10.0.0.0, node rank 0) is gone (its machine is gone)")
        assert nodes.shell.idle_nodes() == ["n1 (10.0.0.1, node rank 1)"]
        nodes.come("n4")
        assert await nodes.heard("n4") == [place(0, 0, "n4", "n1")]
        nodes.registrar.received(nodes.sessions["n2"], MemberGone("n1", "not its own"))
        nodes.registrar.received(nodes.sessions["n4"], MemberGone("n1", "acknowledges nothing"))
        assert [type(x) for x in await nodes.heard("n4")] == [NodeFree]
        assert nodes.sessions["n1"].closing == "acknowledges nothing"
        nodes.shell.closed(1, "it is silent")
        assert nodes.sessions["n2"].closing == "it is silent"
        assert (await nodes.heard("n3"))[-1] == place(0, 1, "n4", "n3")
        nodes.shell.closed(None, "another agent")
        nodes.registrar.close()
        assert nodes.sessions["n3"].closing == "the lighthouse stops"
        assert nodes.come("n5").closing == "the lighthouse stops"

    asyncio.run(run())


def test_a_node_by_another_stream_is_told_again_where_it_is() -> None:
    async def run() -> None:
        nodes = Nodes()
        for name in ("n0", "n1", "n2", "n3"):
            nodes.come(name)
        former = nodes.sessions["n1"]
        nodes.come("n1", team=1, members=("n2", "n1"))
        assert former.closing == "the node has come by another stream"
        assert await nodes.heard("n1") == [place(0, 1, "n0", "n1")]
        nodes.registrar.detached(former, "the stream broke")
        assert await nodes.heard("n0") == [place(0, 0, "n0", "n1")]
        nodes.come("n9", team=0, members=("n0", "n9"))
        assert await nodes.heard("n9") == [NodeFree("its group of nodes is no more")]
        strange = nodes.come("n8", workers=4)
        assert strange.closing is not None
        assert [type(x) for x in await nodes.heard("n8")] == [Rejected]
        assert "older ftrun" in (nodes.come("n7", version=0).closing or "")

    asyncio.run(run())


def test_the_end_of_the_job_reaches_those_whom_no_lead_tells() -> None:
    async def run() -> None:
        nodes = Nodes()
        for name in ("n0", "n1", "n2", "n3", "n4"):
            nodes.come(name)
        nodes.shell.outcome = ENDED
        nodes.shell.looked()
        assert await nodes.heard("n4") == [ENDED]
        assert await nodes.heard("n0") == [place(0, 0, "n0", "n1")]
        nodes.leave("n0")
        assert (await nodes.heard("n1"))[-1] == ENDED
        nodes.come("n5")
        assert await nodes.heard("n5") == [ENDED]
        for name in ("n1", "n2", "n3", "n4"):
            nodes.leave(name)
        nodes.expected = 1
        nodes.come("n6")  # of another run, of which there is no end yet
        assert nodes.sessions["n6"].closing is None

    asyncio.run(run())
