"""The protocol version of agents and lighthouse, and the error text when two versions differ.

A lighthouse and its agents refuse each other unless both have the same version, because a message
that the receiver misunderstands could break an invariant. Not here: the messages.
"""

from __future__ import annotations

PROTOCOL_VERSION = 7
"""Raised by every change that an older peer would misunderstand."""


def unlike_version(version: int, peer: str) -> str:
    """Why ``peer``, which has ``version``, cannot take part; "": it can."""
    if version == PROTOCOL_VERSION:
        return ""
    age = "an older" if version < PROTOCOL_VERSION else "a newer"
    return (
        f"{peer} runs {age} ftrun (protocol {version}, and {PROTOCOL_VERSION} here). "
        "Install the same ftrun on all nodes."
    )
