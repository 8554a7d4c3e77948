"""The rules of one agent's supervision.

Not here: the options that they come from (config/), what follows from them (supervisor.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftrun.base import defaults
from ftrun.core.agent.restarts import RestartRules
from ftrun.core.agent.signals import SignalRules
from ftrun.core.agent.standby import StandbyRules


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """``alone``: the lighthouse is this agent's own, and no other agent will come.

    ``agent_id``: names this process and no other one, not even another agent of this node:
    incarnations have their names from it.
    ``lighthouse_timeout_s``: the job ends here if no lighthouse answers for that long.
    ``lighthouse_at``: where it is, for people; "": with this agent. ``hang_timeout_s``: see
    hang_watch.py; 0: silent workers are left alone. ``hang_factor``: see loop_watch.py.
    ``health_check``: the command before a restart (health.py). ``replicas``, ``min_replicas``: of
    the whole job.
    ``target``: what the workers run, for people. ``asks_siblings``: when a worker fails, the rest
    of its group is asked to stop and has the grace, as under torchrun; otherwise it is killed at
    once, so that its peers can go on. ``exits_with_job``: after a drain the agent stays until the
    job ends, and has its exit code. ``has_memory_snapshots``: a worker that dies may be replaced
    alone (replacing.py). ``leaves_state``: see together.py. ``keeps_one_world``: the job has memory
    snapshots if it becomes one world. ``waits_for_mends``: see JobSpec.
    ``spans``: the workers of the one group are on several nodes.
    """

    agent_id: str
    workers_per_replica: int
    restarts: RestartRules
    grace_s: float
    isolation_limit_s: float
    join_timeout_s: float
    lighthouse_timeout_s: float = defaults.LIGHTHOUSE_TIMEOUT_S
    lighthouse_at: str = ""
    alone: bool = True
    end_grace_s: float = 2.0
    stuck_after_s: float = 5.0
    hang_timeout_s: float = defaults.HANG_TIMEOUT_S
    hang_factor: float = 0.0
    health_check: str = ""
    health_timeout_s: float = 30.0
    replicas: int = 1
    min_replicas: int = 1
    target: str = "the script"
    signals: SignalRules = field(default_factory=SignalRules)
    asks_siblings: bool = False
    exits_with_job: bool = False
    has_memory_snapshots: bool = False
    leaves_state: bool = False
    keeps_one_world: bool = False
    waits_for_mends: bool = False
    spans: bool = False
    standbys: StandbyRules = field(default_factory=StandbyRules)
