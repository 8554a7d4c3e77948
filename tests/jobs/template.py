"""A process that has imported what jobs need, and forks their programs: see forks.py.

It has one thread, and never runs the modules that it imports. ``python -m tests.jobs.template FD
ROOM``.
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
    "typer._adapters",  # on parsing a command line, with pydantic
)
TO_THE_GROUP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
SPAWNER = "ftrun.agent.spawner"
AGENTS = ("ftrun.cli", "ftrun.tools.launching.host")
HANDLER = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
"""Torchrun's module that starts its workers; it has its own name for ``Popen``."""
UNBUFFERED = "PYTHONUNBUFFERED"
PARKED = 512
"""Descriptors are held at these numbers until each can get its final number."""

Child = Callable[[], None]


def main() -> None:
    """Import, then fork on request until the socket is closed."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)  # this ends when it closes, not with the thread that began it
    template = Forks(sock, sys.path[2:], dict(os.environ))  # after that of -m, and our PYTHONPATH
    gc.disable()  # saves a sixth of the time of what follows
    import_first()
    load_grpc_quietly()
    for name in IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    Imports().finish()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # otherwise each fork would deregister torch's operators
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
        """Returns the fork's next action; None in the template, at its end."""
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
            os.waitpid(between, 0)  # so that the requesting process has adopted the grandchild
            self._sock.send(os.read(told, 64))
            for fd in (told, *fds):
                os.close(fd)

    def _become(self, request: Request, fds: list[int]) -> Child | None:
        """Make this fork look like a newly started program; returns the rest of the start."""
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
        """Be a template for one agent, whose children must be its descendants. Ends with the
        agent."""
        linux.die_with_parent(os.getppid())
        for number in TO_THE_GROUP:
            signal.signal(number, signal.SIG_IGN)
        ours.close()
        held = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, PARKED)
        theirs.detach()  # closed with all others, and its number may soon be reused
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        _close_but((0, 1, 2, held))
        child = Forks(socket.socket(fileno=held), self._base, self._started).serve()
        if child is None:
            os._exit(0)
        return child


def _starts_others(request: Request) -> bool:
    """Whether the program is an agent, or starts one: ``ftrun check``, or a script that launches.

    A lighthouse that starts an agent for each job counts, too. A torchrun worker starts processes
    by its script, without this template.
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
    """Give each descriptor its number, and close all others except ``held``."""
    parked = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, PARKED + 1) for fd in fds]
    for fd, number in zip(parked, request.fds, strict=True):
        os.dup2(fd, number)
    _close_but((*request.fds, *held))


def _close_but(kept: tuple[int, ...]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the listing's own descriptor
                os.close(int(name))


def _show(request: Request) -> None:
    """Make /proc show the command line and the environment."""
    entries = [f"{name}={value}" for name, value in request.environment.items()]
    os.environ.clear()  # the C library's entries lie in the memory that is written next
    os.environ.update(request.environment)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    shown = ((linux.ARGUMENTS_FIELDS, request.words), (linux.ENVIRONMENT_FIELDS, entries))
    for (first, last), texts in shown:
        start, end = int(fields[first]), int(fields[last])
        data = b"".join(os.fsencode(text) + b"\0" for text in texts)
        ctypes.memmove(start, data.ljust(end - start, b"\0"), end - start)


def _renew(request: Request, base: list[str]) -> None:
    """Restore the state of an interpreter at its start."""
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
    np.random.seed()  # Python's own generator reseeds itself after each fork


def _open_standard(number: int, name: str, is_unbuffered: bool) -> None:
    """Open sys.stdin, sys.stdout or sys.stderr like the interpreter."""
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
    """Run like ``python -m MODULE``, ``python -c CODE``, or ``python FILE`` (``how`` is empty)."""
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
    """``_run`` without the interpreter's cleanup of modules, which is a quarter of a worker's cost.

    ``lets_go``: first drop the script's objects, because a worker's destructors may matter.
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
    """Drop the script's objects, as the interpreter does at its end, except models.

    A DDP model owns its process group, whose destructor joins Gloo's threads while it holds
    Python's lock. A thread that drops the last tensor of a call at that moment needs the lock, so
    torch waits forever.
    """
    nn = sys.modules.get("torch.nn")
    models = () if nn is None else nn.Module
    for name in [name for name in names if not name.startswith("__")]:
        if not isinstance(names[name], models):
            names[name] = None
    gc.collect()


if __name__ == "__main__":
    main()
