"""Numbers attempts: always rising, one quorum_id per member list (Q1, Q2).

Not here: what an attempt is (ids.py), when one is made (membership.py).
"""

from __future__ import annotations

from ftrun.core.ids import EPOCH_MAX, Attempt, pack_quorum_id, unpack_quorum_id
from ftrun.core.quorum import Member


class AttemptCounter:
    """Issues attempts, each higher than every one that was ever seen.

    ``highest``: the highest attempt that this lighthouse may have sent. Before the first it is
    ``(epoch, seq 0)``, above all that earlier lives of the lighthouse can have issued.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.highest = _floor(epoch)
        self._named: tuple[tuple[str, str], ...] | None = None

    def issue(self, members: tuple[Member, ...]) -> Attempt:
        """The next attempt: the same members keep their quorum_id, others take the next one."""
        named = tuple(member.key for member in members)
        epoch, seq = unpack_quorum_id(self.highest.quorum_id)
        if named == self._named:
            self.highest = Attempt(self.highest.quorum_id, self.highest.number + 1)
        else:
            self.highest = Attempt(pack_quorum_id(epoch, seq + 1), 1)
        self._named = named
        return self.highest

    def outrun_epoch(self, epoch: int) -> bool:
        """Rise above the epoch of another life; True if ours has changed."""
        return self.epoch < epoch < EPOCH_MAX and self.outrun(_floor(epoch))

    def outrun(self, seen: Attempt) -> bool:
        """Rise above an attempt of another life; True if the epoch has changed."""
        epoch, _ = unpack_quorum_id(seen.quorum_id)
        if seen <= self.highest or epoch >= EPOCH_MAX:
            return False
        self.epoch = epoch + 1
        self.highest = _floor(self.epoch)
        self._named = None
        return True


def _floor(epoch: int) -> Attempt:
    return Attempt(pack_quorum_id(epoch, 0), 0)
