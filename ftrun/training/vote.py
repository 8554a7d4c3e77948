"""The vote of a replica group of several workers: one decision on all its ranks (C1).

A MIN all-reduce over the replica group's own control group carries the flag and the tag. The tag is
sent twice, with opposite signs, so that its minimum and its maximum come back: if they differ, the
ranks voted for different steps and none commits.

Not here: when a rank votes, and what follows (step_flow.py, core/worker/machine.py).
"""

from __future__ import annotations

import hashlib
import os
from datetime import timedelta

import torch
from torch.distributed import ReduceOp

from ftrun.core.ids import Tag
from ftrun.errors import UserError
from ftrun.process_groups.gloo import ProcessGroupGloo
from ftrun.training.context import WorkerContext


class GroupVote:
    """The control group of one replica group, for the life of an incarnation.

    Raises:
        UserError: the launcher's environment is missing.
        PeerError: the other ranks did not come within ``timeout_s``.
    """

    def __init__(self, context: WorkerContext, timeout_s: float) -> None:
        factory = ProcessGroupGloo(timedelta(seconds=timeout_s))
        self._group = factory.build(
            context.group_store or _launchers_store(),
            f"ftrun/vote/{context.key.incarnation}",
            context.group_rank,
            context.workers_per_replica,
            context.host,
            timeout_s,
        )

    def decide(self, tag: Tag | None, flag: bool) -> bool | None:
        """True if every rank voted True, all under the same tag; None: under different ones.

        Raises:
            RuntimeError: a rank is gone or did not vote within the deadline.
        """
        name = _number(tag)
        ballot = torch.tensor([int(flag), name, -name], dtype=torch.int64)
        self._group.allreduce([ballot], ReduceOp.MIN).wait()
        if ballot[1] != -ballot[2]:
            return None
        return bool(ballot[0] == 1)

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is true on any rank.

        Raises:
            RuntimeError: a rank is gone or did not answer within the deadline.
        """
        ballot = torch.tensor([int(flag)], dtype=torch.int64)
        self._group.allreduce([ballot], ReduceOp.MAX).wait()
        return bool(ballot[0])

    def close(self) -> None:
        """Release the control group."""
        self._group.shutdown()


def _launchers_store() -> str:
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not address or not port:
        raise UserError(
            "MASTER_ADDR and MASTER_PORT are not set: a replica group of several workers needs "
            "the store that ftrun gives it. Do not remove them from the environment."
        )
    return f"{address}:{port}"


def _number(tag: Tag | None) -> int:
    path = tag.path() if tag is not None else ""
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=7).digest(), "big")
