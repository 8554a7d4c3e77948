"""torchft.checkpointing.http_transport: checkpoints over HTTP, without pickle."""

from ftrun.checkpoint.transport import HTTPTransport

__all__ = ["HTTPTransport"]
