"""Refuses what an unmodified script does and ftrun cannot carry, and names the file and line.

Under ``--inject auto`` the run then begins again as torchrun would run the script (core/forms.py):
the agent kills this process. Under ``--inject ddp`` the refusal is the script's error.

Not here: the reasons (each module refuses where it would have to carry something).
"""

from __future__ import annotations

import functools
import os
import re
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import ftrun
from ftrun.base.errors import FtrunError, UserError
from ftrun.core.agent.failures import is_of_peer
from ftrun.core.forms import UNFIT, Form
from ftrun.inject.report import FAILURE_TIMEOUT_S, send_to_agent
from ftrun.inject.zero_edit.trial import note_refusal
from ftrun.training.context import WorkerContext

F = TypeVar("F", bound=Callable[..., Any])
_OURS = f"{Path(ftrun.__file__).parent}{os.sep}"
KILL_WAIT_S = 5.0
"""The agent kills this process at once; on several nodes the job ends instead."""
LEAVING_S = 90.0
"""Or once all others have left their states (core/agent/together.py)."""


class Refused(UserError):
    """The script cannot be carried. ``is_reported``: the agent knows, and begins again."""

    def __init__(self, text: str, *, is_reported: bool) -> None:
        super().__init__(text)
        self.is_reported = is_reported


class _Process:
    """The worker that may ask for another form; None: its form is fixed."""

    here: WorkerContext | None = None


def may_begin_again(here: WorkerContext) -> None:
    """A refusal in this process is sent to the agent, instead of failing the script."""
    _Process.here = here


def is_unfit(here: WorkerContext, error: BaseException) -> None:
    """The script has not caught a refusal before its first step: no restart will help."""
    if isinstance(error, Refused) and not error.is_reported:
        _report(here, UNFIT, f"{error}. The script cannot run under --inject {here.inject}")


def _report(here: WorkerContext, form: str, text: str) -> None:
    from ftrun.core.messages import AnotherForm

    send_to_agent(here, AnotherForm(form, text), FAILURE_TIMEOUT_S)


def refuse(text: str) -> NoReturn:
    """Refuse what the script does.

    Raises:
        Refused: always.
    """
    want(Form.ONE_WORLD, text)


def refuse_away(text: str, wait_s: float = KILL_WAIT_S) -> NoReturn:
    """Refuse what cannot be followed only while a rank is away: all replicas may begin again.

    Raises:
        Refused: always.
    """
    want(Form.TOGETHER, text, wait_s)


def refuse_own(error: Exception, *, must_be: bool = False) -> None:
    """Refuse because of an error that ftrun's own code has raised, and not on purpose.

    An error about a mate that has died is none of these: its agent knows of the death. Nor is one
    that a handler of a signal raises: it may come in the middle of any line. Nor one of what the
    script has called, a function of Python's or torch's in whose place ftrun stands: no file of
    that name, or an argument that it does not have. It is ``plain`` here.

    ``must_be``: ftrun has called what raised it, for example an object of the script's.

    Raises:
        Refused: it is one.
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = [x for x in frames if x.filename.startswith(_OURS)]
    is_last = bool(ours) and frames[-1] is ours[-1]
    is_meant = isinstance(error, FtrunError) or (isinstance(error, TimeoutError) and is_last)
    is_meant |= is_of_peer(type(error).__name__, str(error))
    is_meant |= is_last and re.search(r"plain\(", frames[-1].line or "", re.IGNORECASE) is not None
    if is_meant or not ours or not (must_be or is_last) or _is_by_signal(error):
        return
    what = f"{type(error).__name__}: {str(error)[:200]}"
    place = f"{ours[-1].filename.removeprefix(_OURS)}:{ours[-1].lineno}"
    if is_last:
        refuse(f"ftrun itself failed ({what}, in {place}). Please report it")
    site = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}"
    refuse(f"{site}: {frames[-1].name}() raised {what}, when ftrun called it to heal ({place})")


def _is_by_signal(error: Exception) -> bool:
    """Whether a handler of a signal has raised it, as torch's does for a loader's dead worker."""
    handlers = {
        getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()
    }
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def ours(handler: F) -> F:
    """What ftrun does at an event of the script's, or on its behalf. An error in it is not the
    script's, also if an object of the script's has raised it that ftrun has asked."""

    @functools.wraps(handler)
    def handled(*args: Any) -> Any:  # by their places only: it runs several times in each step
        try:
            return handler(args[0]) if len(args) == 1 else handler(*args)  # to pack them costs more
        except Exception as error:
            refuse_own(error, must_be=True)
            raise

    return handled  # type: ignore[return-value]


def want(form: Form, text: str, wait_s: float = KILL_WAIT_S) -> NoReturn:
    """Ask the agent to begin again in ``form``, if this process may; it kills this process within
    ``wait_s``.

    Raises:
        Refused: always. The script may catch it, but the agent kills this process.
    """
    here = _Process.here
    if form is not Form.TOGETHER:
        note_refusal(form.value, text)
    if here is not None:
        _report(here, form.value, text)
        threading.Event().wait(wait_s)  # the script must not go on, whatever it catches
    raise Refused(text, is_reported=here is not None)
