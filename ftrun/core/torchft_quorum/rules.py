"""When torchft's replica groups become a quorum: its rules as one function.

Replica groups *heartbeat*, which makes them *healthy* for the heartbeat timeout, and *join*, which
makes them wait for the next quorum. In this order:

    all members of the last quorum have joined      a quorum now (torchft's "fast quorum")
    fewer have joined than min_replicas             wait
    at most half of all healthy ones have joined    wait: the others may be a quorum of their own
    a healthy one has not joined                    wait until the join timeout of the first joiner
    otherwise                                       a quorum now

If any joiner asks for ``shrink_only``, joiners that the last quorum lacks are left out, and keep
waiting. An empty quorum is not formed; torchft's lighthouse would form it again and again.

The order of the checks, and the rules, are torchft's as its lighthouse shows them
(tests/torchft/test_against_real.py compares both). Not here: tables and ids (room.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ftrun.core.torchft_quorum.records import QuorumMember, QuorumSettings


@dataclass(frozen=True, slots=True)
class Joiner:
    """A replica group that waits for a quorum, since ``since``."""

    member: QuorumMember
    since: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about a quorum.

    ``members`` None: no quorum yet, for this ``reason``; the reason may end at ``until``.
    """

    members: tuple[QuorumMember, ...] | None
    reason: str = ""
    until: float | None = None


def decide(
    joiners: Mapping[str, Joiner],
    healthy: Collection[str],
    last: tuple[str, ...] | None,
    settings: QuorumSettings,
    now: float,
) -> Verdict:
    """Whether the joiners are a quorum at ``now``.

    ``joiners``: by replica id; those that are not healthy do not count. ``last``: the members of
    the last quorum; None: there was none.
    """
    joined = {name: joiner for name, joiner in joiners.items() if name in healthy}
    if last is not None and all(name in joined for name in last):
        return _verdict(joined, last)
    if len(joined) < settings.min_replicas:
        return Verdict(None, f"{len(joined)} of min_replicas {settings.min_replicas} have joined")
    if len(joined) <= len(healthy) // 2:
        return Verdict(None, f"{len(joined)} of {len(healthy)} that live have joined, no majority")
    if len(joined) < len(healthy):
        until = min(joiner.since for joiner in joined.values()) + settings.join_timeout_s
        if now < until:
            absent = len(healthy) - len(joined)
            return Verdict(None, f"{absent} of {len(healthy)} that live have not joined", until)
    return _verdict(joined, last)


def _verdict(joined: Mapping[str, Joiner], last: tuple[str, ...] | None) -> Verdict:
    """The quorum of those that have joined, in the order of their names."""
    names = sorted(joined)
    if last is not None and any(joiner.member.shrink_only for joiner in joined.values()):
        names = [name for name in names if name in last]
        if not names:
            return Verdict(None, "a joiner shrinks the quorum, and no member of it has joined")
    return Verdict(tuple(joined[name].member for name in names))
