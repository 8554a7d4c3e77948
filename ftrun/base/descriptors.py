"""Descriptors (open files): how many a process of a job needs, and a limit that allows them.

A soft limit that is too low is raised; a hard limit that is too low is an error before anything
starts. Not here: descriptors that run out later anyway (agent/spawner.py, tcp_stores.py).
"""

from __future__ import annotations

import contextlib
import resource

from ftrun.base.errors import UserError

# Measured with torch 2.13 and Gloo on 1 to 16 replicas of 1 to 8 workers, with kills: the stores
# hold 36 + 10 per replica here, the agent 20 + 8 per worker here, a worker 11 + 2 per replica
# anywhere, the spawner 10 + 1 per worker here + 5 per standby. The sum below is about twice the
# largest of them, which leaves room for files that a script opens.
BASE = 100
PER_REPLICA_HERE = 12
PER_WORKER_HERE = 9
PER_STANDBY = 6
PER_PEER = 4
LIGHTHOUSE = 64
"""Descriptors of a lighthouse without agents; each agent adds one."""


def descriptors_needed(
    replicas_here: int, workers_per_replica: int, replicas: int, standbys: int = 0
) -> int:
    """An upper estimate of the descriptors that any one process of a node holds."""
    return (
        BASE
        + PER_REPLICA_HERE * replicas_here
        + PER_WORKER_HERE * replicas_here * workers_per_replica
        + PER_STANDBY * standbys
        + PER_PEER * (replicas + workers_per_replica)
    )


def allow_descriptors(needed: int, what: str, child_pid: int | None = None) -> None:
    """Allow this process, and a running child, ``needed`` descriptors.

    A soft limit that is too low is raised by ``needed``, so that a script keeps the number that it
    had. ``what``: the user of the descriptors, for the message.

    Raises:
        UserError: the hard limit is too low, or the soft one cannot be raised.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _is_enough(soft, needed):
        return
    if not _is_enough(hard, needed):
        raise UserError(_too_few(needed, what, hard))
    raised = soft + needed if _is_enough(hard, soft + needed) else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        if child_pid is not None:
            with contextlib.suppress(ProcessLookupError):  # the agent notices its end
                resource.prlimit(child_pid, resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):
        raise UserError(_too_few(needed, what, soft)) from None


def _is_enough(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed


def _too_few(needed: int, what: str, limit: int) -> str:
    return (
        f"{what} may need {needed} open files in one process, and {limit} is the most that is "
        f"allowed (ulimit -Hn). Nothing was started. Raise that to {max(1024, needed)} or more: in "
        "limits.conf, by LimitNOFILE= of a service, or by --ulimit of a container."
    )
