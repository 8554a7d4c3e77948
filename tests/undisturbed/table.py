"""The table of a file's programs: functions that print their results, one after another in a job.

A program is a function with ``@program``. Its output lines carry its name and the rank, so that two
runs can be compared. An exception is a result too: its type and its first line.

Not here: the programs (programs/), how they are run and compared (test_undisturbed.py).
"""

from __future__ import annotations

import gc
import os
import random
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

Program = Callable[[], Any]
PROGRAMS: dict[str, Program] = {}
"""The programs of the running file, in the file's order."""
LINE = re.compile(r"<(\w+)@(\d+)> (.*)$", re.MULTILINE)
"""A line of a program: its name, the rank, the text."""
CHARACTERS_MAX = 600


def program(function: Program) -> Program:
    """Add a program to the table."""
    PROGRAMS[function.__name__] = function
    return function


def text_of(value: Any) -> str:
    """A value as text, tensors with their types."""
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"{kind}{list(value.shape)}{value.detach().tolist()}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {text_of(x)}" for key, x in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(text_of, value)) + "]"
    return repr(value)


def error_text(error: BaseException) -> str:
    """An exception's type and first line, without addresses and places in torch's source."""
    first = (str(error).splitlines() or [""])[0]
    first = re.sub(r"\[rank\d+\]:\[\w[^\]]*\]|\[[^\]]*\]:\d+|\[/[^\]]*\]|0x[0-9a-f]+", "…", first)
    return f"{type(error).__name__}: {first}"


def say(name: str, value: Any) -> None:
    """Print one line of a program, atomically and unbuffered."""
    text = value if isinstance(value, str) else text_of(value)
    line = f"<{name}@{os.environ['RANK']}> {text[:CHARACTERS_MAX]}\n"
    sys.stdout.flush()
    os.write(1, line.encode())


def run(*, makes_world: bool = True, timeout: Any = None) -> None:
    """Run the file's programs, or those that the command line names.

    Args:
        makes_world: begin with a Gloo world of all ranks, and destroy it at the end.
        timeout: the timeout of that world.
    """
    torch.set_num_threads(1)
    device = os.environ.get("FTRUN_TEST_DEVICE", "cpu")
    if device != "cpu":
        torch.set_default_device(device)
    if makes_world:
        dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=timeout)
    for name in _wanted(sys.argv[1:]):
        torch.manual_seed(0)
        random.seed(0)
        try:
            said = PROGRAMS[name]()
        except Exception as error:  # noqa: BLE001  # it is the result
            said = error_text(error)
        say(name, said)
        if makes_world:
            _keep_apart()
    if makes_world:
        dist.destroy_process_group()
    say("end", "")
    # A group that a reference cycle keeps alive has threads. If one of them drops a call's tensors
    # while Python ends, the process aborts (SIGABRT): a race in torch itself, seen in one run of
    # four.
    gc.collect()


def _keep_apart() -> None:
    """Keep this program from receiving a message of the next one.

    A barrier does not do: Gloo's raises the pending error of an earlier call.
    """
    dist.all_reduce(torch.zeros(1))


def _wanted(named: Iterable[str]) -> list[str]:
    return list(named) or list(PROGRAMS)


def rank() -> int:
    """This process's rank."""
    return int(os.environ["RANK"])


def size() -> int:
    """The number of ranks."""
    return int(os.environ["WORLD_SIZE"])


def outcome(function: Callable[[], Any], *, has_words: bool = True) -> str:
    """A call's result, or its error, as text; without ``has_words`` only the error's type."""
    try:
        return text_of(function())
    except Exception as error:  # noqa: BLE001  # it is the result
        return error_text(error) if has_words else type(error).__name__
