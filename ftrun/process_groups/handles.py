"""Reconfigure handles: how the ranks of a group find each other without ftrun's launcher.

A handle names one process's group and a store that this process serves. A group that gets the
handles of all ranks, in order, meets the others at the first one's store. The form is torchft's:
JSON with ``id``, ``store`` (``host:port``) and ``global_rank``.

Not here: the groups (reconfigurable.py, base.py).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch._C import _distributed_c10d
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ftrun.base.addresses import LOOPBACK, join_address, own_host, split_address

if TYPE_CHECKING:

    class ReconfigureOptions:
        """The arguments of ``ProcessGroup.reconfigure``. torch has this class from 2.14 on."""

        uuid: int
        handles: list[str] | set[str]
        timeout: timedelta | None
        hints: dict[str, str]

else:
    ReconfigureOptions = getattr(_distributed_c10d, "ReconfigureOptions", None)
    if ReconfigureOptions is None:

        @dataclass
        class ReconfigureOptions:
            """The arguments of ``ProcessGroup.reconfigure``. torch has this class from 2.14 on."""

            uuid: int = 0
            handles: list[str] | set[str] = field(default_factory=list)
            timeout: timedelta | None = None
            hints: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks of one group meet, and this process's rank.

    ``store_addr``: ``host:port/prefix``. ``global_ranks``: of all ranks; None if one has none.
    """

    store_addr: str
    rank: int
    world_size: int
    uuid: int
    global_ranks: list[int] | None


class HandleStore:
    """The store of one process's group, served from the first handle on."""

    def __init__(self) -> None:
        self.handle_id = uuid.uuid4().hex
        self._store: Any = None
        self._host = LOOPBACK

    def handle(self, global_rank: int | None) -> str:
        if self._store is None:
            self._host = own_host()
            self._store = TCPStore(self._host, 0, is_master=True, wait_for_workers=False)
        store = join_address(self._host, self._store.port)
        return json.dumps({"id": self.handle_id, "store": store, "global_rank": global_rank})


def meet(options: ReconfigureOptions, handle_id: str) -> Meeting:
    """Find the meeting that ``options.handles`` describe for the group of ``handle_id``.

    Raises:
        ValueError: the handles have no order, one cannot be read, or this group's is missing.
    """
    handles: Sequence[str] | set[str] = options.handles
    if not isinstance(handles, list) or not handles:
        raise ValueError("a group needs the handles of all ranks as a list: their order is a rank")
    try:
        peers = [json.loads(handle) for handle in handles]
        ids, stores = [str(p["id"]) for p in peers], [str(p["store"]) for p in peers]
        global_ranks = [p["global_rank"] for p in peers]
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(f"a reconfigure handle cannot be read: {error}") from error
    if handle_id not in ids:
        raise ValueError(f"this group's own handle {handle_id} is not among the {len(ids)} given")
    return Meeting(
        store_addr=f"{stores[0]}/torchft/{options.uuid}",
        rank=ids.index(handle_id),
        world_size=len(peers),
        uuid=options.uuid,
        global_ranks=None if None in global_ranks else global_ranks,
    )


def split_store_address(text: str) -> tuple[str, int, str]:
    """Split ``host:port/prefix`` in three. An IPv6 host may be in brackets or not.

    Raises:
        ValueError: it has another form.
    """
    address, _, prefix = text.partition("/")
    return (*split_address(address), prefix)


def store_client(store_addr: str, timeout: timedelta) -> Store:
    """A client of the TCPStore at ``host:port/prefix``. All its keys get that prefix."""
    host, port, prefix = split_store_address(store_addr)
    store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
    return PrefixStore(prefix, store)
