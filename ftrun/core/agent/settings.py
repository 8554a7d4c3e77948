"""The rules of one agent's supervision.

Not here: the options that they come from (config/), their effects (supervisor.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftrun.base import defaults
from ftrun.core.agent.restarts import RestartRules
from ftrun.core.agent.signals import SignalRules
from ftrun.core.agent.standby import StandbyRules
from ftrun.core.failure_kinds import HEAL


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """The settings of one agent's supervisor.

    ``alone``: the lighthouse is this agent's own, and there is no other agent. ``agent_id``: names
    this process alone, unlike any other agent of this node; names of incarnations are derived from
    it. ``lighthouse_timeout_s``: the job ends here if no lighthouse answers for that long.
    ``lighthouse_at``: its address, for people; "": with this agent. ``hang_timeout_s``: see
    hang_watch.py; 0: silent workers are not watched. ``hang_factor``: see loop_watch.py.
    ``health_check``: the command before a restart (health.py). ``replicas``, ``min_replicas``: the
    whole job's. ``target``: what the workers run, for people. ``asks_siblings``: when a worker
    fails, the rest of its group is asked to stop and has the grace period, as under torchrun;
    otherwise it is killed at once, so that its peers can continue. ``exits_with_job``: after a
    drain the agent stays until the job ends, and takes its exit code. ``has_memory_snapshots``: a
    worker that dies may be replaced alone (replacing.py). ``leaves_state``: workers leave their
    state before all begin again (together.py). ``keeps_one_world``: the job has memory snapshots if
    it becomes one world. ``waits_for_mends``: see JobSpec.
    ``spans``: the workers of the one group are on several nodes. ``on_corruption``: the reaction if
    workers of one group do not hold the same parameters any more (replacing.py).
    ``advice``: what could have saved a worker that died, if no restart is left.
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
    on_corruption: str = HEAL
    advice: str = ""
    standbys: StandbyRules = field(default_factory=StandbyRules)
