"""Healing over real sockets: striped, verified, all or nothing, whatever the donors do."""

from __future__ import annotations

import base64
import functools
import multiprocessing
import os
import pickle
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch

from ftrun.base import clock
from ftrun.base.errors import PeerError, UserError
from ftrun.checkpoint import heal, line, stripes
from ftrun.checkpoint.destination import Arrivals, Overwrite
from ftrun.checkpoint.format import pack
from ftrun.checkpoint.header import header_of
from ftrun.checkpoint.heal import FetchedState, NoneServes, fetch
from ftrun.checkpoint.layout import CHUNK_BYTES
from ftrun.checkpoint.offer import Offer
from ftrun.checkpoint.proof import heal_key
from ftrun.checkpoint.requests import Request
from ftrun.checkpoint.serve import StateServer
from ftrun.checkpoint.wire import Pipe, parse_ranges
from ftrun.core.ids import Attempt, StateId, Tag
from tests.unit.checkpoint.proxy import Pass, Proxy, Tap, cut_after, flip_at
from tests.unit.checkpoint.state_trees import same

TOKEN = "5a" * 32
TAG = Tag(Attempt(8, 1), 10)
LATER = Tag(Attempt(8, 2), 10)
STATE_ID = StateId(10, "abcd")
TIMEOUT_S = 30.0
SHORT_S = 2.0
BIG = 40 << 20


@functools.cache
def noise(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (BIG,), generator=generator, dtype=torch.uint8)


def state(seed: int = 0, nbytes: int = BIG) -> dict[str, Any]:
    weights = noise(seed)[:nbytes].clone()
    small = {i: torch.full((), float(i)) for i in range(300)}
    return {"model": {"w": weights, "odd": weights[:12345].clone()}, "small": small, "step": 10}


class Crossing(StateServer):
    """A donor that sends the second stripe for the first one."""

    def _answer_data(self, pipe: Pipe, request: Request, offer: Offer) -> None:
        crossed = request.query.replace("offset=0&", "offset=16777216&")
        super()._answer_data(pipe, replace(request, query=crossed), offer)


class Stage:
    """Donors, with TLS or without, and the networks to them; closed at the end of the test."""

    def __init__(self, stack: ExitStack, tls: bool) -> None:
        self._stack = stack
        self._tls = tls
        self._certificates: dict[str, str] = {}

    def donor(
        self, tree: Any, tag: Tag = TAG, expected: int = 0, kind: type[StateServer] = StateServer
    ) -> StateServer:
        server = kind("127.0.0.1", TOKEN, tls=self._tls)
        self._stack.callback(server.close)
        server.offer(tag, STATE_ID, tree, expected)
        self._certificates[server.address] = server.certificate
        return server

    def network(self, address: str, **behaviour: Any) -> Proxy:
        proxy = Proxy(address, **behaviour)
        self._stack.callback(proxy.close)
        self._certificates[proxy.address] = self._certificates.get(address, "")
        return proxy

    def heal(self, *donors: str, timeout_s: float = TIMEOUT_S, **options: Any) -> FetchedState:
        tag, token = options.pop("tag", TAG), options.pop("token", TOKEN)
        shown = self._certificates if self._tls else None
        return fetch(donors, tag, token, timeout_s, certificates=shown, **options)


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(stack, getattr(request, "param", False))


both_ways = pytest.mark.parametrize("stage", [False, True], ids=["plain", "tls"], indirect=True)


@both_ways
@pytest.mark.parametrize("donors", [1, 2, 3])
@pytest.mark.parametrize("streams", [1, 2])
def test_the_state_comes_whole_from_any_number_of_donors(
    stage: Stage, donors: int, streams: int
) -> None:
    tree = state()
    servers = [stage.donor(tree) for _ in range(donors)]
    healed = stage.heal(*(s.address for s in servers), streams_per_donor=streams)
    assert same(healed.tree, tree)
    assert healed.state_id == STATE_ID
    assert healed.nbytes == BIG + 12345 + 1200
    assert set(healed.donors) <= {s.address for s in servers}
    # One that was slower than the whole transfer may have delivered nothing.
    assert not set(healed.left_out) & set(healed.donors)


@both_ways
@pytest.mark.parametrize("tree", [{}, {"step": 3}, {"e": torch.empty(0)}, torch.ones(1), None])
def test_tiny_states_come_too(stage: Stage, tree: Any) -> None:
    assert same(stage.heal(stage.donor(tree).address).tree, tree)


def test_a_heal_unpickles_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: checked by the audit event of every class look-up, and by every way into pickle."""
    seen: list[str] = []
    watching = True

    def watch(event: str, _args: Any) -> None:
        if watching and event == "pickle.find_class":
            seen.append(event)

    def refuse(*_: Any, **__: Any) -> Any:
        seen.append("pickle")
        raise AssertionError("something is unpickled")

    sys.addaudithook(watch)
    pickled = pickle.dumps(StateId(1, "a"))
    pickle.loads(pickled)  # noqa: S301
    assert seen  # so the check would notice
    seen.clear()
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    tree = state(nbytes=1 << 20) | {"shape": (1, 2), "text": "a"}
    assert same(stage.heal(stage.donor(tree).address).tree, tree)
    watching = False
    assert seen == []


@both_ways
def test_it_can_be_read_straight_into_the_tensors_at_hand(stage: Stage) -> None:
    theirs, mine = state(0), state(1)
    mine["small"][3] = torch.full((), 3.0).expand(2)[0]
    pointers = [mine["model"]["w"].data_ptr(), mine["small"][0].data_ptr()]
    healed = stage.heal(stage.donor(theirs).address, mine=mine, overwrite=Overwrite())
    tree = healed.tree
    assert same(tree, theirs)
    assert [tree["model"]["w"].data_ptr(), tree["small"][0].data_ptr()] == pointers
    assert torch.equal(mine["model"]["w"], theirs["model"]["w"])


def test_each_request_says_what_has_not_come_from_anybody(stage: Stage) -> None:
    asked: list[
        tuple[range, set[int]]
    ] = []  # of the second donor: chunks asked for, chunks lacking
    again = threading.Event()

    def note(request: bytes) -> bytes:
        found = re.search(rb"offset=(\d+)&length=(\d+)(?s:.*)x-ftrun-lacks: ([\d,-]+)", request)
        if found:
            start, length = int(found[1]), int(found[2])
            wanted = range(start // CHUNK_BYTES, -(-(start + length) // CHUNK_BYTES))
            ranges = parse_ranges(found[3].decode(), chunks)
            asked.append((wanted, {c for first, stop in ranges for c in range(first, stop)}))
            if len(asked) > 1:
                again.set()
        return request

    def hold(sent: int, data: bytes) -> bytes:
        assert sent + len(data) < CHUNK_BYTES or again.wait(TIMEOUT_S)
        return data

    tree, chunks = state(), -(-(BIG + 12345 + 1200) // CHUNK_BYTES)
    held = stage.network(stage.donor(tree).address, answers=hold)
    noted = stage.network(stage.donor(tree).address, requests=note)
    assert same(stage.heal(held.address, noted.address, streams_per_donor=1).tree, tree)
    (first, all_chunks), (_, later), *_ = asked
    assert all_chunks == set(range(chunks))
    assert later == all_chunks - set(first)


def test_mine_is_not_touched_unless_asked_for(stage: Stage) -> None:
    mine = state(1)
    healed = stage.heal(stage.donor(state(0)).address, mine=mine)
    assert same(mine, state(1))
    assert same(healed.tree, state(0))


def test_what_has_another_form_is_read_into_new_memory(stage: Stage) -> None:
    """Only what agrees is written in place; the load function judges the rest."""
    mine = {
        **state(1),
        "model": {"w": torch.ones(3), "odd": noise(1)[:12345].clone()},
        "step": None,
    }
    healed = stage.heal(stage.donor(state()).address, mine=mine, overwrite=Overwrite())
    assert same(healed.tree, state())
    assert torch.equal(mine["model"]["w"], torch.ones(3))
    assert same(mine["model"]["odd"], state()["model"]["odd"])  # in place


def test_what_the_receiver_could_not_give_to_others_does_not_hinder_it(stage: Stage) -> None:
    mine = {**state(1), "lock": threading.Lock(), "some": [torch.ones(2), threading.Lock()]}
    healed = stage.heal(stage.donor(state()).address, mine=mine, overwrite=Overwrite())
    assert same(healed.tree, state())
    assert same(mine["model"], state()["model"])  # in place, as ever


def test_donors_that_cannot_serve_are_passed_over_and_named(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stage.donor(state()), stage.donor(state())
    one.refuse(TAG, "Replica 0 cannot: é" + "x" * 5000)
    heard, plain = threading.Event(), heal._Transfer._work

    def work(transfer: heal._Transfer, task: Any, address: str) -> None:
        plain(transfer, task, address)
        if address == one.address:
            heard.set()

    monkeypatch.setattr(heal._Transfer, "_work", work)
    late = gate(other, stage, heard)  # else the heal may end before it has heard the refusal
    healed = stage.heal(one.address, late)
    assert healed.donors == (late,)
    assert "Replica 0 cannot: é" in healed.left_out[one.address]
    other.refuse(TAG, "Replica 1 cannot")
    with pytest.raises(NoneServes, match=r"Replica [01] cannot.*; Replica [01] cannot"):
        stage.heal(one.address, other.address)
    one.offer(LATER, STATE_ID, state())  # at its next try it can
    assert same(stage.heal(one.address, other.address, tag=LATER).tree, state())


def test_who_cannot_be_reached_has_not_refused(stage: Stage) -> None:
    one, gone = stage.donor(state()), stage.donor(state())
    one.refuse(TAG, "Replica 0 cannot")
    gone.close()
    with pytest.raises(PeerError) as caught:
        stage.heal(one.address, gone.address, timeout_s=SHORT_S)
    assert not isinstance(caught.value, NoneServes)


MISBEHAVIOURS: dict[str, dict[str, Any]] = {
    "corrupt": {"answers": flip_at(3 * CHUNK_BYTES)},
    "corrupt header": {"answers": flip_at(2000)},
    "truncated": {"answers": cut_after(2 * CHUNK_BYTES)},
    "truncated header": {"answers": cut_after(300)},
}


@both_ways
def misbehaving(stage: Stage, how: str, tree: Any) -> str:
    """The address of a donor that misbehaves so, or of a network that does."""
    if how == "crossed":
        return stage.donor(tree, kind=Crossing).address
    return stage.network(stage.donor(tree).address, **MISBEHAVIOURS[how]).address


@pytest.mark.parametrize("how", [*MISBEHAVIOURS, "crossed"])
def test_a_bad_stripe_is_refused_and_nothing_applied(stage: Stage, how: str) -> None:
    address = misbehaving(stage, how, state(0))
    mine = state(1)
    with pytest.raises(PeerError, match="Nothing was applied") as caught:
        stage.heal(address, mine=mine)  # S3
    assert address in str(caught.value)
    assert same(mine, state(1))


@both_ways
@pytest.mark.parametrize("how", [*MISBEHAVIOURS, "crossed"])
def test_a_bad_donor_costs_only_its_stripes(stage: Stage, how: str) -> None:
    tree = state()
    bad = misbehaving(stage, how, tree)
    good = stage.donor(tree)
    healed = stage.heal(bad, good.address)
    assert same(healed.tree, tree)


@both_ways
def test_a_stalled_donor_is_given_up(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stripes, "SLOW_CHUNK_S", 1.0)
    monkeypatch.setattr(line, "CHUNK_TIMEOUT_S", 2 * TIMEOUT_S)
    release, waited_out = threading.Event(), threading.Event()
    tree = state()

    def stall(sent: int, data: bytes) -> bytes:
        if sent > 3 * CHUNK_BYTES and not release.wait(TIMEOUT_S):
            waited_out.set()
        return data

    slow = stage.network(stage.donor(tree).address, answers=stall)
    healed = stage.heal(slow.address, stage.donor(tree).address)
    assert not waited_out.is_set()
    release.set()
    assert same(healed.tree, tree)


@both_ways
def test_only_the_tag_asked_for_is_taken(stage: Stage) -> None:
    others = (Tag(Attempt(8, 1), 9), Tag(Attempt(7, 1), 10), Tag(Attempt(8, 0), 10))
    donors = [stage.donor(state(nbytes=9), tag=other) for other in others]

    def refused(address: str) -> None:
        with pytest.raises(PeerError, match="not offered yet"):
            stage.heal(address, timeout_s=SHORT_S)  # S4

    with ThreadPoolExecutor(len(donors)) as pool:  # each is waited for to its end
        list(pool.map(refused, [donor.address for donor in donors]))


def test_a_donor_that_is_past_the_tag_is_not_asked_again(stage: Stage) -> None:
    donor = stage.donor(state(nbytes=9), tag=Tag(Attempt(9, 1), 11))
    with pytest.raises(PeerError, match="not offered any more"):
        stage.heal(donor.address)


@both_ways
def test_a_donor_that_comes_to_the_boundary_later_is_waited_for(stage: Stage) -> None:
    tree = state(nbytes=5 << 20)
    server = stage.donor(tree, tag=Tag(Attempt(8, 1), 9))
    asked = threading.Event()

    def note(request: bytes) -> bytes:
        asked.set()
        return request

    proxy = stage.network(server.address, requests=note)
    found: list[FetchedState] = []
    thread = threading.Thread(target=lambda: found.append(stage.heal(proxy.address)))
    thread.start()
    assert asked.wait(TIMEOUT_S)
    server.offer(TAG, STATE_ID, tree)
    thread.join(TIMEOUT_S)
    assert same(found[0].tree, tree)


@both_ways
def test_another_jobs_token_is_refused(stage: Stage) -> None:
    with pytest.raises(PeerError, match=r"401.*token"):
        stage.heal(stage.donor(state(nbytes=9)).address, token="6" * 64)


@both_ways
def test_the_token_is_nowhere_in_what_passes(stage: Stage) -> None:
    tap, tree = Tap(), state(nbytes=3 * CHUNK_BYTES)
    server = stage.donor(tree, tag=Tag(Attempt(8, 1), 9))  # So the donor is asked more than once.
    proxy = stage.network(server.address, requests=tap.requests, answers=tap.answers)
    found: list[FetchedState] = []
    thread = threading.Thread(target=lambda: found.append(stage.heal(proxy.address)))
    thread.start()
    assert tap.answered.wait(TIMEOUT_S)
    server.offer(TAG, STATE_ID, tree)
    thread.join(TIMEOUT_S)
    assert same(found[0].tree, tree)
    assert len(tap.heard) > 3 * CHUNK_BYTES  # so the whole heal was recorded
    key = heal_key(TOKEN)
    for secret in (TOKEN.encode(), bytes.fromhex(TOKEN), key, key.hex().encode()):
        for part in (secret, base64.b64encode(secret), secret[: len(secret) // 2]):
            assert part not in tap.heard
    assert b"bearer" not in tap.heard.lower()


def test_a_donor_with_another_state_id_is_left_out(stage: Stage) -> None:
    donor = stage.donor(state(nbytes=9))
    with pytest.raises(PeerError, match="the quorum names 10/ffff"):
        stage.heal(donor.address, expected=StateId(10, "ffff"))
    assert stage.heal(donor.address, expected=STATE_ID).state_id == STATE_ID


def gate(donor: StateServer, stage: Stage, opened: threading.Event) -> str:
    """The donor's address through a network that passes nothing before ``opened``."""

    def wait(_sent: int, data: bytes) -> bytes:
        opened.wait(TIMEOUT_S)
        return data

    return stage.network(donor.address, answers=wait).address


def test_a_donor_that_differs_is_left_out_and_named(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, other = state(0), state(0)
    other["model"]["w"] += 1
    first_in, second_judged = threading.Event(), threading.Event()
    plain = heal._disagreement

    def judge(*headers: Any) -> str:
        second_judged.set()
        return plain(*headers)

    def announce(sent: int, data: bytes) -> bytes:
        if sent > 5 * CHUNK_BYTES:
            first_in.set()
            second_judged.wait(TIMEOUT_S)  # else the heal may end before, and cut the second
        return data

    monkeypatch.setattr(heal, "_disagreement", judge)

    first = stage.network(stage.donor(tree).address, answers=announce)
    second = gate(stage.donor(other), stage, first_in)
    healed = stage.heal(first.address, second)
    assert same(healed.tree, tree)
    assert healed.donors == (first.address,)
    assert "model.w" in healed.left_out[second]


@pytest.mark.parametrize("own", ["copied", "unlike"])
def test_donors_may_differ_in_what_each_has_of_its_own(stage: Stage, own: str) -> None:
    trees: list[dict[str, Any]] = [
        {"m": noise(0), "beside": {"sum": torch.full((40,), float(i))}} for i in (1, 2)
    ]
    servers = [stage.donor(tree) for tree in trees]
    for server, tree in zip(servers, trees, strict=True):
        server.withdraw(TAG)
        own_sum = tree["beside"]["sum"]
        copied = {own_sum.data_ptr(): own_sum} if own == "copied" else None
        server.offer(TAG, STATE_ID, tree, 1, copied, [".beside"] if own == "unlike" else ())
        tree["beside"]["sum"] += 5  # it is copied, because it may change
    healed = stage.heal(*(server.address for server in servers))
    assert torch.equal(healed.tree["m"], trees[0]["m"])
    assert healed.tree["beside"]["sum"].tolist() in ([1.0] * 40, [2.0] * 40)
    assert not healed.left_out


@pytest.mark.parametrize("unlike", [(), (".beside",)])
def test_a_donor_that_alone_holds_a_tensor_is_named_unless_each_has_its_own(
    stage: Stage, unlike: tuple[str, ...]
) -> None:
    trees: list[dict[str, Any]] = [{"m": noise(0), "beside": {}} for _ in range(2)]
    trees[1]["beside"]["saved"] = torch.ones(3)
    servers = [stage.donor(tree) for tree in trees]
    for server, tree in zip(servers, trees, strict=True):
        server.withdraw(TAG)
        server.offer(TAG, STATE_ID, tree, 1, None, unlike)
    healed = stage.heal(*(server.address for server in servers))
    assert torch.equal(healed.tree["m"], trees[0]["m"])
    if len(healed.donors) == 1:  # else the other had no time to answer
        named = "not all donors hold beside.saved, in one kind and shape"
        assert [*healed.unlike.values()] in ([[]] if unlike else [[], [named]])


@pytest.mark.parametrize("changed", ["beside", "script"])
def test_a_donor_is_named_for_plain_values_unless_each_has_its_own(changed: str) -> None:
    """Seen: one was, because it had seen later that a tensor outside the modules had changed."""
    trees: list[dict[str, Any]] = [{"user": {"script": {"at": 1}, "beside": {"at": 1}}}] * 2
    trees[1] = {"user": {**trees[0]["user"], changed: {"at": 2}}}
    one, other = (header_of(TAG, STATE_ID, pack(tree)) for tree in trees)
    named = "its plain values differ from another donor's"
    assert heal._disagreement(one, other, ()) == named
    is_named = changed == "script"
    assert heal._disagreement(one, other, [".user.beside"]) == (named if is_named else "")


@both_ways
def test_those_left_out_are_asked_when_all_others_are_gone(stage: Stage) -> None:
    tree, other = state(0), state(1)
    first_in, dead = threading.Event(), threading.Event()

    def die(sent: int, data: bytes) -> bytes | None:
        if sent > 5 * CHUNK_BYTES:
            first_in.set()
        if sent > 15 * CHUNK_BYTES:
            dead.set()
        return None if dead.is_set() else data

    first = stage.network(stage.donor(tree).address, answers=die)
    second = gate(stage.donor(other), stage, first_in)
    healed = stage.heal(first.address, second)
    assert same(healed.tree, other)  # Complete, and from one of the two donors only.


def test_the_end_waits_for_a_stream_that_is_about_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: another stream began as the fetch ended, and the newcomer died of a RuntimeError."""
    order = heal._Order(TAG, b"", clock.now() + TIMEOUT_S, None, None, None, None, False)
    transfer = heal._Transfer(order)
    monkeypatch.setattr(transfer, "_work", lambda work, address: None)
    begun, go, plain = threading.Event(), threading.Event(), threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("ftrun-heal"):
            begun.set()
            assert go.wait(TIMEOUT_S)
        plain(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with ThreadPoolExecutor(2) as pool:
        starts = pool.submit(transfer._start, lambda link: None, "donor")
        assert begun.wait(TIMEOUT_S)
        ends = pool.submit(transfer._end)
        wait([ends], 0.2)  # it would have ended by now, by an error
        go.set()
        starts.result(TIMEOUT_S)
        ends.result(TIMEOUT_S)


def test_no_donor_at_all_is_a_clear_error() -> None:
    with pytest.raises(PeerError, match="there are none"):
        fetch([], TAG, TOKEN, TIMEOUT_S)


def test_a_dead_donor_is_a_clear_error_at_once(stage: Stage) -> None:
    server = stage.donor({})
    server.close()
    with pytest.raises(PeerError, match="refused"):
        stage.heal(server.address)


def cancel_at(nbytes: int, cancel: threading.Event, arrivals: Arrivals | None = None) -> Pass:
    """Cancel once ``nbytes`` have come on a stream; nothing arrives from then on.

    ``arrivals``: not before a chunk has been taken, of which these bytes have one or more.
    """

    def stop(sent: int, data: bytes) -> bytes | None:
        if sent < nbytes and not cancel.is_set():
            return data
        deadline = clock.now() + TIMEOUT_S
        while arrivals is not None and clock.now() < deadline:
            if arrivals.destination and arrivals.destination.stripes.arrived_chunks:
                break
            time.sleep(0.001)
        cancel.set()
        return None

    return stop


@both_ways
def test_cancel_ends_a_fetch(stage: Stage) -> None:
    cancel = threading.Event()

    def stall(sent: int, data: bytes) -> bytes:
        if sent > CHUNK_BYTES:
            cancel.set()
        return b"" if cancel.is_set() else data  # else the rest may come before it is cancelled

    never = threading.Event()
    proxy = stage.network(stage.donor(state()).address, answers=stall)
    blocked = gate(stage.donor(state()), stage, never)
    started = clock.now()
    with pytest.raises(PeerError, match="cancelled"):
        stage.heal(blocked, timeout_s=TIMEOUT_S, cancel=_already_set())
    with pytest.raises(PeerError, match="cancelled"):
        stage.heal(proxy.address, cancel=cancel, streams_per_donor=1)
    never.set()
    assert clock.now() - started < TIMEOUT_S / 2


@both_ways
@pytest.mark.parametrize("overwrite", [None, Overwrite()], ids=["new memory", "in place"])
def test_the_next_quorum_goes_on_with_what_has_come(
    stage: Stage, overwrite: Overwrite | None
) -> None:
    cancel, arrivals, mine, later = threading.Event(), Arrivals(), state(1), Tag(Attempt(9, 1), 10)

    options: dict[str, Any] = {"mine": mine, "overwrite": overwrite, "arrivals": arrivals}
    first, second = stage.donor(state()), stage.donor(state(), later)
    proxy, rest = (
        stage.network(first.address, answers=cancel_at(BIG // 4, cancel, arrivals)),
        stage.network(second.address),
    )
    with pytest.raises(PeerError, match="cancelled"):
        stage.heal(proxy.address, cancel=cancel, **options)
    healed = stage.heal(rest.address, tag=later, **options)
    assert same(healed.tree, state())
    assert rest.sent < BIG - CHUNK_BYTES // 2  # a chunk had come; TLS adds some bytes to the others
    assert (healed.tree["model"]["w"].data_ptr() == mine["model"]["w"].data_ptr()) == bool(
        overwrite
    )


def test_another_state_is_not_mixed_with_what_has_come(stage: Stage) -> None:
    cancel, arrivals, later = threading.Event(), Arrivals(), Tag(Attempt(9, 1), 10)
    proxy = stage.network(stage.donor(state()).address, answers=cancel_at(BIG // 4, cancel))
    with pytest.raises(PeerError, match="cancelled"):
        stage.heal(proxy.address, cancel=cancel, arrivals=arrivals)
    other = stage.donor(state(1), later)
    assert same(stage.heal(other.address, tag=later, arrivals=arrivals).tree, state(1))


def test_memory_that_is_not_to_be_written_any_more_stays_as_it_is(stage: Stage) -> None:
    mine = state(1)
    with pytest.raises(PeerError, match="not wanted any more"):
        stage.heal(
            stage.donor(state()).address, mine=mine, overwrite=Overwrite(begins=lambda: False)
        )
    assert same(mine, state(1))


def _already_set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@both_ways
def test_the_deadline_holds_and_leaves_no_thread(stage: Stage) -> None:
    opened = threading.Event()
    address = gate(stage.donor(state()), stage, opened)
    before = set(threading.enumerate())
    started = clock.now()
    with pytest.raises(PeerError, match="in time"):
        stage.heal(address, timeout_s=SHORT_S)
    assert clock.now() - started < TIMEOUT_S / 2
    opened.set()
    left = [t for t in set(threading.enumerate()) - before if t.name.startswith("ftrun-heal")]
    assert left == []


# ---------------------------------------------------------------- donors that train on or die


def slow_until(event: threading.Event, started: threading.Event) -> Pass:
    def wait(sent: int, data: bytes) -> bytes:
        if sent > 2 * CHUNK_BYTES:
            started.set()
            event.wait(TIMEOUT_S)
        return data

    return wait


@both_ways
def test_a_donor_steps_on_while_a_slow_receiver_goes_on_from_the_copy(stage: Stage) -> None:
    tree = state()
    server = stage.donor(tree, expected=1)
    stepped, started = threading.Event(), threading.Event()
    proxy = stage.network(server.address, answers=slow_until(stepped, started))
    found: list[FetchedState] = []
    thread = threading.Thread(target=lambda: found.append(stage.heal(proxy.address)))
    thread.start()
    assert started.wait(TIMEOUT_S)
    server.retire(TAG, 1 << 30)
    for tensor in (tree["model"]["w"], tree["small"][7]):
        tensor.zero_()  # the optimizer's step
    stepped.set()
    thread.join(TIMEOUT_S)
    assert same(found[0].tree, state())


@both_ways
def test_a_copy_that_would_be_too_large_ends_the_donor_not_the_heal(stage: Stage) -> None:
    tree = state()
    server = stage.donor(tree, expected=1)
    stepped, started = threading.Event(), threading.Event()
    proxy = stage.network(server.address, answers=slow_until(stepped, started))
    found: list[FetchedState] = []
    other = gate(stage.donor(state()), stage, stepped)
    thread = threading.Thread(target=lambda: found.append(stage.heal(proxy.address, other)))
    thread.start()
    assert started.wait(TIMEOUT_S)
    server.retire(TAG, 8 * CHUNK_BYTES)
    tree["model"]["w"].zero_()
    stepped.set()
    thread.join(TIMEOUT_S)
    assert same(found[0].tree, state())


def _donate(connection: Any) -> None:
    server = StateServer("127.0.0.1", TOKEN)
    server.offer(TAG, STATE_ID, state())
    connection.send(server.address)
    connection.recv()


@pytest.fixture
def processes() -> Iterator[Callable[[], tuple[str, int]]]:
    context = multiprocessing.get_context("spawn")
    started: list[Any] = []

    def start() -> tuple[str, int]:
        ours, theirs = context.Pipe()
        process = context.Process(target=_donate, args=(theirs,), daemon=True)
        process.start()
        started.append((process, ours, theirs))
        assert ours.poll(60)
        assert process.pid is not None
        return ours.recv(), process.pid

    yield start
    for process, ours, theirs in started:
        process.kill()
        process.join(10)
        process.close()
        ours.close()
        theirs.close()


def test_a_donor_killed_in_mid_transfer_costs_only_its_stripes(
    stage: Stage, processes: Callable[[], tuple[str, int]]
) -> None:
    address, pid = processes()
    killed = threading.Event()

    def kill(sent: int, data: bytes) -> bytes:
        if sent > 6 * CHUNK_BYTES and not killed.is_set():
            os.kill(pid, signal.SIGKILL)
            killed.set()
        return data

    doomed = stage.network(address, answers=kill)
    survivor = gate(stage.donor(state()), stage, killed)
    healed = stage.heal(doomed.address, survivor)
    assert killed.is_set()
    assert same(healed.tree, state())
    with pytest.raises(PeerError):
        stage.heal(doomed.address)


def test_a_dtensor_without_its_counterpart_is_refused() -> None:
    # The rest of DTensors is in test_leaves.py.
    from ftrun.checkpoint.leaves import LeafSpec, restore

    spec = LeafSpec("dtensor", "", ".w", "float32", (2,), 8, mesh="[Shard(dim=0)] of 4 on (2,)")
    with pytest.raises(UserError, match="'w' is a DTensor"):
        restore(spec, torch.zeros(8, dtype=torch.uint8), None)
