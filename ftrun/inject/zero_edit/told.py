"""What a worker under ``--inject ddp`` says: each line once, on its standard error.

Not here: the notices of the lighthouse and the agent.
"""

from __future__ import annotations

import sys

LINES_MAX = 256
_SAID: set[str] = set()


def once(text: str) -> None:
    """Say ``text``, unless it was said before."""
    if text in _SAID or len(_SAID) >= LINES_MAX:
        return
    _SAID.add(text)
    say(text)


def say(text: str) -> None:
    """Say ``text``."""
    print(f"ftrun: {text}", file=sys.__stderr__, flush=True)
