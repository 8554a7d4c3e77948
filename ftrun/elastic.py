"""torchelastic's names on ftrun's agent: a program moves by changing its imports.

The types that describe a job (WorkerSpec, LaunchConfig, DefaultLogsSpecs) or its end (RunResult,
ChildFailedError, ProcessFailure), and the registries of events and metrics, are torch's own. So
handlers and ``except`` clauses of a program keep their meaning. The agent is ftrun's.
docs/PYTHON_API.md lists what has another meaning. Not here: the agent itself (compat/elastic/),
``ftrun.launch`` (tools/launching/).
"""

from torch.distributed.elastic import events, metrics
from torch.distributed.elastic.agent.server.api import (
    ElasticAgent,
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    LogsDest,
    LogsSpecs,
    SignalException,
    Std,
)
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    ProcessFailure,
    record,
)
from torch.distributed.launcher.api import LaunchConfig

from ftrun.compat.elastic.agent import LocalElasticAgent
from ftrun.compat.elastic.failures import WorkerGroupFailureException
from ftrun.compat.elastic.launcher import elastic_launch, launch_agent

MonitorResult = RunResult
"""The name that RunResult had in the first torchelastic."""

__all__ = [
    "ChildFailedError",
    "DefaultLogsSpecs",
    "ElasticAgent",
    "LaunchConfig",
    "LocalElasticAgent",
    "LogsDest",
    "LogsSpecs",
    "MonitorResult",
    "ProcessFailure",
    "RunResult",
    "SignalException",
    "Std",
    "Worker",
    "WorkerGroup",
    "WorkerGroupFailureException",
    "WorkerSpec",
    "WorkerState",
    "elastic_launch",
    "events",
    "launch_agent",
    "metrics",
    "record",
]
