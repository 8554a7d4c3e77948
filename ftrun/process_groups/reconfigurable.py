"""A torch process group whose ranks can change: torchft's class of that name.

It adds to torch's class: handles by which ranks find each other (handles.py), ``reconfigure``, and
``register``, so that functional collectives and DeviceMesh find the group by its name.

Not here: how a group connects (base.py and its backends), torch's names of collectives
(collectives.py), the wrappers (wrappers.py).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Work

from ftrun.process_groups.collectives import Collectives
from ftrun.process_groups.handles import HandleStore, ReconfigureOptions

REGISTER_TIMEOUT = timedelta(seconds=60)


class ReconfigurableGroup(Collectives, dist.ProcessGroup):  # type: ignore[misc]  # fewer overloads
    """The base of all groups that a Manager takes. Subclasses define the collectives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._registered_name: str | None = None
        self._handles = HandleStore()
        self._replica_id: str | None = None
        self._group_rank: int | None = None
        self._group_world_size: int | None = None
        self._global_rank: int | None = None

    # ------------------------------------------------------------ other ranks

    @property
    def supports_reconfigure(self) -> bool:
        """True: ``reconfigure`` may be called repeatedly."""
        return True

    def set_rank_info(
        self,
        replica_id: str,
        group_rank: int,
        group_world_size: int,
        global_rank: int | None = None,
    ) -> None:
        """Name this process: its replica group, its rank in the group, its rank in the job."""
        self._replica_id = replica_id
        self._group_rank = group_rank
        self._group_world_size = group_world_size
        self._global_rank = global_rank

    def _handle_id(self) -> str:
        return self._handles.handle_id

    def get_reconfigure_handle(self) -> str:
        """This process's handle. The first call starts to serve a store."""
        return self._handles.handle(self._global_rank)

    def reconfigure(self, opts: ReconfigureOptions) -> Work:
        """Connect with the ranks whose ordered handles are in ``opts``. Returns when connected.

        Raises:
            RuntimeError: not all ranks have connected by the deadline.
            ValueError: ``opts`` cannot be used.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be reconfigured")

    def errored(self) -> Exception | None:
        """An error for which the group must be reconfigured; None: there is none."""
        return None

    def abort(self, errored: bool = True) -> None:
        """Make all pending collectives fail."""

    def shutdown(self) -> None:
        """Close all connections."""

    def set_timeout(self, timeout: timedelta) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no timeout to set")

    # ------------------------------------------------------------ its name in torch

    def getBackendName(self) -> str:
        raise NotImplementedError(f"{type(self).__name__} has no name")

    def size(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no size")

    def register(self, name: str) -> ReconfigurableGroup:
        """Let functional collectives and DeviceMesh find this group by a name. Call it once.

        torch sees a group of one rank there, because a mesh cannot contain a group that changes its
        size. The default process group must be initialized.
        """
        backend = self._register(name)
        registered = dist.new_group(
            ranks=[dist.get_rank()],
            backend=backend,
            group_desc=backend,
            timeout=REGISTER_TIMEOUT,
        )
        assert isinstance(registered, ReconfigurableGroup)
        return registered

    def _register(self, name: str) -> str:
        backend = f"{self.getBackendName()}:{name}"
        devices = ["cpu"]
        if torch.cuda.is_available():
            devices.append("cuda")
        elif torch.xpu.is_available():
            devices.append("xpu")
        dist.Backend.register_backend(backend, lambda *place: self, devices=devices)
        return backend

    def unregister(self) -> None:
        """Remove the name."""
        dist.destroy_process_group(self)

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """The name under which torch knows this group.

        Raises:
            ValueError: it is not registered.
        """
        if self._registered_name is None:
            raise ValueError("this process group has no name: call register() first")
        return self._registered_name

    def _set_group_name(self, name: str) -> None:
        self._registered_name = name

    def broadcast_one(self, tensor: torch.Tensor, root: int) -> Work:
        options = dist.BroadcastOptions()
        options.rootRank = root
        return self.broadcast([tensor], options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
