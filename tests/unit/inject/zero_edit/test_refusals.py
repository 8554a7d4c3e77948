"""Which errors of ftrun's own code make the job one world."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ftrun.inject.zero_edit import refusals
from ftrun.inject.zero_edit.patches import Patches


def raised(path: str, words: str) -> RuntimeError:
    """An error that code in this file has raised."""
    with pytest.raises(RuntimeError) as found:
        exec(compile(f"raise RuntimeError('{words}')", path, "exec"))
    error = found.value
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)  # without this function's line


def test_a_lost_mate_is_no_error_of_ftruns_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reduces with a mate hears of its death, perhaps before the agent ends it."""
    texts: list[str] = []
    monkeypatch.setattr(refusals, "refuse", texts.append)
    path = str(Path(refusals.__file__).parents[2] / "training" / "ddp.py")
    refusals.refuse_own(raised(path, "pair.cc:553] Connection closed by peer"))
    assert texts == []
    refusals.refuse_own(raised(path, "shapes"))
    assert "ftrun itself failed" in texts[0] and "training/ddp.py:1" in texts[0]


def test_an_error_of_what_the_script_has_called_is_the_script_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen: a script read a checkpoint that its rank 0 had not written, and another one had an
    argument that a scheduler of torch's does not have any more. ftrun was to blame for both."""
    texts: list[str] = []
    monkeypatch.setattr(refusals, "refuse", texts.append)

    class Scheduler:
        pass

    patches = Patches()
    patches.after(Scheduler, "__init__", lambda made: None)
    patches.around(os, "listdir", lambda plain, *args: plain(*args))
    try:
        with pytest.raises(TypeError) as found:
            Scheduler(1)  # type: ignore[call-arg]
        with pytest.raises(FileNotFoundError) as missing:
            os.listdir("/none")
    finally:
        patches.undo()
    refusals.refuse_own(found.value)
    refusals.refuse_own(missing.value)
    assert texts == []


def test_what_a_handler_of_a_signal_raises_is_the_script_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch raises so that a loader's worker has died, wherever the main thread is then."""
    texts: list[str] = []
    monkeypatch.setattr(refusals, "refuse", texts.append)

    def handler(*_: Any) -> None:
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Aborted.")

    path = str(Path(refusals.__file__).parent / "values" / "units.py")
    code = compile("signal.raise_signal(signal.SIGUSR1)", path, "exec")
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(RuntimeError) as found:
            exec(code, {"signal": signal})
        refusals.refuse_own(found.value, must_be=True)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert texts == []
    refusals.refuse_own(raised(path, "shapes"), must_be=True)
    assert "ftrun itself failed" in texts[0]
