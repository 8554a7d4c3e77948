"""torch's registry of metric handlers: ftrun's agent puts its metrics there.

Not here: which metrics (agent.py).
"""

from torch.distributed.elastic.metrics import initialize_metrics
from torch.distributed.elastic.metrics.api import (
    ConsoleMetricHandler,
    MetricData,
    MetricHandler,
    MetricsConfig,
    NullMetricHandler,
    configure,
    getStream,
    prof,
    put_metric,
)

__all__ = [
    "ConsoleMetricHandler",
    "MetricData",
    "MetricHandler",
    "MetricsConfig",
    "NullMetricHandler",
    "configure",
    "getStream",
    "initialize_metrics",
    "prof",
    "put_metric",
]
