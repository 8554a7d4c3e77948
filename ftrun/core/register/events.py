"""The register's value, and the events and instructions of leadership.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Value:
    """The content of the register beside its version.

    ``epoch``: rises with each holder, and with the journal's. ``holder``: one life of one process.
    ``address``: where it takes agents. ``silence_s``: how long it may write nothing before another
    may take the register. ``serial``: of the holder's writes, so that it knows its own again.
    ``is_free``: the holder has stopped, and anybody may take the register. ``journal``: the job's
    record. None: in an answer, it was not asked for; in a write, the former one stays.
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
    """The store gave no answer. A Swap may have been carried out, or may be later."""

    reason: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The deadline has come, or the machine begins."""


@dataclass(frozen=True, slots=True)
class Record:
    """Among outputs: what follows must not go out before this is in the register."""

    epoch: int
    journal: bytes


@dataclass(frozen=True, slots=True)
class Decided:
    """The leader has handled an event; its outputs, in order: Records and anything else."""

    outputs: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class HolderEnded:
    """The process with this name has certainly ended: its silence need not be waited for."""

    holder: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """This process is to end: give the register back if it is ours."""


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
    """Another process leads: drop all that this one has decided and not released."""

    reason: str


@dataclass(frozen=True, slots=True)
class Follow:
    """Another process holds the register, and was seen to write this value: it lives."""

    value: Value


@dataclass(frozen=True, slots=True)
class Say:
    """Words for people."""

    text: str


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The process may end: the register is not ours, or not any more."""


Instruction: TypeAlias = Read | Swap | Lead | Follow | Release | Depose | Say | GivenBack
