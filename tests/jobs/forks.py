"""``subprocess.Popen`` for our own programs, whose processes are forks of a template.

A job costs seconds of CPU time, most of them for imports: of torch in its spawner, of gRPC in its
agent and its lighthouse. The template (template.py) has imported all that. Its fork looks like a
process that was started by exec: arguments, environment, descriptors, session, signals. It is a
child of the requesting process, and /proc shows its own command line and environment.

Not here: the template's side (template.py).
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ftrun.agent.launch import SINGLE_THREADED
from ftrun.base import linux, own_process

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = "torch.distributed.run"
MODULES = ("ftrun", "tests.jobs.facts", "tests.unit.inject.parent", TORCHRUN)
OWN = own_process.command("", ())[:4]
"""The words with which each of ftrun's own processes begins."""
HASH_SEED = "0"
"""Each template's hash seed. A fork has it too: a program with another seed is started by exec."""
SCRIPT = ".py"
UNBUFFERED = "-u"
"""The interpreter's flag with which torchrun starts its workers."""
SHOWN_BYTES = 32 * 1024
"""Room for the template's arguments and for its environment: forks write their own there."""
REQUEST_BYTES = 128 * 1024
FDS_MAX = 16
IN_FRONT = """
import fcntl, os, sys, termios
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""``python -c IN_FRONT WORDS``: the session's terminal is the one on standard error."""
INSIDE = ("setpriv", "--pdeathsig", "KILL", "nsenter")
"""``INSIDE --target=PID --wd=DIRECTORY --net --uts --mount --pid WORDS``: run WORDS in the network,
with the host name, the mounts and the pids of a process; it is killed with this one."""
AT_IMPORT = (
    "CUDA_", "FORCE_COLOR", "GITHUB_ACTIONS", "GRPC_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_",
    "MKL_", "NCCL_", "NO_COLOR", "NUMEXPR_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_", "PY_COLORS",
    "TERMINAL_WIDTH", "TORCHINDUCTOR_", "TORCH_", "TYPER_", "TZ", "_TYPER_",
)  # fmt: skip
"""The first letters of the names that interpreters and libraries read when they start."""
AFTERWARDS = (
    "PYTHONHASHSEED", "PYTHONIOENCODING", "PYTHONPATH", "PYTHONUNBUFFERED",
    "PYTORCH_NVML_BASED_CUDA_CHECK", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
"""Those of these names that a fork can follow, or that are read later."""


@dataclass(frozen=True)
class Request:
    """A requested fork.

    ``words``: ``python`` with ``-m MODULE``, ``-c CODE`` or a file, perhaps with ``-u``.
    ``fds``: the numbers of the descriptors, sent along, in the fork. ``limits``: pairs of a
    resource's number and its limits. ``ignored``, ``blocked``: signals. ``in_front``: see IN_FRONT.
    ``inside``: the process whose namespaces it is in, see INSIDE; 0: the template's.
    """

    words: list[str]
    environment: dict[str, str]
    directory: str
    fds: list[int]
    session: bool
    limits: list[tuple[int, tuple[int, int]]]
    ignored: list[int]
    blocked: list[int]
    in_front: bool
    inside: int

    @property
    def is_unbuffered(self) -> bool:
        """Whether its standard streams are unbuffered, by the interpreter's flag."""
        return self.words[1] == UNBUFFERED

    @property
    def program(self) -> list[str]:
        """The program that the interpreter runs, and its arguments."""
        return self.words[2:] if self.is_unbuffered else self.words[1:]

    @classmethod
    def read(cls, data: bytes) -> Request:
        """Receive the request that ``Template.fork`` has sent."""
        return cls(**json.loads(data))


class Template:
    """The requester's end of a template's socket; without a socket a template starts on demand.

    ``environment``: the template's, at its start.
    """

    def __init__(self, environment: Mapping[str, str], sock: socket.socket | None = None) -> None:
        self._sock = sock
        self._started = of_the_start(environment)
        self._lock = threading.Lock()

    def can_become(self, request: Request) -> bool:
        """Whether a fork can be what is requested; False: only exec can."""
        entries = [f"{name}={value}" for name, value in request.environment.items()]
        shown = [os.fsencode("\0".join(texts)) for texts in (request.words, entries)]
        return (
            max(map(len, shown)) < SHOWN_BYTES
            and request.environment.get("PYTHONPATH") == str(ROOT)
            and request.environment.get("PYTHONHASHSEED", HASH_SEED) == HASH_SEED
            and of_the_start(request.environment) == self._started
        )

    def fork(self, request: Request, fds: Sequence[int]) -> int:
        """Fork a new child of this process; returns its pid.

        Raises:
            OSError: the template has ended.
        """
        with self._lock:
            self._sock = self._sock or _start()
            _adopt_orphans(True)  # the fork of a fork, whose parent ends at once
            try:
                data = json.dumps(asdict(request)).encode()
                socket.send_fds(self._sock, [data], list(fds))
                answer = self._sock.recv(64)
            finally:
                _adopt_orphans(False)
        if not answer:
            raise OSError(f"the template has ended: {request.words}")
        return int(answer)


def of_the_start(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are read when a program starts or a library is imported."""
    found = {k: v for k, v in environment.items() if k.startswith(AT_IMPORT)}
    return {k: v for k, v in found.items() if k not in (*AFTERWARDS, *SINGLE_THREADED)}


def _adopt_orphans(does: bool) -> None:
    ctypes.CDLL(None).prctl(linux.PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(does), 0, 0, 0)


class Popen(subprocess.Popen[Any]):
    """A ``subprocess.Popen`` that has the template fork the programs that it can become."""

    template = Template(os.environ)

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any,
        cwd: Any, env: Any, startupinfo: Any, creationflags: Any, shell: Any,
        p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
        *rest: Any,
    ) -> None:  # fmt: skip
        """Called by Popen: ``rest[5]`` is ``start_new_session`` in each Python."""
        standard = (p2cread, c2pwrite, errwrite)
        request = None
        if not (shell or executable or preexec_fn):
            request = _request(args, env, cwd, pass_fds, bool(rest[5]))
        if request is None or not self.template.can_become(request):
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
                creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite,
                *rest,
            )  # fmt: skip
            return
        ours = [fd if fd >= 0 else number for number, fd in enumerate(standard)]
        self.pid = self.template.fork(request, [*ours, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
        )


def _request(
    args: Any, env: Mapping[str, str] | None, cwd: Any, pass_fds: Sequence[int], session: bool
) -> Request | None:
    """The request for a program of ours, or a script's; None for any other command."""
    words = [os.fsdecode(word) for word in args] if isinstance(args, list | tuple) else []
    inside, words, cwd = _inside(words, cwd)
    in_front = words[:3] == [sys.executable, "-c", IN_FRONT]
    words = [sys.executable, *words[3:]] if in_front else words
    is_module = words[:2] == [sys.executable, "-m"] and words[2] in MODULES
    script = words[2:3] if words[1:2] == [UNBUFFERED] else words[1:2]
    is_file = words[:1] == [sys.executable] and "".join(script).endswith(SCRIPT)
    if not (is_module or is_file) and words[: len(OWN)] != OWN:
        return None
    numbers = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    return Request(
        words=words,
        environment=dict(os.environ if env is None else env),
        directory=os.fsdecode(cwd or os.getcwd()),
        fds=[0, 1, 2, *pass_fds],
        session=session,
        limits=[(number, resource.getrlimit(number)) for number in numbers],
        ignored=[n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN],
        blocked=list(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        in_front=in_front,
        inside=inside,
    )


def _inside(words: list[str], cwd: Any) -> tuple[int, list[str], Any]:
    """The process whose namespaces are requested (0: none), the command there, and its
    directory."""
    if tuple(words[: len(INSIDE)]) != INSIDE:
        return 0, words, cwd
    options = list(itertools.takewhile(lambda x: x.startswith("--"), words[len(INSIDE) :]))
    values = dict(option[2:].partition("=")[::2] for option in options)
    return int(values["target"]), words[len(INSIDE) + len(options) :], values["wd"]


def popen(*args: Any, **options: Any) -> subprocess.Popen[Any]:
    """Like ``subprocess.Popen``, but a fork of this process's template where that is possible.

    With ``FRESH_JOBS`` in the environment everything is started by exec.
    """
    if os.environ.get("FRESH_JOBS"):
        return subprocess.Popen(*args, **options)
    return Popen(*args, **options)


def run(
    words: Sequence[str],
    *,
    timeout: float,
    check: bool = False,
    capture_output: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Like ``subprocess.run``, through ``popen``."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(words, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        finally:
            process.kill()
    done = subprocess.CompletedProcess(words, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def _start() -> socket.socket:
    """Start this process's template; it ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {
        **os.environ,
        **SINGLE_THREADED,
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": HASH_SEED,
        "ROOM_FOR_THE_ENVIRONMENT": "." * SHOWN_BYTES,
    }
    words = [sys.executable, "-m", "tests.jobs.template", str(theirs.fileno()), "." * SHOWN_BYTES]
    with theirs:
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )

    def end() -> None:
        ours.close()
        process.kill()
        process.wait()

    atexit.register(end)
    return ours
