"""Healing: 1 GiB of state against raw TCP on the same path, and a donor's steps meanwhile.

Raw TCP is plain sockets between two processes, from touched memory into touched memory, with the
same number of streams as ftrun. Donors and receivers are separate processes, as in a job. Two
paths: this machine's loopback, where CPU time is the limit, and loopback at the speed of a network
card, where the kernel limits each sending socket to its share of 10 Gbit/s. With TLS
(``measure_tls``): the same, and a state so small that only connecting takes time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from benchmarks import join
from benchmarks.jobs import run_job
from benchmarks.results import Result, Row, Samples

TENSORS = 64
HOST = "127.0.0.1"
TOKEN = "ab" * 32
TIMEOUT_S = 180.0  # a slow machine imports torch in half a minute
DONOR_STEP_S = 0.6
SMALL_BYTES = 200 << 10
CARD_BYTES_PER_S = 1.25e9
_SO_MAX_PACING_RATE = 47  # Linux; Python's socket module does not name it
_SPAWN = multiprocessing.get_context("spawn")


def measure(gib: float, repeats: int, joins: int) -> Result:
    """Every way ``repeats`` times in turn; then ``joins`` newcomers in a job with that state."""
    nbytes = int(gib * 2**30) // (4 * TENSORS) * (4 * TENSORS)
    rates: dict[int, Samples] = {donors: {} for donors in (1, 2)}
    paced: dict[int, Samples] = {donors: {} for donors in (1, 2)}
    extra: dict[int, Samples] = {donors: {} for donors in (1, 2)}
    for _ in range(repeats):
        for donors in (1, 2):
            for way, (serve, receive) in _WAYS.items():
                if donors > 1 and way == "torchft":
                    continue  # it heals from one
                seconds, peak = _transfer(serve, receive, donors, nbytes)
                rates[donors].setdefault(way, []).append(nbytes / seconds / 1e9)
                extra[donors].setdefault(way, []).append(peak / nbytes)
                if way != "ftrun, new memory":
                    streams = 1 if way == "torchft" else 2
                    share = int(CARD_BYTES_PER_S / streams)
                    seconds, _ = _transfer(serve, receive, donors, nbytes, share)
                    paced[donors].setdefault(way, []).append(nbytes / seconds / 1e9)
    return Result(
        "heal",
        f"Healing {nbytes / 2**30:g} GiB, {repeats} times; donors' steps of {DONOR_STEP_S:g} s",
        [
            *_rate_rows(rates),
            *_rate_rows(paced, "_card", ", 10 Gbit/s"),
            *_memory_rows(extra),
            *_donor_rows(nbytes, joins),
        ],
        notes=[
            "ftrun reads what the optimizer steps into the receiver's own tensors, verified; until "
            "all is applied they count as torn. New memory: for what else is part of the state.",
            "Raw TCP goes into memory touched before: two streams from one donor, one from each of "
            "two. 10 Gbit/s: the same path, each sender held by the kernel to its share of that.",
        ],
    )


def measure_tls(gib: float, repeats: int) -> Result:
    """Heals with TLS and without, and raw TCP, ``repeats`` times in turn."""
    nbytes = int(gib * 2**30) // (4 * TENSORS) * (4 * TENSORS)
    rates: dict[int, Samples] = {donors: {} for donors in (1, 2)}
    paced: dict[int, Samples] = {donors: {} for donors in (1, 2)}
    small: Samples = {}
    for _ in range(repeats):
        for way, (serve, receive) in _TLS_WAYS.items():
            for donors in (1, 2):
                seconds, _ = _transfer(serve, receive, donors, nbytes)
                rates[donors].setdefault(way, []).append(nbytes / seconds / 1e9)
                seconds, _ = _transfer(serve, receive, donors, nbytes, int(CARD_BYTES_PER_S / 2))
                paced[donors].setdefault(way, []).append(nbytes / seconds / 1e9)
            seconds, _ = _transfer(serve, receive, 1, SMALL_BYTES)
            small.setdefault(way, []).append(1000 * seconds)
    return Result(
        "heal-tls",
        f"Healing {nbytes / 2**30:g} GiB with TLS and without, {repeats} times",
        [
            *_rate_rows(rates),
            *_rate_rows(paced, "_card", ", 10 Gbit/s"),
            Row("small_ms", f"{SMALL_BYTES >> 10} KiB from one donor", "ms", small),
        ],
        notes=[
            "`scripts/bench.py heal-tls` prints this. ftrun reads into the receiver's own tensors, "
            "verified. TLS 1.3 with AES-256-GCM: donors and receiver share the machine's "
            "processors, so both ends of it are paid for here.",
        ],
    )


def _rate_rows(rates: dict[int, Samples], path: str = "", received: str = "") -> Iterator[Row]:
    for donors, samples in rates.items():
        name = ("one donor" if donors == 1 else f"{donors} donors") + received
        yield Row(f"rate_{donors}{path}", f"from {name}", "GB/s", samples, True, 2)
        raw = sorted(samples["raw TCP"])[len(samples["raw TCP"]) // 2]
        shares = {way: [100 * rate / raw for rate in found] for way, found in samples.items()}
        yield Row(f"share_{donors}{path}", f"… of raw TCP, {name}", "%", shares, True)


def _memory_rows(extra: dict[int, Samples]) -> Iterator[Row]:
    samples = {way: found for way, found in extra[1].items() if way != "raw TCP"}
    yield Row("memory", "receiver's peak memory beyond its own state", "states", samples, digits=2)


# ---------------------------------------------------------------- transfers between processes


def _transfer(
    serve: Any, receive: Any, donors: int, nbytes: int, pace: int = 0
) -> tuple[float, float]:
    """The seconds of one transfer, and the receiver's peak memory beyond what it held before.

    ``pace``: bytes per second that each connection may send; 0: no limit.
    """
    with contextlib.ExitStack() as stack:
        served = (serve, nbytes, donors, pace)
        addresses = [stack.enter_context(_process(*served)) for _ in range(donors)]
        receiver = _process(receive, nbytes, [address for address, _ in addresses])
        _, result = stack.enter_context(receiver)
        outcome: tuple[float, float] = result()
        return outcome


@contextmanager
def _process(
    target: Callable[..., None], *arguments: Any
) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """A process; its first output, and a function for the next. It ends with the block."""
    ours, theirs = _SPAWN.Pipe()
    name = target.__name__.strip("_")
    process: BaseProcess = _SPAWN.Process(
        target=target, args=(theirs, *arguments), name=name, daemon=True
    )
    process.start()
    try:
        theirs.close()
        yield _said(ours, process), lambda: _said(ours, process)
    finally:
        ours.close()
        process.join(5)
        process.kill()
        process.join()


def _said(connection: Connection, process: BaseProcess) -> Any:
    if not connection.poll(TIMEOUT_S):
        raise TimeoutError(f"{process.name} (pid {process.pid}) was silent for {TIMEOUT_S:g} s")
    try:
        return connection.recv()
    except EOFError:
        process.join(5)
        raise RuntimeError(f"{process.name} ended with {process.exitcode}, see above") from None


def _until_closed(connection: Connection) -> None:
    with contextlib.suppress(EOFError):
        connection.recv()


def _state(nbytes: int, value: float) -> dict[str, torch.Tensor]:
    elements = nbytes // 4 // TENSORS
    return {f"layer{i}": torch.full((elements,), value) for i in range(TENSORS)}


def _timed(connection: Connection, fetch: Callable[[], object]) -> None:
    connection.send(None)
    before = _status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    began = time.monotonic()
    kept = fetch()
    seconds = time.monotonic() - began
    connection.send((seconds, max(_status_bytes("VmHWM") - before, 0)))
    del kept
    _until_closed(connection)


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _hold(listener: Any, pace: int) -> None:
    """Limit the sending speed of all connections that ``listener`` accepts from now on."""
    if pace:
        listener.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, pace)


def _serve_raw(connection: Connection, nbytes: int, donors: int, pace: int) -> None:
    data = memoryview(bytearray(b"x") * (nbytes // donors // _streams(donors)))
    with socket.create_server((HOST, 0)) as server:
        _hold(server, pace)
        connection.send(server.getsockname())
        senders = []
        for _ in range(_streams(donors)):
            sock = server.accept()[0]
            senders.append(threading.Thread(target=sock.sendall, args=(data,)))
            senders[-1].start()
        _until_closed(connection)


def _receive_raw(connection: Connection, nbytes: int, addresses: list[Any]) -> None:
    per_donor = _streams(len(addresses))
    parts = [
        (address, memoryview(bytearray(b"y") * (nbytes // len(addresses) // per_donor)))
        for address in addresses
        for _ in range(per_donor)
    ]

    def receive(address: Any, into: memoryview) -> None:
        with socket.create_connection(address) as sock:
            while into:
                into = into[sock.recv_into(into) :]

    def receive_all() -> None:
        threads = [threading.Thread(target=receive, args=part) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    _timed(connection, receive_all)


def _streams(donors: int) -> int:
    return 2 if donors == 1 else 1


def _serve_ftrun(connection: Connection, nbytes: int, donors: int, pace: int) -> None:
    _serve(connection, nbytes, pace, tls=False)


def _serve_tls(connection: Connection, nbytes: int, donors: int, pace: int) -> None:
    _serve(connection, nbytes, pace, tls=True)


def _serve(connection: Connection, nbytes: int, pace: int, tls: bool) -> None:
    from ftrun.checkpoint.serve import StateServer

    server = StateServer(HOST, TOKEN, tls=tls)
    _hold(server._listener, pace)
    server.offer(*_ftrun_names(), _state(nbytes, 1.0), expected=1)
    connection.send((server.address, server.certificate))
    _until_closed(connection)
    server.close()


def _receive_ftrun(connection: Connection, nbytes: int, donors: list[Any]) -> None:
    _fetch(connection, nbytes, donors, in_place=False)


def _receive_in_place(connection: Connection, nbytes: int, donors: list[Any]) -> None:
    _fetch(connection, nbytes, donors, in_place=True)


def _fetch(connection: Connection, nbytes: int, donors: list[Any], in_place: bool) -> None:
    from ftrun.checkpoint.destination import Overwrite
    from ftrun.checkpoint.heal import fetch
    from ftrun.checkpoint.serve import StateServer

    certificates = dict(donors)
    has_tls = all(certificates.values())
    # A real worker has a server, and has already imported and made everything that it needs.
    own = StateServer(HOST, TOKEN, tls=has_tls)
    tag, state_id = _ftrun_names()
    mine = _state(nbytes, 0.0)
    options: dict[str, Any] = {
        "mine": mine,
        "expected": state_id,
        "overwrite": Overwrite() if in_place else None,
        "certificates": certificates if has_tls else None,
    }
    addresses = list(certificates)
    _timed(connection, lambda: (fetch(addresses, tag, TOKEN, TIMEOUT_S, **options), mine))
    own.close()


def _ftrun_names() -> tuple[Any, Any]:
    from ftrun.core.ids import Attempt, StateId, Tag

    return Tag(Attempt(1, 1), 7), StateId(7, "benchmark")


def _serve_torchft(connection: Connection, nbytes: int, donors: int, pace: int) -> None:
    from torchft.checkpointing.http_transport import HTTPTransport

    transport: Any = HTTPTransport(timeout=timedelta(seconds=TIMEOUT_S), num_chunks=0)
    _hold(transport._server.socket, pace)
    state = _state(nbytes, 1.0)
    timeout = timedelta(seconds=TIMEOUT_S)
    transport.send_checkpoint([1], step=7, state_dict=state, timeout=timeout)
    connection.send(transport.metadata())
    _until_closed(connection)


def _receive_torchft(connection: Connection, nbytes: int, addresses: list[str]) -> None:
    from torchft.checkpointing.http_transport import HTTPTransport

    transport: Any = HTTPTransport(timeout=timedelta(seconds=TIMEOUT_S), num_chunks=0)
    mine = _state(nbytes, 0.0)
    timeout = timedelta(seconds=TIMEOUT_S)
    _timed(connection, lambda: (transport.recv_checkpoint(0, addresses[0], 7, timeout), mine))


_WAYS: dict[str, tuple[Any, Any]] = {
    "ftrun": (_serve_ftrun, _receive_in_place),
    "ftrun, new memory": (_serve_ftrun, _receive_ftrun),
    "raw TCP": (_serve_raw, _receive_raw),
    "torchft": (_serve_torchft, _receive_torchft),
}
_TLS_WAYS: dict[str, tuple[Any, Any]] = {
    "ftrun": (_serve_ftrun, _receive_in_place),
    "ftrun, TLS": (_serve_tls, _receive_in_place),
    "raw TCP": (_serve_raw, _receive_raw),
}


# ---------------------------------------------------------------- within a job


def _donor_rows(nbytes: int, joins: int) -> Iterator[Row]:
    """Newcomers that heal this state while the donors train."""
    rng = random.Random(1)
    slowed: Samples = {}
    joined: Samples = {}
    for peer in join.PEERS:
        settings: dict[str, Any] = {"ballast_bytes": nbytes, "step_s": DONOR_STEP_S, "awaits_go": 1}
        with run_job(peer, 3, first_step=4, **settings) as job:
            found = [join.join_one(job, rng, calm_steps=3) for _ in range(joins)]
            job.stop()
        slowed[peer] = [100 * stall / step for stall, _, step in found]
        joined[peer] = [seconds for _, seconds, _ in found]
    yield Row("donor_percent", "a donor's longest step at a heal, beyond its median", "%", slowed)
    yield Row("joined_s", "newcomer begins → its first committed step", "s", joined, digits=2)
