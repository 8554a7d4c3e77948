"""torchft.manager: the Manager, and the names beside it.

The Manager is ftrun's (training/manager.py). Its signature accepts every call that torchft's does.
"""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import ReduceOp, Work

from ftrun.process_groups.adapted import trailing_number
from ftrun.process_groups.handles import ReconfigureOptions
from ftrun.training.launcher_arguments import (
    CONNECT_TIMEOUT_SEC_ENV,
    MANAGER_PORT_ENV,
    QUORUM_RETRIES_ENV,
    QUORUM_TIMEOUT_SEC_ENV,
    TIMEOUT_SEC_ENV,
)
from ftrun.training.manager import Manager, WorldSizeMode
from ftrun.training.reductions import ManagedWork
from ftrun.training.step_errors import ExceptionWithTraceback

__all__ = [
    "CONNECT_TIMEOUT_SEC_ENV",
    "MANAGER_ADDR_KEY",
    "MANAGER_PORT_ENV",
    "QUORUM_RETRIES_ENV",
    "QUORUM_TIMEOUT_SEC_ENV",
    "REPLICA_ID_KEY",
    "TIMEOUT_SEC_ENV",
    "TORCH_FR_DUMP_TEMP_FILE_ENV",
    "ExceptionWithTraceback",
    "Manager",
    "ReconfigureOptions",
    "ReduceOp",
    "Work",
    "WorldSizeMode",
    "extract_trailing_digits",
    "get_timeout",
]

MANAGER_ADDR_KEY = "manager_addr"
REPLICA_ID_KEY = "replica_id"
TORCH_FR_DUMP_TEMP_FILE_ENV = "TORCH_FR_DUMP_TEMP_FILE"

_ManagedWork = ManagedWork


def get_timeout(timeout_sec_env: str | None, default_timeout_sec: timedelta) -> timedelta:
    """The timeout in a variable's text; ``default_timeout_sec`` if it is not set."""
    return (
        default_timeout_sec if timeout_sec_env is None else timedelta(seconds=int(timeout_sec_env))
    )


def extract_trailing_digits(s: str) -> int:
    """The number at the end of ``s``; 0 if there is none."""
    return trailing_number(s)
