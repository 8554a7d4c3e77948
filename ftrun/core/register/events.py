"""The register's value, and the events and instructions of leadership.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Value:
    """The content of the register beside its version.

    ``epoch``: rises with each holder, and with the journal's. ``holder``: names one life of one
    process. ``address``: where it accepts agents. ``silence_s``: how long it may write nothing
    before another process may take the register. ``serial``: counts the holder's writes, so that it
    recognises its own. ``is_free``: the holder has stopped, and any process may take the register.
    ``journal``: the job's record. None: in an answer, it was not requested; in a write, the former
    one stays.
    """

    epoch: int
    holder: str
    address: str
    silence_s: float
    serial: int
    is_free: bool = False
    journal: bytes | None = None


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a Read. Version 0: the register has never been written."""

    version: int
    value: Value | None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The Swap was carried out; ``version``: the register's, now."""

    version: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The Swap was not carried out: the register has another version."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The store has not answered. A Swap may have been carried out, or may be later."""

    reason: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The deadline has passed, or the machine begins."""


@dataclass(frozen=True, slots=True)
class Record:
    """An output: later outputs must not be sent before this record is in the register."""

    epoch: int
    journal: bytes


@dataclass(frozen=True, slots=True)
class Decided:
    """The leader has handled an event; its outputs, in order: Records and anything else."""

    outputs: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class HolderEnded:
    """The process with this name has certainly ended: do not wait for its silence."""

    holder: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """This process must end: give the register back if this process holds it."""


Event: TypeAlias = (
    Answered | Accepted | Refused | Failed | TimerFired | Decided | HolderEnded | Stopped
)

# ---------------------------------------------------------------- instructions


@dataclass(frozen=True, slots=True)
class Read:
    """Read the register. Answer with Answered or Failed."""

    with_journal: bool = False


@dataclass(frozen=True, slots=True)
class Swap:
    """Write ``value`` if the register has ``version``. Answer with Accepted, Refused or Failed."""

    version: int
    value: Value


@dataclass(frozen=True, slots=True)
class Lead:
    """This process leads: begin with this value's journal, under this value's epoch."""

    value: Value


@dataclass(frozen=True, slots=True)
class Release:
    """Carry out an output of the leader."""

    output: object


@dataclass(frozen=True, slots=True)
class Depose:
    """Another process leads: drop what this one has decided and not released."""

    reason: str


@dataclass(frozen=True, slots=True)
class Follow:
    """Another process holds the register and has just written this value, so it lives."""

    value: Value


@dataclass(frozen=True, slots=True)
class Say:
    """A text for people."""

    text: str


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The process may end: it does not hold the register, or does not any more."""


Instruction: TypeAlias = Read | Swap | Lead | Follow | Release | Depose | Say | GivenBack
