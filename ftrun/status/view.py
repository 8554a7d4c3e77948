"""A status snapshot → what a terminal shows. Pure: a dict in, a Rich renderable out.

What came over the network is shown as plain text: no markup, no control characters. Not here:
fetching it (client.py).
"""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

HISTORY_LINES = 10
INCARNATION_CHARS = 8
TEXT_CHARS_MAX = 300

REPLICA_STYLES = {
    "member": "green",
    "draining": "yellow",
    "joining": "yellow",
    "starting": "yellow",
    "absent": "red",
    "finished": "dim",
    "drained": "dim",
}


def render(status: dict[str, Any]) -> RenderableType:
    """The whole picture: the job, its replicas, what has changed of late."""
    parts: list[RenderableType] = [_headline(status), _service_line(status)]
    if status["replicas"]:
        parts += [Text(), _replicas(status)]
    if status["history"]:
        parts += [Text(), _history(status["history"])]
    return Group(*parts)


def _headline(status: dict[str, Any]) -> Text:
    job = status["job"]
    if not job["job_id"]:
        return Text("no job yet: the lighthouse waits for its first agent", style="yellow")
    line = Text.assemble((plain(job["job_id"]), "bold"), "  ", _phase(status))
    quorum = status["quorum"]
    if quorum is not None:
        line.append(f"  quorum {quorum['name']}")
        line.append(f" ({len(quorum['live'])} of {job['replicas']} replicas)")
    line.append(f"  step {status['step']}")
    line.append(f"  {counted(status['restarts'], 'restart')}")
    if status["outcome"] is not None:
        outcome = status["outcome"]
        style = "green" if outcome["exit_code"] == 0 else "red"
        words = f"  exit code {outcome['exit_code']}: {plain(outcome['reason'])}"
        line.append(words, style=style)
    return line


def _phase(status: dict[str, Any]) -> Text:
    style = "green" if status["phase"] in ("steady", "ended") else "yellow"
    text = f"{plain(status['phase'])} for {duration(status['phase_age_s'])}"
    waited = status["waiting_for"]
    if waited:
        text += f", waiting for {', '.join(plain(str(name)) for name in waited)}"
    return Text(text, style=style)


def _service_line(status: dict[str, Any]) -> Text:
    service = status["lighthouse"]
    return Text(
        f"lighthouse {plain(service['version'])}  epoch {status['epoch']}"
        f"  up {duration(service['uptime_s'])}  {counted(service['agents_attached'], 'agent')}",
        style="dim",
    )


def _replicas(status: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("replica", "state", "step", "phase", "incarnation", "agent", "restarts"):
        table.add_column(name, justify="right" if name in ("step", "restarts") else "left")
    table.add_column("last event", overflow="fold")
    for replica in status["replicas"]:
        state = replica["phase"]
        table.add_row(
            _cell(replica["replica_id"]),
            Text(plain(state), style=REPLICA_STYLES.get(state, "")),
            _cell(replica["step"]),
            _cell(replica["worker_phase"]),
            _cell(replica["incarnation"], INCARNATION_CHARS),
            _cell(replica["agent_id"]),
            _cell(replica["restarts"]),
            _last_event(replica["last_event"]),
        )
    return table


def _last_event(event: dict[str, Any] | None) -> Text:
    if event is None:
        return Text("-", style="dim")
    ago = Text(f"{duration(event['ago_s'])} ago  ", style="dim")
    return ago.append(plain(event["text"]), style="not dim")


def _history(changes: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("changed", "what", "took", "step", "members"):
        table.add_column(name, justify="right" if name in ("took", "step") else "left")
    table.add_column("reason", overflow="fold")
    for change in changes[-HISTORY_LINES:]:
        under_way = change["under_way"]
        table.add_row(
            Text(f"{duration(change['ago_s'])} ago", style="dim"),
            Text(plain(change["kind"]), style="yellow" if under_way else ""),
            Text("under way", style="yellow") if under_way else duration(change["duration_s"]),
            _cell(change["step"]),
            _cell(" ".join(change["members"]) or None),
            _cell(change["reason"]),
        )
    return table


def _cell(value: Any, chars: int | None = None) -> Text:
    """A value as text, never as markup; a dash for None."""
    return Text("-" if value is None else plain(str(value))[:chars])


def plain(text: str) -> str:
    """One line without anything that a terminal would act upon."""
    kept = "".join(char if char.isprintable() else " " for char in text[:TEXT_CHARS_MAX])
    return kept + "…" if len(text) > TEXT_CHARS_MAX else kept


def counted(count: int, noun: str) -> str:
    """``1 restart``, ``2 restarts``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """A duration for people: ``4 ms``, ``1.25 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
