"""``ftrun.manager()``: the one Manager of a process that the launcher has started.

Not here: the Manager (manager.py), the process's identity (context.py).
"""

from __future__ import annotations

from typing import Any

import torch

from ftrun.base.errors import UserError
from ftrun.process_groups import ProcessGroupGloo, ProcessGroupNCCL
from ftrun.process_groups.base import ProcessGroup
from ftrun.training.context import current
from ftrun.training.healing import LoadFn, StateFn
from ftrun.training.manager import Manager


class _Process:
    """Holds the Manager of this process."""

    manager: Manager | None = None


def manager(
    load_state_dict: LoadFn | None = None,
    state_dict: StateFn | None = None,
    min_replica_size: int | None = None,
    **arguments: Any,
) -> Manager:
    """The Manager of this process, connected, with a process group for its device.

    The first call makes it and takes every argument of ``Manager`` except ``pg``.
    ``min_replica_size`` defaults to the launcher's ``--min-replicas``. Later calls return the same
    Manager and take no arguments.

    Raises:
        UserError: not started by ftrun, or arguments for a Manager that exists already.
    """
    given = load_state_dict is not None or state_dict is not None or bool(arguments)
    if _Process.manager is None:
        context = current()
        smallest = context.min_replicas if context is not None else 1
        if context is not None and context.global_batch is not None:
            arguments.setdefault("repair", "discard")  # a step must not count fewer samples
        _Process.manager = Manager(
            _process_group(context.device if context is not None else "cpu"),
            load_state_dict,
            state_dict,
            smallest if min_replica_size is None else min_replica_size,
            **arguments,
        )
    elif given or min_replica_size is not None:
        raise UserError(
            "ftrun.manager() was called before: give its arguments at the first call, or add state "
            "by manager.register_state_dict_fn(key, load, state)"
        )
    return _Process.manager


def _process_group(device: str) -> ProcessGroup:
    if device == "cuda" and torch.cuda.is_available():
        return ProcessGroupNCCL()
    return ProcessGroupGloo()
