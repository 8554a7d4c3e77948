"""Messages between an agent and its workers, which the lighthouse does not see."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ftrun.core.ids import StateId, WorkerKey
from ftrun.core.messages.from_worker import LeaveReason


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """A worker's first frame to its agent: its identity, which must be one of a started worker."""

    key: WorkerKey
    pid: int
    token: str = field(repr=False, default="")


@dataclass(frozen=True, slots=True)
class Lease:
    """The worker may commit before ``until_s``, and not after (Q3).

    ``until_s``: on the monotonic clock, which the agent and its workers share. The agent sends each
    new lease ahead of time, because a stopped agent cannot send anything later. When a lease ends
    the agent sends it again, so that its workers notice at once and not at their next tick.
    ``agreed``: see HeartbeatAck.
    """

    until_s: float
    agreed: StateId | None = None


@dataclass(frozen=True, slots=True)
class LeaveNow:
    """The worker leaves at its next boundary by itself, because no lighthouse will agree on one.

    It gives up a step that waits for a quorum or for peers. ``in_quorum``: it leaves even if it is
    in a quorum. Otherwise it leaves only if it is in none, and so needs no agreement.
    """

    reason: LeaveReason
    in_quorum: bool


@dataclass(frozen=True, slots=True)
class FailureReport:
    """An uncaught exception of the script, sent before the worker exits.

    ``step``: the step under way, or the next one; None: the script had begun none. A verdict needs
    it, because the last Progress may be 0.1 s old. ``heals``: the step is its peers', whose state
    it did not hold yet.
    """

    error_type: str
    message: str
    traceback: str
    step: int | None = None
    heals: bool = False


@dataclass(frozen=True, slots=True)
class NoManager:
    """The script has made no Manager yet; sent at its first optimizer step, or at its end.

    ``has_stepped``: an optimizer has stepped, so it trains.
    """

    has_stepped: bool


@dataclass(frozen=True, slots=True)
class AnotherForm:
    """The script cannot run as it was started (core/forms.py).

    ``form``: the form in which it should run instead. ``reason``: what it does, by file and line,
    for people.
    """

    form: str
    reason: str


@dataclass(frozen=True, slots=True)
class Beat:
    """The loop of a script without a Manager makes progress; sent at most once a second.

    ``pause``: the name of a pause that begins now, of at most ``limit_s`` seconds; "": none.
    """

    pause: str = ""
    limit_s: float = 0.0


ToItsAgent: TypeAlias = FailureReport | NoManager | AnotherForm | Beat
