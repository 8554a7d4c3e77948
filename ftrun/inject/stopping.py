"""How a worker is asked to stop, so that its script can save what it has.

The agent sends a signal of ftrun's own: SIGTERM stays the script's, and whoever looks finds it as
the interpreter has it (frameworks install handlers of their own only then). What follows:

| the script                   | first request                 | second one, at half of the grace |
|------------------------------|-------------------------------|----------------------------------|
| has set SIGTERM              | gets SIGTERM                  | nothing                          |
| has a Manager that trains    | ``Drained`` at a boundary     | ``Drained`` where it stands      |
| neither                      | ``SystemExit`` where it stands| the same                         |

"Where it stands" is a safe place: not inside an optimizer, which would leave half a step to be
saved, not while a checkpoint is written, and not in ftrun itself. A place that is not safe is left
in milliseconds as a rule; the request is made again then.

Not here: when the agent asks, and when it kills (core/agent/supervisor.py).
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
RETRY_S = 0.02
EXIT_CODE = 128 + signal.SIGTERM
_OWN = str(Path(ftrun.__file__).parent) + os.sep
_EDGE = str(Path(__file__).with_name("bootstrap.py"))
_NOT_WITHIN = (
    f"{os.sep}torch{os.sep}optim{os.sep}",
    f"{os.sep}torch{os.sep}serialization.py",
    f"{os.sep}torch{os.sep}distributed{os.sep}checkpoint{os.sep}",
    f"{os.sep}safetensors{os.sep}",
)


class _Requests:
    """How often this process was asked; ``script_is_over``: there is nothing left to raise in."""

    first_is_over = False
    script_is_over = False


def install() -> None:
    """Take the agent's requests from here on; children that are forked later do not."""
    signal.signal(STOP_SIGNAL, _asked)
    os.register_at_fork(after_in_child=_ignore)
    atexit.register(_ignore)  # after all exit handlers: the interpreter takes ours away next


def script_has_ended() -> None:
    """What still runs, exit handlers and threads, has the whole grace and is not disturbed."""
    _Requests.script_is_over = True


def _ignore() -> None:
    signal.signal(STOP_SIGNAL, signal.SIG_IGN)


def _asked(number: int, frame: FrameType | None) -> None:
    """The handler, in the main thread."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        if not _Requests.first_is_over:
            _Requests.first_is_over = True
            signal.raise_signal(signal.SIGTERM)
        return
    if _Requests.script_is_over:
        return
    leave = context.leaver()
    if leave is not None and not _Requests.first_is_over:
        _Requests.first_is_over = True
        context.request_stop()
        return  # the Manager tells the script at its next boundary
    if not _is_safe(frame):
        again = threading.Timer(RETRY_S, os.kill, (os.getpid(), STOP_SIGNAL))
        again.daemon = True
        again.start()
        return
    _Requests.first_is_over = True
    context.request_stop()
    if leave is None:
        raise SystemExit(EXIT_CODE)
    leave()


def _is_safe(frame: FrameType | None) -> bool:
    """Whether an exception may come up in this frame without leaving half of something."""
    return not any(
        name.startswith(_OWN) or any(part in name for part in _NOT_WITHIN) for name in _files(frame)
    )


def _files(frame: FrameType | None) -> Iterator[str]:
    """The source files of the main thread's stack, innermost first, down to the script's own."""
    while frame is not None and frame.f_code.co_filename != _EDGE:
        yield frame.f_code.co_filename
        frame = frame.f_back
