"""Shows a status in a terminal. Pure: a Status in, a Rich renderable out.

The layout follows the terminal's width: below ``WIDE_COLUMNS`` every event and every reason is one
line, cut at the edge, so that four replicas and the last changes fit on 80 x 24; ``--json`` has all
of it. Text from the network is shown plain: no markup, no control characters. Not here: fetching
the status (client.py), words and durations (words.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from ftrun.core.books.history import ChangeStatus
from ftrun.core.lighthouse.status import (
    NoticeStatus,
    ReplicaStatus,
    Status,
    WaitStatus,
)
from ftrun.core.torchft_quorum.status import TorchftRoomStatus
from ftrun.tools.status.torchft import (
    COLUMNS,
    RIGHT,
    left_out,
    replica_cells,
    replica_state,
    room_words,
)
from ftrun.tools.status.words import age, counted, duration, plain, ranges

WIDE_COLUMNS = 130
HISTORY_LINES = 10
HISTORY_LINES_NARROW = 5
EVENT_LINES_NARROW = 4
INCARNATION_CHARS = 8
AGENT_CHARS_NARROW = 16
MEMBERS_CHARS = 40
MEMBERS_CHARS_NARROW = 14
_RANDOM_END = re.compile(r"-([0-9a-f]{4})[0-9a-f]{12}$")

REPLICA_STYLES = {
    "member": "green",
    "draining": "yellow",
    "joining": "yellow",
    "starting": "yellow",
    "absent": "red",
    "given up": "red",
    "finished": "dim",
    "drained": "dim",
}


TORCHFT_STYLES = {"member": "green", "joins": "yellow", "silent": "red"}


def render(status: Status) -> RenderableType:
    """The whole view: the job, its replicas, its recent changes."""
    return _Picture(status)


class _Picture:
    """The parts of the view, laid out when the console's width is known."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by Rich."""
        status, columns = self._status, options.max_width
        wide = columns >= WIDE_COLUMNS
        yield _flow(_headline(status), columns)
        if status["waiting"] is not None:
            yield _wait(status["waiting"])
        yield _flow(_service_facts(status), columns)
        if status["replicas"]:
            yield Text()
            yield _replicas(status["replicas"], wide)
        events = [] if wide else _last_events(status["replicas"])
        if events:
            yield Text()
            yield _events(events)
        if status["history"]:
            yield Text()
            yield _history(status["history"], wide)
        torchft = status.get("torchft")
        for room in torchft["rooms"] if torchft is not None else ():
            yield Text()
            yield Text(room_words(room), style="bold")
            yield _torchft_replicas(room)


def _flow(facts: Iterable[Text], columns: int) -> Text:
    """Facts side by side, wrapped to the next line at the edge."""
    lines: list[Text] = []
    for fact in facts:
        if lines and lines[-1].cell_len + 2 + fact.cell_len <= columns:
            lines[-1].append("  ").append_text(fact)
        else:
            lines.append(fact)
    return Text("\n").join(lines)


def _headline(status: Status) -> list[Text]:
    job = status["job"]
    if not job["job_id"]:
        return [Text("no job yet: the lighthouse waits for its first agent", style="yellow")]
    facts = [Text(plain(job["job_id"]), style="bold"), _phase(status)]
    quorum = status["quorum"]
    if quorum is not None:
        members = f"({len(quorum['live'])} of {job['replicas']} replicas)"
        facts.append(Text(f"quorum {plain(str(quorum['name']))} {members}"))
    facts.append(Text(f"step {status['step']}"))
    facts.append(Text(counted(status["restarts"], "restart")))
    if status["outcome"] is not None:
        outcome = status["outcome"]
        style = "green" if outcome["exit_code"] == 0 else "red"
        words = f"exit code {outcome['exit_code']}: {plain(outcome['reason'])}"
        facts.append(Text(words, style=style))
    return facts


def _phase(status: Status) -> Text:
    style = "green" if status["phase"] in ("steady", "ended") else "yellow"
    text = f"{plain(status['phase'])} for {duration(status['phase_age_s'])}"
    waited = status["waiting_for"] if status["waiting"] is None else ()
    if waited:
        text += f", waiting for {', '.join(plain(str(name)) for name in waited)}"
    return Text(text, style=style)


def _wait(wait: WaitStatus) -> Text:
    limit = "" if wait["at_most_s"] is None else f", for {duration(wait['at_most_s'])} at most"
    return Text(f"{plain(wait['for'])}, since {duration(wait['since_s'])}{limit}", style="yellow")


def spares(status: Status) -> list[str]:
    """How many of the nodes that are to stand by do; nothing if none is to."""
    wanted = status["job"]["spare_nodes"]
    here = sum(agent["attached"] and not agent["slots"] for agent in status["agents"])
    return [f"{here} of {counted(wanted, 'spare node')}"] if wanted else []


def _service_facts(status: Status) -> list[Text]:
    service = status["lighthouse"]
    facts = (
        f"lighthouse {plain(service['version'])}",
        f"epoch {status['epoch']}",
        f"up {duration(service['uptime_s'])}",
        counted(service["agents_attached"], "agent"),
        *spares(status),
    )
    return [Text(fact, style="dim") for fact in facts]


def _table(columns: tuple[str, ...], right: tuple[str, ...], last: str, wide: bool) -> Table:
    """A table with columns of natural width; ``last`` gets the rest and wraps if ``wide``."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", expand=bool(last))
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    if last and wide:
        table.add_column(last, overflow="fold", ratio=1)
    elif last:
        table.add_column(last, overflow="ellipsis", no_wrap=True, ratio=1)
    return table


def _replicas(replicas: list[ReplicaStatus], wide: bool) -> Table:
    columns = ("replica", "state", "step", "phase", "incarnation", "agent", "restarts")
    table = _table(columns, ("step", "restarts"), "last event" if wide else "", wide)
    for replica in replicas:
        state, wait_s = replica["phase"], replica.get("restart_in_s")
        waits = f" {wait_s:.0f} s" if wait_s is not None else ""
        cells = [
            _cell(replica["replica_id"]),
            Text(plain(state) + waits, style=REPLICA_STYLES.get(state, "")),
            _cell(replica["step"]),
            _activity(replica),
            _cell(replica["incarnation"], INCARNATION_CHARS),
            _agent(replica["agent_id"], wide),
            _cell(replica["restarts"]),
        ]
        if wide:
            cells.append(_last_event(replica["last_event"]))
        table.add_row(*cells)
    return table


def _activity(replica: ReplicaStatus) -> Text:
    """The worker's phase; of an announced pause its name and length."""
    if replica["pause"] is None:
        return _cell(replica["worker_phase"])
    seconds = replica["pause_s"]
    length = "" if seconds is None else f", {duration(seconds)}"
    return Text(f"paused: {plain(replica['pause'])}{length}")


def _agent(agent_id: str | None, wide: bool) -> Text:
    """The agent's host and the end of its id, shortened to four digits if not ``wide``."""
    if agent_id is None or wide:
        return _cell(agent_id)
    short = _RANDOM_END.sub(r"-\1", plain(agent_id))
    if len(short) > AGENT_CHARS_NARROW:
        half = AGENT_CHARS_NARROW // 2
        short = f"{short[: half - 1]}…{short[-half:]}"
    return Text(short)


def _last_event(event: NoticeStatus | None) -> Text:
    if event is None:
        return Text("-", style="dim")
    ago = Text(f"{age(event['ago_s'])} ago  ", style="dim")
    return ago.append(plain(event["text"]), style="not dim")


def _last_events(replicas: list[ReplicaStatus]) -> list[NoticeStatus]:
    """The last event of each replica, newest last; a shared one appears once."""
    found = {
        (event["ago_s"], event["text"]): event
        for replica in replicas
        if (event := replica["last_event"]) is not None
    }
    return [found[key] for key in sorted(found, reverse=True)][-EVENT_LINES_NARROW:]


def _events(events: list[NoticeStatus]) -> Table:
    table = _table(("ago",), ("ago",), "last events of the replicas", wide=False)
    for event in events:
        table.add_row(Text(age(event["ago_s"]), style="dim"), _cell(event["text"]))
    return table


def _history(changes: list[ChangeStatus], wide: bool) -> Table:
    columns = ("ago", "changed", "took", "step", "members")
    table = _table(columns, ("ago", "took", "step"), "reason", wide)
    for change in changes[-(HISTORY_LINES if wide else HISTORY_LINES_NARROW) :]:
        under_way = change["under_way"]
        table.add_row(
            Text(age(change["ago_s"]), style="dim"),
            Text(plain(change["kind"]), style="yellow" if under_way else ""),
            Text("under way", style="yellow") if under_way else duration(change["duration_s"]),
            _cell(change["step"]),
            _members(change["members"], wide),
            _cell(change["reason"]),
        )
    return table


def _torchft_replicas(room: TorchftRoomStatus) -> Table:
    table = _table(COLUMNS[:-1], RIGHT, COLUMNS[-1], wide=False)
    for replica in room["replicas"]:
        style = TORCHFT_STYLES.get(replica_state(replica), "")
        cells = [Text(cell) for cell in replica_cells(replica)]
        cells[1].stylize(style)
        table.add_row(*cells)
    if left_out(room):
        table.add_row(Text(left_out(room), style="dim"))
    return table


def _members(names: list[str], wide: bool) -> Text:
    cell = _cell(ranges(names) or None)
    cell.truncate(MEMBERS_CHARS if wide else MEMBERS_CHARS_NARROW, overflow="ellipsis")
    return cell


def _cell(value: Any, chars: int | None = None) -> Text:
    """A value as text, never as markup; a dash for None."""
    return Text("-" if value is None else plain(str(value))[:chars])
