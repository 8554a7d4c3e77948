"""torchft.checkpointing._serialization: torch's streams of a state, for scripts that use them.

ftrun's transports do not: what they send is in checkpoint/format.py, and holds no pickle.
"""

from torch.distributed._serialization import _streaming_load, _streaming_save

__all__ = ["_streaming_load", "_streaming_save"]
