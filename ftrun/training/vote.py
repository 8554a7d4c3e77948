"""The vote of a replica group of several workers: one decision on all its ranks (C1).

A MIN all-reduce over the replica group's own control group carries the flag and the tag. The tag is
sent twice, with opposite signs, to get its minimum and its maximum. If they differ, the ranks voted
for different steps and none commits. Another flag is for snapshots: whether all ranks copy their
state at the boundary that follows (core/worker/snapshots.py).

Before the first step the ranks also agree on the snapshot from which they resume (resuming.py).

Not here: when a rank votes, and what follows (step_flow.py, core/worker/machine.py).
"""

from __future__ import annotations

import hashlib
import os
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch.distributed import AllreduceOptions, ReduceOp

from ftrun.base.errors import UserError
from ftrun.core.ids import Tag
from ftrun.process_groups.gloo import ProcessGroupGloo
from ftrun.training.context import WorkerContext


class Votes(NamedTuple):
    """The result of a vote of all ranks.

    ``commits``: None: the ranks voted under different tags. ``copies``: all ranks copy for a
    snapshot next.
    """

    commits: bool | None
    copies: bool


class GroupVote:
    """The control group of one replica group, for the life of an incarnation.

    Args:
        group: a group that was made for this elsewhere; None: it is made here.

    Raises:
        UserError: the launcher's environment is missing.
        PeerError: the other ranks did not connect within ``timeout_s``.
    """

    def __init__(self, context: WorkerContext, timeout_s: float, group: Any = None) -> None:
        factory = ProcessGroupGloo(timedelta(seconds=timeout_s))
        self._group = group or factory.build(
            group_store(context),
            f"ftrun/vote/{context.key.incarnation}",
            context.group_rank,
            context.workers_per_replica,
            context.host,
            timeout_s,
        )

    def decide(self, tag: Tag | None, flag: bool, copies: bool = False) -> Votes:
        """Vote. Returns whether all voted True under one tag, and whether all would copy.

        Raises:
            RuntimeError: a rank is gone or did not vote within the deadline.
        """
        name = _number(tag.path() if tag is not None else "")
        ballot = torch.tensor([int(flag), name, -name, int(copies)], dtype=torch.int64)
        self._reduce(ballot, ReduceOp.MIN)
        if ballot[1] != -ballot[2]:
            return Votes(None, False)
        return Votes(bool(ballot[0] == 1), bool(ballot[3] == 1))

    def lowest(self, step: int, name: str) -> tuple[int, bool]:
        """The lowest step of all ranks, and whether all of them give this step and this name.

        Raises:
            RuntimeError: a rank is gone or did not answer within the deadline.
        """
        number = _number(f"{step} {name}")
        ballot = torch.tensor([step, number, -number], dtype=torch.int64)
        self._reduce(ballot, ReduceOp.MIN)
        return int(ballot[0]), bool(ballot[1] == -ballot[2])

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is true on any rank.

        Raises:
            RuntimeError: a rank is gone or did not answer within the deadline.
        """
        ballot = torch.tensor([int(flag)], dtype=torch.int64)
        self._reduce(ballot, ReduceOp.MAX)
        return bool(ballot[0])

    def _reduce(self, ballot: torch.Tensor, op: Any) -> None:
        options = AllreduceOptions()
        options.reduceOp, options.asyncOp = op, False  # tells the keeper's group that it waits
        self._group.allreduce([ballot], options).wait()

    def close(self) -> None:
        self._group.shutdown()


def group_store(context: WorkerContext) -> str:
    """The address of the store at which the ranks of a group meet.

    Raises:
        UserError: the launcher's environment is missing.
    """
    if context.group_store:
        return context.group_store
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not address or not port:
        raise UserError(
            "MASTER_ADDR and MASTER_PORT are not set: a replica group of several workers needs "
            "the store that ftrun gives it. Do not remove them from the environment."
        )
    return f"{address}:{port}"


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
