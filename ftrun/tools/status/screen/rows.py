"""The rows of the replicas' table: replicas, their ranks below them, and groups above them.

With many replicas the table is folded: by state, with the sick groups open, or by node. Pure. Not
here: the cells of a row (columns.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

from ftrun.base.words import plain
from ftrun.core.lighthouse.status import ReplicaStatus, Status, WorkerStatus
from ftrun.tools.status.screen.activity import ORDER, SICK, name_of

FOLDS_FROM = 65
"""From this number of replicas on, they are folded by state at first."""
OPEN_MAX = 20
RANK_ROWS_MAX = 24
STRAGGLER_FACTOR = 1.25
STRAGGLER_S = 0.005
STRAGGLERS_OF = 3
NOWHERE = "no node"


class Fold(Enum):
    """The key by which replicas are grouped."""

    NONE = "none"
    STATE = "state"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Group:
    """Replicas in one row."""

    name: str
    replicas: tuple[ReplicaStatus, ...]
    is_open: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A group, a replica, or a worker of one. ``key`` is stable between polls.

    ``is_open`` None: it has no rows below it.
    """

    key: str
    depth: int
    group: Group | None = None
    replica: ReplicaStatus | None = None
    worker: WorkerStatus | None = None
    is_open: bool | None = None


@dataclass
class View:
    """The user's choices. ``flipped``: rows that were opened or closed by hand."""

    fold: Fold | None = None
    flipped: set[str] = field(default_factory=set)
    words: str = ""

    def fold_of(self, status: Status) -> Fold:
        """The user's choice or, before there is one, what suits the number of replicas."""
        if self.fold is not None:
            return self.fold
        return Fold.STATE if len(status["replicas"]) >= FOLDS_FROM else Fold.NONE

    def next_fold(self, status: Status) -> None:
        """Switch to the next way of folding."""
        ways = list(Fold)
        self.fold = ways[(ways.index(self.fold_of(status)) + 1) % len(ways)]

    def flip(self, key: str) -> None:
        """Open a closed row, or close an open one."""
        self.flipped ^= {key}


def build(status: Status, view: View) -> list[Row]:
    replicas = matching(status["replicas"], view.words)
    ranks_open = 0 < _ranks(status) <= RANK_ROWS_MAX
    fold = view.fold_of(status)
    if fold is Fold.NONE:
        return list(_replica_rows(replicas, 0, ranks_open, view))
    rows: list[Row] = []
    for name, members, starts_open in _groups(replicas, fold):
        key = f"{fold.value}:{name}"
        is_open = starts_open != (key in view.flipped)
        group = Group(name, tuple(members), is_open)
        rows.append(Row(key, 0, group=group, is_open=is_open))
        if is_open:
            rows += _replica_rows(members, 1, False, view)
    return rows


def matching(replicas: Iterable[ReplicaStatus], words: str) -> list[ReplicaStatus]:
    """The replicas that match all of the words, by id, node, state, device or pid."""
    wanted = words.casefold().split()
    if not wanted:
        return list(replicas)
    return [replica for replica in replicas if _has(replica, wanted)]


def straggler_limit_s(status: Status) -> float | None:
    """Own times above this are highlighted; None: there are too few replicas to compare."""
    own = [
        replica["own_s"]
        for replica in status["replicas"]
        if replica["phase"] == "member" and replica["own_s"] is not None
    ]
    if len(own) < STRAGGLERS_OF:
        return None
    middle = median(own)
    return max(middle * STRAGGLER_FACTOR, middle + STRAGGLER_S)


def _has(replica: ReplicaStatus, wanted: list[str]) -> bool:
    """Whether all words match. A number is a replica or a pid; another word may match in part."""
    numbers = {replica["replica_id"], *(str(worker["pid"]) for worker in replica["workers"])}
    words = [replica["host"] or NOWHERE, name_of(replica), replica["phase"], replica["use"]]
    words += [replica["agent_id"] or "", *(worker["device"] for worker in replica["workers"])]
    text = " ".join(words).casefold()
    return all(word in numbers if word.isdecimal() else word in text for word in wanted)


def _ranks(status: Status) -> int:
    """The number of rows of all replicas and their ranks; 0: each has one worker."""
    each = status["job"]["workers_per_replica"]
    return len(status["replicas"]) * (each + 1) if each > 1 else 0


def _replica_rows(
    replicas: Iterable[ReplicaStatus], depth: int, ranks_open: bool, view: View
) -> Iterable[Row]:
    for replica in replicas:
        key = f"replica:{replica['replica_id']}"
        workers = replica["workers"]
        if len(workers) < 2:
            worker = workers[0] if workers else None
            yield Row(key, depth, replica=replica, worker=worker)
            continue
        is_open = ranks_open != (key in view.flipped)
        yield Row(key, depth, replica=replica, is_open=is_open)
        if is_open:
            for worker in workers:
                rank = f"{key}.{worker['group_rank']}"
                yield Row(rank, depth + 1, replica=replica, worker=worker)


def _groups(
    replicas: list[ReplicaStatus], fold: Fold
) -> Iterable[tuple[str, list[ReplicaStatus], bool]]:
    """Name, members, and whether the group is open at first."""
    found: dict[str, list[ReplicaStatus]] = {}
    for replica in replicas:
        name = name_of(replica) if fold is Fold.STATE else plain(replica["host"] or NOWHERE)
        found.setdefault(name, []).append(replica)
    if fold is Fold.NODE:
        for name in sorted(found, key=_natural):
            yield name, found[name], False
        return
    rank = {name: at for at, name in enumerate(ORDER)}
    for name in sorted(found, key=lambda name: (rank.get(name, len(ORDER)), name)):
        yield name, found[name], name in SICK and len(found[name]) <= OPEN_MAX


def _natural(name: str) -> tuple[bool, list[tuple[int, str]]]:
    """A sort key: node-2 before node-10, and replicas without a node last."""
    parts, digits = [], ""
    for char in f"{name} ":
        if char.isdecimal():
            digits += char
            continue
        if digits:
            parts.append((int(digits), ""))
            digits = ""
        parts.append((-1, char))
    return name == NOWHERE, parts
