"""torch's registry of event handlers: ftrun's agent records its events there.

Not here: which events (agent.py).
"""

from torch.distributed.elastic.events import record
from torch.distributed.elastic.events.api import (
    Event,
    EventMetadataValue,
    EventSource,
    NodeState,
    RdzvEvent,
)
from torch.distributed.elastic.events.handlers import get_logging_handler

__all__ = [
    "Event",
    "EventMetadataValue",
    "EventSource",
    "NodeState",
    "RdzvEvent",
    "get_logging_handler",
    "record",
]
