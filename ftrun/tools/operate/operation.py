"""``ftrun drain``, ``restart``, ``kill``, ``stack``: send one request, then wait for its outcome.

Each new message of the lighthouse about the operation is printed once. Not here: the options
(commands/), the requests (status/asking.py), what they do (core/lighthouse).
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO

from ftrun.base.errors import ExitCode, UserError
from ftrun.base.words import plain
from ftrun.tools.status.asking import AgentsLeft, Asker, RequestLost
from ftrun.tools.status.jobs import read_job
from ftrun.tools.status.once import StatusQuery

NOT_DONE = 1
_TARGET = re.compile(r"(\d{1,9})(?:\.(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a command: a replica, one of its workers, a node, or (all empty) the job."""

    replica: str = ""
    rank: int | None = None
    node: str = ""


def parse_words(
    command: str, first: str | None, second: str | None, *, needs_replica: bool = False
) -> tuple[str | None, Target]:
    """Parse ``[JOB] [REPLICA[.RANK]]`` to a job id, or None, and a target.

    A single argument is a replica if the command needs one. It is also a replica if it looks like
    one and no job has that id.

    Raises:
        UserError: a replica is missing, or is no number.
    """
    if first is not None and second is None and _is_replica(first, needs_replica):
        first, second = None, first
    if second is None:
        if needs_replica:
            raise UserError(f"Name a replica: ftrun {command} [JOB] REPLICA. Nothing was changed.")
        return first, Target()
    found = _TARGET.fullmatch(second)
    if found is None:
        raise UserError(
            f"{second!r} is not a replica: give its number, as in `ftrun {command} 1`, or a "
            f"worker's, as in `ftrun stack 1.0`. Nothing was changed."
        )
    if found[2] is not None and command in ("drain", "restart"):
        raise UserError(
            f"ftrun {command} is for whole replicas: one worker cannot leave its group. Give "
            f"{found[1]} instead of {second}. Nothing was changed."
        )
    rank = None if found[2] is None else int(found[2])
    return first, Target(str(int(found[1])), rank)


def _is_replica(word: str, needs_replica: bool) -> bool:
    return needs_replica or (_TARGET.fullmatch(word) is not None and read_job(word) is None)


def run_operation(
    query: StatusQuery,
    command: str,
    target: Target,
    *,
    timeout_s: float,
    wait: bool = True,
    out: TextIO | None = None,
) -> int:
    """Send the request and show its progress and outcome. Returns the exit code.

    Raises:
        UserError: there is no such job, replica or node, or the request is refused.
        LighthouseUnreachable: no lighthouse answers.
    """
    if not 0 < timeout_s <= 86400:
        raise UserError(f"--timeout {timeout_s:g}: give seconds above 0 and up to a day.")
    out = out or sys.stdout
    sent: dict[str, Any] = {"command": command, "replica": target.replica, "node": target.node}
    if target.rank is not None:
        sent["rank"] = target.rank
    is_awaited = wait or command == "stack"
    asker = Asker(query, sent, timeout_s, partial(print, file=out, flush=True))
    try:
        operation = asker.run(waits=lambda: is_awaited)
    except AgentsLeft:
        print("All agents have left, and their lighthouse with them.", file=out)
        return ExitCode.OK
    except RequestLost as error:
        print(error, file=out)
        return NOT_DONE
    if operation["state"] == "under way" and is_awaited:
        print(f"That is not done after {timeout_s:g} s. It continues.", file=out)
        return NOT_DONE
    for stack in operation["stacks"]:
        _show_stack(stack["replica_id"], stack["group_rank"], stack["text"], out)
    return NOT_DONE if operation["state"] == "failed" else ExitCode.OK


def _show_stack(replica_id: str, group_rank: int, text: str, out: TextIO) -> None:
    print(f"\n--- worker {plain(replica_id)}.{group_rank}", file=out)
    if not text:
        print("no stacks: it has not reached its script, is stopped, or has ended", file=out)
    for line in text.splitlines():
        print(plain(line), file=out)
