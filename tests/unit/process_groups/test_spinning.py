"""A loop of Gloo's that spins on half a message is told from one that works, and goes to sleep."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch

from ftrun.process_groups import spinning
from ftrun.process_groups.gloo import GlooGroup, ProcessGroupGloo
from ftrun.process_groups.sockets import Descriptor, unread
from ftrun.process_groups.spinning import Loop
from ftrun.process_groups.writers import LIMIT_S, all_sleep, wait_for_writers
from tests.unit.process_groups.ranks import DEADLINE_S, HOST, open_store, started

TRIES = 20
MANY = 16 << 20


class Asking:
    """A thread that asks an epoll for readable connections, and reads none: as Gloo's may."""

    def __init__(self, epoll: select.epoll) -> None:
        self.answers: list[list[tuple[int, int]]] = []
        self.goes_on, self.has_begun = True, threading.Event()
        self._epoll = epoll
        self.thread = threading.Thread(target=self._ask)
        self.thread.start()
        assert self.has_begun.wait(DEADLINE_S)
        assert self.thread.native_id is not None
        self.tid = self.thread.native_id

    def _ask(self) -> None:
        self.has_begun.set()
        while self.goes_on:
            self.answers.append(self._epoll.poll(0.01))

    def end(self) -> None:
        self.goes_on = False
        self.thread.join(DEADLINE_S)


@contextlib.contextmanager
def half_read() -> Iterator[tuple[Asking, Descriptor, socket.socket]]:
    """A connection with unread bytes that was shut down, and who asks for it without end."""
    with socket.create_server((HOST, 0)) as server, select.epoll() as epoll:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        with ours, theirs:
            theirs.sendall(b"half a message")
            epoll.register(ours, select.EPOLLIN)
            ours.shutdown(socket.SHUT_RDWR)
            asking = Asking(epoll)
            try:
                yield asking, Descriptor(ours.fileno(), os.fstat(ours.fileno()).st_ino), ours
            finally:
                asking.end()


def loop_of(asking: Asking, *connections: Descriptor) -> Loop:
    loop = Loop((), connections)
    assert loop.tid is None and not loop.spins()  # nothing is known of no thread
    loop.tid = asking.tid
    return loop


def test_who_spins_goes_to_sleep_and_gets_each_connection_once_more() -> None:
    with half_read() as (asking, connection, ours):
        loop, deadline = loop_of(asking, connection), time.monotonic() + DEADLINE_S
        while not loop.spins():
            assert time.monotonic() < deadline
        seen = len(asking.answers)
        while asking.answers[seen:][-2:] != [[], []]:
            assert time.monotonic() < deadline
        after = [fd for answer in asking.answers[seen:] for fd, _ in answer]
        assert set(after) <= {ours.fileno()}  # what Gloo has put there for it still stands


def test_who_still_reads_does_not_spin() -> None:
    with half_read() as (asking, connection, ours):
        loop = loop_of(asking, connection)
        left = len(b"half a message")
        while left:
            assert unread([connection]) == [left]
            assert not loop.spins()  # the first look at this count, however long it took
            left -= len(ours.recv(1))


def test_little_time_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spinning, "PROOF_NS", 10**15)
    with half_read() as (asking, connection, _):
        loop, seen = loop_of(asking, connection), len(asking.answers)
        while len(asking.answers) < seen + 1000:
            assert not loop.spins()


def test_a_descriptor_that_names_something_else_is_let_be() -> None:
    with half_read() as (asking, connection, _):
        other = Descriptor(connection.fd, connection.inode + 1)
        assert unread([other]) == []
        loop, deadline = loop_of(asking, other), time.monotonic() + DEADLINE_S
        while not loop.spins():
            assert time.monotonic() < deadline
        seen = len(asking.answers)
        while len(asking.answers) < seen + 100:
            assert time.monotonic() < deadline
        assert all(asking.answers[seen:])


def test_a_group_that_forgets_a_half_received_message_lets_its_writers_end() -> None:
    """As a collective does that fails because of another peer: its buffer ends in the message."""
    _held, store = open_store()
    for number in range(TRIES):
        with started(1) as (peer,):
            peer.ask("build", store, str(number), 1, 2, DEADLINE_S)
            pg = ProcessGroupGloo(timedelta(seconds=LIMIT_S + 2))
            group = pg.build(store, str(number), 0, 2, HOST, DEADLINE_S)
            peer.answer()
            assert isinstance(group, GlooGroup)
            tensor, deadline = torch.zeros(MANY), time.monotonic() + DEADLINE_S
            receiving = group.recv([tensor], 1)
            peer.call("start_sending", str(number), MANY)
            while not tensor[0]:
                assert time.monotonic() < deadline
            del receiving
            behind = group.allreduce([torch.ones(1)])
            group.abort()
            assert wait_for_writers([behind], group.threads_sleep)
            if not behind.is_completed():
                assert group._loop.tid is not None
                while not all_sleep({group._loop.tid}, frozenset({spinning.LOOP})):
                    assert time.monotonic() < deadline
                return
    pytest.fail(f"no message was half received in {TRIES} tries")
