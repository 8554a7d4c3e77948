"""The *mates*: the workers of this replica group, when a replica has several.

The script sees all workers of all replicas as one world. A mate takes part in the world's
collectives through the group's lead (rank 0 of the group): only the lead exchanges data with other
replicas, and all mates use its result. So mates always agree on which replicas took part, even if a
replica dies during the collective.

Not here: the world (world.py), gradients (models.py, sharding.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ftrun.base.errors import Bug, PeerError

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.in_place import InPlace
    from ftrun.training.context import WorkerContext
    from ftrun.training.exchanges import Exchanges

STORE_TIMEOUT = timedelta(minutes=5)
MEETING_TIMEOUT = timedelta(seconds=5)


class Mates:
    """The workers of one replica group. For the main thread only.

    Args:
        here: this worker.

    Attributes:
        first: the rank of the group's first worker in the script's world.
        rank: the rank of this worker in the script's world.
        group: the process group for reductions of the script's models within the replica; None:
            there is one worker, or the script has no process group yet.
        keeper: logs the results of groups within the replica; None: they are not logged.
    """

    def __init__(self, here: WorkerContext) -> None:
        self._here = here
        self.size = here.workers_per_replica
        self.are_several = self.size > 1
        self.first = int(here.replica_id) * self.size
        self.rank = self.first + here.group_rank
        self.group: dist.ProcessGroup | None = None
        self._talk: dist.ProcessGroup | None = None  # the script cannot destroy it
        self.keeper: InPlace | None = None

    def meet(self, group: dist.ProcessGroup, timeout: timedelta) -> None:
        """The script has made its world; ``group`` is this replica's. All mates must call this."""
        self.group = group
        self._talk = self.make_group("talk", self.ranks, timeout, only_cpu=True)

    @property
    def is_lead(self) -> bool:
        """Whether this worker exchanges values with other replicas on behalf of its group."""
        return self._here.group_rank == 0

    @property
    def ranks(self) -> range:
        """The group's ranks in the script's world."""
        return range(self.first, self.first + self.size)

    def owns(self, ranks: Sequence[int]) -> bool:
        return all(rank in self.ranks for rank in ranks)

    def make_group(
        self, name: str, ranks: Sequence[int], timeout: timedelta, *, only_cpu: bool = False
    ) -> dist.ProcessGroup:
        """A process group over some ranks of this replica group; all of them must call this."""
        if self.keeper is not None:
            own = [rank - self.first for rank in ranks]
            return self.keeper.make_group(name, own, timeout, only_cpu=only_cpu)
        torchs: Any = dist
        store = store_of_all(f"ftrun/mates/{self._here.key.incarnation}/{name}", STORE_TIMEOUT)
        rank, size = list(ranks).index(self.rank), len(ranks)
        kinds: Any = dist.ProcessGroup.BackendType
        group: Any = dist.ProcessGroup(store, rank, size)
        on_cpu = dist.ProcessGroupGloo(torchs.PrefixStore("cpu", store), rank, size, timeout)
        group._set_default_backend(kinds.GLOO)
        group._register_backend(torch.device("cpu"), kinds.GLOO, on_cpu)
        if self._here.device == "cuda" and not only_cpu:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            on_cuda = dist.ProcessGroupNCCL(torchs.PrefixStore("cuda", store), rank, size, options)
            group._set_default_backend(kinds.NCCL)
            group._register_backend(torch.device("cuda"), kinds.NCCL, on_cuda)
        made: dist.ProcessGroup = group
        return made

    def make_mesh(self, device_type: str | None) -> Any:
        """The mesh of these workers; None: the script has no process group."""
        if self.group is None:
            return None
        from torch.distributed.device_mesh import DeviceMesh

        kind = device_type or self._here.device
        return DeviceMesh.from_group(self.group, kind, mesh_dim_names=("shard",))

    def from_lead(self, exchanges: Exchanges, body: bytes, timeout_s: float) -> bytes:
        """Broadcast the lead's ``body`` to all mates; the other mates' ``body`` is ignored.

        Before the first step the other mates also ask the lighthouse for peers, because it waits
        for all workers of a replica.

        Returns:
            The lead's ``body``.
        """
        if not self.is_lead and exchanges.is_in_set_up:
            exchanges.peers(timeout_s)
        return self._all(body if self.is_lead else b"")[0]

    def digest(self, own: str) -> str:
        """A digest of all mates' ``own`` values."""
        return blake2b(b"".join(self._all(own.encode()))).hexdigest()[:16]

    def any(self, flag: bool) -> bool:
        if not self.are_several:
            return flag
        found = torch.tensor([int(flag)])
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        _await(self._connected.allreduce([found], options))
        return bool(found)

    def are_here(self) -> bool:
        """Whether all mates call this too, within ``MEETING_TIMEOUT``."""
        if not self.are_several or self._talk is None:
            return True
        try:
            self._talk.allreduce([torch.zeros(1)], dist.AllreduceOptions()).wait(MEETING_TIMEOUT)
        except (RuntimeError, TimeoutError):  # one is gone, or elsewhere
            return False
        return True

    @property
    def _connected(self) -> dist.ProcessGroup:
        if self._talk is None:
            raise Bug("the workers of a replica are to agree before the script has a world")
        return self._talk

    def _all(self, body: bytes) -> list[bytes]:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        _await(self._connected.allgather([sizes], [torch.tensor([len(body)])]))
        longest = max(1, *map(int, sizes))
        own = torch.zeros(longest, dtype=torch.uint8)
        own[: len(body)].copy_(_tensor(body))
        found = [torch.zeros_like(own) for _ in range(self.size)]
        _await(self._connected.allgather([found], [own]))
        return [
            part[: int(size)].numpy().tobytes() for part, size in zip(found, sizes, strict=True)
        ]


def _await(work: dist.Work) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise PeerError(f"a worker of this replica is gone, or late: {error}") from error


def store_of_all(prefix: str, timeout: timedelta) -> Any:
    """A client of the store that all ranks of the job share, at MASTER_ADDR and MASTER_PORT."""
    torchs: Any = dist  # its stubs do not export the stores
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    served = torchs.TCPStore(address, port, is_master=False, timeout=timeout)
    return torchs.PrefixStore(prefix, served)


def _tensor(body: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(body), dtype=torch.uint8) if body else torch.zeros(0).byte()
