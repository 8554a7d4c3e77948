"""All facts about one replica, as lines. Pure. Not here: the page that shows them (pages.py)."""

from __future__ import annotations

from rich.text import Text

from ftrun.base.words import age, amount, duration, plain
from ftrun.core.lighthouse.status import ReplicaStatus, Status, WorkerStatus
from ftrun.tools.status.screen.activity import activity
from ftrun.tools.status.screen.columns import is_straggler
from ftrun.tools.status.screen.header import scalar
from ftrun.tools.status.screen.history import RATE_SPAN, History, spark
from ftrun.tools.status.screen.pieces import (
    BAD,
    CARE,
    DIM,
    GOOD,
    NOTE,
    RULE,
    STRONG,
    TEXT,
    bar,
    fit,
    line,
    rule,
)
from ftrun.tools.status.screen.rows import straggler_limit_s

TREND_CELLS = 32
BAR_CELLS = 24
SCALARS_MAX = 64
_TRAINS = {"training": GOOD, "outside": NOTE, "drained": DIM, "finished": DIM, "running": NOTE}


def find(status: Status, replica_id: str) -> ReplicaStatus | None:
    return next((x for x in status["replicas"] if x["replica_id"] == replica_id), None)


def details(status: Status, replica: ReplicaStatus, history: History, cells: int) -> Text:
    """The text of the page, for a terminal of this width."""
    found = activity(replica, status["waiting"])
    words = (f" {found.mark} ", found.role), (found.words, found.role)
    parts = [line(*words, (f"  {found.age}", DIM)), line(), *_facts(status, replica, history)]
    parts += _section("workers", cells, _workers(replica))
    parts += _section("its time", cells, _time(replica))
    parts += _section("scalars", cells, _scalars(replica, history))
    parts += _section("incidents", cells, _incidents(status, replica))
    event = replica["last_event"]
    if event is not None:
        ago = (f"  {age(event['ago_s']):>7} ago  ", DIM)
        parts += _section("last event", cells, [line(ago, plain(event["text"]))])
    return Text("\n").join(parts)


def _section(name: str, cells: int, rows: list[Text]) -> list[Text]:
    return [line(), rule(line((f" {name}", DIM)), cells), *rows] if rows else []


def _facts(status: Status, replica: ReplicaStatus, history: History) -> list[Text]:
    trend = spark(history.step_s.get(replica["replica_id"], ()), TREND_CELLS, least=RATE_SPAN)
    step_s, own_s = replica["step_s"], replica["own_s"]
    own = line(("-", DIM))
    if own_s is not None:
        share = f", {min(1.0, own_s / step_s) * 100:.0f} % of it" if step_s else ""
        late = is_straggler(replica, straggler_limit_s(status))
        waits = ("  ▲ the others wait for it", BAD) if late else ("", TEXT)
        own = line(duration(own_s), (share, DIM), waits)
    left = replica["restarts_left"]
    budget = "" if left is None else f", {left} left"
    node = plain(replica["host"] or "-")
    agent = f"  agent {plain(replica['agent_id'])}" if replica["agent_id"] else ""
    steps = "-" if replica["step"] is None else f"{replica['step']:,}"
    step = line((steps, STRONG), (f"  {_batches(replica)}", DIM))
    rows: list[tuple[str, Text]] = [
        ("step", step),
        ("step time", line("-" if step_s is None else duration(step_s), "  ", (trend, NOTE))),
        ("own part", own),
        (
            "phase",
            line(plain(replica["phase"]), (f"  {plain(replica['worker_phase'] or '')}", DIM)),
        ),
        ("restarts", line(str(replica["restarts"]), (budget, BAD if left == 0 else DIM))),
        ("node", line(node, (agent, DIM))),
        ("start", line((plain(replica["incarnation"] or "-"), DIM))),
    ]
    return [line((f"  {label:<10}", DIM), value) for label, value in rows]


def _batches(replica: ReplicaStatus) -> str:
    return "" if replica["batches"] is None else f"{replica['batches']:,} batches"


def _workers(replica: ReplicaStatus) -> list[Text]:
    if not replica["workers"]:
        return [line(("  none is known", DIM))]
    where = max(len(worker["node"]) for worker in replica["workers"])
    widths = (6, 10, 10 + (where and where + 4), 21, 8, 11, 8)
    titles = ("rank", "pid", "device", "GPU memory", "GPU", "memory", "CPU")
    rows = [_cells([line((title, DIM)) for title in titles], widths)]
    return rows + [_cells(_worker(worker), widths) for worker in replica["workers"]]


def _worker(worker: WorkerStatus) -> list[Text]:
    used, total = worker["gpu_memory_bytes"], worker["gpu_memory_total_bytes"]
    of = f" of {amount(total)}" if total else ""
    return [
        line(str(worker["group_rank"])),
        line(str(worker["pid"] or "-")),
        line(plain(worker["device"]), (f" on {plain(worker['node'])}" * bool(worker["node"]), DIM)),
        line(("-", DIM)) if used is None else line(amount(used), (of, DIM)),
        _share(worker["gpu_share"]),
        line(("-", DIM)) if worker["rss_bytes"] is None else line(amount(worker["rss_bytes"])),
        _share(worker["cpu_share"]),
    ]


def _share(share: float | None) -> Text:
    return line(("-", DIM)) if share is None else line(f"{share * 100:.0f} %")


def _cells(cells: list[Text], widths: tuple[int, ...]) -> Text:
    return line("  ", *map(fit, cells, widths))


def _time(replica: ReplicaStatus) -> list[Text]:
    whole = sum(replica["seconds"].values())
    rows = []
    for use, seconds in sorted(replica["seconds"].items(), key=lambda item: -item[1]):
        share = seconds / whole if whole else 0.0
        role = _TRAINS.get(use, CARE)
        filled = bar([(share, role), (1 - share, RULE)], BAR_CELLS)
        rows.append(
            line(
                (f"  {plain(use):<12}", DIM),
                filled,
                f"  {share * 100:5.1f} %",
                (f"  {duration(seconds)}", DIM),
            )
        )
    return rows


def _scalars(replica: ReplicaStatus, history: History) -> list[Text]:
    rows = []
    for name, value in list(replica["scalars"].items())[:SCALARS_MAX]:
        trend = spark(history.scalars.get(name, ()), TREND_CELLS)
        role = BAD if value is None else TEXT
        label = fit(line((plain(name), DIM)), 20)
        rows.append(line("  ", label, " ", (f"{scalar(value):<12}", role), (trend, NOTE)))
    return rows


def _incidents(status: Status, replica: ReplicaStatus) -> list[Text]:
    rows = []
    for found in reversed(status["incidents"]):
        if replica["replica_id"] in found["replicas"]:
            ago = (f"  {age(found['ago_s']):>7} ago  ", DIM)
            spent = (f"  {duration(found['cost_s'])}", CARE)
            rows.append(line(ago, (f"{found['number']}  ", DIM), plain(found["words"]), spent))
    return rows
