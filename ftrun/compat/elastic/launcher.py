"""``elastic_launch`` and ``launch_agent``: a function or a command on the workers of one node.

Not here: the agent (agent.py).
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.elastic import metrics
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.launcher.api import LaunchConfig

from ftrun.base.errors import UserError
from ftrun.compat.elastic.agent import LocalElasticAgent
from ftrun.compat.elastic.failures import WorkerGroupFailureException
from ftrun.compat.elastic.translation import OneNode, check_config

EntryPoint = Callable[..., Any] | str


class elastic_launch:
    """``elastic_launch(config, entrypoint)(*args)`` returns the values by global rank.

    ``entrypoint``: a function, or a command whose words are the arguments.
    """

    def __init__(
        self, config: LaunchConfig, entrypoint: EntryPoint | None, health_check_server: Any = None
    ) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Run the job to its end; raises as ``launch_agent``."""
        return launch_agent(self._config, self._entrypoint, args, self._health_check_server)


def launch_agent(
    config: LaunchConfig,
    entrypoint: EntryPoint | None,
    args: Sequence[Any],
    health_check_server: Any = None,
) -> dict[int, Any]:
    """Run the job to its end; a command's values are None.

    Raises:
        UserError: nothing was started.
        WorkerGroupFailureException: a ChildFailedError, if no restart was left.
        SignalException: a signal has ended the job.
    """
    check_config(config)
    if entrypoint is None:
        raise UserError("elastic_launch needs an entry point. Nothing was started.")
    config.run_id = config.run_id or str(uuid.uuid4().int)
    metrics.initialize_metrics(metrics.MetricsConfig(config.metrics_cfg))
    spec = WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        rdzv_handler=OneNode(config.run_id),  # type: ignore[arg-type]  # it is only asked its name
        entrypoint=entrypoint,
        args=tuple(args),
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        master_addr=_static(config)[0],
        master_port=_static(config)[1],
        local_addr=config.local_addr,
        event_log_handler=config.event_log_handler,
        numa_options=config.numa_options,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        virtual_local_rank=config.virtual_local_rank,
    )
    agent = LocalElasticAgent(
        spec,
        config.logs_specs,
        config.start_method,
        log_line_prefix_template=config.log_line_prefix_template,
        shutdown_timeout=30 if config.shutdown_timeout is None else config.shutdown_timeout,
        health_check_server=health_check_server,
        signals_to_handle=config.signals_to_handle,
    )
    result = agent.run()
    if result.is_failed():
        raise WorkerGroupFailureException(_name(entrypoint, args), result.failures)
    return result.return_values


def _static(config: LaunchConfig) -> tuple[str | None, int | None]:
    """The store's address, which the static backend lets a program choose."""
    if config.rdzv_backend != "static":
        return None, None
    host, colon, port = config.rdzv_endpoint.strip().rpartition(":")
    if not colon or not port.isdecimal():
        raise UserError(
            f"rdzv_endpoint {config.rdzv_endpoint!r}: the static backend needs HOST:PORT. Nothing "
            "was started."
        )
    return host, int(port)


def _name(entrypoint: EntryPoint, args: Sequence[Any]) -> str:
    if not isinstance(entrypoint, str):
        return getattr(entrypoint, "__name__", type(entrypoint).__name__)
    if entrypoint != sys.executable:
        return entrypoint
    words = (str(arg) for arg in args)
    return next((word for word in words if not word.startswith("-")), "")
