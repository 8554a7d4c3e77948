"""A quorum: the replica groups that train together, their first step, a step's contributors.

Pure records and arithmetic. Not here: the choice of the next quorum (lighthouse/), the behaviour of
a worker in one (worker/).
"""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.core.ids import Attempt, StateId, Tag


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses at which peers reach one worker.

    ``host``: numeric address that its process group binds. ``heal``: ``host:port`` of its state
    server. ``heal_certificate``: the SHA-256, in hex, of that server's certificate; empty: the
    server does not use TLS.
    """

    host: str
    heal: str
    heal_certificate: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """One replica group of a quorum: its endpoints by group_rank, and its node's store."""

    replica_id: str
    incarnation: str
    endpoints: tuple[Endpoint, ...]
    store: str

    @property
    def key(self) -> tuple[str, str]:
        """The replica id and the incarnation."""
        return self.replica_id, self.incarnation


@dataclass(frozen=True, slots=True)
class Quorum:
    """The replica groups that train together, and the state that they begin with.

    ``members`` are ordered by ``replica_order``; a member's index is its replica_rank. ``store`` is
    the ``host:port`` of the TCPStore in which the process groups meet. Every member holds ``step``
    and ``state`` when it begins its first step here; a member that does not hold ``state`` heals.
    In a quorum of a switch both are None until the switch is confirmed; then ``step`` is the step
    of the switch. ``newcomers`` are the members that heal. ``recomputes``: groups of several
    workers that compute the step under way again, because not all of their workers can repair it.
    ``standing``: by rank, the number of operations of the step under way that are complete in each
    group and whose results scripts have: these stand. The operations after them are issued again,
    and all commit the step under the attempt ``stands_as``, of the same members.

    ``base`` and ``left`` are set only between an agent and the lighthouse, where a quorum is sent
    as a difference (protocol/quorums.py). No other code receives such a record.
    """

    attempt: Attempt
    members: tuple[Member, ...]
    store: str
    step: int | None = None
    state: StateId | None = None
    newcomers: tuple[str, ...] = ()
    recomputes: tuple[str, ...] = ()
    stands_as: Attempt | None = None
    standing: tuple[int, ...] = ()
    base: Attempt | None = None
    left: tuple[str, ...] = ()

    @property
    def first_step(self) -> int:
        """The step at which a quorum in force begins."""
        assert self.step is not None, "a quorum in force has its step"
        return self.step

    @property
    def repaired_tag(self) -> Tag | None:
        """The tag under which all commit the step that some ranks repair; None: the step's own
        tag.
        """
        return None if self.stands_as is None else Tag(self.stands_as, self.first_step)

    def has_same_members(self, other: Quorum) -> bool:
        """Whether both have the same incarnations, perhaps with other processes."""
        return [x.key for x in self.members] == [x.key for x in other.members]

    def kept_by(self, rank: int) -> int:
        """The number of operations of the step under way that stand at this rank."""
        return self.standing[rank] if self.stands_as is not None else 0

    @property
    def donors(self) -> tuple[str, ...]:
        """The members that need not heal, in order."""
        heal = frozenset(self.newcomers)
        return tuple([m.replica_id for m in self.members if m.replica_id not in heal])

    def index(self, replica_id: str, incarnation: str) -> int | None:
        """The replica_rank of this incarnation, or None if it is not a member."""
        for rank, member in enumerate(self.members):
            if member.replica_id == replica_id and member.incarnation == incarnation:
                return rank
        return None


def contributors(
    quorum: Quorum, step: int, heal_first: bool = False, at_most: int | None = None
) -> tuple[int, ...]:
    """The replica_ranks whose gradients count in ``step``, in order.

    Newcomers add zeros in the first step of their quorum, unless they heal before the forward pass
    (``heal_first``, and always at step 0). ``at_most``: members beyond it are spares
    (``WorldSizeMode.FIXED_WITH_SPARES``). Every member computes the same answer by itself.
    """
    ranks = tuple(range(len(quorum.members)))
    if quorum.newcomers and step == quorum.step and not (heal_first or step == 0):
        members = quorum.members
        ranks = tuple(r for r in ranks if members[r].replica_id not in quorum.newcomers)
    return ranks if at_most is None else ranks[:at_most]
