"""A process that has imported what jobs need, and forks their programs: see forks.py.

It has one thread, and never runs what it imports. ``python -m tests.jobs.template FD ROOM``.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.util
import io
import os
import resource
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import types
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ftrun.agent.imports import Imports, import_first
from ftrun.base import linux
from ftrun.cli import means_a_run
from ftrun.protocol.quiet import load_grpc_quietly
from tests.jobs import forks, inside
from tests.jobs.forks import FDS_MAX, REQUEST_BYTES, SCRIPT, TORCHRUN, Request, Template

IMPORTED = (
    "ftrun.tools.commands.app",
    "ftrun.tools.start",
    "ftrun.agent.main",
    "ftrun.agent.child",
    "ftrun.agent.forked",
    "ftrun.agent.tcp_stores",
    "ftrun.lighthouse.main",
    "ftrun.lighthouse.web",
    "ftrun.inject.zero_edit.attaching",
    "ftrun.training.injected",
    TORCHRUN,
    "encodings.idna",
    "psutil",
    "typer._adapters",  # when it reads a command line, and pydantic with it
)
TO_THE_GROUP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
SPAWNER = "ftrun.agent.spawner"
AGENTS = ("ftrun.cli", "ftrun.tools.launching.host")
HANDLER = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
"""Torchrun's module that starts its workers, with a name of its own for ``Popen``."""
UNBUFFERED = "PYTHONUNBUFFERED"
PARKED = 512
"""Descriptors are held from here on until each has the number that it is to have."""

Child = Callable[[], None]


def main() -> None:
    """Import, then fork on request until the socket is closed."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)  # at its end this ends: not with the thread that has begun it
    template = Forks(sock, sys.path[2:], dict(os.environ))  # behind that of -m, and our PYTHONPATH
    gc.disable()  # a sixth of the time of what follows
    import_first()
    load_grpc_quietly()
    for name in IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    Imports().finish()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # of torch's operators, which each fork would deregister
    gc.freeze()
    gc.enable()
    assert linux.thread_count() == 1, "a module of the template has started a thread"
    child = template.serve()
    if child is not None:
        child()


class Forks:
    """Forks on request.

    ``base``: the part of sys.path that every program has. ``started``: the template's environment.
    """

    def __init__(self, sock: socket.socket, base: list[str], started: dict[str, str]) -> None:
        self._sock = sock
        self._base = base
        self._started = started

    def serve(self) -> Child | None:
        """Returns what a fork does next; None in the template, at its end."""
        while True:
            data, fds, _, _ = socket.recv_fds(self._sock, REQUEST_BYTES, FDS_MAX)
            if not data:
                return None
            told, telling = os.pipe()
            between = os.fork()
            if between == 0:
                between = os.getpid()
                pid = os.fork()
                if pid > 0:
                    os.write(telling, str(pid).encode())
                    os._exit(0)
                while os.getppid() == between:
                    time.sleep(0.001)
                return self._become(Request.read(data), fds)
            os.close(telling)
            os.waitpid(between, 0)  # so whoever asks has adopted the other one
            self._sock.send(os.read(told, 64))
            for fd in (told, *fds):
                os.close(fd)

    def _become(self, request: Request, fds: list[int]) -> Child | None:
        """Make this fork look like a started program; returns how that goes on."""
        self._sock.close()
        if request.inside:
            _take(request, fds)
            fds = request.fds
            linux.die_with_parent(os.getppid())
            child = inside.fork_inside(request.inside)
            if child != 0:
                _show(request)
                inside.stand_for(child)
        if _starts_others(request):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if os.fork() == 0:
                return self._hold(ours, theirs)
            theirs.close()
            held = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, PARKED)
            ours.close()
            _take(request, fds, held)
            forks.Popen.template = Template(self._started, socket.socket(fileno=held))
            subprocess.Popen = sys.modules[HANDLER].Popen = forks.Popen  # type: ignore[misc, attr-defined]
        else:
            _take(request, fds)
        _show(request)
        _renew(request, self._base)
        how, *more = request.program
        if how.endswith(SCRIPT):
            return partial(_run_and_end, "", how)
        has_workers = how == "-c" and more[3] == SPAWNER
        return partial(_run_and_end, how, more[0], lets_go=has_workers)

    def _hold(self, ours: socket.socket, theirs: socket.socket) -> Child | None:
        """Be a template for one agent, whose children must descend from it. Dies with it."""
        linux.die_with_parent(os.getppid())
        for number in TO_THE_GROUP:
            signal.signal(number, signal.SIG_IGN)
        ours.close()
        held = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, PARKED)
        theirs.detach()  # closed with all others, and its number may soon be another one's
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        _close_but((0, 1, 2, held))
        child = Forks(socket.socket(fileno=held), self._base, self._started).serve()
        if child is None:
            os._exit(0)
        return child


def _starts_others(request: Request) -> bool:
    """Whether it is an agent, or what starts one: ``ftrun check``, a script that launches.

    So is a lighthouse that starts one for each job. A worker of torchrun's starts what it starts
    as its script says.
    """
    how, *more = request.program
    if how == "-c":
        return more[3] in AGENTS
    if how.endswith(SCRIPT):
        return not request.is_unbuffered
    module, *words = more
    serves_many = words[:1] == ["lighthouse"] and "--jobs" in words
    is_ftruns = means_a_run(words) or words[:1] == ["check"] or serves_many
    return module == TORCHRUN or (module == "ftrun" and is_ftruns)


def _take(request: Request, fds: list[int], *held: int) -> None:
    """Give each descriptor its number, and close all others but ``held``."""
    parked = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, PARKED + 1) for fd in fds]
    for fd, number in zip(parked, request.fds, strict=True):
        os.dup2(fd, number)
    _close_but((*request.fds, *held))


def _close_but(kept: tuple[int, ...]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))


def _show(request: Request) -> None:
    """Have /proc show the command line and the environment."""
    entries = [f"{name}={value}" for name, value in request.environment.items()]
    os.environ.clear()  # the C library's entries lie in the memory that is written now
    os.environ.update(request.environment)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    shown = ((linux.ARGUMENTS_FIELDS, request.words), (linux.ENVIRONMENT_FIELDS, entries))
    for (first, last), texts in shown:
        start, end = int(fields[first]), int(fields[last])
        data = b"".join(os.fsencode(text) + b"\0" for text in texts)
        ctypes.memmove(start, data.ljust(end - start, b"\0"), end - start)


def _renew(request: Request, base: list[str]) -> None:
    """What an interpreter has at its start."""
    if request.session:
        os.setsid()
    if request.in_front:
        fcntl.ioctl(2, termios.TIOCSCTTY, 0)
    os.chdir(request.directory)
    for number, limits in request.limits:
        resource.setrlimit(number, limits)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        is_ignored = number in (*request.ignored, signal.SIGPIPE, signal.SIGXFSZ)
        signal.signal(number, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    if signal.SIGINT not in request.ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # a script that had imported them would have imported ftrun itself
    sys.orig_argv = list(request.words)
    how, *more = request.program
    if how.endswith(SCRIPT):
        sys.argv, first = [how, *more], os.path.dirname(os.path.abspath(how))
    else:
        is_code = how == "-c"
        sys.argv, first = ["-c" if is_code else "", *more[1:]], "" if is_code else request.directory
    sys.path[:] = [first, request.environment["PYTHONPATH"], *base]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _open_standard(number, name, request.is_unbuffered)
    np.random.seed()  # Python's own generator has a seed of its own after each fork


def _open_standard(number: int, name: str, is_unbuffered: bool) -> None:
    """As the interpreter makes sys.stdin, sys.stdout and sys.stderr."""
    former = getattr(sys, f"__{name}__")
    raw: Any = open(number, "wb" if number else "rb", 0, closefd=False)  # noqa: SIM115
    raw.name = f"<{name}>"
    is_through = number > 0 and (is_unbuffered or bool(os.environ.get(UNBUFFERED)))
    buffer = raw if is_through else (io.BufferedWriter if number else io.BufferedReader)(raw)
    lines = not is_through and (name == "stderr" or raw.isatty())
    encoding = os.environ.get("PYTHONIOENCODING") or former.encoding
    stream: Any = io.TextIOWrapper(
        buffer, encoding, former.errors, None, lines, write_through=is_through
    )
    stream.mode = "w" if number else "r"
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _run(how: str, what: str) -> None:
    """As ``python -m MODULE``, ``python -c CODE``, or ``python FILE`` (``how`` is empty)."""
    program = types.ModuleType("__main__")
    sys.modules["__main__"] = sys.modules["__mp_main__"] = program
    if not how:
        program.__file__ = what
        exec(compile(Path(what).read_bytes(), what, "exec"), program.__dict__)
        return
    if how == "-c":
        exec(what, program.__dict__)
        return
    spec = importlib.util.find_spec(what)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{what}.__main__")
    assert spec is not None and spec.loader is not None and spec.origin is not None
    program.__spec__, program.__file__, program.__package__ = spec, spec.origin, spec.parent
    sys.argv[0] = spec.origin
    exec(spec.loader.get_code(spec.name), program.__dict__)  # type: ignore[attr-defined]


def _run_and_end(how: str, what: str, lets_go: bool = False) -> None:
    """``_run``, without taking the interpreter's modules apart: a quarter of what a worker costs.

    ``lets_go``: first of what the script holds, whose destructors are a worker's own.
    """
    code: object = 0
    try:
        _run(how, what)
    except SystemExit as end:
        code = end.code
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if lets_go:
        _let_go(sys.modules["__main__"].__dict__)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _let_go(names: dict[str, Any]) -> None:
    """As the interpreter does with a module at its end, but for models: with a DDP goes its process
    group, which joins Gloo's threads with Python's lock held. One that drops the last tensor of a
    call just now needs that lock, and torch waits for ever."""
    nn = sys.modules.get("torch.nn")
    models = () if nn is None else nn.Module
    for name in [name for name in names if not name.startswith("__")]:
        if not isinstance(names[name], models):
            names[name] = None
    gc.collect()


if __name__ == "__main__":
    main()
