"""One world of all replicas for the script's own collectives, under any backend's name.

Its size and ranks never change: the rank is the slot, and with several workers per replica each
slot has that many ranks in a row. A collective outside of DDP is a named exchange
(core/worker/exchange.py), so that it never touches the gradients' group. A replica that is away
adds nothing: a sum or a mean is over the replicas that are there, and a list has the lowest rank's
tensor in its place. Collectives that cannot be kept are refused.

A group of ranks of one replica is a process group of torch's own, because these live and die
together. A group that crosses replicas may be made, as a mesh needs it, but not used.

Not here: gradients (models.py, sharding.py), objects (objects.py), the exchange
(training/exchanges.py).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, distributed_c10d

from ftrun.core.worker.exchange import BODY_BYTES_MAX
from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.given import LastGiven, place_of
from ftrun.inject.zero_edit.mates import Mates
from ftrun.inject.zero_edit.objects import Give, Objects
from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.refusals import refuse
from ftrun.training.context import WorkerContext
from ftrun.training.exchanged_tensors import from_bytes, operation_name, reduced, to_bytes, words

BACKEND = "ftrun"
DEFAULT_TIMEOUT = timedelta(minutes=30)
"""torch's own for Gloo."""
REFUSED = (
    "{site}: {what} across replicas is not offered to a script that heals step by step. Use "
    "all_reduce, all_gather, broadcast or barrier there"
)
LENGTH_BYTES = 8
MISSING_MAX = 8
BY_DDP = "gradients go through DistributedDataParallel"
FROM_ROOT = (
    "let each rank load a checkpoint itself (torch.load(…, mmap=True)), instead of rank 0 for all"
)
CPU = torch.device("cpu")
SHARDS = " (FSDP2 is carried within replicas of several workers: --workers-per-replica)"

Exchange = Callable[[str, str, bytes, float], dict[int, bytes]]


class _Done(dist.Work):
    """A collective that is complete."""

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(value)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def get_future(self) -> Any:
        return self._future


class World(dist.ProcessGroup):
    """All replicas.

    Args:
        rank: of this worker; ``size``: of all workers that are wanted.
        bytes_max: that one collective may take from a worker.
        timeout: of one collective.
        exchange: gives bytes at a call site, and gets those of all, by rank.
        longest: the largest of a number of each worker of this replica.
        last: what was given by broadcasts.
        devices: those for which the script has wished a backend.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        bytes_max: int,
        timeout: timedelta,
        exchange: Exchange,
        longest: Callable[[int], int],
        last: LastGiven,
        devices: Sequence[torch.device] = (CPU,),
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's stub lacks this overload.
        self._own_rank, self._own_size = rank, size
        self._bytes_max = bytes_max
        self._timeout_s = timeout.total_seconds()
        self._exchange = exchange
        self._longest = longest
        self._last = last
        self._name = BACKEND
        self._devices = devices

    def getBackendName(self) -> str:
        """The name of this backend in torch."""
        return BACKEND

    @property
    def group_name(self) -> Any:
        """The name under which torch knows this group."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def _device_types(self) -> list[torch.device]:
        """torch puts on the first one what has no device yet, as a checkpoint of a meta model."""
        return list(self._devices)

    # ------------------------------------------------------------ the exchange

    def _all(self, tensor: torch.Tensor, operation: str) -> dict[int, torch.Tensor]:
        """The tensors of all that take part, by rank."""
        found = self._given(words(operation, tensor), to_bytes(tensor))
        return {rank: from_bytes(body, tensor) for rank, body in found.items()}

    def _given(self, what: str, body: bytes) -> dict[int, bytes]:
        site = call_site()
        if len(body) > self._bytes_max:
            refuse(
                f"{site}: {what}: an operation of the script itself takes "
                f"{self._bytes_max / (1 << 20):g} MiB at most across replicas; "
                f"{FROM_ROOT if what.startswith('broadcast') else BY_DDP}"
            )
        return self._exchange(site, what, body, self._timeout_s)

    def give(self, what: str, body: bytes) -> dict[int, bytes]:
        """Bytes of unlike lengths of all that take part, by rank."""
        head = len(body).to_bytes(LENGTH_BYTES, "big")
        found = self._given(
            what, (head + body).ljust(LENGTH_BYTES + self._longest(len(body)), b"\0")
        )
        return {
            rank: whole[LENGTH_BYTES:][: int.from_bytes(whole[:LENGTH_BYTES], "big")]
            for rank, whole in found.items()
        }

    # ------------------------------------------------------------ collectives

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        op = getattr(opts, "reduceOp", opts) or ReduceOp.SUM
        for tensor in _listed(tensors):
            given = self._all(tensor, f"all_reduce {operation_name(op)}")
            self._tell_missing(given, op)
            tensor.copy_(_reduced(torch.stack(list(given.values())), op))
        return _Done(tensors)

    def _tell_missing(self, given: dict[int, Any], op: Any) -> None:
        """A sum lacks what a rank that is away would have given: an average over the size of the
        world is too small by it."""
        away = [str(rank) for rank in range(self._own_size) if rank not in given]
        if away and not self._last.is_still:
            told.once(
                f"{call_site()}: all_reduce {operation_name(op)} of {len(given)} of "
                f"{self._own_size} ranks, because {'ranks' if len(away) > 1 else 'rank'} "
                f"{', '.join(away[:MISSING_MAX])} gave nothing"
            )

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        return self.allreduce(tensors, opts)

    def barrier(self, opts: Any = None) -> Any:
        self._all(torch.zeros(0), "barrier")
        return _Done()

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        root = getattr(opts, "rootRank", 0)
        for tensor in _listed(tensors):
            self._broadcast_one(tensor, root)
        return _Done(tensors)

    def _broadcast_one(self, tensor: torch.Tensor, root: int) -> None:
        """Others than the root give what it gave here last, in case it is away: their tensor may
        have no values yet."""
        what, site = words(f"broadcast from {root}", tensor), call_site()
        place = place_of(what)
        own = b"" if self._own_rank == root else self._last.at(place)
        found = self._given(what, own or to_bytes(tensor))
        if root not in found:
            told.once(
                f"{site}: rank {root} gave nothing, so its broadcast is what it gave there last, "
                f"or else what rank {min(found)} has"
            )
        given = found.get(root, found[min(found)])
        self._last.keep(place, given)
        tensor.copy_(from_bytes(given, tensor))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._gather(tensor, output)
        return _Done(outputs)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        self._gather(tensor, list(output.view(self._own_size, -1).unbind(0)))
        return _Done([output])

    def all_gather_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> Any:
        return self._allgather_base(output, tensor, opts)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._allgather_base(output, tensor)
        return _Done(outputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # type: ignore[override]
        self._gather(inputs[0], outputs[0] if outputs and outputs[0] else [])
        return _Done(outputs)

    def _gather(self, tensor: torch.Tensor, outputs: list[torch.Tensor]) -> None:
        found = self._all(tensor, "all_gather")
        lowest = min(found)
        for rank, output in enumerate(outputs):
            if rank not in found and not self._last.is_still:
                told.once(
                    f"{call_site()}: rank {rank} gave nothing, so all_gather has rank "
                    f"{lowest}'s twice"
                )
            output.copy_(found.get(rank, found[lowest]).view_as(output))

    # ------------------------------------------------------------ what is not offered

    def _refuse(self, what: str) -> Any:
        more = SHARDS if what == "reduce_scatter" and self._bytes_max == BODY_BYTES_MAX else ""
        refuse(REFUSED.format(site=call_site(), what=what) + more)

    def scatter(self, *args: Any, **kwargs: Any) -> Any:
        return self._refuse("scatter")

    def reduce_scatter(self, *args: Any, **kwargs: Any) -> Any:
        return self._refuse("reduce_scatter")

    def _reduce_scatter_base(self, *args: Any, **kwargs: Any) -> Any:
        return self._refuse("reduce_scatter")

    def reduce_scatter_tensor_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        return self._refuse("reduce_scatter")

    def alltoall(self, *args: Any, **kwargs: Any) -> Any:
        return self._refuse("all_to_all")

    def alltoall_base(self, *args: Any, **kwargs: Any) -> Any:
        return self._refuse("all_to_all")

    def send(self, *args: Any, **kwargs: Any) -> Any:
        return self._refuse("send")

    def recv(self, *args: Any, **kwargs: Any) -> Any:
        return self._refuse("recv")

    def shutdown(self) -> None:
        """Nothing to close: the Manager stays until the script's end."""

    def abort(self) -> None:
        """As ``shutdown``."""


class Crossing(World):
    """Some ranks of several replicas, for example a row of a mesh: none of its collectives goes."""

    def _given(self, what: str, body: bytes) -> dict[int, bytes]:
        more = f"{what} in a group of {self._own_size} ranks of several replicas"
        refuse(REFUSED.format(site=call_site(), what=more))


def install(
    here: WorkerContext,
    mates: Mates,
    exchange: Exchange,
    patches: Patches,
    begins: Callable[[], None],
    last: LastGiven,
) -> None:
    """Let ``init_process_group`` make one world of all workers.

    ``begins``: called before; afterwards the script may be explicit, and nothing is patched.
    ``last``: what is given by broadcasts.
    """
    rank, size = mates.rank, here.replicas * mates.size
    bytes_max = BODY_BYTES_MAX // mates.size
    devices = [CPU]

    def make(given: Any, _options: Any) -> dist.ProcessGroup:
        ranks = list(given.global_ranks_in_group) or list(range(size))
        timeout = given.timeout or DEFAULT_TIMEOUT
        if len(ranks) == size:
            longest = mates.longest
            return World(rank, size, bytes_max, timeout, exchange, longest, last, devices)
        if not mates.are_several:
            what = f"new_group of {len(ranks)} of {size} ranks"
            refuse(REFUSED.format(site=call_site(), what=what))
        if mates.owns(ranks):
            return mates.make_group(given.group_id, ranks, timeout)
        at, longest = ranks.index(rank), mates.longest
        return Crossing(at, len(ranks), bytes_max, timeout, exchange, longest, last)

    dist.Backend.register_backend(BACKEND, make, extended_api=True, devices=["cpu", "cuda"])
    plain = dist.init_process_group

    @functools.wraps(plain)
    def init_process_group(
        backend: Any = None,
        init_method: Any = None,
        timeout: timedelta | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        begins()
        if dist.init_process_group is plain:
            plain(backend, init_method, timeout, *args, **kwargs)
            return
        devices[:] = devices_of(backend)
        plain(
            backend=BACKEND,
            store=_store(),
            rank=rank,
            world_size=size,
            timeout=timeout or DEFAULT_TIMEOUT,
        )
        if mates.are_several:
            made: Any = dist.new_group(list(mates.ranks), timeout=timeout or DEFAULT_TIMEOUT)
            mates.meet(made, timeout or DEFAULT_TIMEOUT)

    Objects(_exchange_of, last).install(patches)
    patches.put(dist, "init_process_group", init_process_group)
    patches.put(distributed_c10d, "init_process_group", init_process_group)
    os.environ.setdefault("MASTER_ADDR", here.host)


def _exchange_of(group: Any) -> Give | None:
    found = group or distributed_c10d._get_default_group()
    return found.give if isinstance(found, World) else None


def devices_of(backend: str | None) -> list[torch.device]:
    """The devices for which torch would make the backends that the script wishes."""
    try:
        config = distributed_c10d.BackendConfig(dist.Backend(backend or "undefined"))
        found = list(config.get_device_backend_map())
        return [torch.device(name) for name in found] or [CPU]
    except (AttributeError, AssertionError, RuntimeError, TypeError, ValueError):
        return [CPU]


def _store() -> Any:
    kind: Any = getattr(dist, "HashStore")  # noqa: B009 - torch's stub does not export it
    return kind()


def _listed(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _reduced(found: torch.Tensor, op: Any) -> torch.Tensor:
    """All tensors as one, along the first dimension."""
    whole = reduced(found, op)
    if whole is None:
        refuse(REFUSED.format(site=call_site(), what=f"a reduction by {operation_name(op)}"))
    return whole
