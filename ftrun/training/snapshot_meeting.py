"""Messages between the workers of one replica that write a snapshot together.

They are short texts by step, in the launcher's store. The lead sends the draft's path. Each other
worker reports that its part is written, or why not. At the job's end the lead sends whether there
is a last snapshot. No training thread waits for any of these, except for the last one.

Messages about one snapshot are removed before the next one. The message about a last snapshot stays
in the store, which ends with the replica, because the lead does not wait until others have read it.

Not here: what is written (training/snapshot_writing.py), who takes one (core/worker/snapshots.py).
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator

from ftrun.base.errors import PeerError
from ftrun.process_groups.store import StoreClient
from ftrun.training.context import WorkerContext
from ftrun.training.vote import group_store

DRAFT, PART, END = "draft", "part", "end"
ERROR_CHARS_MAX = 1000


class Meeting:
    """The workers of this replica. From any thread.

    Raises:
        UserError: the launcher's environment is missing.
    """

    def __init__(self, context: WorkerContext) -> None:
        self.others = range(1, context.workers_per_replica)
        self._address = group_store(context)
        self._prefix = f"ftrun/snapshots/{context.key.incarnation}"
        self._told: list[str] = []
        self._lock = threading.Lock()
        self._clients: set[StoreClient] = set()
        self._is_over = False

    def tell(
        self, step: int, what: str, text: str, deadline: float, error: str = "", rank: int = 0
    ) -> None:
        """Send a message about the snapshot of ``step``; ``error``: why there will be none.

        Raises:
            PeerError: the store cannot be reached.
        """
        body = json.dumps([text, error[:ERROR_CHARS_MAX]]).encode()
        with self._connected(deadline) as client:
            client.set(self._name(step, what, rank), body)
        if what != END:
            self._told.append(self._name(step, what, rank))

    def hear(self, step: int, what: str, deadline: float, rank: int = 0) -> str:
        """Wait for a message of worker ``rank``.

        Raises:
            PeerError: that worker has failed, or has sent nothing until ``deadline``.
        """
        with self._connected(deadline) as client:
            body = client.get(self._name(step, what, rank))
        try:
            text, error = json.loads(body)
        except ValueError as why:  # empty: removed between the end of the wait and the answer
            raise PeerError(f"what worker {rank} has told cannot be read") from why
        if error:
            raise PeerError(f"worker {rank} of this replica: {error}" if rank else str(error))
        return str(text)

    def forget(self, deadline: float) -> None:
        """Remove this worker's messages about earlier snapshots."""
        told, self._told = self._told, []
        if told:
            with self._connected(deadline) as client:
                for name in told:
                    client.delete(name)

    def close(self) -> None:
        """Wake all waiting threads."""
        with self._lock:
            self._is_over = True
            for client in self._clients:
                client.interrupt()

    @contextlib.contextmanager
    def _connected(self, deadline: float) -> Iterator[StoreClient]:
        client = StoreClient(self._address, deadline)
        with self._lock:
            self._clients.add(client)
            if self._is_over:
                client.interrupt()
        try:
            yield client
        finally:
            with self._lock:
                self._clients.discard(client)
            client.close()

    def _name(self, step: int, what: str, rank: int) -> str:
        return f"{self._prefix}/{step}/{what}/{rank}"
