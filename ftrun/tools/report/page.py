"""The report as one HTML file: no script, no external resources, light and dark, printable.

All texts of the job are escaped. The colours are the same as on the lighthouse's page. Not here:
the story (story.py), the pictures (drawing.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from importlib.resources import files
from statistics import median
from typing import Any

from ftrun.base.words import counted, duration, plain
from ftrun.core.books.uses import Use
from ftrun.tools.report.drawing import curve, marks, stacked, use_class
from ftrun.tools.report.story import Record, Story

CELL_CHARS_MAX = 400
HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
"""


def render(story: Story, made: datetime, version: str) -> str:
    """The whole file."""
    title = f"ftrun: job {story.job.get('job_id', '')}"
    parts = [
        HEAD.format(title=text(title), style=_style()),
        _head(story),
        _tiles(story),
        _account(story),
        _curves(story),
        _step_times(story),
        _failures(story),
        _incidents(story),
        _changes(story),
        _foot(story, made, version),
    ]
    return "".join(parts) + "</body>\n</html>\n"


def text(value: object) -> str:
    return escape(plain(str(value), CELL_CHARS_MAX))


def _style() -> str:
    """The colours of the lighthouse's page, from the head of its sheet, and the report's own."""
    sheet = (files("ftrun.lighthouse") / "page" / "page.css").read_text(encoding="utf-8")
    colours = sheet[sheet.index(":root") : sheet.index("* {")]
    return (
        colours + _uses() + (files("ftrun.tools.report") / "style.css").read_text(encoding="utf-8")
    )


def _uses() -> str:
    names = [use_class(use.value) for use in Use]
    return "".join(f".{name} {{ color: var(--{name.removeprefix('use-')}); }}\n" for name in names)


def _head(story: Story) -> str:
    job = story.job
    shape = counted(int(job.get("replicas", 0)), "replica")
    workers = job.get("workers_per_replica", 1)
    shape += f" of {counted(int(workers), 'worker')} each" if workers != 1 else ""
    began = story.began.strftime("%Y-%m-%d %H:%M:%S UTC")
    lasted = duration(_wall_s(story))
    if story.ended is None:
        end = f"no end is known; the last news came {duration(story.last_s)} after the beginning"
    else:
        end = f"ended with exit code {story.ended.get('exit_code')}: {story.ended.get('reason')}"
    words = f"{shape}, from {began} on for {lasted}; {end}."
    return f"<h1>Job {text(job.get('job_id', ''))}</h1><p class=soft>{text(words)}</p>"


def _wall_s(story: Story) -> float:
    return float(story.account.get("wall_s", story.last_s))


def _tiles(story: Story) -> str:
    account, backs = story.account, story.recoveries()
    goodput, rate = account.get("goodput"), (account.get("rate") or {}).get("run")
    tiles = [
        ("goodput", "not known" if goodput is None else f"{100 * goodput:.1f} %", False),
        ("steps", f"{account.get('steps', 0):,}", False),
        ("steps per second", "not known" if rate is None else f"{rate:.3g}", False),
        ("incidents", str(len(story.incidents)), bool(story.incidents)),
        ("lost, in replica-time", duration(float(account.get("lost_s", 0.0))), False),
    ]
    if backs:
        times = f"{duration(median(backs))} / {duration(backs[-1])}"
        tiles.append(("time to recover: median / max", times, False))
    return (
        "<div class=tiles>"
        + "".join(
            f'<div class="tile{" bad" if is_bad else ""}"><b>{text(value)}</b>{text(name)}</div>'
            for name, value, is_bad in tiles
        )
        + "</div>"
    )


def _account(story: Story) -> str:
    seconds: Record = story.account.get("seconds") or {}
    if not seconds:
        return "<h2>Where the time went</h2><p>The events have no account of this job.</p>"
    total = sum(seconds.values())
    rows = [
        [
            _Raw(f'<span class="dot {use_class(use)}"></span>{text(use)}'),
            _Number(duration(spent)),
            _Number(f"{100 * spent / total:.1f} %" if total else ""),
        ]
        for use, spent in seconds.items()
    ]
    rows.append([_Raw("all"), _Number(duration(total)), _Number("100 %" if total else "")])
    replicas = int(story.job.get("replicas", 0))
    sums = (
        f"The sum over all uses is {total:.3f} replica-seconds: {_wall_s(story):.3f} s for each of "
        f"{counted(replicas, 'replica')}."
    )
    bands, picture = story.bands, ""
    if bands:
        order = {use: bands["seconds"][use] for use in seconds if use in bands["seconds"]}
        picture = stacked(order, bands["width_s"], bands["last_s"], "Replicas by use of their time")
    return (
        "<h2>Where the time went</h2>"
        + picture
        + _table(["use", "#time", "#share"], rows)
        + f"<p class=soft>{text(sums)}</p>"
    )


def _curves(story: Story) -> str:
    span_s = max(story.last_s, 1e-9)
    steps = curve(story.points, span_s, "Step", "steps")
    sizes = curve(_as_stairs(story.sizes, story.last_s), span_s, "In the quorum", "replicas")
    moments = [
        (at, f"incident {number}: replica {record.get('replica')} {record.get('cause')}")
        for number, (at, record) in story.incidents.items()
    ]
    found = [
        f"<h2>{title}</h2>{picture}"
        for title, picture in (
            ("Steps", steps),
            ("Replicas in the quorum", sizes),
            ("When something failed", marks(moments, span_s, "Incidents over time")),
        )
        if picture
    ]
    return "".join(found)


def _step_times(story: Story) -> str:
    """The duration of a step over time, and which replica's own part was the longest."""
    picture = curve(
        [(at, 1e3 * value) for at, value in story.step_times], max(story.last_s, 1e-9),
        "Duration of a step", "ms",
    )  # fmt: skip
    if not story.step_times:
        return ""
    rows = [
        [name, *(_Number(f"{1e3 * value:.4g} ms") for value in _spread(points))]
        for name, points in (
            ("a step, from commit to commit", story.step_times),
            ("the longest own part of it, without waits for peers", story.own_times),
        )
        if points
    ]
    found = story.slowest.most_common(1)
    words = "Samples: the members' last steps at each account, every 10 s."
    if found and len(story.slowest) > 1:
        name, times = found[0]
        share = 100 * times / sum(story.slowest.values())
        words += f" Replica {name} had the longest own part in {share:.0f} % of them."
    heads = ["duration", "#min", "#median", "#p90", "#max"]
    return (
        "<h2>How long a step took</h2>"
        + picture
        + _table(heads, rows)
        + f"<p class=soft>{text(words)}</p>"
    )


def _spread(points: Sequence[tuple[float, float]]) -> tuple[float, float, float, float]:
    values = sorted(value for _, value in points)
    return values[0], median(values), values[(9 * (len(values) - 1) + 9) // 10], values[-1]


def _as_stairs(points: list[tuple[float, float]], last_s: float) -> list[tuple[float, float]]:
    """Points of a step function: each value lasts until the next one."""
    found: list[tuple[float, float]] = []
    for at, value in points:
        found += [(at, found[-1][1])] if found else []
        found.append((at, value))
    return [*found, (last_s, found[-1][1])] if found else []


def _failures(story: Story) -> str:
    kinds = story.by_kind()
    if not kinds:
        return "<h2>Failures</h2><p>Nothing has failed.</p>"
    rows = []
    for kind, records in kinds:
        backs = [
            r["back_after_s"] for r in records if isinstance(r.get("back_after_s"), int | float)
        ]
        costs = [r.get("cost") or {} for r in records]
        rows.append(
            [
                kind,
                _Number(str(len(records))),
                _Number(duration(median(backs)) if backs else ""),
                _Number(duration(max(backs)) if backs else ""),
                _Number(str(sum(cost.get("steps", 0) for cost in costs))),
                _Number(duration(sum(cost.get("replica_seconds", 0.0) for cost in costs))),
            ]
        )
    heads = ["first cause", "#incidents", "#recovered: median", "#max", "#steps lost", "#cost"]
    return "<h2>Failures by cause</h2>" + _table(heads, rows)


def _incidents(story: Story) -> str:
    rows = []
    for number, (at, record) in sorted(story.incidents.items()):
        back, cost = record.get("back_after_s"), record.get("cost") or {}
        rows.append(
            [
                _Number(str(number)),
                _Number(duration(at)),
                f"replica {record.get('replica')} on {record.get('host')}: {record.get('cause')}",
                _Number("" if back is None else duration(back)),
                _Number(duration(cost.get("replica_seconds", 0.0))),
                "not over" if record.get("is_open") else record.get("verdict", ""),
            ]
        )
    if not rows:
        return ""
    heads = ["#no", "#after", "first cause", "#back after", "#cost", "verdict"]
    command = f"<code>ftrun explain {text(story.job.get('job_id'))}</code>"
    hint = f"<p class=soft>Each in full: {command}</p>"
    return "<h2>Incidents</h2>" + _table(heads, rows) + hint


def _changes(story: Story) -> str:
    rows = [
        [
            _Number(duration(at)),
            change.get("kind", ""),
            change.get("reason", ""),
            _Number(str(len(change.get("members", ())))),
            _Number(duration(float(change.get("duration_s", 0.0)))),
        ]
        for at, change in story.changes
    ]
    if not rows:
        return ""
    return "<h2>Changes of membership, the last ones</h2>" + _table(
        ["#after", "change", "reason", "#replicas", "#took"], rows
    )


def _foot(story: Story, made: datetime, version: str) -> str:
    notes = [f"Made by ftrun {version}, {made.strftime('%Y-%m-%d %H:%M:%S UTC')}."]
    if story.lighthouses > 1:
        notes.append(f"The lighthouse was started {story.lighthouses} times.")
    if story.unread:
        notes.append(f"{counted(story.unread, 'line')} of the events could not be read.")
    if story.unwritten:
        notes.append(f"{counted(story.unwritten, 'event')} could not be written.")
    data = {
        "job": story.job,
        "account": story.account,
        "ended": story.ended,
        "incidents": [record for _, (_, record) in sorted(story.incidents.items())],
    }
    inlined = json.dumps(data).replace("<", "\\u003c")
    return (
        f"<p class=soft>{text(' '.join(notes))}</p>"
        f'<script type="application/json" id="data">{inlined}</script>'
    )


class _Number(str):
    """A right-aligned cell."""


class _Raw(str):
    """A cell with markup of ftrun."""


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table. Columns whose head begins with # contain numbers."""
    top = "".join(
        f'<th class="number">{text(head[1:])}</th>' if head[0] == "#" else f"<th>{text(head)}</th>"
        for head in heads
    )
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(cell: Any) -> str:
    if isinstance(cell, _Raw):
        return f"<td>{cell}</td>"
    return (
        f'<td class="number">{text(cell)}</td>'
        if isinstance(cell, _Number)
        else f"<td>{text(cell)}</td>"
    )
