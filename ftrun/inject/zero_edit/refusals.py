"""Refuses what an unmodified script does and ftrun cannot carry, and names the file and line.

Under ``--inject auto`` the run then begins again as torchrun would run the script (core/forms.py):
the agent kills this process. Under ``--inject ddp`` the refusal is the script's error.

Not here: the reasons (each module refuses where it would have to carry something).
"""

from __future__ import annotations

import os
import threading
import traceback
from pathlib import Path
from typing import NoReturn

import ftrun
from ftrun.base.errors import FtrunError, UserError
from ftrun.core.forms import UNFIT, Form
from ftrun.inject.report import FAILURE_TIMEOUT_S, send_to_agent
from ftrun.inject.zero_edit.trial import note_refusal
from ftrun.training.context import WorkerContext

_OURS = f"{Path(ftrun.__file__).parent}{os.sep}"
KILL_WAIT_S = 5.0
"""The agent kills this process at once; on several nodes the job ends instead."""


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
        from ftrun.core.messages import AnotherForm

        text = f"{error}. The script cannot run under --inject {here.inject}"
        send_to_agent(here, AnotherForm(UNFIT, text), FAILURE_TIMEOUT_S)


def refuse(text: str) -> NoReturn:
    """Refuse what the script does.

    Raises:
        Refused: always.
    """
    want(Form.ONE_WORLD, text)


def refuse_own(error: BaseException, *, must_be: bool = False) -> None:
    """Refuse because of an error that ftrun's own code has raised, and not on purpose.

    ``must_be``: the script had no part in it, wherever it was raised.

    Raises:
        Refused: it is one.
    """
    frames = traceback.extract_tb(error.__traceback__)
    is_meant = isinstance(error, (FtrunError, SystemExit, KeyboardInterrupt))
    if frames and not is_meant and (must_be or frames[-1].filename.startswith(_OURS)):
        place = f"{frames[-1].filename.removeprefix(_OURS)}:{frames[-1].lineno}"
        refuse(
            f"ftrun itself failed before the first step ({type(error).__name__}: "
            f"{str(error)[:200]}, in {place}). Please report it"
        )


def want(form: Form, text: str) -> NoReturn:
    """Ask the agent to begin again in ``form``, if this process may.

    Raises:
        Refused: always. The script may catch it, but the agent kills this process.
    """
    here = _Process.here
    note_refusal(form.value, text)
    if here is not None:
        from ftrun.core.messages import AnotherForm

        send_to_agent(here, AnotherForm(form.value, text), FAILURE_TIMEOUT_S)
        threading.Event().wait(KILL_WAIT_S)  # the script must not go on, whatever it catches
    raise Refused(text, is_reported=here is not None)
