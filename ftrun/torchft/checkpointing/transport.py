"""torchft.checkpointing.transport: the class that a script's own transport derives from."""

from ftrun.checkpoint.transport import CheckpointTransport

__all__ = ["CheckpointTransport"]
