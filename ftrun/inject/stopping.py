"""How a worker is asked to stop, so that its script can save its state.

The agent sends real-time signals reserved by ftrun, one for each signal that the agent itself can
receive. The named signals keep the interpreter's default handlers, because frameworks install their
own handlers only then. The effects:

| the script                     | first request                  | second, at half of the grace |
|--------------------------------|--------------------------------|------------------------------|
| handles that signal, or SIGTERM| receives it                    | nothing                      |
| has a Manager that trains      | ``Drained`` at a boundary      | ``Drained`` where it stands  |
| neither                        | ``SystemExit`` where it stands | the same                     |

SIGINT has the semantics of Ctrl-C in Python. A script that handles only SIGTERM does not receive
it. The exception is ``Interrupted``, a ``Drained`` that ``except KeyboardInterrupt`` catches too. A
script without a Manager gets a plain ``KeyboardInterrupt``.

"Where it stands" must be a safe place: not inside an optimizer, where half a step would be saved,
not while a checkpoint is written, not in a callback of a future, because torch turns its exception
into a RuntimeError, and not in ftrun itself. In any other place the request is repeated every
``RETRY_S``, because a script usually leaves such a place within milliseconds. A wait for peers in
ftrun may last longer: it ends itself with ``Drained`` (training/leaving.py).

Not here: when the agent asks, and when it kills (core/agent/stopping.py).
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import ftrun
from ftrun.training import context

STOP_SIGNAL = signal.SIGRTMIN + 14
REQUESTS = {
    int(signal.SIGTERM): STOP_SIGNAL,
    int(signal.SIGINT): signal.SIGRTMIN + 12,
    int(signal.SIGHUP): signal.SIGRTMIN + 11,
    int(signal.SIGQUIT): signal.SIGRTMIN + 10,
    int(signal.SIGUSR1): signal.SIGRTMIN + 9,
    int(signal.SIGUSR2): signal.SIGRTMIN + 8,
}
"""ftrun's signal for each named one; others are requested as SIGTERM."""
_STANDS_FOR = {ours: theirs for theirs, ours in REQUESTS.items()}
RETRY_S = 0.02
_OWN = str(Path(ftrun.__file__).parent) + os.sep
_EDGES = tuple(str(Path(__file__).with_name(name)) for name in ("bootstrap.py", "function.py"))
_NOT_WITHIN = (
    f"{os.sep}torch{os.sep}optim{os.sep}",
    f"{os.sep}torch{os.sep}serialization.py",
    f"{os.sep}torch{os.sep}futures{os.sep}",
    f"{os.sep}torch{os.sep}_jit_internal.py",  # a future looks for tensors in its value
    f"{os.sep}torch{os.sep}distributed{os.sep}checkpoint{os.sep}",
    f"{os.sep}safetensors{os.sep}",
)


class _Requests:
    """The requests so far; ``script_is_over``: there is no script in which to raise an
    exception."""

    first_is_over = False
    script_is_over = False


def request_signal(number: int) -> int:
    """The signal that asks a worker to stop as if it had received ``number``."""
    return REQUESTS.get(number, STOP_SIGNAL)


def install() -> None:
    """Handle the agent's requests from now on. Children that are forked later ignore them."""
    for ours in REQUESTS.values():
        signal.signal(ours, _asked)
    os.register_at_fork(after_in_child=_ignore)
    atexit.register(_ignore)  # runs last; after it the interpreter removes these handlers


def script_has_ended() -> None:
    """Ignore requests: exit handlers and remaining threads may use the whole grace period."""
    _Requests.script_is_over = True


def _ignore() -> None:
    for ours in REQUESTS.values():
        signal.signal(ours, signal.SIG_IGN)


def _asked(ours: int, frame: FrameType | None) -> None:
    """The handler, in the main thread."""
    number = _STANDS_FOR[ours]
    context.request_stop(number)
    handled = _handled_by_script(number)
    if handled is not None:
        if not _Requests.first_is_over:
            _Requests.first_is_over = True
            signal.raise_signal(handled)
        return
    if _Requests.script_is_over:
        return
    leave = context.Process.leave
    if leave is not None and not _Requests.first_is_over:
        _Requests.first_is_over = True
        return  # the Manager raises ``Drained`` at the script's next boundary
    if not _is_safe(frame):
        context.Process.is_pressed = True
        again = threading.Timer(RETRY_S, os.kill, (os.getpid(), ours))
        again.daemon = True
        again.start()
        return
    _Requests.first_is_over = True
    if leave is None:
        raise context.stops_with()
    leave()


def _handled_by_script(number: int) -> int | None:
    """The signal that the script handles or ignores, and so receives; None: it handles none."""
    if number == signal.SIGINT:
        is_own = signal.getsignal(number) is not signal.default_int_handler
        return number if is_own else None
    for candidate in (number, int(signal.SIGTERM)):
        if signal.getsignal(candidate) is not signal.SIG_DFL:
            return candidate
    return None


def _is_safe(frame: FrameType | None) -> bool:
    """Whether an exception in this frame leaves no operation half done."""
    return not any(
        name.startswith(_OWN) or any(part in name for part in _NOT_WITHIN) for name in _files(frame)
    )


def _files(frame: FrameType | None) -> Iterator[str]:
    """The source files of the main thread's stack, innermost first, down to the script's own."""
    while frame is not None and frame.f_code.co_filename not in _EDGES:
        yield frame.f_code.co_filename
        frame = frame.f_back
