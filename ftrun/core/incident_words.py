"""An incident's record (docs/INCIDENTS.md) as text for people: one line, or a block.

The record may come from another version's file, so a field that is missing is left out. Pure
functions. Not here: where records are stored (agent/incidents.py, ftrun/tools/explain/).
"""

from __future__ import annotations

from typing import Any

from ftrun.base.words import printable
from ftrun.core import failure_kinds as kinds

TRACEBACK_LINES = 12
OUTPUT_LINES = 12
STACK_LINES = 40
BELOW_SCRIPT = (
    "/ftrun/inject/bootstrap.py", "/ftrun/agent/child.py", "/ftrun/agent/spawner.py",
    '"<frozen runpy>"',
)  # fmt: skip
FATAL, FATAL_BEFORE, CURRENT = "Fatal Python error", 3, "Current thread"
SIGKILL = 9
Record = dict[str, Any]


def line(record: Record) -> str:
    """One line: number, time, cause, verdict."""
    first = record.get("first_cause") or {}
    state = " (not over yet)" if record.get("is_open") else ""
    verdict = record.get("verdict") or "no verdict yet"
    others = len(record.get("consequences") or ()) + int(record.get("consequences_not_shown") or 0)
    more = f", and {others} in consequence" if others else ""
    return printable(
        f"{record.get('number', '?'):>4}  {time_of(record)}  {_who(first)} "
        f"{_oneline(first.get('cause', ''))}{more}: {verdict}{state}"
    )


def block(record: Record, *, traceback_lines: int = TRACEBACK_LINES) -> list[str]:
    """The whole incident, most important first."""
    first = record.get("first_cause") or {}
    worker = first.get("worker") or {}
    host = f" on {first['host']}" if first.get("host") else ""
    lines = [
        f"Incident {record.get('number', '?')}, {time_of(record)}{_at_step(record)}:",
        f"  first cause: {_who(first)}{_pid(worker)}{host} {_oneline(first.get('cause', ''))}",
    ]
    lines += [f"    {text}" for text in _known_of(first, worker)]
    lines += _quoted("traceback", worker.get("traceback"), traceback_lines)
    lines += _stacks(first)
    if not worker.get("traceback"):
        lines += _last_lines(worker.get("output"))
    lines += _consequences(record)
    lines += _members(record)
    lines += [f"  {text}" for text in _response(record)]
    lines += [f"  {text}" for text in _returns(record)]
    lines.append(f"  cost: {_cost(record)}")
    words = record.get("verdict_words") or ""
    verdict = record.get("verdict") or "none yet, it is not over"
    lines.append(f"  verdict: {verdict}{f' ({words})' if words and words != verdict else ''}")
    return [printable(text) for text in lines]


def time_of(record: Record) -> str:
    """Date and time of the first cause, to the second, with its zone."""
    text = str(record.get("time", "at an unknown time"))
    return text[:19].replace("T", " ") + (" UTC" if text.endswith("+00:00") else "")


def _at_step(record: Record) -> str:
    step = record.get("step")
    return f", at step {step}" if step else ""


def _who(part: Record) -> str:
    worker = part.get("worker") or {}
    name = f"replica {part.get('replica_id', '?')}"
    others = [x for x in part.get("other_workers") or [] if x.get("kind") != kinds.UNHEALTHY]
    if worker.get("group_rank") or others:
        name += f", worker {worker.get('group_rank', 0)}"
    return name


def _pid(worker: Record) -> str:
    return f" (pid {worker['pid']})" if worker.get("pid") else ""


def _known_of(part: Record, worker: Record) -> list[str]:
    """Facts about the cause. A SIGKILL without a known sender is described as that."""
    if worker.get("memory"):
        return [f"out of memory: {worker['memory']}"]
    if worker.get("signal") == SIGKILL and part.get("kind") == kinds.SIGNAL:
        return [
            "ftrun did not send this signal, and no count of out-of-memory kills that can be read "
            "here has risen: who sent it is not known"
        ]
    if part.get("kind") == kinds.PEER:
        return ["this is what a lost peer looks like; no earlier end of a worker is known"]
    return []


def _quoted(title: str, text: Any, lines_max: int) -> list[str]:
    if not isinstance(text, str) or not text.strip():
        return []
    rows = text.rstrip().splitlines()
    left_out = len(rows) - lines_max
    more = f" (the last {lines_max} of {len(rows)})" if left_out > 0 else ""
    return [f"  {title}{more}:", *(f"    | {row}" for row in rows[-lines_max:])]


def _last_lines(text: Any) -> list[str]:
    """The end of the output; after a crash, the stacks that faulthandler has printed, from their
    top.

    The last lines of a crash are the names of all extension modules.
    """
    rows = text.rstrip().splitlines() if isinstance(text, str) else []
    starts = [at for at, row in enumerate(rows) if row.startswith(FATAL)]
    if not starts:
        return _quoted("its last lines", text, OUTPUT_LINES)
    before = rows[max(0, starts[-1] - FATAL_BEFORE) : starts[-1]]
    stacks = _script_frames(rows[starts[-1] + 1 :])
    mine = next((at for at, row in enumerate(stacks) if row.startswith(CURRENT)), 0)
    shown = [*before, rows[starts[-1]], *stacks[mine : mine + OUTPUT_LINES]]
    return ["  its last lines:", *(f"    | {row}" for row in shown)]


def _script_frames(rows: list[str]) -> list[str]:
    """The stacks without the frames below a script, with which ftrun runs it; --json has them."""
    return [row for row in rows if not any(name in row for name in BELOW_SCRIPT)]


def _stacks(part: Record) -> list[str]:
    lines: list[str] = []
    for worker in [part.get("worker") or {}, *(part.get("other_workers") or [])]:
        title = f"Python stacks of worker {worker.get('group_rank', 0)} before it was killed"
        text = worker.get("stacks")
        if isinstance(text, str) and text.strip():
            rows = _script_frames(text.strip().splitlines())
            lines += [f"  {title}:", *(f"    | {row}" for row in rows[:STACK_LINES])]
            if len(rows) > STACK_LINES:
                lines.append(f"    | ... {len(rows) - STACK_LINES} more lines (--json has them)")
    return lines


def _consequences(record: Record) -> list[str]:
    lines = []
    first = record.get("first_cause") or {}
    for worker in first.get("other_workers") or []:
        if worker.get("cause"):
            is_of_node = worker.get("kind") == kinds.UNHEALTHY
            who = "it" if is_of_node else f"worker {worker.get('group_rank')} of the same group:"
            lines.append(f"    {who} {_oneline(worker['cause'])}")
    for part in record.get("consequences") or []:
        after = f"{part['after_s']:.1f} s later" if part.get("after_s", 0) >= 0.05 else "with it"
        lines.append(f"    {_who(part)} ({after}): {_oneline(part.get('cause', ''))}")
    hidden = int(record.get("consequences_not_shown") or 0)
    if hidden:
        lines.append(f"    and {hidden} more")
    return ["  in consequence:", *lines] if lines else []


def _members(record: Record) -> list[str]:
    rows = []
    for member in record.get("members") or []:
        reductions = member.get("reductions")
        activity = member.get("activity")
        tail = f", its reductions {reductions}" if reductions else ""
        rows.append(
            f"    replica {member.get('replica_id')}: step {member.get('step')}"
            f"{f', {activity}' if activity else ''}{tail}"
        )
    return ["  where the members were:", *rows[:16]] if rows else []


def _response(record: Record) -> list[str]:
    found = record.get("response")
    if not found:
        return []
    survivors = found.get("survivors") or []
    if not survivors:
        return [
            f"no replica was left: training continued at step {found.get('step')} with quorum "
            f"{found.get('quorum')}, {found.get('duration_s', 0):.2f} s after it began to form"
        ]
    names = _named(survivors)
    again = found.get("recomputes") or []
    how = f"computed step {found.get('step')} again" if again else "repaired the step in place"
    return [
        f"{names} {how} in quorum {found.get('quorum')} after {found.get('duration_s', 0):.2f} s "
        f"({found.get('kind')})"
    ]


def _returns(record: Record) -> list[str]:
    lines = []
    for part in [record.get("first_cause") or {}, *(record.get("consequences") or [])]:
        back = part.get("back_after_s")
        healed = part.get("healed")
        if back is None or record.get("verdict") not in (kinds.RESTARTED, kinds.SET_ASIDE):
            continue
        tail = ""
        if healed:
            tail = (
                f", healed to step {healed.get('step')} from {_named(healed.get('donors') or [])} "
                f"in {healed.get('duration_s', 0):.2f} s"
            )
        lines.append(f"replica {part.get('replica_id')} was back after {back:.1f} s{tail}")
    return lines[:8]


def _cost(record: Record) -> str:
    cost = record.get("cost") or {}
    steps, seconds = int(cost.get("steps") or 0), float(cost.get("replica_seconds") or 0.0)
    lost = "no step lost" if not steps else f"{steps} step{'s' * (steps != 1)} to train again"
    return f"{lost}, {seconds:.1f} replica-seconds"


def _named(ids: list[str]) -> str:
    if len(ids) > 8:
        return f"{len(ids)} replicas"
    return f"replica{'s' * (len(ids) != 1)} {', '.join(ids)}"


def _oneline(text: Any) -> str:
    """The first line of a text, which may be a script's own message."""
    return str(text).strip().partition("\n")[0]
