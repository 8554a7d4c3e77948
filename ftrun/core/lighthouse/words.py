"""Words for people that many notices share.

Not here: the notices (in the modules that send them).
"""

from __future__ import annotations

from collections.abc import Collection

from ftrun.core.ids import replica_order

NAMES_MAX = 8


def replicas(ids: Collection[str]) -> str:
    """Replica ids for people: ``replica 1``, ``replicas 0, 2 and 3``, ``12 replicas``."""
    names = sorted(ids, key=replica_order)
    if not names:
        return "no replica"
    if len(names) == 1:
        return f"replica {names[0]}"
    if len(names) > NAMES_MAX:
        return f"{len(names)} replicas ({names[0]} to {names[-1]})"
    return f"replicas {_listed(names)}"


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
