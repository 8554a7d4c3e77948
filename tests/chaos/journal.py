"""The journals of a chaos run's script, as records.

Not here: their checks (checks.py, oracle.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Member = tuple[str, str]
"""replica_id and incarnation."""


@dataclass(frozen=True)
class Try:
    """A step was begun with these samples, from the state ``lineage`` of step ``held``.

    ``held`` is below ``step`` while the worker heals.
    """

    at: float
    step: int
    held: int
    lineage: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Commit:
    """A step was committed; ``step`` and ``lineage`` name the state after it."""

    at: float
    step: int
    lineage: str
    hash: str
    tag: tuple[int, int, int]
    number: int
    who: tuple[Member, ...]
    members: tuple[Member, ...]


@dataclass
class Process:
    """One worker process from its first line to its last.

    ``heals``: its number of commits before each load of a peer's state, and that state's hash.
    """

    replica: str
    incarnation: str
    pid: int
    seed: int
    ballast_bytes: int
    lineage: str
    hash: str
    started_at: float
    tries: list[Try] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    heals: list[tuple[int, str]] = field(default_factory=list)

    @property
    def member(self) -> Member:
        """Its name in a quorum."""
        return self.replica, self.incarnation

    def __str__(self) -> str:
        return f"replica {self.replica} (pid {self.pid}, {self.incarnation[:6]})"


def read_journals(directory: Path) -> list[Process]:
    """All processes that wrote a first line, in the order of their starts."""
    found = [_read(path) for path in directory.glob("journal.*.*")]
    return sorted((p for p in found if p is not None), key=lambda p: p.started_at)


def last_step(path: Path) -> int:
    """The step of the last commit in a journal; -1: there is none. Cheap enough to be called
    often."""
    with open(path, "rb") as lines:
        lines.seek(max(path.stat().st_size - 4096, 0))
        whole = lines.read().split(b"\n")[:-1]
    for line in reversed(whole):
        if line.startswith(b'{"what": "commit"'):
            return int(json.loads(line)["step"])
    return -1


def _read(path: Path) -> Process | None:
    process: Process | None = None
    for line in path.read_text().split("\n")[:-1]:
        facts = json.loads(line)
        what, at = facts.pop("what"), facts.pop("at")
        if what == "start":
            process = Process(started_at=at, **facts)
        elif process is not None and what == "try":
            process.tries.append(Try(at=at, **{**facts, "ids": tuple(facts["ids"])}))
        elif process is not None and what == "heal":
            process.heals.append((len(process.commits), facts["hash"]))
        elif process is not None and what == "commit":
            process.commits.append(_commit(at, facts))
    return process


def _commit(at: float, facts: dict[str, Any]) -> Commit:
    names: dict[str, Any] = {
        key: tuple((r, i) for r, i in facts[key]) for key in ("who", "members")
    }
    tag = tuple(facts["tag"])
    rest = {key: facts[key] for key in ("step", "lineage", "hash", "number")}
    return Commit(at=at, tag=tag, **names, **rest)
