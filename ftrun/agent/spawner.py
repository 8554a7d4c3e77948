"""The spawner: imports torch once, forks workers, reaps them, and guards the job.

It never has a second thread or a CUDA context. A fork copies only the calling thread, so a lock
that another thread holds would stay locked in the child for ever. Each fork asserts this.

It imports torch before the agent's first message, because every job needs torch and the import
takes longest. In a forked child, ``Spawner.run`` returns the function that the child calls next, so
that a worker's script runs on an empty stack and ends as in any interpreter.

Not here: decisions (core/agent/supervisor.py), the imports (imports.py), a fork's first steps
(child.py), signals to workers and their exits (forked.py).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from ftrun.agent import sweep, tcp_stores
from ftrun.agent.channel import Channel, Frame
from ftrun.agent.child import (
    ChildSetup,
    become_standby,
    become_worker,
    become_writer,
    close,
    open_pipes,
)
from ftrun.agent.env_markers import GUARD_NAME
from ftrun.agent.forked import ForkedWorkers
from ftrun.agent.imports import Imports, Unimportable, import_first
from ftrun.agent.standbys import Standby, Standbys
from ftrun.base import clock, linux
from ftrun.base.own_process import FOR_THE_JOB, is_bare

SWEEP_DEADLINE_S = 4.0
BAD_PRELOAD_EXIT = 2
WARM_DELAY_S = 2.0

Child = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Job:
    """The agent's configuration, sent by the channel: no argv or environment has the token."""

    token: str
    host: str
    preload: tuple[str, ...]
    runtime_dir: str
    eager: bool
    late: bool
    heal_tls: bool


class Spawner:
    """Forks on request, reaps at once, and kills the whole job when the agent has ended."""

    def __init__(
        self, channel: Channel, store_channel: Channel, guard_id: str, started: argparse.Namespace
    ) -> None:
        self._started = started
        self._stdin_fd: int = started.stdin
        self._channel = channel
        self._store_channel = store_channel
        self._guard_id = guard_id
        self._agent_pidfd = os.pidfd_open(os.getppid())
        self._pid = os.getpid()
        self._held_back: tuple[int, ...] = ()
        self._standbys = Standbys()
        self._workers = ForkedWorkers(self._send, self._standbys)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._imports = Imports()
        self._warm_at: float | None = None
        self._stores_pid = 0
        self._leaves = False
        self._job = _Job("", "", (), "", False, False, False)
        self._early: list[Frame] = []

    def run(self) -> Child | None:
        """Serve the agent until it ends.

        Returns:
            None in the spawner, at its end; in a forked process, the function that it calls next.
        """
        if not self._configure():
            return None
        self._import_what_was_asked_for()
        keeper = self._split()
        if keeper is not None:
            return keeper
        child = self._serve()
        if child is None:
            self._end()
        return child

    def _configure(self) -> bool:
        self._early = self._receive_some()
        if not self._early:
            return False
        message = self._early.pop(0).message
        self._job = _Job(
            token=message["token"],
            host=message["host"],
            preload=tuple(message["preload"]),
            runtime_dir=message["runtime_dir"],
            eager=message["eager"],
            late=message["late"],
            heal_tls=message["heal_tls"],
        )
        return True

    def _receive_some(self) -> list[Frame]:
        while not self._channel.closed:
            select.select([self._channel], [], [])
            frames = self._channel.receive()
            if frames:
                return frames
        return []

    def _import_what_was_asked_for(self) -> None:
        try:
            self._imports.preload(self._job.preload)
        except Unimportable as error:
            self._send({"op": "unusable", "reason": str(error)})
            sys.exit(BAD_PRELOAD_EXIT)
        if not self._job.late:
            self._imports.forgo()
        if self._job.heal_tls:
            self._imports.make_ready_for_tls()
        if self._job.eager:
            self._imports.finish()
        # From the first fork on this process is a guard: it must end its children before itself.
        linux.live_without_parent()

    def _split(self) -> Child | None:
        """Fork the spawner proper; the launched process becomes the store process.

        This makes the store process an ancestor of every worker. It is a subreaper, so if the other
        two guards are killed, it inherits all their descendants, whatever their session or group
        is.
        """
        self._assert_forkable()
        if self._started.stderr >= 0:
            # The agent has the output so far, in case the start failed.
            os.dup2(self._started.stderr, 2)
            os.close(self._started.stderr)
        spawner_pid = os.fork()
        if spawner_pid > 0:
            return partial(self._become_stores, spawner_pid)
        self._stores_pid, self._pid = self._pid, os.getpid()
        self._held_back = sweep.hold_back_descriptors()
        linux.become_subreaper()
        linux.title_process("ftrun spawner")
        self._store_channel.close()
        pidfd = os.pidfd_open(self._pid)
        self._send({"op": "ready", "pid": self._pid, "bare": is_bare()}, (pidfd,))
        os.close(pidfd)
        if self._imports.are_done:
            self._send({"op": "warmed"})
        return None

    def _become_stores(self, spawner_pid: int) -> None:
        linux.title_process("ftrun stores")
        guards = tcp_stores.Guards(self._agent_pidfd, os.pidfd_open(spawner_pid))
        self._channel.close()
        if self._stdin_fd >= 0:
            os.close(self._stdin_fd)
        tcp_stores.StoreProcess(self._store_channel, self._job.host, self._guard_id, guards).run()
        shutil.rmtree(self._job.runtime_dir, ignore_errors=True)
        os._exit(0)

    def _serve(self) -> Child | None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        poll = select.poll()
        for fd in (self._agent_pidfd, self._channel.fileno(), self._wake_read):
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(0 if self._early else self._warm_in_ms())}
            if self._agent_pidfd in ready or self._channel.closed:
                return None
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            self._workers.reap()
            if self._early or self._channel.fileno() in ready:
                child = self._obey()
                if child is not None:
                    return child
            elif not ready:
                self._warm()

    def _warm_in_ms(self) -> float | None:
        """The time in milliseconds until the late imports may continue; None: not yet, or all are
        done.

        The delay keeps the imports from slowing the start of a script that may not need them.
        """
        if self._imports.are_done or self._warm_at is None:
            return None
        return max(0.0, self._warm_at - clock.now()) * 1000

    def _warm(self) -> None:
        """Import the next late module; reap workers between the modules that it imports in turn."""
        try:
            self._imports.go_on(self._see_to_exits)
        except _AgentGone:
            self._channel.closed = True
        if self._imports.are_done:
            self._send({"op": "warmed"})

    def _see_to_exits(self) -> None:
        """Between two imports, report exits, and detect the agent's end. Never fork here."""
        self._workers.reap()
        poll = select.poll()
        poll.register(self._agent_pidfd, select.POLLIN)
        poll.register(self._channel.fileno(), select.POLLRDHUP)
        if poll.poll(0):
            raise _AgentGone

    def _obey(self) -> Child | None:
        frames, self._early = self._early, []
        for frame in (*frames, *self._channel.receive()):
            message = frame.message
            if message["op"] == "start":
                child = self._start(message)
                if child is not None:
                    return child
            elif message["op"] == "standby":
                child = self._start_standby(message["name"], message["threads"])
                if child is not None:
                    return child
            elif message["op"] == "writer":
                child = self._start_writer(message["where"])
                if child is not None:
                    return child
            elif message["op"] == "leave":
                self._leaves = True
            elif message["op"] == "signal":
                self._workers.signal(message["incarnation"], message["signal"])
            elif message["op"] == "ask_to_stop":
                self._workers.ask_to_stop(message["incarnation"], message["signal"])
        return None

    # ------------------------------------------------------------------ workers

    def _start(self, assignment: dict[str, Any]) -> Child | None:
        """Pass the assignment to a standby or a new fork; the agent gets its pidfd and its
        output.
        """
        name = {key: assignment["key"][key] for key in ("incarnation", "group_rank")}
        standby = self._standbys.give(assignment["standby"], assignment)
        if standby is not None:
            self._note_started(name, standby.pid, standby.fds()[:3])
            return None
        pid, fds, born = self._fork()
        if born is not None:
            return partial(become_worker, born, assignment)
        if pid > 0:
            self._note_started(name, pid, fds)
        else:
            self._send({"op": "unstarted", **name, "reason": os.strerror(-pid)})
        return None

    def _note_started(self, name: dict[str, Any], pid: int, fds: tuple[int, ...]) -> None:
        if self._warm_at is None:
            self._warm_at = clock.now() + WARM_DELAY_S
        pidfd, out_fd, err_fd = fds
        self._workers.add(name, pid, pidfd)
        self._send({"op": "started", **name, "pid": pid}, fds)
        os.close(out_fd)
        os.close(err_fd)

    def _start_standby(self, name: str, threads: int) -> Child | None:
        try:
            own, theirs = socket.socketpair()
        except OSError as error:
            self._send({"op": "standby_exited", "name": name, "status": error.errno or 1})
            return None
        rehearses = self._imports.are_done  # otherwise a worker's start waits for it
        pid, fds, born = self._fork()
        if born is not None:
            own.close()
            return partial(become_standby, born, name, threads, theirs, rehearses=rehearses)
        theirs.close()
        if pid < 0:
            own.close()
            self._send({"op": "standby_exited", "name": name, "status": -pid})
            return None
        own.setblocking(False)
        pidfd, out_fd, err_fd = fds
        part_fd = own.detach()
        self._standbys.add(Standby(name, pid, pidfd, out_fd, err_fd, part_fd, rehearses))
        return None

    def _start_writer(self, where: str) -> Child | None:
        """Fork the process that writes snapshots. When it ends, the agent requests another."""
        pid, fds, born = self._fork()
        if born is not None:
            return partial(become_writer, born, where)
        close(fds)
        self._workers.writer = pid
        if pid < 0:
            self._send({"op": "writer_ended"})
        return None

    def _fork(self) -> tuple[int, tuple[int, ...], ChildSetup | None]:
        """Fork one process with pipes for its output.

        Returns:
            In the spawner: the pid (minus the error number if the fork failed), the pidfd and the
            read ends of the output. In the child: 0 and its ``ChildSetup``.
        """
        self._assert_forkable()
        pipes: tuple[int, ...] = ()
        try:
            pipes = open_pipes()
            # A signal to the child waits until the child has its own handlers.
            signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_JOB)
            with warnings.catch_warnings():
                # Python counts the threads again after the fork, and the count may be wrong: there
                # was one.
                warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_JOB)
            close(pipes)
            return -(error.errno or 1), (), None
        out_read, out_write, err_read, err_write, reserve = pipes
        if pid == 0:
            self._channel.close()
            guards = (self._agent_pidfd, self._wake_read, self._wake_write)
            others = self._workers.pidfds()
            own = (*self._held_back, *self._standbys.fds())
            inherited = (out_read, err_read, reserve, *guards, *others, *own)
            setup = ChildSetup(
                self._pid, self._job.token, out_write, err_write, inherited, self._stdin_fd,
                self._started.ignored, self._started.blocked,
            )  # fmt: skip
            return 0, (), setup
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_JOB)
        close((out_write, err_write, reserve))
        return pid, (os.pidfd_open(pid), out_read, err_read), None

    def _send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Send to the agent. If the agent has ended, ``_serve`` returns in its next round."""
        try:
            self._channel.send(message, fds)
        except OSError:
            self._channel.closed = True

    def _assert_forkable(self) -> None:
        """Refuse to fork with a thread or a CUDA context: workers might fail at random."""
        threads = linux.thread_count()
        torch = sys.modules.get("torch")
        if threads != 1:
            self._give_up(f"{threads} threads")
        if torch is not None and torch.cuda.is_initialized():
            self._give_up("a CUDA context")

    def _give_up(self, what: str) -> NoReturn:
        names = ", ".join(self._job.preload)
        cause = f"a module of --preload ({names}), or one that it imports" if names else "an import"
        reason = f"the spawner has {what}, and may not fork so: {cause}, has made them"
        self._send({"op": "unusable", "reason": reason})
        sys.exit(BAD_PRELOAD_EXIT)

    def _end(self) -> None:
        """End all processes of the job (P1): the agent has ended or has closed the channel.

        If the job has ended well, the processes that its scripts have left keep running.
        """
        while frames := self._channel.receive():  # an import may have delayed reading
            self._leaves |= any(frame.message["op"] == "leave" for frame in frames)
        close(self._held_back)
        # Standbys end with this process.
        stuck = [] if self._leaves else sweep.kill_all(self._whole_job, SWEEP_DEADLINE_S)
        with contextlib.suppress(OSError):
            if stuck:
                print(f"ftrun: stuck in the kernel, not killed: pids {stuck}", file=sys.stderr)
        shutil.rmtree(self._job.runtime_dir, ignore_errors=True)

    def _whole_job(self) -> list[linux.ProcessRow]:
        self._workers.reap()
        spare = frozenset({self._pid, self._stores_pid})
        return sweep.job_processes(self._guard_id, self._pid, spare)


class _AgentGone(BaseException):
    """Ends an import. It is a BaseException so that no module's ``except Exception`` catches it."""


def main() -> None:
    """Started by launch.py only; signals are ignored by then (own_process.py)."""
    parser = argparse.ArgumentParser(description="The spawner of an ftrun agent.")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--stores", type=int, required=True)
    parser.add_argument("--stdin", type=int, default=-1)
    parser.add_argument("--stderr", type=int, default=-1, help="the terminal's, once it has begun")
    parser.add_argument("--ignored", type=numbers_of, default=frozenset())
    parser.add_argument("--blocked", type=numbers_of, default=frozenset())
    parser.add_argument("--title", help="room for the titles of the workers")
    options = parser.parse_args()
    linux.become_subreaper()
    # Until the first fork, the kernel kills this process when its parent ends.
    if not linux.die_with_parent(options.parent):
        os._exit(0)
    channel = Channel(socket.socket(fileno=options.channel))
    try:
        import_first()
    except Unimportable as error:
        channel.send({"op": "unusable", "reason": str(error)})
        sys.exit(BAD_PRELOAD_EXIT)
    for fd in (options.channel, options.stores, options.stdin, options.stderr):
        if fd >= 0:
            os.set_inheritable(fd, False)
    store_channel = Channel(socket.socket(fileno=options.stores))
    spawner = Spawner(channel, store_channel, os.environ[GUARD_NAME], options)
    child = spawner.run()
    if child is not None:
        child()
    else:
        # There is nothing to flush, and torch's own clean-up would take long.
        os._exit(0)


def numbers_of(text: str) -> frozenset[int]:
    """Parse signal numbers as launch.py writes them."""
    return frozenset(int(word) for word in text.split(",") if word)
