"""torchft.checkpointing._rwlock: a lock for many readers or one writer."""

from ftrun.checkpoint.read_write_lock import RWLock

__all__ = ["RWLock"]
