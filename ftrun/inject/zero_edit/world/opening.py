"""How a script's world and groups are made: torch's own functions, patched to make shells.

``init_process_group`` and ``new_group`` both call one function of torch's, which makes a group for
the name of a backend. The patch makes it return a shell, and enters the requested name in torch's
tables. Before the first step all ranks connect through a store that the lighthouse chooses. A rank
that starts later connects when it joins (world.py).

All ranks see the same store at MASTER_ADDR and MASTER_PORT.

Not here: the group itself (shell.py).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlparse

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ftrun.core.ids import NO_ATTEMPT
from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.mates import store_of_all
from ftrun.inject.zero_edit.patches import Patches, around, holders
from ftrun.inject.zero_edit.refusals import refuse
from ftrun.inject.zero_edit.world.kept import Kept
from ftrun.inject.zero_edit.world.shell import BACKEND, Shell

if TYPE_CHECKING:
    from ftrun.core.messages import Roster
    from ftrun.inject.zero_edit.script import Script

CPU = torch.device("cpu")
SHELLED = frozenset({"gloo", "nccl", "undefined"})
DEFAULT_TIMEOUT = timedelta(minutes=30)
"""torch's default for Gloo."""
rendezvous: Any = import_module("torch.distributed.rendezvous")  # a function of torch shadows it


def names_of(backend: Any) -> set[str]:
    """The names in a backend argument: "gloo", or one for each device ("cpu:gloo,cuda:nccl")."""
    return {part.rpartition(":")[2] for part in str(backend).lower().split(",")}


class Opening:
    """Makes the groups of one process.

    Args:
        leaves: called before a process that the worker has forked makes a world; that one is
            torch's own.

    Attributes:
        begins: called before the script makes its world; it may turn out to be explicit.
    """

    def __init__(self, script: Script, leaves: Callable[[], None]) -> None:
        self._script = script
        self.begins: Callable[[], None] = lambda: None
        self._here, self._mates, self._world = script.here, script.mates, script.world
        self._size = self._here.replicas * self._mates.size
        self._store = self._prefix = ""
        self._worlds = 0  # how many the script has made
        self._leaves, self._pid = leaves, os.getpid()

    def install(self, patches: Patches) -> None:
        """Patch torch's functions where scripts find them."""
        dist.Backend.register_backend(
            BACKEND, self._make, extended_api=True, devices=["cpu", "cuda"]
        )
        name = distributed_c10d._new_process_group_helper.__name__
        patches.around(distributed_c10d, name, self._helper)
        plain = dist.init_process_group
        init = around(plain, self._init)
        for module in holders("init_process_group", plain):  # a device mesh makes the world too
            patches.put(module, "init_process_group", init)
        os.environ.setdefault("MASTER_ADDR", self._here.host)

    def _init(
        self,
        plain: Callable[..., None],
        backend: Any = None,
        init_method: Any = None,
        timeout: timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if os.getpid() == self._pid:
            self.begins()
        else:
            self._leaves()
        is_torchs = dist.init_process_group is plain  # unpatched: explicit, or not in a worker
        is_wrong = _is_wrong(init_method, timeout, world_size, rank, store)
        if is_torchs or is_wrong or not self._check(world_size, rank):
            plain(backend, init_method, timeout, world_size, rank, store, *args, **kwargs)
            return
        limit = timeout or DEFAULT_TIMEOUT
        self._open(limit)
        self._worlds += 1
        served = store_of_all("default_pg", limit) if store is None else store
        own = self._size, self._mates.rank, served
        plain(backend, None, timeout, *own, *args, **kwargs)
        if self._mates.are_several:
            # Named by its ranks, so that the script's own groups keep the numbers torch gives them.
            made: Any = dist.new_group(
                list(self._mates.ranks), timeout=limit, use_local_synchronization=True
            )
            self._mates.meet(made, limit)

    def _check(self, size: int, rank: int) -> bool:
        """Refuse a world whose size or rank is not the job's. True: they are."""
        if (size not in (-1, self._size)) or (rank not in (-1, self._mates.rank)):
            refuse(
                f"{call_site()}: init_process_group with rank {rank} of {size}, in a job of "
                f"{self._size} ranks in which this is rank {self._mates.rank}"
            )
        return True

    def _open(self, limit: timedelta) -> None:
        """Before the script's first world: find its members, or follow a quorum that trains."""
        world = self._world
        if world.is_open:
            return
        manager = self._script.manager()
        world.following = manager.session.follow_quorums(self._script.quorums)
        if self._script.begins_at is not None:
            world.is_walking = True  # its predecessor was in a quorum
        else:
            self._meet(manager.session.exchanges.peers(limit.total_seconds()))
        directory = Path(self._here.socket_path).parent
        path = directory / f"set-up-{self._mates.rank}"
        world.kept = Kept(path, is_successor=world.is_walking)
        world.is_open = True

    def _meet(self, roster: Roster) -> None:
        workers = self._mates.size
        self._world.members = tuple(
            int(entry.replica_id) * workers + rank
            for entry in roster.entries
            for rank in range(workers)
        )
        self._store = roster.store
        self._prefix = f"{self._here.job_id}/set-up/{_digest(roster)}"
        self._world.is_walking = roster.has_begun

    # ------------------------------------------------------------ groups

    def _helper(
        self,
        plain: Callable[..., Any],
        size: int,
        rank: int,
        ranks: Any,
        backend: Any,
        store: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        names = names_of(backend)  # torch's "fake" needs no peer
        is_alone = names == {"fake"} or (size == 1 and not names & SHELLED)
        if is_alone or not self._is_shelled(backend):
            return plain(size, rank, ranks, backend, store, *args, **kwargs)
        kwargs["backend_options"] = _Wished(backend, kwargs.get("backend_options"))
        kwargs.pop("device_id", None)
        made, found = plain(size, rank, ranks, BACKEND, store, *args, **kwargs)
        tables = distributed_c10d._world
        if made in tables.pg_map:  # this rank is a member
            tables.pg_map[made] = (dist.Backend(backend), found)
            tables.pg_backend_config[made] = str(distributed_c10d.BackendConfig(backend))
        return made, found

    def _is_shelled(self, backend: Any) -> bool:
        if not self._world.is_open:
            return False
        names = names_of(backend)
        unlike = names - SHELLED
        if any(not dist.is_backend_available(name) for name in unlike):
            return False  # torch's own error
        if unlike:
            refuse(f"{call_site()}: a process group of the backend {backend}")
        return "nccl" not in names or torch.cuda.is_available()  # else torch's own error

    def _make(self, given: Any, wished: Any) -> dist.ProcessGroup:
        mates, world = self._mates, self._world
        ranks = list(given.global_ranks_in_group) or list(range(self._size))
        timeout = given.timeout or DEFAULT_TIMEOUT
        if mates.are_several and len(ranks) <= mates.size and mates.owns(ranks):
            return mates.make_group(f"{self._worlds}.{given.group_id}", ranks, timeout)
        backend = wished.backend if isinstance(wished, _Wished) else "gloo"
        shell = Shell(
            world,
            f"{self._worlds}.{given.group_id}",
            ranks,
            ranks.index(mates.rank),
            timeout,
            devices_of(backend),
            str(backend),
            given.store,
        )
        self._connect(shell)
        return shell

    def _connect(self, shell: Shell) -> None:
        world = self._world
        if world.keeper is not None and not world.in_set_up:
            world.keeper.lacks("the script makes a process group after its first step")
        world.add(shell)
        if shell.key in world.made_before:
            world.begins_again(
                f"{call_site()}: this rank makes a process group that its peers have made before "
                "it joined them"
            )
        elif not world.is_walking:
            world.connect(shell, self._where, shell.timeout.total_seconds())

    def _where(self) -> tuple[str, str]:
        """The store and the prefix of a new group: the set-up's, or those of the quorum in force,
        because other incarnations may have come since the set-up."""
        at, job = self._world.in_use, self._here.job_id
        if at == NO_ATTEMPT:
            return self._store, self._prefix
        return self._world.store, f"{job}/made/{at.quorum_id}.{at.number}"


def _is_wrong(method: Any, timeout: Any, size: int, rank: int, store: Any) -> bool:
    """Whether torch rejects these arguments before the ranks meet."""
    if not (timeout is None or isinstance(timeout, timedelta)):
        return True
    if store is not None:
        return method is not None or size < 1 or rank < 0
    scheme = urlparse(method).scheme if isinstance(method, str) else ""
    return method is not None and scheme not in rendezvous._rendezvous_handlers


class _Wished(NamedTuple):
    """The options of a group, with the backend that the script has requested."""

    backend: Any
    options: Any


def _digest(roster: Roster) -> str:
    """A name for the set-up of these incarnations, equal at all of them."""
    text = ",".join(f"{entry.replica_id}:{entry.incarnation}" for entry in roster.entries)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def devices_of(backend: Any) -> Sequence[torch.device]:
    """The devices for which torch would make the requested backends."""
    try:
        config = distributed_c10d.BackendConfig(dist.Backend(backend or "undefined"))
        found = list(config.get_device_backend_map())
        return [torch.device(name) for name in found] or [CPU]
    except (AttributeError, AssertionError, RuntimeError, TypeError, ValueError):
        return [CPU]
