"""The place where the nodes of a group meet, and who is let in."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.agent.team.door import Door
from ftrun.agent.team.hand import Hand, cause
from ftrun.agent.team.identity import make_identity, trusting
from ftrun.agent.team.main import open_token
from ftrun.agent.team.meeting import with_own_address
from ftrun.base.errors import UserError
from ftrun.config.rendezvous import Rendezvous
from ftrun.core.messages import AskLease, FromHand, Goodbye, HandHello, LeaseLeft
from ftrun.protocol.auth import TOKEN_PATTERN, new_token
from ftrun.protocol.rpc import Connected, Disconnected, LighthouseConnection, Refusal
from ftrun.protocol.serving import Host, Session
from ftrun.protocol.tls import PLAINTEXT, TlsFiles
from ftrun.tools.certs import write_certificates
from tests.unit.run_settings import resolved

TOKEN = new_token()
LOADED = (
    "import sys, ftrun.tools.start, ftrun.agent.team.meeting, ftrun.agent.plan; print(*sys.modules)"
)
HELLO = HandHello("n1", "10.0.0.2", 2, None, "2")


class Lead(Host):
    """Answers questions for a lease, and keeps what has happened."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.gone = asyncio.Event()

    def attached(self, session: Session, hello: HandHello) -> None:
        self.seen.append(hello)

    def received(self, session: Session, *messages: FromHand) -> None:
        self.seen += messages
        for message in messages:
            if isinstance(message, AskLease):
                session.send(LeaseLeft(message.asked_at, 5.0))

    def detached(self, session: Session, reason: str) -> None:
        self.seen.append(reason)
        self.gone.set()


def met(
    *messages: Any,
    token: str = TOKEN,
    until: type,
    theirs: TlsFiles = PLAINTEXT,
    ours: TlsFiles = PLAINTEXT,
) -> tuple[list[Any], list[Any]]:
    """What a hand that sends these has got, up to a message of a kind; and what the lead has."""

    async def run() -> tuple[list[Any], list[Any]]:
        lead = Lead()
        door = Door(TOKEN, theirs)
        door.listener = lead
        port = await door.start("127.0.0.1")
        got: asyncio.Queue[Any] = asyncio.Queue()
        at = (f"127.0.0.1:{port}",)
        connection = LighthouseConnection(at, token, got.put_nowait, tls=ours)
        running = asyncio.ensure_future(connection.run())
        received: list[Any] = []
        while not received or not isinstance(received[-1], until):
            received.append(await asyncio.wait_for(got.get(), 60.0))
            if isinstance(received[-1], Connected):
                for message in messages:
                    connection.send(message)
        connection.close()
        await running
        if any(isinstance(one, HandHello) for one in lead.seen):
            await asyncio.wait_for(lead.gone.wait(), 60.0)
        await door.stop()
        return received, lead.seen

    return asyncio.run(run())


def test_a_hand_asks_by_its_own_clock_and_its_end_is_seen() -> None:
    got, seen = met(HELLO, AskLease(7.0), until=LeaseLeft)
    assert got[1:] == [LeaseLeft(7.0, 5.0)]
    assert seen == [HELLO, AskLease(7.0), "its connection has ended"]


def test_a_hand_trusts_its_leads_own_certificate_and_the_door_the_jobs_authority(
    tmp_path: Path,
) -> None:
    write_certificates(tmp_path / "job", ("127.0.0.1",))
    agent = TlsFiles(*(tmp_path / "job" / name for name in ("agent.pem", "agent.key", "ca.pem")))
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    theirs, certificate = make_identity(tmp_path / "one", "127.0.0.1", agent.ca)
    _, another = make_identity(tmp_path / "other", "127.0.0.1", agent.ca)
    ours = trusting(agent, tmp_path, certificate)
    got, _ = met(HELLO, AskLease(7.0), until=LeaseLeft, theirs=theirs, ours=ours)
    assert got[1:] == [LeaseLeft(7.0, 5.0)]
    ours = trusting(agent, tmp_path, another)
    got, seen = met(HELLO, until=Disconnected, theirs=theirs, ours=ours)
    assert (type(got[0]), seen) == (Disconnected, [])


def test_nobody_comes_in_without_the_token() -> None:
    got, seen = met(HELLO, token=new_token(), until=Disconnected)
    assert got[-1].refused is Refusal.TOKEN
    assert seen == []


@pytest.mark.parametrize("first", [Goodbye(), AskLease(1.0)])
def test_what_is_no_hand_is_told_where_it_is(first: Any) -> None:
    got, seen = met(first, until=Disconnected)
    assert "this is where the nodes of one group meet" in got[-1].words
    assert seen == []


def test_a_message_that_is_not_for_a_lead_ends_the_stream() -> None:
    _, seen = met(HELLO, Goodbye(), until=Disconnected)
    assert seen == [HELLO, "it does not keep the protocol: a Goodbye is not for a lead"]


def test_jobs_at_one_place_are_kept_apart_by_their_ids() -> None:
    one, two = (resolved(nnodes="2", rdzv_endpoint="h:1", rdzv_id=name).rendezvous for name in "ab")
    assert one is not None
    assert two is not None
    assert open_token(one) != open_token(two)
    assert TOKEN_PATTERN.fullmatch(open_token(one))


def test_a_nodes_own_address_is_known_before_anything_is_started() -> None:
    here = with_own_address(resolved(nnodes="2", rdzv_endpoint="127.0.0.1:1"))
    assert here.local_addr == "127.0.0.1"
    stated = with_own_address(
        resolved(nnodes="2", rdzv_endpoint="127.0.0.1:1", local_addr="10.1.1.1")
    )
    assert stated.local_addr == "10.1.1.1"
    for flags, words in (
        ({"rdzv_endpoint": "no-such-host.invalid:1"}, "host name is not known"),
        ({"master_addr": "192.0.2.1", "node_rank": "0"}, "that is no address of this node"),
    ):
        with pytest.raises(UserError, match=words):
            with_own_address(resolved(nnodes="2", **flags))  # type: ignore[arg-type]


def test_why_no_node_answers_is_told_without_grpcs_frame() -> None:
    tried = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
    assert cause(f"{tried}Failed to connect to remote host: Connection refused").endswith("refused")
    assert "--tls-ca turns on" in cause(f"{tried}Socket closed")
    words = cause(f"{tried}Tls handshake failed (TSI): SSL_ERROR_SSL: bad purpose: OK")
    assert words.startswith("the TLS handshake fails: bad purpose. The first node's --tls-cert")


def test_what_is_asked_before_the_start_does_not_load_grpc() -> None:
    """It would print lines of its own: nothing has told it to be silent yet (protocol/quiet.py)."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=120, check=True
    )
    assert "ftrun.agent.team.meeting" in done.stdout.split()
    assert "grpc" not in done.stdout.split()


def test_a_place_that_is_left_is_closed_to_its_end_although_the_node_is_to_be_another_one() -> None:
    """The lead is lost, and at once the registrar has the node free: its spawner was left alone."""

    async def run() -> None:
        goes_on, began, said = asyncio.Event(), asyncio.Event(), list[str]()

        async def close(*, ends_well: bool) -> None:
            began.set()
            await goes_on.wait()
            said.append("closed")

        setup: Any = SimpleNamespace(settings=resolved(), token=TOKEN, launch=None)
        meets = Rendezvous(2, 2, 1, "127.0.0.1", 1, is_static=True, stated_by="a test")
        hand = Hand(setup, meets, said.append)
        hand._place = SimpleNamespace(close=close)  # type: ignore[assignment]
        obeying = asyncio.ensure_future(hand._leave_place())
        await began.wait()
        obeying.cancel()
        ending = asyncio.ensure_future(hand._leave_place())
        await asyncio.wait({obeying})
        assert not said and not ending.done()
        goes_on.set()
        await ending
        assert said == ["closed"]

    asyncio.run(run())
