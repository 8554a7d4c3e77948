"""Gloo groups of several ranks in the threads of one process, for the quantised collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore

from ftrun.process_groups.gloo import ProcessGroupGloo

HOST, LIMIT_S = "127.0.0.1", 60.0


class Groups:
    """``each(call)`` runs ``call(rank, group)`` in a thread for each rank."""

    def __init__(self, size: int) -> None:
        self._store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self.ranks = [ProcessGroupGloo(timedelta(seconds=LIMIT_S)) for _ in range(size)]
        self._pool = ThreadPoolExecutor(size)
        address = f"{HOST}:{self._store.port}"
        self.each(lambda rank, group: group.configure(address, rank, size))

    def each(self, call: Callable[[int, Any], Any]) -> list[Any]:
        """The results by rank."""
        tasks = [self._pool.submit(call, rank, group) for rank, group in enumerate(self.ranks)]
        return [task.result(LIMIT_S) for task in tasks]

    def close(self) -> None:
        """Release all."""
        for group in self.ranks:
            built = group.use(None)
            if built is not None:
                built.shutdown()
        self._pool.shutdown()


@contextmanager
def groups(size: int) -> Iterator[Groups]:
    """Connected groups of ``size`` ranks."""
    made = Groups(size)
    try:
        yield made
    finally:
        made.close()
