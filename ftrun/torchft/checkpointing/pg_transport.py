"""torchft.checkpointing.pg_transport: checkpoints over a process group, without pickle."""

from ftrun.training.group_transport import PGTransport

__all__ = ["PGTransport"]
