"""The head of the screen: the job, its steps, its goodput, its scalars, and what it waits for.

It always has the same number of lines, so that nothing below moves. Pure. Not here: the table
(columns.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from ftrun.base.words import age, counted, duration, plain, ranges
from ftrun.core.lighthouse.status import LossStatus, RecoveryStatus, Status
from ftrun.tools.status.screen.history import RATE_SPAN, History, spark
from ftrun.tools.status.screen.pieces import (
    BAD,
    CARE,
    DIM,
    GOOD,
    NOTE,
    STRONG,
    TEXT,
    apart,
    bar,
    fit,
    line,
)
from ftrun.tools.status.source import Picture, State

HEIGHT, HEIGHT_TALL = 5, 9
FACT_ROWS = 3
VALUE_CELLS = 6
TREND_CELLS, TREND_CELLS_MAX = 4, 24
COLUMN_GAP = 3
WIDE_COLUMNS = 110
SCALAR_NAME_CELLS = 12
SCALAR_CELLS = 30
SCALAR_CELLS_MAX = 48
WAITED_SHOWN_MAX = 40

_PHASES = {
    "empty": ("waits for replicas", CARE),
    "build": ("builds the process group", CARE),
    "steady": ("training", GOOD),
    "prepare": ("training, a change is prepared", GOOD),
    "propose": ("training, a change is prepared", GOOD),
    "switch": ("training, a change is made", GOOD),
    "rejoin": ("repairs after a loss", CARE),
    "fence": ("makes sure that nobody trains", CARE),
    "takeover": ("a lighthouse leads again and collects reports", CARE),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and a value."""

    label: str
    value: Text


def header(
    picture: Picture,
    history: History,
    now: float,
    cells: int,
    *,
    notice: str = "",
    tall: bool = False,
) -> Text:
    """All lines, with space between them if ``tall``.

    ``notice``: the outcome of a request by key, shown before all else.
    """
    status = picture.status
    assert status is not None
    space = [line()] if tall else []
    return Text("\n").join(
        [
            *space,
            title(picture, now, cells),
            *space,
            *_facts(status, history, cells),
            *space,
            line(" ", happening(picture, now, notice)),
        ]
    )


def title(picture: Picture, now: float, cells: int) -> Text:
    """The job and its state in one line."""
    status = picture.status
    assert status is not None
    job_id = plain(status["job"]["job_id"]) or "no job yet"
    words, role = state_words(picture)
    left = line(" ", (job_id, STRONG), "  ", ("● ", role), (words, role))
    stale_s = picture.age_s(now)
    if picture.state in (State.GONE, State.REFUSED):
        return apart(left, line((f"as of {age(stale_s)} ago ", CARE)), cells)
    right = [*_spares(status), f"ftrun {plain(status['lighthouse']['version'])} "]
    return apart(left, line(("  ".join(right), DIM)), cells)


def _spares(status: Status) -> list[str]:
    """How many of the wanted nodes stand by; empty if none does and none is wanted."""
    idle = len(status["idle_nodes"])
    if idle:
        return [counted(idle, "idle node")]
    wanted = status["job"]["spare_nodes"]
    here = sum(agent["attached"] and not agent["slots"] for agent in status["agents"])
    return [f"{here} of {counted(wanted, 'spare node')}"] if wanted else []


def state_words(picture: Picture) -> tuple[str, str]:
    """The state of the job in a few words."""
    status = picture.status
    assert status is not None
    if picture.outcome is not None:
        code = picture.outcome["exit_code"]
        if code < 0:
            return "ended", BAD
        return f"ended with exit code {code}", GOOD if code == 0 else BAD
    if picture.state is State.GONE:
        return "the lighthouse is gone", CARE
    if picture.state is State.REFUSED:
        return "the lighthouse refuses the token", BAD
    hung = [plain(x["replica_id"]) for x in status["replicas"] if x["is_hung"]]
    if hung:
        return f"{_replicas(hung)} {'is' if len(hung) == 1 else 'are'} hung", BAD
    if status["quorum"] is None and up_count(status):
        return "running", GOOD  # without a Manager no quorum is needed
    return _PHASES.get(status["phase"], (plain(status["phase"]), CARE))


def happening(picture: Picture, now: float, notice: str = "") -> Text:
    """What the job waits for now; otherwise the last event."""
    status = picture.status
    assert status is not None
    if notice:
        return line((plain(notice), NOTE))
    if picture.outcome is not None:
        return line((plain(picture.outcome["reason"]), TEXT))
    if picture.state is State.REFUSED:
        return line((plain(picture.words), BAD))
    if picture.state is State.GONE:
        silent_s = picture.age_s(now)
        again_s = max(0.0, picture.tried_at + picture.next_s - now)
        words = f"The lighthouse has not answered for {age(silent_s)}; asked again in {again_s:.0f}"
        return line((f"{words} s. Training does not wait for it.", CARE))
    wait = status["waiting"]
    if wait is not None:
        limit = "" if wait["at_most_s"] is None else f", for {duration(wait['at_most_s'])} at most"
        words = f"{plain(wait['for'])}, since {age(wait['since_s'])}{limit}"
        return line((words[:1].upper() + words[1:], CARE))
    if status["waiting_for"]:
        names = [plain(name) for name in status["waiting_for"]]
        return line((f"Waits for {_replicas(names)}", CARE))
    if status["events"]:
        event = status["events"][-1]
        return line((f"{age(event['ago_s'])} ago  ", DIM), plain(event["text"]))
    return line()


def small(picture: Picture) -> Text:
    """The job in words, for a terminal that is too small for the screen."""
    status = picture.status
    assert status is not None
    job, rate = status["job"], status["rate"]["now"]
    rows = [
        line((plain(job["job_id"]), STRONG)),
        line(state_words(picture)),
        line(("step ", DIM), f"{status['step']:,}"),
        line(("rate ", DIM), "-" if rate is None else f"{rate:.3g}/s"),
        line(("up   ", DIM), f"{up_count(status)} of {job['replicas']}"),
        line(("needs 60×12, q quits", DIM)),
    ]
    return Text("\n").join(rows)


def up_count(status: Status) -> int:
    """The number of replicas that train together now; without a Manager, those that run."""
    if status["quorum"] is None:
        return sum(replica["use"] == "running" for replica in status["replicas"])
    return len(status["quorum"]["live"])


def scalar(value: float | None) -> str:
    """A logged value in a few characters. NaN and infinity arrive as None and cannot be told
    apart."""
    if value is None:
        return "not finite"
    size = abs(value)
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if limit <= size < limit * 1e4:
            return f"{value / limit:.4g} {unit}"
    return f"{value:,.0f}" if value == int(value) and size < 1e6 else f"{value:.4g}"


def _facts(status: Status, history: History, cells: int) -> list[Text]:
    """Labels and values in columns. Columns that do not fit are left out at the right."""
    is_wide = cells >= WIDE_COLUMNS
    gap = COLUMN_GAP if is_wide else COLUMN_GAP - 1
    wanted = status["job"]["replicas"]
    columns = [
        (
            _membership(status, is_wide),
            max(26 if is_wide else 19, 9 + len(f"{wanted:,} of {wanted:,}")),
        ),
        (_speed(status, history, 10 if is_wide else 0), 24 if is_wide else 14),
        (_cost(status, 8 if is_wide else 0), 27 if is_wide else 20),
    ]
    recovery = status.get("recovery")
    if recovery is not None:
        columns.append((_recovery(recovery), 22 if is_wide else 18))
    left = cells - 2 - sum(size + gap for _, size in columns)
    count = max(1, (left + gap) // (SCALAR_CELLS + gap)) if left >= 8 else 0
    size = min((left + gap) // max(1, count) - gap, SCALAR_CELLS_MAX)
    columns += [(_scalars(status, history, number, count, size), size) for number in range(count)]
    rows = []
    for at in range(FACT_ROWS):
        row = []
        for facts, size in columns:
            labels = max((len(fact.label) for fact in facts), default=0)
            fact = facts[at] if at < len(facts) else Fact("", line())
            label = (fact.label.ljust(labels + 1 + is_wide), DIM)
            row.append(fit(line(label, fact.value), size))
        rows.append(line(" ", Text(" " * gap).join(row)))
    return rows


def _membership(status: Status, is_wide: bool) -> list[Fact]:
    wanted, up = status["job"]["replicas"], up_count(status)
    role = STRONG if up == wanted else CARE
    quorum = status["quorum"]
    named = line(("none", CARE))
    if quorum is not None:
        name = plain(quorum["name"])
        number = name if is_wide else f"#{name.rpartition('.')[2]}"
        named = line(number, (f" {age(quorum['age_s'])}", DIM))
    return [
        Fact("step", line((f"{status['step']:,}", STRONG))),
        Fact("replicas", line((f"{up:,}", role), (f" of {wanted:,}", DIM))),
        Fact("quorum", named),
    ]


def _speed(status: Status, history: History, cells: int) -> list[Fact]:
    now, run = status["rate"]["now"], status["rate"]["run"]
    trend = line(" ", (spark(history.rate, cells, least=RATE_SPAN), NOTE))
    return [
        Fact("now", line((_per_s(now), STRONG), trend if cells else "")),
        Fact("run", line(_per_s(run))),
        Fact("up", line(duration(status["job"]["uptime_s"]))),
    ]


def _per_s(rate: float | None) -> str:
    """Steps per second, or the duration of a step if it takes long."""
    if rate is None:
        return "-".ljust(8)
    digits = 2 if rate < 10 else 1 if rate < 100 else 0
    return f"{rate:.{digits}f} /s".ljust(8)


def _cost(status: Status, cells: int) -> list[Fact]:
    account = status["account"]
    goodput = account["goodput"]
    good = line(("-", DIM))
    if goodput is not None:
        parts = [(goodput, GOOD), (max(0.0, 1 - goodput), CARE)]
        gauge = line(" ", bar(parts, cells)) if cells else ""
        good = line((f"{goodput * 100:.1f} %", STRONG), gauge)
    return [
        Fact("goodput", good),
        Fact("lost", line(duration(account["lost_s"]))),
        Fact("restarts", line(f"{status['restarts']:,}")),
    ]


def _recovery(recovery: RecoveryStatus) -> list[Fact]:
    """The steps that the loss of a worker, or of a node, would cost now."""
    losses = ("worker", recovery["worker"]), ("node", recovery["node"]), ("job", recovery["job"])
    return [Fact(name, line(_loss(loss))) for name, loss in losses]


def _loss(loss: LossStatus) -> tuple[str, str]:
    if not loss["steps"]:
        return "loses none", GOOD
    if not loss["from_step"]:
        return "loses all", CARE
    return f"loses {counted(loss['steps'], 'step')}", STRONG


def _scalars(status: Status, history: History, column: int, columns: int, cells: int) -> list[Fact]:
    """Three of the scalars; if there are more, the last place counts the rest."""
    values = list(status["scalars"].items())
    first = column * FACT_ROWS
    shown = values[first : first + FACT_ROWS]
    hidden = len(values) - columns * FACT_ROWS
    is_wide = cells >= SCALAR_CELLS
    gap, value_cells = (2, VALUE_CELLS + 2) if is_wide else (1, VALUE_CELLS)
    size = max(4, min(SCALAR_NAME_CELLS, cells - gap - value_cells - 1 - TREND_CELLS))
    names = [fit(line(plain(name)), size).plain.rstrip() for name, _ in shown]
    labels = max(map(cell_len, names), default=0)
    facts = []
    for name, (key, value) in zip(names, shown, strict=True):
        text = scalar(value).ljust(value_cells)
        room = min(cells - labels - gap - len(text) - 1, TREND_CELLS_MAX)
        trend = spark(history.scalars.get(key, ()), room) if room >= TREND_CELLS else ""
        told = line((text, BAD if value is None else STRONG), (f" {trend}" if trend else "", NOTE))
        facts.append(Fact(name, told))
    if hidden > 0 and column == columns - 1 and len(facts) == FACT_ROWS:
        facts[-1] = Fact("", line((f"+{hidden + 1} more", DIM)))
    return facts


def _replicas(names: list[str]) -> str:
    shown = ranges(names)
    if len(shown) > WAITED_SHOWN_MAX:
        return counted(len(names), "replica")
    return f"replica{'s' * (len(names) != 1)} {shown}"
