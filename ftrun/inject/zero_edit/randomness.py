"""The random numbers of a newcomer.

Not here: when it joins (loop.py).
"""

from __future__ import annotations

import hashlib
import random
import sys

import torch


def renew_random(rank: int, step: int) -> None:
    """A newcomer must not draw the numbers of the job's first steps once more."""
    mixed = hashlib.blake2b(f"{rank} joins at {step}".encode(), digest_size=8)
    seed = int.from_bytes(mixed.digest(), "little")
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))
