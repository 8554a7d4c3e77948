"""``ftrun.heartbeat()`` and ``with ftrun.paused("eval"):``: a script reports that it is alive.

A loop without progress is detected and its worker replaced (docs/HANGS.md). Announce a long phase
that is no step. Without ftrun both calls do nothing. A debugger that stops the main thread is
detected, and counts as an announced pause.

Not here: what follows (core/lighthouse/standstill.py, core/agent/loop_watch.py).
"""

from __future__ import annotations

import contextlib
import gc
import math
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.core.activity import Pause

LIMIT_S = 3600.0
LIMIT_MAX_S = 7 * 86400.0
NAME_CHARS_MAX = 32
DEBUGGERS = ("pdb.py", "bdb.py", "pydevd.py", "pydevd_bundle", "debugpy")
FRAMES_MAX = 64
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Announced:
    """An announced pause; it counts until ``until``."""

    pause: Pause
    until: float


Listener = Callable[[str, float], None]
"""Called with the name and limit of a pause that begins; with "" and 0 at its end, and at a
heartbeat."""


class _Process:
    """This process's announced pauses. ``debugged_since``: since when a debugger stops its main
    thread."""

    open: tuple[_Announced, ...] = ()
    beats: int = 0
    listener: Listener | None = None
    debugged_since: float | None = None
    lock = threading.Lock()


def heartbeat() -> None:
    """Report that the script makes progress, although its step is not over yet.

    The call takes well below a microsecond if a Manager trains, and may be made at any rate.
    """
    _Process.beats += 1
    if _Process.listener is not None and not _Process.open:
        _Process.listener("", 0.0)


@contextlib.contextmanager
def paused(name: str = "pause", *, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Announce a phase that is no step, such as an evaluation or saving a checkpoint.

    For up to ``limit_s`` seconds a script in the phase does not count as hanging. ``ftrun status``
    shows ``name``. Pauses may be nested; the innermost counts.

    Raises:
        UserError: the name is empty, not printable or longer than 32 characters, or the limit is
            not above 0 and up to a week.
    """
    if not name or not name.isprintable() or len(name) > NAME_CHARS_MAX:
        raise UserError(
            f"ftrun.paused({name!r}): give a name of 1 to {NAME_CHARS_MAX} printable characters"
        )
    if not (math.isfinite(limit_s) and 0 < limit_s <= LIMIT_MAX_S):
        raise UserError(f"ftrun.paused(limit_s={limit_s!r}): give seconds above 0, up to a week")
    now = clock.now()
    announced = _Announced(Pause(name, now), now + limit_s)
    with _Process.lock:
        _Process.open += (announced,)
    if _Process.listener is not None:
        _Process.listener(name, limit_s)
    try:
        yield
    finally:
        with _Process.lock:
            _Process.open = tuple(x for x in _Process.open if x is not announced)
        if _Process.listener is not None:
            _tell_the_rest(_Process.listener)


def _tell_the_rest(listener: Listener) -> None:
    """A pause has ended: report the enclosing pause, or the end of all pauses."""
    around = _Process.open[-1] if _Process.open else None
    left_s = 0.0 if around is None else around.until - clock.now()
    if around is None or left_s <= 0:
        listener("", 0.0)
    else:
        listener(around.pause.name, left_s)


def listen(listener: Listener) -> None:
    """Call ``listener`` from now on. If the script has a Manager, it polls at each tick instead."""
    _Process.listener = listener


def stop_listening() -> None:
    _Process.listener = None


def beats() -> int:
    """How often ``heartbeat`` was called."""
    return _Process.beats


def current() -> Pause | None:
    """The current pause, if its limit has not passed. From any thread."""
    announced = _Process.open
    if announced and clock.now() < announced[-1].until:
        return announced[-1].pause
    if not _is_debugged():
        _Process.debugged_since = None
        return None
    if _Process.debugged_since is None:
        _Process.debugged_since = clock.now()
    return Pause("debugger", _Process.debugged_since)


def _frame_of_main_thread() -> FrameType | None:
    """The main thread's innermost frame, read without garbage collection.

    Python 3.11 holds its lock of all threads while it makes the frames. If a collection releases
    the interpreter meanwhile, all threads deadlock (CPython's issue 106883).
    """
    with _ONE_AT_A_TIME:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(threading.main_thread().ident or 0)
        finally:
            if collects:
                gc.enable()


def _is_debugged() -> bool:
    """Whether the main thread is in a debugger's own code, for example at its prompt."""
    if "bdb" not in sys.modules and "pydevd" not in sys.modules:
        return False
    frame = _frame_of_main_thread()
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        if any(name in frame.f_code.co_filename for name in DEBUGGERS):
            return True
        frame = frame.f_back
    return False
