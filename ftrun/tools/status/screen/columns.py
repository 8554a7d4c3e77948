"""The columns of the replicas' table: their content, and which of them fit a width.

A row about several workers shows sums or ranges of their facts (pid, device, memory, use). Pure.
Not here: which rows there are (rows.py), painting (widgets.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from ftrun.base.words import amount, duration, plain
from ftrun.core.lighthouse.status import ReplicaStatus, WaitStatus, WorkerStatus
from ftrun.tools.status.screen.activity import (
    TRAINING,
    WAITING,
    Activity,
    activity,
    look,
    name_of,
)
from ftrun.tools.status.screen.history import RATE_SPAN, History, spark
from ftrun.tools.status.screen.layout import Column
from ftrun.tools.status.screen.pieces import BAD, DIM, STRONG, TEXT, line
from ftrun.tools.status.screen.rows import Fold, Group, Row

SPARK_CELLS = 8
SPARK_CELLS_WIDE = 20
NODE_CELLS = 22
NAME_CELLS = 26


@dataclass(frozen=True, slots=True)
class Sight:
    """The facts that cells need besides their row."""

    history: History
    straggler_s: float | None
    fold: Fold
    wait: WaitStatus | None = None
    has_ranks: bool = False


def replicas_of(row: Row) -> Sequence[ReplicaStatus]:
    """The replicas that a row is about."""
    if row.group is not None:
        return row.group.replicas
    return (row.replica,) if row.replica is not None else ()


def workers_of(row: Row) -> list[WorkerStatus]:
    """The workers that a row is about."""
    if row.worker is not None:
        return [row.worker]
    return [worker for replica in replicas_of(row) for worker in replica["workers"]]


def _name(row: Row, sight: Sight, cells: int) -> Text:
    indent = "  " * row.depth
    fold = {None: "  " if sight.has_ranks else "", True: "▾ ", False: "▸ "}[row.is_open]
    if row.group is not None:
        return line((fold, DIM), (row.group.name, STRONG), (f"  {len(row.group.replicas)}", DIM))
    assert row.replica is not None
    name = plain(row.replica["replica_id"])
    if "." in row.key and row.worker is not None:
        return line((f"{indent}  {name}.{row.worker['group_rank']}", DIM))
    return line((indent + fold, DIM), (name, STRONG))


def _state(row: Row, sight: Sight, cells: int) -> Text:
    if row.group is not None:
        return _states(row.group, sight)
    assert row.replica is not None
    if "." in row.key:
        return line()
    found = activity(row.replica, sight.wait)
    return line((f"{found.mark} ", found.role), *_said(found, cells))


def _said(found: Activity, cells: int) -> list[tuple[str, str]]:
    role = TEXT if found.name in (TRAINING, WAITING) else found.role
    words = found.words
    if len(words) + 2 > cells:
        words = words.replace(" of ", " ")
    since = f" {found.age}" if found.age and len(words) + len(found.age) + 3 <= cells else ""
    return [(words, role), (since, DIM)]


def _states(group: Group, sight: Sight) -> Text:
    """How many replicas are in which state; if all are in the same one, only its mark."""
    counts: dict[str, int] = {}
    for replica in group.replicas:
        counts[name_of(replica)] = counts.get(name_of(replica), 0) + 1
    if sight.fold is Fold.STATE:
        nodes = len({replica["host"] for replica in group.replicas if replica["host"]})
        mark, role = look(group.name)
        where = f"on {nodes} node{'s' * (nodes != 1)}" if nodes else "on no node"
        return line((f"{mark} ", role), (where, DIM))
    parts: list[tuple[str, str]] = []
    for name in sorted(counts, key=lambda name: (name != TRAINING, name)):
        mark, role = look(name)
        parts += [(f"{mark} ", role), (f"{counts[name]} ", TEXT if role == DIM else role)]
        if name != TRAINING:
            parts.append((f"{name} ", DIM))
    return line(*parts)


def _step(row: Row, sight: Sight, cells: int) -> Text:
    if "." in row.key:
        return line()
    steps = [replica["step"] for replica in replicas_of(row) if replica["step"] is not None]
    return line(f"{max(steps):,}") if steps else line(("-", DIM))


def _step_time(row: Row, sight: Sight, cells: int) -> Text:
    if "." in row.key:
        return line()
    times = [x["step_s"] for x in replicas_of(row) if x["step_s"] is not None]
    return line(duration(sorted(times)[len(times) // 2])) if times else line(("-", DIM))


def _trend(row: Row, sight: Sight, cells: int) -> Text:
    if row.replica is None or "." in row.key:
        return line()
    series = sight.history.step_s.get(row.replica["replica_id"], ())
    return line((spark(series, cells, least=RATE_SPAN), DIM))


def _own(row: Row, sight: Sight, cells: int) -> Text:
    """The replica's own part of its step, highlighted if the others wait for it."""
    if "." in row.key:
        return line()
    found = [x for x in replicas_of(row) if x["own_s"] is not None]
    if not found:
        return line(("-", DIM))
    slowest = max(found, key=lambda x: x["own_s"] or 0.0)
    own_s, step_s = slowest["own_s"] or 0.0, slowest["step_s"]
    if is_straggler(slowest, sight.straggler_s):
        return line((f"▲{duration(own_s)}", BAD))
    if row.group is not None or not step_s:
        return line(duration(own_s))
    return line(f"{min(1.0, own_s / step_s) * 100:.0f} %")


def is_straggler(replica: ReplicaStatus, limit_s: float | None) -> bool:
    """Whether its own part of a step is so much longer than the others' that they wait for it."""
    own_s = replica["own_s"]
    return own_s is not None and limit_s is not None and own_s > limit_s


def _restarts(row: Row, sight: Sight, cells: int) -> Text:
    if "." in row.key:
        return line()
    replicas = replicas_of(row)
    used = sum(replica["restarts"] for replica in replicas)
    role = TEXT if used else DIM
    if row.group is not None or row.replica is None:
        return line((f"{used:,}", role))
    left = row.replica["restarts_left"]
    if left is None:
        return line((str(used), role))
    return line((str(used), BAD if left == 0 else role), (f"/{used + left}", DIM))


def _node(row: Row, sight: Sight, cells: int) -> Text:
    if row.group is not None:
        return line()
    assert row.replica is not None
    return line((plain(row.replica["host"] or "-"), DIM)) if "." not in row.key else line()


def _pid(row: Row, sight: Sight, cells: int) -> Text:
    if row.worker is None:
        return line()
    return line((str(row.worker["pid"]) if row.worker["pid"] else "-", DIM))


def _device(row: Row, sight: Sight, cells: int) -> Text:
    return line((devices(plain(worker["device"]) for worker in workers_of(row)) or "-", DIM))


def devices(names: Iterable[str]) -> str:
    """``cuda:0-3`` for several of a kind on one node; only the kind if they are not consecutive."""
    found = list(dict.fromkeys(names))
    kinds = sorted({name.partition(":")[0] for name in found})
    if len(found) < 2 or len(kinds) > 1:
        return " ".join(found if len(found) < 2 else kinds)
    numbers = [name.partition(":")[2] for name in found]
    if not all(number.isdecimal() for number in numbers):
        return kinds[0]
    order = sorted(int(number) for number in numbers)
    is_row = order[-1] - order[0] == len(order) - 1
    return f"{kinds[0]}:{order[0]}-{order[-1]}" if is_row else kinds[0]


def _memory(row: Row, sight: Sight, cells: int) -> Text:
    """Memory of the fullest device; without a GPU, of the largest process."""
    workers = workers_of(row)
    on_gpu = [
        (worker["gpu_memory_bytes"], worker["gpu_memory_total_bytes"])
        for worker in workers
        if worker["gpu_memory_bytes"] is not None
    ]
    if on_gpu:
        used, total = max(on_gpu, key=lambda x: (x[0] or 0) / (x[1] or 1))
        if not total:
            return line(amount(used or 0))
        return line(f"{(used or 0) / 1e9:.0f}", (f"/{total / 1e9:.0f} GB", DIM))
    sizes = [worker["rss_bytes"] for worker in workers if worker["rss_bytes"] is not None]
    return line(amount(max(sizes))) if sizes else line(("-", DIM))


def _use(row: Row, sight: Sight, cells: int) -> Text:
    """Use of the GPU, or of one core; the mean over several workers."""
    workers = workers_of(row)
    gpu = [worker["gpu_share"] for worker in workers if worker["gpu_share"] is not None]
    cpu = [worker["cpu_share"] for worker in workers if worker["cpu_share"] is not None]
    shares = gpu or cpu
    return line(f"{sum(shares) / len(shares) * 100:.0f} %") if shares else line(("-", DIM))


COLUMNS: tuple[Column[Callable[[Row, Sight, int], Text]], ...] = (
    Column("replica", 4, 0, _name, most=NAME_CELLS, eager=True),
    Column("state", 21, 0, _state, most=32),
    Column("step", 6, 1, _step, right=True, most=11),
    Column("step time", 9, 2, _step_time, right=True),
    Column("", SPARK_CELLS, 8, _trend, most=SPARK_CELLS_WIDE),
    Column("own", 7, 3, _own, right=True, most=9),
    Column("restarts", 8, 4, _restarts, right=True),
    Column("use", 5, 5, _use, right=True),
    Column("memory", 8, 6, _memory, right=True, most=9),
    Column("device", 6, 9, _device, most=9, eager=True),
    Column("node", 6, 7, _node, most=NODE_CELLS, eager=True),
    Column("pid", 5, 10, _pid, right=True, most=8),
)
