"""How a worker is asked to stop, so that its script can save what it has.

The agent sends a signal of ftrun's own. SIGTERM stays the script's, with the interpreter's default
handler, because frameworks install handlers of their own only then. What follows:

| the script                   | first request                 | second one, at half of the grace |
|------------------------------|-------------------------------|----------------------------------|
| has set SIGTERM              | gets SIGTERM                  | nothing                          |
| has a Manager that trains    | ``Drained`` at a boundary     | ``Drained`` where it stands      |
| neither                      | ``SystemExit`` where it stands| the same                         |

"Where it stands" must be a safe place: not inside an optimizer, where half a step would be saved,
not while a checkpoint is written, and not in ftrun itself. In any other place the request is
repeated every ``RETRY_S``, because a script usually leaves such a place within milliseconds.

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
RETRY_S = 0.02
EXIT_CODE = 128 + signal.SIGTERM
_OWN = str(Path(ftrun.__file__).parent) + os.sep
_EDGES = tuple(str(Path(__file__).with_name(name)) for name in ("bootstrap.py", "function.py"))
_NOT_WITHIN = (
    f"{os.sep}torch{os.sep}optim{os.sep}",
    f"{os.sep}torch{os.sep}serialization.py",
    f"{os.sep}torch{os.sep}distributed{os.sep}checkpoint{os.sep}",
    f"{os.sep}safetensors{os.sep}",
)


class _Requests:
    """The requests so far; ``script_is_over``: no script is left to raise an exception in."""

    first_is_over = False
    script_is_over = False


def install() -> None:
    """Handle the agent's requests from now on; children that are forked later ignore them."""
    signal.signal(STOP_SIGNAL, _asked)
    os.register_at_fork(after_in_child=_ignore)
    atexit.register(_ignore)  # runs last; after it the interpreter removes this handler


def script_has_ended() -> None:
    """Exit handlers and threads that still run have the whole grace and are not disturbed."""
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
        return  # the Manager raises ``Drained`` at the script's next boundary
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
    """True if an exception in this frame leaves nothing half done."""
    return not any(
        name.startswith(_OWN) or any(part in name for part in _NOT_WITHIN) for name in _files(frame)
    )


def _files(frame: FrameType | None) -> Iterator[str]:
    """The source files of the main thread's stack, innermost first, down to the script's own."""
    while frame is not None and frame.f_code.co_filename not in _EDGES:
        yield frame.f_code.co_filename
        frame = frame.f_back
