"""The first code of a worker: makes it look like a fresh ``python script.py``.

The worker is a fork of the spawner, which has torch imported. This module resets everything that a
fork shares with its parent and a fresh interpreter would not: stdio, random seeds, thread counts,
arguments. Then the script runs as ``__main__``. If the worker is a new interpreter without torch,
ftrun is attached to torch when the script imports it (attached.py).

An uncaught exception is sent to the agent before the process ends, so that the report names it
without any decorator in the script.

Not here: the start itself, signals and descriptors of the spawner (agent/child.py), and the Manager
(training/).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import io
import os
import runpy
import signal
import sys
import traceback
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.machinery import SourcelessFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ftrun.base import life_lock
from ftrun.base.errors import UserError
from ftrun.config.script import TargetKind, is_compiled
from ftrun.inject import notices, stacks, stopping, torchft_names
from ftrun.inject.attached import Attached
from ftrun.inject.command import become, for_this_rank
from ftrun.inject.report import FAILURE_TIMEOUT_S, send_to_agent
from ftrun.inject.zero_edit import headers
from ftrun.training import context
from ftrun.training.context import WorkerContext

if TYPE_CHECKING:
    from ftrun.core.messages import FailureReport
    from ftrun.inject.zero_edit.loop import Loop

MESSAGE_CHARS_MAX = 4_000
TRACEBACK_CHARS_MAX = 64_000
OPENBLAS_SETTERS = (
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "scipy_openblas_set_num_threads64_",
)
_RUNPY = (runpy.__file__, "<frozen runpy>")
_AROUND_THE_SCRIPT = (__file__, str(Path(__file__).with_name("function.py")), *_RUNPY)
LOADED_FOR_US = (
    "cProfile", "colorsys", "decimal", "fractions", "getpass", "hmac", "html", "mimetypes",
    "profile", "pstats", "resource", "secrets", "shlex", "socketserver", "statistics", "sysconfig",
    "termios", "unicodedata",
)  # fmt: skip
"""Modules of Python's library that ftrun loads before the script, but torch's import does not."""
EXIT_UNCAUGHT = 1
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """One worker's identity and script.

    Attributes:
        inject: see config/forms.py.
        torchft: see ``--torchft``.
        explicit_environment: with ``auto``, replaces ``environment`` if the script turns out to use
            ftrun itself.
        life_lock: the place of the lock that shows the agent that this worker lives; "": none.
    """

    context: WorkerContext
    target: str
    kind: TargetKind
    args: tuple[str, ...]
    environment: dict[str, str]
    inject: str = "explicit"
    torchft: str = "auto"
    explicit_environment: dict[str, str] = field(default_factory=dict)
    life_lock: str = ""


def prepare(threads: int) -> None:
    """Reset everything that is the same for every worker."""
    _renew_stdio()
    atexit.register(_let_triton_go)
    _renew_torch(threads)
    _renew_numpy()
    if threads > 1:
        _renew_blas(threads)
    faulthandler.enable(sys.stderr)


def _let_triton_go() -> None:
    """Unfreeze at exit, because triton's modules would print all objects that are left.

    The spawner has frozen what it imported. This takes tenths of a second, so only with triton.
    """
    if "triton._C.libtriton" in sys.modules:
        gc.unfreeze()


def run(task: WorkerTask) -> NoReturn:
    """Become the worker of ``task`` and run its script. Call ``prepare`` first.

    Raises:
        SystemExit: always. The caller lets it end the interpreter, as at a script's end.
    """
    if task.life_lock:
        with contextlib.suppress(OSError):  # then the agent notices its end by the pidfd
            life_lock.hold(task.life_lock)
    os.environ.update(task.environment)
    if task.inject != "off":
        context.install(task.context)
        torchft_names.install(task.torchft, task.context)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stopping.install()
    notices.install()
    stacks.install(Path(task.context.socket_path).parent, task.context.key)
    sys.orig_argv = _as_started_alone(task)
    is_python = task.kind is not TargetKind.COMMAND
    attached = Attached(
        task.context,
        task.inject if is_python else "off",
        task.environment,
        task.explicit_environment,
    )
    try:
        leaving = _ended_by(task)
        if attached.loop is not None and (leaving is None or not leaving.code):
            attached.loop.ends()
        if leaving is not None:
            raise leaving
    except SystemExit as leaving:
        stopping.script_has_ended()
        _note_exit(task.context, leaving)
        attached.alone.ends(well=not context.Process.failed)
        raise
    except BaseException as error:  # noqa: BLE001
        # This is the top of the script's stack, so every exception arrives here.
        stopping.script_has_ended()
        _fail(task.context, _refusal_of(error, attached.loop))
    stopping.script_has_ended()
    attached.alone.ends(well=True)
    sys.exit(0)


def _ended_by(task: WorkerTask) -> SystemExit | None:
    """Run the script to its end. Returns the exception of ``sys.exit``, if it ends with one."""
    try:
        _run_target(task)
    except SystemExit as leaving:
        return leaving
    return None


def _renew_stdio() -> None:
    """Make fresh text streams on descriptors 0, 1 and 2, unbuffered as with ``python -u``.

    Printed text survives a SIGKILL, with or without a newline at its end. The encodings are those
    with which this interpreter started: the locale's, or PYTHONIOENCODING's.
    """
    buffered = io.BufferedReader(io.FileIO(0, closefd=False))
    sys.stdin = io.TextIOWrapper(buffered, *_encoding(sys.__stdin__, "strict"))
    sys.stdout = _text_stream(1, *_encoding(sys.__stdout__, "strict"))
    sys.stderr = _text_stream(2, *_encoding(sys.__stderr__, "backslashreplace"))
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))


def _encoding(stream: Any, errors: str) -> tuple[str, str]:
    """Encoding and error handler of a standard stream; UTF-8 if ftrun was started without it."""
    return (stream.encoding, stream.errors) if stream is not None else ("utf-8", errors)


class Descriptor(io.FileIO):
    """A raw file whose ``write`` can be replaced (zero_edit/printed.py)."""


def _text_stream(fd: int, encoding: str, errors: str) -> io.TextIOWrapper:
    raw: Any = Descriptor(fd, "wb", closefd=False)  # as the interpreter does, against the stub
    return io.TextIOWrapper(raw, encoding, errors, write_through=True)


def _renew_torch(threads: int) -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    # The libraries read OMP_NUM_THREADS, which was 1, when the spawner loaded them.
    torch.set_num_threads(threads)
    # A new interpreter draws its own seed. CUDA's generators do so later, when first used.
    torch.default_generator.seed()


def _renew_numpy() -> None:
    """Seed numpy's global generator, which is seeded at import: all forks would draw the same
    numbers."""
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def _renew_blas(threads: int) -> None:
    """Set the threads of numpy's OpenBLAS, which was loaded with one thread. torch cannot set
    it."""
    for path in _loaded_libraries("openblas"):
        library = ctypes.CDLL(path)
        for name in OPENBLAS_SETTERS:
            setter = getattr(library, name, None)
            if setter is not None:
                setter(ctypes.c_int(threads))


def _loaded_libraries(name: str) -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if name in line}
    return sorted(path for path in paths if path.startswith("/"))


def _as_started_alone(task: WorkerTask) -> list[str]:
    """The command that would run the script without ftrun, for scripts that restart themselves."""
    python = [sys.executable, "-u"]
    if task.kind is TargetKind.FUNCTION:
        return python
    kind = ["-m"] if task.kind is TargetKind.MODULE else []
    return [*python, *kind, task.target, *task.args]


def _run_target(task: WorkerTask) -> None:
    if any("local_rank" in arg for arg in task.args) and task.kind is not TargetKind.FUNCTION:
        task = replace(task, args=tuple(for_this_rank(task.args)))
    match task.kind:
        case TargetKind.COMMAND:
            become((task.target, *task.args))
        case TargetKind.PATH:
            sys.argv = [task.target, *task.args]
            _search_first(str(Path(task.target).resolve().parent))
            runpy.run_path(_absolute(task.target), run_name="__main__")
        case TargetKind.FILE:
            _run_script(task)
        case TargetKind.MODULE:
            sys.argv = [task.target, *task.args]
            _search_first(os.getcwd())
            runpy.run_module(task.target, run_name="__main__", alter_sys=True)
        case TargetKind.FUNCTION:
            from ftrun.inject.function import run_function

            run_function(task.context.key, Path(task.args[0]))


def _run_script(task: WorkerTask) -> None:
    sys.argv = [task.target, *task.args]
    path = Path(task.target)
    if path.is_dir() or path.suffix in (".zip", ".pyz"):
        runpy.run_path(_absolute(task.target), run_name="__main__")
        return
    _search_first(str(path.resolve().parent))
    _run_file(_absolute(task.target))


def _search_first(directory: str) -> None:
    """Look for the script's modules there first, as the interpreter does by default."""
    if getattr(sys.flags, "safe_path", False):  # of Python 3.11 and later
        return
    sys.path.insert(0, directory)
    for name in LOADED_FOR_US:
        if os.path.exists(os.path.join(directory, f"{name}.py")):
            for loaded in [x for x in sys.modules if x.partition(".")[0] == name]:
                del sys.modules[loaded]  # so that the script's own module is imported


def _absolute(target: str) -> str:
    """The path as the interpreter sets ``__file__``: absolute, and otherwise unchanged."""
    return os.path.join(os.getcwd(), target)


def _run_file(path: str) -> None:
    """Run a script as the interpreter does.

    ``runpy.run_path`` would remove ``__main__`` when the script ends, but the script's exit
    handlers, threads and pickles still need it.
    """
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __cached__=None, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    with io.open_code(path) as file:
        source = file.read()
    if is_compiled(Path(path), source):
        code = SourcelessFileLoader("__main__", path).get_code("__main__")
    else:
        code = headers.compiled(source, path)
        code = code or compile(source, path, "exec", dont_inherit=True)
    assert code is not None
    exec(code, main.__dict__)


def _note_exit(here: WorkerContext, leaving: SystemExit) -> None:
    """Report the text of ``sys.exit("text")``, which ends with 1, as the cause."""
    if leaving.code is None or leaving.code == 0:
        return
    context.Process.failed = True
    if not isinstance(leaving.code, int):
        from ftrun.core.messages import FailureReport

        message = str(leaving.code)[:MESSAGE_CHARS_MAX]
        report = FailureReport("SystemExit", message, "", *context.place())
        send_to_agent(here, report, FAILURE_TIMEOUT_S)


def _refusal_of(error: BaseException, loop: Loop | None) -> BaseException:
    """The script's error, or a refusal if the script used an unsupported feature."""
    if loop is not None and isinstance(error, Exception):
        try:
            loop.raised(error)
        except UserError as refused:
            return refused
    return error


def _fail(here: WorkerContext, error: BaseException) -> NoReturn:
    context.Process.failed = True
    if getattr(error, "is_reported", False):  # by the agent (refusals.py)
        sys.exit(EXIT_UNCAUGHT)
    own = _script_frames(error.__traceback__)
    if isinstance(error, KeyboardInterrupt):
        _cut_handler(own)
    error.__traceback__ = own
    with contextlib.suppress(OSError, ValueError):  # the script may have closed its stdout
        sys.stdout.flush()
    sys.excepthook(type(error), error, own)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    if isinstance(error, KeyboardInterrupt) and context.was_interrupted():
        sys.exit(EXIT_INTERRUPTED)  # as requested: not a failure
    step, heals = context.place()
    report = replace(failure_report(error, own), step=step, heals=heals)
    send_to_agent(here, report, FAILURE_TIMEOUT_S)
    sys.exit(EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else EXIT_UNCAUGHT)


def failure_report(error: BaseException, trace: types.TracebackType | None) -> FailureReport:
    """An exception's type, message and traceback for the agent, each cut to its limit."""
    # Imported only for an exception, so that a worker's first line does not wait for it.
    from ftrun.core.messages import FailureReport

    lines = traceback.format_exception(type(error), error, trace)
    text = "".join(lines)
    if len(text) > TRACEBACK_CHARS_MAX:
        half = TRACEBACK_CHARS_MAX // 2
        text = f"{text[:half]}\n  [...]\n{text[-half:]}"
    name = type(error).__qualname__
    return FailureReport(name, _words(error)[:MESSAGE_CHARS_MAX], text)


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ of the script must not hide its error
        return "(its message cannot be shown)"


def _script_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback from the script's own first frame on, without ftrun's and runpy's frames.

    None: runpy found no module to run, so no line of a script is in it.
    """
    name = ""
    for frame in _frames(trace):
        name = frame.tb_frame.f_code.co_filename
        if name not in _AROUND_THE_SCRIPT:
            return frame
    return None if name in _RUNPY else trace


def _cut_handler(trace: types.TracebackType | None) -> None:
    """End a traceback at the frame that Ctrl-C interrupted, without ftrun's handler."""
    for frame in _frames(trace):
        inner = frame.tb_next
        if inner is not None and inner.tb_frame.f_code.co_filename == stopping.__file__:
            frame.tb_next = None


def _frames(trace: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
