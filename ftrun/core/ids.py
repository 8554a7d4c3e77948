"""The names of things: replicas, quorums, tags, states and lineage.

Not here: which replicas are members (core/lighthouse/membership.py), bytes (protocol/codec.py).
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

EPOCH_BITS = 31
SEQ_BITS = 32
EPOCH_MAX = (1 << EPOCH_BITS) - 1
SEQ_MAX = (1 << SEQ_BITS) - 1
LINEAGE_BYTES = 16


def pack_quorum_id(epoch: int, seq: int) -> int:
    """Pack a lighthouse epoch and a sequence number into one 63-bit quorum_id.

    Ids compare as (epoch, seq) does, so a restarted lighthouse, whose epoch is higher, never
    repeats one (Q1).

    Raises:
        ValueError: either part is out of its range.
    """
    if not 0 <= epoch <= EPOCH_MAX:
        raise ValueError(f"epoch {epoch} is not in 0..{EPOCH_MAX}")
    if not 0 <= seq <= SEQ_MAX:
        raise ValueError(f"seq {seq} is not in 0..{SEQ_MAX}")
    return (epoch << SEQ_BITS) | seq


def unpack_quorum_id(quorum_id: int) -> tuple[int, int]:
    """The (epoch, seq) of a quorum_id."""
    return quorum_id >> SEQ_BITS, quorum_id & SEQ_MAX


def quorum_name(quorum_id: int) -> str:
    """A quorum_id as people see it: ``epoch.seq``."""
    epoch, seq = unpack_quorum_id(quorum_id)
    return f"{epoch}.{seq}"


@functools.lru_cache(maxsize=65_536)
def replica_order(replica_id: str) -> tuple[int, int, str]:
    """Sort key of replica ids: numbers by value first, other names after them.

    Cached, because a thousand of them are sorted many times at every change.
    """
    if replica_id.isdecimal():
        return (0, int(replica_id), replica_id)
    return (1, 0, replica_id)


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One try to bring a quorum into force: the fence of the control plane (Q2).

    Ordered as (quorum_id, attempt): a receiver never acts on a lower one than it has seen.
    """

    quorum_id: int
    number: int

    def __str__(self) -> str:
        return f"{quorum_name(self.quorum_id)}#{self.number}"


NO_ATTEMPT = Attempt(0, 0)


@dataclass(frozen=True, slots=True, order=True)
class Tag:
    """(quorum_id, attempt, step): fences every vote, reduction, store prefix and heal (C3)."""

    attempt: Attempt
    step: int

    def __str__(self) -> str:
        return f"{self.attempt}@{self.step}"

    def path(self) -> str:
        """The tag as one path segment, for store prefixes and URLs."""
        return f"{self.attempt.quorum_id}.{self.attempt.number}.{self.step}"


@dataclass(frozen=True, slots=True)
class StateId:
    """The state of a replica before it begins ``step``: equal ids mean bitwise equal state (S1).

    ``lineage`` is a hash chain (hex) over the tags of the steps committed. A fresh replica whose
    weights were never compared starts its own chain (see ``fresh_lineage``).
    """

    step: int
    lineage: str

    def committed(self, tag: Tag) -> StateId:
        """The state after the commit of the step that was reduced under ``tag``."""
        return StateId(self.step + 1, extend_lineage(self.lineage, tag))

    def __str__(self) -> str:
        return f"{self.step}/{self.lineage[:6]}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=LINEAGE_BYTES).hexdigest()


def extend_lineage(lineage: str, tag: Tag) -> str:
    """The lineage after a commit under ``tag``."""
    return _digest(f"{lineage}|{tag.path()}")


def later_lineage(lineage: str, managers: int) -> str:
    """The first lineage of a Manager whose process had ``managers`` other Managers before.

    Their weights differ from those of the first Managers, even if all replicas promise equal ones.
    """
    return _digest(f"{lineage}|later|{managers}") if managers else lineage


def fresh_lineage(incarnation: str) -> str:
    """A lineage unlike every other, for weights that only one replica holds: all but one heal.

    torchft calls this ``init_sync``: at the first quorum every replica but the donor loads the
    donor's weights.
    """
    return _digest(f"fresh|{incarnation}")


SHARED_LINEAGE = _digest("shared")
"""The lineage of a script that promises equal initial weights everywhere (``init_sync=False``)."""


@dataclass(frozen=True, slots=True)
class OfIncarnation:
    """A message or an instruction about one incarnation of a slot."""

    replica_id: str
    incarnation: str


@dataclass(frozen=True, slots=True, order=True)
class WorkerKey(OfIncarnation):
    """One worker process: the slot, its incarnation, and the place inside the replica group."""

    group_rank: int

    def __str__(self) -> str:
        return f"{self.replica_id}/{self.group_rank}({self.incarnation[:6]})"
