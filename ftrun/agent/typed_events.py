"""``--event-log-handler console``: the run's events as lines of JSON on stderr.

A line has the fields of torchrun's events, so that the same programs can read it: name, source,
timestamp in milliseconds, metadata of scalars. Not here: the option's values (config/torchrun.py),
incidents (agent/incidents.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ftrun.base import clock
from ftrun.base.errors import exit_kind
from ftrun.core.agent.events import EndAgent, Instruction, SendEvidence, StartReplica
from ftrun.core.failure_kinds import UNHEALTHY

CONSOLE = "console"
Scalar = str | int | float | bool | None


class TypedEvents:
    """Turns the supervisor's instructions into events.

    ``write``: takes a line; None: write none.
    """

    def __init__(self, job_id: str, write: Callable[[str], None] | None) -> None:
        self._job_id = job_id
        self._write = write

    def note(self, instruction: Instruction) -> None:
        """Write a line if the instruction is a start, a failure, or the end."""
        if self._write is None:
            return
        found = _event(instruction)
        if found is not None:
            name, metadata = found
            event = {
                "name": f"ftrun.{name}",
                "source": "AGENT",
                "timestamp": int(clock.wall().timestamp() * 1000),
                "metadata": {"job_id": self._job_id, **metadata},
            }
            self._write(json.dumps(event))


def _event(instruction: Instruction) -> tuple[str, dict[str, Scalar]] | None:
    match instruction:
        case StartReplica(replica_id, incarnation, restarts, _):
            name = "replica.restarted" if restarts else "replica.started"
            return name, {
                "replica_id": replica_id, "incarnation": incarnation, "restarts": restarts,
            }  # fmt: skip
        case SendEvidence(evidence):
            last = evidence.workers[-1]
            first = last if last.kind == UNHEALTHY else evidence.workers[0]
            facts: dict[str, Any] = {
                "replica_id": evidence.replica_id,
                "incarnation": evidence.incarnation,
                "restarts": evidence.restarts,
                "group_rank": first.group_rank,
                "pid": first.pid,
                "kind": first.kind,
                "cause": first.cause,
                "verdict": evidence.verdict,
                "restart_in_s": evidence.restart_in_s,
            }
            return "replica.failed", facts
        case EndAgent(exit_code, reason, kind):
            is_of_script = bool(kind)
            return "agent.ended", {
                "exit_code": exit_code, "kind": exit_kind(exit_code, is_of_script),
                "reason": reason,
            }  # fmt: skip
        case _:
            return None
