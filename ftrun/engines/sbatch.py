"""The batch script of ``ftrun sbatch``: a Slurm job with the flags that ftrun needs. Pure.

Slurm's own options are copied to ``#SBATCH`` lines, so sbatch checks them. Refused here are only
options that contradict one ftrun per node, or the way in which ftrun is asked to leave.

Not here: ftrun's own words and the submission (tools/commands/sbatch.py), what a task of the job
does (keeper.py).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ftrun.base.errors import UserError

NOTICE_S = 60
"""How long before the time limit the job is asked to leave. Slurm may ask up to 60 s earlier."""
_SHORT = {"-J": "--job-name", "-N": "--nodes", "-n": "--ntasks", "-k": "--no-kill"}
_SIGNAL = re.compile(r"(?:([RB]+):)?(?:SIG)?([A-Z0-9+]+?)(?:@(\d+))?", re.IGNORECASE)
_CPUS = "${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}"
"""Passed to the step, because since 22.05 srun does not take it from the job."""


class Batch:
    """A job to submit: ``words`` are the options for sbatch.

    Raises:
        UserError: they contradict what ftrun needs; nothing was submitted.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._rows = _rows(words)
        self._given = dict(map(_named, self._rows))
        self._check()

    @property
    def notice(self) -> str:
        """The stated signal before the time limit, such as ``USR1``; "": none."""
        return _signal(self._given["--signal"]) if "--signal" in self._given else ""

    @property
    def nodes(self) -> int | None:
        """The number of nodes of the job; None: a range, or no number."""
        text = self._given.get("--nodes", "1")
        return int(text) if text.isdecimal() else None

    @property
    def has_nodes(self) -> bool:
        """Whether the job may have several nodes."""
        return self._given.get("--nodes", "1") != "1"

    @property
    def requeues(self) -> bool:
        """Whether the job shall be requeued."""
        return "--requeue" in self._given

    def script(self, command: Sequence[str], name: str, notice: str, *, requeues: bool) -> str:
        """The batch script.

        ``command``: ftrun's, to run on each node. ``name``: of the job, if none was stated.
        ``notice``: the signal by which it is asked to leave. ``requeues``: ftrun shall requeue it.

        Raises:
            UserError: Slurm may not requeue the job.
        """
        if requeues and "--no-requeue" in self._given:
            raise _refused("--no-requeue, and --requeue of ftrun", "Leave one of them out")
        wanted = {
            "--job-name": f"={name}", "--ntasks-per-node": "=1", "--no-kill": "",
            "--open-mode": "=append", "--signal": f"={notice}@{NOTICE_S}",
            **({"--requeue": ""} if requeues else {}),
        }  # fmt: skip
        added = [flag + value for flag, value in wanted.items() if flag not in self._given]
        rows = [*self._rows, *added]
        keeps = self._given.get("--no-kill") != "off"
        step = ["srun", *(["--no-kill"] if keeps else []), "--kill-on-bad-exit=0", "--wait=0"]
        lines = ["#!/bin/bash", *(f"#SBATCH {shlex.join(row.split(' ', 1))}" for row in rows)]
        return "\n".join([*lines, f"{' '.join(step)} {_CPUS} {shlex.join(command)}", ""])

    def _check(self) -> None:
        given = self._given
        if "--wrap" in given or ":" in self._rows:
            raise _refused("--wrap, or several components of a job", "Give sbatch a script for it")
        if "--ntasks" in given or given.get("--ntasks-per-node", "1") != "1":
            raise _refused("another number of tasks than one a node", "Give --nodes=N alone")
        if "--signal" in given:
            _signal(given["--signal"])


def _rows(words: Sequence[str]) -> list[str]:
    """Each option with its value, on its own row."""
    rows: list[str] = []
    may_take = False
    for word in words:
        if "\n" in word:
            raise _refused(f"{word!r}", "An #SBATCH line ends at the end of a line")
        is_option = word.startswith("-") or word == ":"
        if not is_option and not may_take:
            raise _refused(f"{word!r} before --", "Put ftrun's options and the script behind it")
        if is_option:
            rows.append(word)
        else:
            rows[-1] += f" {word}"
        is_bare = "=" not in word if word.startswith("--") else len(word) == len("-N")
        may_take = is_option and is_bare
    return rows


def _named(row: str) -> tuple[str, str]:
    """An option's long name, if its meaning matters here, and its value."""
    word, _, value = row.partition(" ")
    if not word.startswith("--"):
        return _SHORT.get(word[:2], word[:2]), word[2:].removeprefix("=") or value
    name, _, stated = word.partition("=")
    return name, stated or value


def _signal(text: str) -> str:
    found = _SIGNAL.fullmatch(text)
    if found is None:
        raise _refused(f"--signal={text}", "Its form is SIGNAL@SECONDS, for example USR1@60")
    if "B" in (found[1] or "").upper():
        raise _refused(f"--signal={text}", "B: has Slurm signal the script alone: leave it out")
    return found[2].upper()


def _refused(what: str, remedy: str) -> UserError:
    return UserError(f"ftrun sbatch does not take {what}. Nothing was submitted. {remedy}.")
