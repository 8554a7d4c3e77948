"""torchft.checkpointing: how a checkpoint gets from one replica to others."""

from ftrun.torchft.checkpointing.http_transport import HTTPTransport
from ftrun.torchft.checkpointing.transport import CheckpointTransport

__all__ = ["CheckpointTransport", "HTTPTransport"]
