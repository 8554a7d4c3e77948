"""torchft.checkpointing: how a checkpoint is transferred between replicas."""

from ftrun.torchft.checkpointing.http_transport import HTTPTransport
from ftrun.torchft.checkpointing.transport import CheckpointTransport

__all__ = ["CheckpointTransport", "HTTPTransport"]
