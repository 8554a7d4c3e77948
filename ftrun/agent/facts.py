"""The agent's actions, as records of plain values for other processes.

| event    | further keys                                                                     |
|----------|----------------------------------------------------------------------------------|
| life     | replica, incarnation, restart: a replica group is started                        |
| worker   | incarnation, rank, pid: one of its workers runs                                  |
| raised   | incarnation, rank, type, message, traceback: its script has raised               |
| exited   | incarnation, rank, pid, status, reason; a death again once the process is gone   |
| stopping | incarnation, asked: the agent asks it to stop, or signals it                     |
| lost     | incarnation, reason, killed: the agent has reported its loss                     |
| finished | incarnation: all of its workers have ended well                                  |
| notice   | kind, text: a line for people                                                    |

``rank`` is the rank in the group. Not here: their receiver (launching/reporter.py), the facts
themselves (watch.py).
"""

from __future__ import annotations

from typing import Any

from ftrun.agent.watch import WorkerStarted
from ftrun.core.agent import events as e
from ftrun.core.messages import FailureReport, ReplicaFinished, ReplicaLost


def record_of(fact: e.Event | e.Instruction | WorkerStarted) -> dict[str, Any] | None:
    """One fact as a record, without its time; None: the fact is internal to the agent."""
    match fact:
        case e.StartReplica(replica_id, incarnation, restarts):
            return _record("life", incarnation, replica=replica_id, restart=restarts)
        case WorkerStarted(key, pid):
            return _record("worker", key.incarnation, rank=key.group_rank, pid=pid)
        case e.WorkerSent(key, FailureReport() as report):
            return _record(
                "raised", key.incarnation, rank=key.group_rank, type=report.error_type,
                message=report.message, traceback=report.traceback,
            )  # fmt: skip
        case e.WorkerDying(e.WorkerExited(incarnation, rank, pid, status, reason)) | e.WorkerExited(
            incarnation, rank, pid, status, reason
        ):
            return _record("exited", incarnation, rank=rank, pid=pid, status=status, reason=reason)
        case e.SignalReplica(_, incarnation):
            return _record("stopping", incarnation, asked=False)
        case e.AskToStop(_, incarnation):
            return _record("stopping", incarnation, asked=True)
        case e.SendToLighthouse(ReplicaLost(_, incarnation, reason, killed)):
            return _record("lost", incarnation, reason=reason, killed=killed)
        case e.SendToLighthouse(ReplicaFinished(_, incarnation)):
            return _record("finished", incarnation)
        case e.ShowNotice(kind, _, text):
            return {"event": "notice", "kind": kind, "text": text}
        case _:
            return None


def _record(event: str, incarnation: str, **facts: Any) -> dict[str, Any]:
    return {"event": event, "incarnation": incarnation, **facts}
