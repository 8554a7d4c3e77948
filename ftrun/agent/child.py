"""A forked process between the spawner's fork and the script.

A worker has its assignment from the start. A standby has done all work that is common to all
assignments, and waits for its own at a socket; the wait ends with the assignment or with the
spawner. If it rehearses first, it does so at a low priority, because a job trains meanwhile.

Not here: the fork itself (spawner.py), how a fork is made to look fresh (inject/bootstrap.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ftrun.agent import affinity, numa
from ftrun.agent.channel import Channel
from ftrun.agent.env_markers import OWNER_NAME
from ftrun.agent.launch import TITLE_CHARS
from ftrun.base import linux, own_process
from ftrun.base.own_process import FOR_THE_JOB
from ftrun.config.script import TargetKind
from ftrun.core.ids import WorkerKey
from ftrun.inject import bootstrap, rehearsal
from ftrun.inject.bootstrap import WorkerTask
from ftrun.snapshots import serving
from ftrun.training.context import WorkerContext

READY = b"."
REHEARSAL_NICE = 10


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """A fork's start.

    ``inherited``: the spawner's own descriptors, which the fork closes. ``stdin_fd``: ftrun's
    standard input, if this worker may read it; else -1. ``ignored``, ``blocked``: the signals that
    were ignored or blocked when ftrun was started; a worker inherits this.
    """

    spawner_pid: int
    token: str
    out_fd: int
    err_fd: int
    inherited: tuple[int, ...]
    stdin_fd: int = -1
    ignored: frozenset[int] = frozenset()
    blocked: frozenset[int] = frozenset()


def become_worker(setup: ChildSetup, assignment: dict[str, Any]) -> None:
    """Run the script as the worker that ``assignment``, a StartWorker, names."""
    _detach(setup)
    _take_signals(setup)
    if not assignment["fresh"]:
        bootstrap.prepare(assignment["threads"])
    _run(setup, assignment)


def become_standby(
    setup: ChildSetup, name: str, threads: int, waiting: socket.socket, *, rehearses: bool
) -> None:
    """Prepare, wait for an assignment, and run the script; end if the spawner closes its end.

    ``rehearses``: first train once, then send a byte.
    """
    _detach(setup)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_JOB)  # it ignores them until it is a worker
    linux.title_process(f"ftrun rehearsal of {name}" if rehearses else f"ftrun {name}")
    bootstrap.prepare(threads)
    if rehearses:
        with _niced(), contextlib.suppress(Exception):  # else the script is the first
            rehearsal.rehearse()
        with contextlib.suppress(OSError):  # the spawner is gone
            waiting.send(READY)
        linux.title_process(f"ftrun {name}")
    channel = Channel(waiting)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while not channel.closed:
        poll.poll()
        for frame in channel.receive():
            channel.close()
            _take_signals(setup)
            _run(setup, frame.message)
    os._exit(0)


@contextlib.contextmanager
def _niced() -> Iterator[None]:
    """Lower this process's priority meanwhile, if it may raise it again."""
    before, may = os.getpriority(os.PRIO_PROCESS, 0), list[bool]()

    def look() -> None:  # in a thread, because each thread has its own priority
        os.setpriority(os.PRIO_PROCESS, 0, before + REHEARSAL_NICE)
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)
            may.append(True)

    looking = threading.Thread(target=look)
    looking.start()
    looking.join()
    try:
        if may:
            os.setpriority(os.PRIO_PROCESS, 0, before + REHEARSAL_NICE)
        yield
    finally:
        if may:
            os.setpriority(os.PRIO_PROCESS, 0, before)


def become_writer(setup: ChildSetup, where: str) -> NoReturn:
    """Write snapshots.

    Ends with the spawner, and ignores the signals for the job, as the spawner does.
    """
    _detach(setup)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_JOB)
    linux.title_process(serving.TITLE)
    serving.main(Path(where))
    os._exit(0)


def _detach(setup: ChildSetup) -> None:
    """Lead a new session, without the spawner's descriptors and signal handlers."""
    if not linux.die_with_parent(setup.spawner_pid):
        os._exit(0)
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for fd, standard in ((null, 0), (setup.out_fd, 1), (setup.err_fd, 2)):
        os.dup2(fd, standard)
    close((null, setup.out_fd, setup.err_fd, *setup.inherited))


def _take_signals(setup: ChildSetup) -> None:
    """Reset the signals for the job as in a process of torchrun; bootstrap.py adds SIGINT."""
    for number in FOR_THE_JOB:
        signal.signal(number, signal.SIG_IGN if number in setup.ignored else signal.SIG_DFL)
    others = signal.pthread_sigmask(signal.SIG_BLOCK, ()) - FOR_THE_JOB
    signal.pthread_sigmask(signal.SIG_SETMASK, others | setup.blocked)


def close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def open_pipes() -> tuple[int, ...]:
    """Two pipes, and a descriptor in reserve, so that the pidfd can be opened after the fork.

    Raises:
        OSError: there are too few descriptors; then none of these is open.
    """
    fds: list[int] = []
    try:
        fds += os.pipe2(os.O_CLOEXEC)
        fds += os.pipe2(os.O_CLOEXEC)
        fds.append(os.dup(fds[0]))
    except OSError:
        close(fds)
        raise
    return tuple(fds)


def _take_stdin(fd: int, is_mine: bool) -> None:
    if fd < 0:
        return
    if is_mine:
        os.dup2(fd, 0)
    os.close(fd)


def _bind(cpus: list[int], memory_node: int) -> None:
    try:
        affinity.bind(cpus, memory_node)
    except OSError as error:
        sys.exit(
            f"ftrun: this worker cannot be bound to CPUs {numa.ranges(cpus)} ({error.strerror}). "
            "They were usable when the job was started. It ends; see --numa-binding."
        )


def _run(setup: ChildSetup, assignment: dict[str, Any]) -> None:
    _take_stdin(setup.stdin_fd, assignment["stdin"])
    if assignment["cpus"]:
        _bind(assignment["cpus"], assignment["memory_node"])
    if assignment["fresh"]:
        _become_fresh(setup.token, assignment)
    linux.write_own_environment(OWNER_NAME, assignment["key"]["incarnation"])
    run_script(setup.token, assignment)


def _become_fresh(token: str, assignment: dict[str, Any]) -> NoReturn:
    """Replace this process by a new interpreter with exec, with the same pid and descriptors.

    The assignment is in a file without a name, because the token must be in no argument and in no
    environment.
    """
    fd = os.memfd_create("assignment", 0)  # the new interpreter inherits it
    with open(fd, "wb", closefd=False) as file:
        file.write(json.dumps({"token": token, "assignment": assignment}).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    words = (str(fd), "." * TITLE_CHARS)
    python, *rest = own_process.command("ftrun.agent.fresh", words, acts_on_signals=True)
    owner = {OWNER_NAME: assignment["key"]["incarnation"]}
    try:
        environ = {**os.environ, **assignment["environment"], **owner}
        os.execve(python, [python, "-u", *rest], environ)
    except OSError as error:
        sys.exit(f"ftrun: this worker's interpreter cannot be started ({error.strerror}). It ends.")


def run_script(token: str, assignment: dict[str, Any]) -> NoReturn:
    """Run the script of an assignment in this process, which is prepared for it."""
    key = WorkerKey(**assignment["key"])
    words = " ".join([assignment["target"], *assignment["args"]])
    linux.title_process(f"ftrun worker {key.replica_id}.{key.group_rank}: {words}")
    bootstrap.run(
        WorkerTask(
            context=WorkerContext(key=key, token=token, **assignment["context"]),
            target=assignment["target"],
            kind=TargetKind(assignment["kind"]),
            args=tuple(assignment["args"]),
            environment=assignment["environment"],
            inject=assignment["inject"],
            torchft=assignment["torchft"],
            explicit_environment=assignment["explicit_environment"],
            life_lock=assignment["life_lock"],
        )
    )
