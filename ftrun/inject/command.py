"""Runs commands as workers, and replaces torchrun's ``${local_rank}`` in arguments.

Not here: Python scripts (bootstrap.py), torchelastic's choice of an entry point (elastic/agent.py).
"""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Sequence
from typing import Any


def become(words: Sequence[Any]) -> None:
    """Turn this worker into the command, under the same pid."""
    command = [str(word) for word in for_this_rank(words)]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise RuntimeError(f"{command[0]} cannot be run: {error.strerror}") from None


def call(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Call the function with its arguments for this rank."""
    return function(*for_this_rank(args))


def for_this_rank(args: Sequence[Any]) -> list[Any]:
    """The arguments, with ``${local_rank}`` in texts replaced."""
    rank = os.environ["LOCAL_RANK"]
    return [
        string.Template(arg).safe_substitute(local_rank=rank) if isinstance(arg, str) else arg
        for arg in args
    ]
