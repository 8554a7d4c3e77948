"""The meaning of signals to ``ftrun``: pure functions from its number to a reaction.

| signal                      | ftrun's own meaning        | --signals-to-handle is given        |
|-----------------------------|----------------------------|-------------------------------------|
| SIGTERM, SIGINT, SIGHUP     | the agent leaves           | not in it: the job stops at once    |
| SIGQUIT                     | stacks are shown           | the same                            |
| SIGUSR1, SIGUSR2            | passed on to workers       | the same                            |
| any that is in the list     |                            | the agent leaves                    |
| the one of --preempt-signal | the agent leaves           | the agent leaves                    |

Not here: how an agent leaves (ending.py), how a worker is asked (inject/stopping.py).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

from ftrun.base.errors import ExitCode, UserError

ENDING = frozenset({int(signal.SIGTERM), int(signal.SIGINT), int(signal.SIGHUP)})
QUIT = int(signal.SIGQUIT)
PASSED_ON = frozenset({int(signal.SIGUSR1), int(signal.SIGUSR2)})
CAUGHT = ENDING | PASSED_ON | {QUIT}
"""The signals that an agent always catches; those of the two options are added."""
TORCHRUN = ENDING | {QUIT}
"""The default of torchrun's --signals-to-handle."""
NOT_FOR_US = frozenset(
    int(number)
    for number in (
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGCHLD,
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
    )
)
"""The kernel delivers no handler for the first two; the others mean something else."""
PREEMPTED = int(ExitCode.PREEMPTED)
INTERRUPTED = int(ExitCode.INTERRUPTED)


class Reaction(Enum):
    """The agent's action on a signal. ``LEAVE``: stop the scripts in order. ``STOP``: kill them."""

    LEAVE = "leave"
    STOP = "stop"
    SHOW_STACKS = "show stacks"
    PASS_ON = "pass on"


@dataclass(frozen=True, slots=True)
class SignalRules:
    """The rules of one run. ``handled``: the signals of --signals-to-handle, or None without it.

    ``preempt``: the number of --preempt-signal, or 0.
    """

    handled: frozenset[int] | None = None
    preempt: int = 0

    def caught(self) -> frozenset[int]:
        """All signals that the agent installs a handler for."""
        asked = self.handled or frozenset()
        return CAUGHT | asked | ({self.preempt} if self.preempt else frozenset())

    def reaction(self, number: int) -> Reaction:
        if number == self.preempt:
            return Reaction.LEAVE
        if self.handled is not None and number in self.handled:
            return Reaction.LEAVE
        if number in PASSED_ON:
            return Reaction.PASS_ON
        if number == QUIT:
            return Reaction.SHOW_STACKS
        return Reaction.LEAVE if self.handled is None else Reaction.STOP

    def exit_code(self, number: int) -> int:
        """The exit code of a run that this signal ends."""
        if number == signal.SIGINT:
            return INTERRUPTED
        is_preemption = number in (signal.SIGTERM, signal.SIGHUP, self.preempt)
        leaves = self.reaction(number) is Reaction.LEAVE
        return PREEMPTED if is_preemption and leaves else 128 + number


def signal_rules(handled: str | None, preempt: str | None, *, as_torchrun: bool) -> SignalRules:
    """The rules of --signals-to-handle and --preempt-signal, as they were given.

    Raises:
        UserError: a name is not one of a signal which can be handled.
    """
    if handled is not None:
        numbers: frozenset[int] | None = signal_numbers(handled, "--signals-to-handle")
    else:
        numbers = TORCHRUN if as_torchrun else None
    return SignalRules(numbers, signal_number(preempt, "--preempt-signal") if preempt else 0)


def signal_number(name: str, option: str) -> int:
    """The number of ``SIGUSR1``, ``USR1`` or ``usr1``.

    Raises:
        UserError: there is no such signal, or it cannot be handled.
    """
    text = name.strip().upper()
    full = text if text.startswith("SIG") else f"SIG{text}"
    found = getattr(signal, full, None)
    if not isinstance(found, signal.Signals):
        raise UserError(
            f"{option} {name!r} is not a signal of this system. Give names such as SIGTERM or "
            "SIGUSR1. Nothing was started."
        )
    if found in NOT_FOR_US:
        raise UserError(
            f"{option} {full}: a program cannot handle this signal in order. Nothing was started. "
            "Leave it out."
        )
    return int(found)


def signal_numbers(names: str, option: str) -> frozenset[int]:
    """The numbers of comma-separated names. Raises as ``signal_number``."""
    return frozenset(signal_number(name, option) for name in names.split(",") if name.strip())
