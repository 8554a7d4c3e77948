"""torchft.checkpointing._serialization: torch's streams of a state, for scripts that use them.

ftrun's transports do not use them: they send checkpoint/format.py's format, without pickle.
"""

from torch.distributed._serialization import _streaming_load, _streaming_save

__all__ = ["_streaming_load", "_streaming_save"]
