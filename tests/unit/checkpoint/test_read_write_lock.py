"""The lock for many readers or one writer."""

from __future__ import annotations

import threading

import pytest

from ftrun.checkpoint.read_write_lock import RWLock


def test_readers_share_it_and_a_writer_does_not() -> None:
    lock = RWLock(timeout=0.01)
    with lock.r_lock(), lock.r_lock():
        assert lock.w_locked()
        with pytest.raises(TimeoutError, match="writing"):
            lock.w_acquire()
    with lock.w_lock():
        with pytest.raises(TimeoutError, match="reading"):
            lock.r_acquire()
        with pytest.raises(TimeoutError), lock.w_lock():
            pass
    assert not lock.w_locked()


def test_a_writer_s_end_wakes_readers() -> None:
    lock, read = RWLock(timeout=60), threading.Event()
    lock.w_acquire()

    def reader() -> None:
        with lock.r_lock():
            read.set()

    thread = threading.Thread(target=reader)
    thread.start()
    lock.w_release()
    assert read.wait(60)
    thread.join()
