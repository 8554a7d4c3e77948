"""Uneven data: what the replicas in a Join announce in each step, and the verdict. Pure.

Theory of operation. In each step every replica announces a *row*: whether it has a batch, whether
it heals, what is known of the script's steps. All rows of a step are summed up in one reduction, in
the same batch as its gradients, so they stand or fall with these, in a repair too. Every replica
judges the same rows, so all get the same verdict (J1).

A replica with a batch *leads*. One without *follows*: it adds zeros, takes the same average and
steps as the leaders do. Only the rows of leaders that do not heal count in the divisor.

The Join is over in the first step in which no replica has a batch, none heals, and all are alike in
the terms of the Join and in the settings of their optimizers. That step is committed like any other
and changes no weights. A replica that misses it learns from its peers' higher number of Joins that
its own is over.

A follower can step as the leaders do only if the script steps the averaged gradients as they are,
with the same settings as the follower's. Otherwise the follower *forgoes* the commit, and heals. A
replica also forgoes the commit if all have run out of data and its settings are not those of the
last joiner.

Not here: tensors (training/joining.py), the loop of a follower (training/join.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

FIELDS = 5
"""The number of integers in one encoded row."""
_PRESENT, _HAS_BATCH, _HEALS, _BY_ALL, _THROWS = (1 << bit for bit in range(5))


class Stepped(IntEnum):
    """What a replica knows of the script between ``backward()`` and ``step()``.

    UNKNOWN: this process has led no step yet. PLAIN: the averaged gradients are stepped as they
    are. CHANGED: gradients or settings were changed at least once.
    """

    UNKNOWN = 0
    PLAIN = 1
    CHANGED = 2


@dataclass(frozen=True, slots=True)
class Terms:
    """The arguments of a Join, which must be the same on all replicas.

    ``by_all``: averages are divided by the number of members. ``throws``: all raise when the first
    one runs out of data.
    """

    by_all: bool = False
    throws: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """The announcement of one replica in one step.

    ``has_batch``: it has data in this step. ``heals``: its gradients do not count. ``followed``:
    the number of steps of this Join in which it followed. ``settings``: a digest of its optimizer's
    settings. ``number``: how many Joins were over before this one; at least 0.
    """

    has_batch: bool
    heals: bool = False
    stepped: Stepped = Stepped.UNKNOWN
    followed: int = 0
    settings: int = 0
    number: int = 0
    terms: Terms = Terms()

    @property
    def counts(self) -> bool:
        """Whether its gradients are in the average."""
        return self.has_batch and not self.heals


@dataclass(frozen=True, slots=True)
class JoinVerdict:
    """The consequences of one step's rows, the same on all replicas (J1).

    ``batches``: the number of replicas whose gradients are in the sum. ``divisor``: the divisor of
    the average; 0 if there are no gradients. ``has_leader``: some replica has a batch, perhaps one
    that heals. ``has_follower``: some replica has none. ``is_over``: the Join ends with this step.
    ``throws``: no replica commits it, and all raise. ``last_joiner``: the slot that ran out last;
    the same on all, and exactly one. ``settings``: followers with these settings step like the
    leaders; None: no follower can. ``last_settings``: the settings of the last joiner. ``reason``:
    why no follower can. ``is_known``: a leader has made a step before. ``number``: this Join's.
    ``unlike``: slots with other terms.
    """

    batches: int
    divisor: int
    has_leader: bool
    has_follower: bool
    is_over: bool
    throws: bool
    last_joiner: int
    settings: int | None
    last_settings: int
    reason: str
    is_known: bool
    number: int
    unlike: tuple[int, ...]


def encode(row: Row) -> tuple[int, ...]:
    """The row as ``FIELDS`` integers. A row of zeros means that the slot takes no part."""
    bits = _PRESENT
    bits |= _HAS_BATCH * row.has_batch | _HEALS * row.heals
    bits |= _BY_ALL * row.terms.by_all | _THROWS * row.terms.throws
    return bits, int(row.stepped), row.followed, row.settings, row.number


def decode(table: Sequence[Sequence[int]]) -> dict[int, Row]:
    """By slot, the rows of those that take part."""
    return {slot: _decode(fields) for slot, fields in enumerate(table) if fields[0]}


def _decode(fields: Sequence[int]) -> Row:
    bits, stepped, followed, settings, number = fields
    return Row(
        bool(bits & _HAS_BATCH),
        bool(bits & _HEALS),
        Stepped(stepped),
        followed,
        settings,
        number,
        Terms(bool(bits & _BY_ALL), bool(bits & _THROWS)),
    )


def judge(rows: Mapping[int, Row]) -> JoinVerdict:
    """The verdict of a step; ``rows`` by slot, at least one.

    The terms are taken from the lowest slot that does not heal; if all heal, from the lowest one.
    """
    healthy = {slot: row for slot, row in rows.items() if not row.heals} or dict(rows)
    terms = healthy[min(healthy)].terms
    batches = sum(row.counts for row in rows.values())
    has_leader = any(row.has_batch for row in rows.values())
    is_out = any(not row.has_batch and not row.heals for row in rows.values())
    unlike = tuple(sorted(slot for slot, row in rows.items() if row.terms != terms))
    settings, reason = _settings([row for row in rows.values() if row.counts])
    last_joiner = min(healthy, key=lambda slot: (healthy[slot].followed, -slot))
    last_settings = healthy[last_joiner].settings
    is_alike = not unlike and all(row.settings == last_settings for row in rows.values())
    members = sum(not row.heals for row in rows.values())
    return JoinVerdict(
        batches=batches,
        divisor=members if terms.by_all and batches else batches,
        has_leader=has_leader,
        has_follower=any(not row.has_batch for row in rows.values()),
        is_over=not has_leader and is_alike and not any(row.heals for row in rows.values()),
        throws=terms.throws and is_out and has_leader,
        last_joiner=last_joiner,
        settings=settings,
        last_settings=last_settings,
        reason=reason,
        is_known=any(row.counts and row.stepped for row in rows.values()),
        number=max(row.number for row in healthy.values()),
        unlike=unlike,
    )


def _settings(leaders: Sequence[Row]) -> tuple[int | None, str]:
    """The settings with which a follower steps like the leaders; or None, and the reason."""
    known = {row.stepped for row in leaders}
    if Stepped.CHANGED in known:
        return None, "the script changes gradients or settings between backward() and step()"
    if Stepped.PLAIN not in known:
        return None, "no replica with data has made a step yet"
    found = {row.settings for row in leaders}
    if len(found) > 1:
        return None, "the optimizer's settings are not the same on all replicas with data"
    return found.pop(), ""
