"""Gloo groups between real processes: two at once, aborted, killed, built again."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from torch.distributed import ReduceOp, TCPStore

from ftrun.base import clock
from ftrun.base.errors import Bug, PeerError
from ftrun.process_groups.built import AbortSignal, GroupAborted
from ftrun.process_groups.gloo import ProcessGroupGloo
from tests.unit.process_groups.ranks import (
    HOST,
    Holdings,
    Rank,
    call_all,
    call_each,
    open_store,
    signal_after,
    started,
)

LIMIT_S = 3.0
AT_ONCE_S = 30.0  # Milliseconds on a quiet machine. Builds and collectives would wait for longer.


@pytest.fixture
def store() -> Iterator[str]:
    held, address = open_store()
    yield address
    assert held.num_keys() == 0, "a build left keys in the store"


def build(ranks: list[Rank], store: str, prefix: str) -> list[float]:
    return call_each(ranks, "build", lambda rank: (store, prefix, rank, len(ranks)))


@pytest.mark.parametrize("size", [2, 4])
def test_an_abort_wakes_all_who_wait_and_leaves_other_groups_alone(store: str, size: int) -> None:
    with started(size) as ranks:
        build(ranks, store, "old")
        build_s = build(ranks, store, "next")  # Beside the old one.
        sums = call_each(ranks, "reduce", lambda rank: ("next", float(rank)))
        assert {total for total, _ in sums} == {size * (size - 1) / 2}

        waiting = ranks[:-1]  # The last one never joins the reduction.
        call_all(waiting, "start_waiting", "old")
        call_all(waiting, "settle", "old")
        # The first abort ends its neighbours' waits; the others wait for their own abort.
        times_ms, *_ = call_all(waiting, "abort", "old")
        assert max(times_ms.values()) < AT_ONCE_S * 1e3

        assert {total for total, _ in call_all(ranks, "reduce", "next", 1.0)} == {size}
        shown = ", ".join(f"{name} {took:.2f} ms" for name, took in times_ms.items())
        first_s = max(took for _, took in sums)
        print(f"{size} ranks: build {max(build_s) * 1e3:.1f} ms, ", end="")
        print(f"first reduction {first_s * 1e3:.1f} ms, {shown}")


def test_survivors_of_a_kill_reduce_in_a_new_group(store: str) -> None:
    with started(3) as ranks:
        build(ranks, store, "all")
        *survivors, victim = ranks
        call_all(survivors, "start_waiting", "all")
        call_all(survivors, "settle", "all")
        victim.kill()
        call_all(survivors, "abort", "all")
        build(survivors, store, "survivors")
        assert {total for total, _ in call_all(survivors, "reduce", "survivors", 2.0)} == {4.0}
        call_all(survivors, "shutdown", "all")
        assert {total for total, _ in call_all(survivors, "reduce", "survivors", 3.0)} == {6.0}


def test_a_killed_rank_can_be_replaced(store: str) -> None:
    with started(2) as ranks, started(1) as (newcomer,):
        build(ranks, store, "before")
        ranks[1].kill()
        again = [ranks[0], newcomer]
        build(again, store, "after")
        assert {total for total, _ in call_all(again, "reduce", "after", 5.0)} == {10.0}


def assert_flat(held: list[Holdings]) -> None:
    # The device's loop thread is joined by whoever drops the last reference: one may be late.
    slack = Holdings(descriptors=4, threads=2, memory_kib=8 << 10)
    settled = held[len(held) // 4 :]
    for kind, few in slack._asdict().items():
        counts = [getattr(moment, kind) for moment in settled]
        assert max(counts) <= min(counts) + few, f"{kind} grow: {counts[:: len(counts) // 10]}"


@pytest.mark.parametrize("cycles", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_descriptors_and_threads_stay_flat(store: str, cycles: int) -> None:  # P7
    with started(2) as ranks:
        for held in call_each(ranks, "cycle", lambda rank: (store, rank, 2, cycles)):
            assert_flat(held)


def test_an_abort_ends_a_build_that_waits_for_a_peer_to_come(store: str) -> None:
    abort = AbortSignal()
    timer = signal_after(0.05, abort)
    began = clock.now()
    with pytest.raises(GroupAborted):
        ProcessGroupGloo().build(store, "alone", 0, 2, HOST, 60, abort)
    assert clock.now() - began < AT_ONCE_S
    timer.join()


def silent_peer(store: str, prefix: str, host: str) -> socket.socket:
    """A rank 1 that publishes its address, and then does nothing."""
    listener = socket.create_server((host, 0), backlog=0)
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", listener.getsockname()[1])
    address = (address + socket.inet_aton(host)).ljust(128, b"\0") + struct.pack("=q", -1)
    name = b"elsewhere"
    record = struct.pack("=Q", len(name)) + name + struct.pack("=Q", len(address)) + address
    record += struct.pack("=qq", 1 << 40, 2 << 40)
    own, _, port = store.rpartition(":")
    TCPStore(own, int(port), is_master=False).set(f"ftrun/{prefix}/1", record)  # type: ignore[arg-type]
    return listener


@pytest.mark.parametrize("peer_host", ["127.0.0.1", "127.0.0.3"])
def test_an_abort_ends_a_build_that_waits_for_a_connection(store: str, peer_host: str) -> None:
    # Gloo connects towards the lower address: one case is the caller, the other one is called.
    abort = AbortSignal()
    with silent_peer(store, "half", peer_host):
        timer = signal_after(0.2, abort)
        began = clock.now()
        with pytest.raises(GroupAborted):
            ProcessGroupGloo().build(store, "half", 0, 2, "127.0.0.2", 60, abort)
        assert clock.now() - began < 0.2 + AT_ONCE_S
        timer.join()


def test_a_build_ends_at_its_deadline(store: str) -> None:  # L2
    began = clock.now()
    with pytest.raises(PeerError, match="rank 1"):
        ProcessGroupGloo().build(store, "nobody", 0, 2, HOST, 2.0)
    assert clock.now() - began < 2.0 + AT_ONCE_S


def test_a_build_under_an_aborted_signal_does_not_begin(store: str) -> None:
    abort = AbortSignal()
    abort.trigger()
    with pytest.raises(GroupAborted):
        ProcessGroupGloo().build(store, "late", 0, 2, HOST, 10, abort)


def test_a_store_that_is_gone_is_a_clear_error() -> None:
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(PeerError, match=f"the store at {HOST}:{port} cannot be reached") as raised:
        ProcessGroupGloo().build(f"{HOST}:{port}", "x", 0, 2, HOST, 10)
    assert raised.value.unreached == HOST


@pytest.mark.parametrize("is_reached", [True, False])
def test_a_build_names_a_peer_that_cannot_be_reached(store: str, is_reached: bool) -> None:
    with silent_peer(store, "odd", "127.0.0.3") as peer:
        held = []
        for _ in range(0 if is_reached else 4):  # more than wait for its accept
            held.append(socket.socket())
            held[-1].setblocking(False)
            held[-1].connect_ex(peer.getsockname())
        began = clock.now()
        with pytest.raises(PeerError) as raised:
            ProcessGroupGloo().build(store, "odd", 0, 2, "127.0.0.2", LIMIT_S)
        assert clock.now() - began < 5 * LIMIT_S, "Gloo alone would take so long"
        for one in held:
            one.close()
    assert raised.value.unreached == ("" if is_reached else "127.0.0.3")


def test_an_aborted_group_fails_by_its_work_and_the_script_s_sockets_stay(store: str) -> None:
    with started(1) as (peer,), socket.create_server((HOST, 0)) as listener:
        mine = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        abort = AbortSignal()
        peer.ask("build", store, "pair", 1, 2)
        group = ProcessGroupGloo().build(store, "pair", 0, 2, HOST, 10, abort)
        peer.answer()
        abort.trigger()
        group.abort()  # Idempotent.
        failed = group.allreduce([torch.ones(1)])
        assert failed.is_completed() and not failed.is_success()
        with pytest.raises(GroupAborted):
            failed.wait()
        with pytest.raises(GroupAborted):
            failed.get_future().value()
        with mine, theirs:
            mine.sendall(b"still here")
            assert theirs.recv(10) == b"still here"
            socket.create_connection(listener.getsockname()).close()
        group.shutdown()
        group.shutdown()


def test_one_rank_needs_no_network() -> None:
    group = ProcessGroupGloo().build("nowhere:1", "x", 0, 1, "256.0.0.1", 1)
    tensor = torch.arange(3.0)
    group.allreduce([tensor], ReduceOp.SUM).wait()
    assert tensor.tolist() == [0, 1, 2]


def test_configured_by_hand_it_is_a_torch_process_group(store: str) -> None:
    group = ProcessGroupGloo(timeout=timedelta(seconds=10))
    assert (group.size(), group.rank(), group.getBackendName()) == (1, 0, "ftrun-gloo")
    with pytest.raises(Bug, match="before a quorum"):
        group.allreduce([torch.ones(1)])
    with started(1) as (peer,):
        peer.ask("build", store, "by/hand", 1, 2)
        group.configure(f"{store}/by/hand", 0, 2)
        peer.answer()
        assert (group.size(), group.rank()) == (2, 0)
        peer.ask("reduce", "by/hand", 2.0)
        tensor = torch.full((1000,), 3.0)
        torch.distributed.all_reduce(tensor, group=group)
        assert peer.answer()[0] == tensor[0].item() == 5.0
        group.shutdown()
    assert group.size() == 1
