"""Two pages from the results: the targets with ftrun's and its peers' figures, and every table.

docs/BENCHMARKS.md has the targets, hit or missed, and docs/BENCHMARKS_DETAILS.md the tables. Not
here: measuring.
"""

from __future__ import annotations

import operator
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plots import draw
from benchmarks.results import Result, Row, counted, grid, load, quantile

ORDER = (
    "recovery", "join", "drain", "step", "step-profile", "heal", "heal-tls", "lighthouse",
    "lighthouse_10000", "goodput", "startup", "standby", "snapshot", "zero-edit",
    "memory-snapshots", "local", "local-float32", "rivals", "rivals-fsdp",
)  # fmt: skip
LAUNCHERS = ("torchft", "torchrun", "NVRx", "lm-resiliency")
"""The launchers with a column beside ftrun's, if a target's row has samples of theirs."""
OTHER_HOURS = "other_hours"
"""The folder in ``docs/benchmarks`` of runs that are shown for comparison only."""
ABOVE, BELOW = ">=", "<="
_HOLDS = {ABOVE: operator.ge, BELOW: operator.le}
HIT, MISS = "hit", "**miss**"


@dataclass(frozen=True)
class Figure:
    """One figure that ftrun must reach: a row of a result and its limit.

    Attributes:
        share: the quantile of ftrun's samples that is judged.
        limit: a number, or a peer's name: then it is that peer's median. For a row that is a count,
            a share in percent.
        reason: why it is missed, shown while it is.
    """

    what: str
    result: str
    row: str
    holds: str
    limit: float | str
    share: float = 0.5
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """The outcome of a figure. ``peers``: the value of each peer of its row."""

    target: str
    measured: str
    peers: Mapping[str, str]
    text: str


_SHARED_CORES = "The simulated agents run on the same two cores as the lighthouse."
_VERIFIED = (
    "The receiver verifies every byte on the two cores that also send. At 10 Gbit/s the target is "
    "met."
)
_FIXED_COST = (
    "To begin and to decide a step costs a fixed time, a large part of so short a step: see the "
    "profile in the details."
)
_SHARED_BY_DONORS = "Donors and receiver share two cores, so the transfer slows the donors' steps."
_ONE_JOB_EACH = (
    "The two jobs that it compares run one after the other, and the speed of a shared machine "
    "changes: in the same run three times as many kills gave a higher goodput."
)
_MORE_CODE = (
    "It is Python's code, most of all: each mechanism that the agent has learnt is some of it."
)
_TORCH_FIRST = (
    "ftrun imports torch before the script begins, torchrun after the script's first line. The "
    "first optimizer step comes earlier under ftrun."
)
_STARTS_HERE = "The workers that start again share two cores with all that train."
FIGURES = (
    *(
        Figure(f"survivors' stall after a SIGKILL, {size} GB a worker, {name}", "recovery", key,
               BELOW, limit, share)
        for size, key in (("0.05", "stall_ms"), ("4", "stall_ms_4"), ("6", "stall_ms_6"))
        for name, limit, share in (("p50", 20, 0.5), ("p99", 60, 0.99))
    ),
    Figure("steps that survivors lose per death, at most", "recovery", "lost_steps", BELOW, 0, 1.0),
    Figure("SIGKILL → replacement's first committed step", "recovery", "rejoin_ms", BELOW, 400),
    Figure("survivors' longest step at a join, over the median", "join", "join_stall_ms",
           BELOW, 10),
    Figure("survivors' longest step at a drain, over the median", "drain", "drain_stall_ms",
           BELOW, 10),
    Figure("step over plain DDP, 0.1 M parameters", "step", "small_ratio", BELOW, 1.15,
           reason=_FIXED_COST),
    Figure("step over plain DDP, 50 M parameters", "step", "large_ratio", BELOW, 1.05),
    Figure("steps while the lighthouse is stopped, of the usual", "recovery",
           "frozen_lighthouse_percent", ABOVE, 90),
    Figure("one death: all of 1,000 groups are in the next quorum", "lighthouse", "death_ms",
           BELOW, 250, reason=_SHARED_CORES),
    Figure("processor of a lighthouse of 1,000 groups, 125 agents", "lighthouse",
           "steady_percent", BELOW, 5, reason=_SHARED_CORES),
    Figure("healing from one donor, share of raw TCP", "heal", "share_1", ABOVE, 85,
           reason=_VERIFIED),
    Figure("healing from two donors, share of raw TCP", "heal", "share_2", ABOVE, 90,
           reason=_VERIFIED),
    Figure("healing from one donor at 10 Gbit/s, share of raw TCP", "heal", "share_1_card",
           ABOVE, 85),
    Figure("healing from two donors at 10 Gbit/s, share of raw TCP", "heal", "share_2_card",
           ABOVE, 90),
    Figure("donor's longest step at a heal, over its median", "heal", "donor_percent", BELOW, 5,
           reason=_SHARED_BY_DONORS),
    Figure("goodput, one of 4 killed every 15 s", "goodput", "goodput_15", ABOVE, 98,
           reason=_ONE_JOB_EACH),
    Figure("goodput, one of 4 killed every 5 s", "goodput", "goodput_5", ABOVE, 95),
    Figure("`--help`", "startup", "help_ms", BELOW, 250),
    Figure("command → first line of the script, 2 workers", "startup", "first_line_ms", BELOW,
           "torchrun"),
    Figure("command → first line of a script with torch's DDP", "startup", "ddp_first_line_ms",
           BELOW, "torchrun", reason=_TORCH_FIRST),
    Figure("command → first optimizer step of that script", "startup", "ddp_ready_ms", BELOW,
           "torchrun"),
    Figure("resident memory of the agent", "startup", "agent_mib", BELOW, 60,
           reason=_MORE_CODE),
    Figure("one of 4 DDP workers killed: recovered / kills", "rivals", "recovered", ABOVE, 100),
    Figure("… SIGKILL → the next step at all 4, p50", "rivals", "again_s", BELOW, 1,
           reason=_STARTS_HERE),
    Figure("… SIGKILL → the next step at all 4, worst", "rivals", "again_s", BELOW, 2, 1.0,
           reason=_STARTS_HERE),
    Figure("… steps repeated by survivors, at most", "rivals", "repeated", BELOW, 0, 1.0),
    Figure("one of 4 FSDP2 workers killed, no replicas: recovered / kills", "rivals-fsdp",
           "recovered", ABOVE, 100),
    Figure("… SIGKILL → the next step at all 4, p50", "rivals-fsdp", "again_s", BELOW, 0.5,
           reason=_STARTS_HERE),
)  # fmt: skip


def write(source: Path, docs: Path) -> Path:
    """Write both pages and their images. Returns the path of the first.

    The JSON files in ``source`` replace those in ``docs/benchmarks``. Results that were not
    measured again stay.
    """
    kept = docs / "benchmarks"
    kept.mkdir(exist_ok=True)
    for path in source.glob("*.json"):
        shutil.copyfile(path, kept / path.name)
    results, others = _all(kept), _all(kept / OTHER_HOURS)
    images = {name: draw(result, docs / "img") for name, result in results.items()}
    pictures = {name: _picture(results[name], path) for name, path in images.items() if path}
    page = docs / "BENCHMARKS.md"
    shown = [pictures[name] for name in ORDER if name in pictures]
    page.write_text(
        _joined(_INTRODUCTION, _figures(results), *shown, _misses(results, others), _REPEAT)
    )
    sections = [
        _section(results[name]) + (f"\n\n{pictures[name]}" if name in pictures else "")
        for name in ORDER
        if name in results
    ]
    beside = [_section(others[name]) for name in ORDER if name in others]
    if beside:
        beside.insert(0, _OTHERS)
    (docs / "BENCHMARKS_DETAILS.md").write_text(_joined(_DETAILS, *sections, *beside))
    return page


def _joined(*parts: str) -> str:
    return "\n\n".join(parts) + "\n"


def _all(directory: Path) -> dict[str, Result]:
    return {path.stem: load(path) for path in sorted(directory.glob("*.json"))}


def _picture(result: Result, path: Path) -> str:
    return f"![{result.title}](img/{path.name})"


_INTRODUCTION = """# Benchmarks

ftrun beside other launchers: each runs the same training on the same machine, in turn. Generated by
`scripts/bench.py report` from the recorded runs in `docs/benchmarks`; do not edit. Every sample,
machine, date and commit: [BENCHMARKS_DETAILS.md](BENCHMARKS_DETAILS.md).

The machine is shared, and its speed changes by more than two from hour to hour. So compare the
columns of a row, and not the rows. Some rows have few samples, and a goodput is of one job each."""

_REPEAT = """## How to repeat

```
pip install -c constraints.txt -e '.[bench]'    # torchft is one of its packages
scripts/bench.py all             # every benchmark, about two hours, and these pages
scripts/bench.py all --quick     # each shortened to one to three minutes, and no pages
scripts/bench.py recovery        # one; --help lists them
scripts/bench.py rivals          # ftrun, torchft, torchrun, NVRx and lm-resiliency in turn
scripts/bench.py report          # the pages again, from the recorded runs
```

Each command prints its table and writes `bench-out/NAME.json`. `report` copies these files to
`docs/benchmarks`; a result that was not measured again stays.

NVRx and lm-resiliency are in no extra: `rivals` leaves out what it doesn't find in `build/rivals`,
and shows the commands that install it there, without CUDA.

In recovery, join, drain, goodput and heal the model is small and its forward pass is stretched by
sleeping (`scripts/benchmarks/worker.py`), so that the processors have time for what a launcher adds
to a step. The steps of the comparison with plain DDP do not sleep. In rivals all launchers run
`scripts/benchmarks/rivals/worker.py`; those that restart all workers begin from the checkpoint that
the script saves every 10 steps, or from lm-resiliency's copies."""

_DETAILS = """# Benchmarks in detail

Every table of [BENCHMARKS.md](BENCHMARKS.md), generated by the same command; do not edit. Each
section states the commit and the hour of its run. Within a section ftrun and its peers took turns
on the same machine, in one run: job by job, start by start."""

_OTHERS = """# Other hours

Runs of earlier commits, most of them in hours in which the machine was faster. They judge
nothing."""


def _figures(results: Mapping[str, Result]) -> str:
    verdicts = [(figure, judge(figure, results.get(figure.result))) for figure in FIGURES]
    launchers = [name for name in LAUNCHERS if any(name in v.peers for _, v in verdicts)]
    head = ("", "target", "ftrun", *launchers, "")
    lines = ["## Targets", "", _cells(head), "|---" * len(head) + "|"]
    for figure, verdict in verdicts:
        peers = (verdict.peers.get(name, "") for name in launchers)
        lines.append(_cells((figure.what, verdict.target, verdict.measured, *peers, verdict.text)))
    missing = [name for name in LAUNCHERS if name not in launchers]
    if missing:
        lines += ["", f"No run of {' or '.join(missing)} is recorded here."]
    return "\n".join(lines)


def _misses(results: Mapping[str, Result], others: Mapping[str, Result]) -> str:
    """Each figure that is missed, with its reason and the value of an earlier run."""
    lines = ["## Misses", ""]
    for figure in FIGURES:
        verdict = judge(figure, results.get(figure.result))
        if verdict.text != MISS:
            continue
        text = f"- **{figure.what}**: {verdict.measured}, target {verdict.target}. {figure.reason}"
        earlier = judge(figure, others.get(figure.result))
        if earlier.text in (HIT, MISS):
            text += f" An earlier run in another hour: {earlier.measured}."
        lines.append(text)
    return "\n".join(lines) if len(lines) > 2 else "## Misses\n\nNone."


def _cells(texts: Iterable[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def judge(figure: Figure, result: Result | None) -> Verdict:
    """Whether ``figure`` was reached."""
    row = result.row(figure.row) if result is not None else None
    sign = "≥" if figure.holds == ABOVE else "≤"
    if row is None or not row.samples.get("ftrun"):
        return Verdict(f"{sign} {figure.limit}", "-", {}, "not measured")
    limit = _limit(figure, row)
    told = {
        peer: _summary(figure, row, samples) for peer, samples in row.samples.items() if samples
    }
    value, text = told.pop("ftrun")
    return Verdict(
        f"{sign} {limit:g} {'%' if row.is_count else row.unit}",
        f"{text} {row.unit}",
        {peer: theirs for peer, (_, theirs) in told.items()},
        HIT if _HOLDS[figure.holds](value, limit) else MISS,
    )


def _summary(figure: Figure, row: Row, samples: Sequence[float]) -> tuple[float, str]:
    """The judged value of the samples, and its text in the table."""
    if row.is_count:
        return 100 * statistics.fmean(samples), counted(samples)
    value = quantile(samples, figure.share)
    return value, f"{value:.{row.digits}f}"


def _limit(figure: Figure, row: Row) -> float:
    if isinstance(figure.limit, str):
        return round(statistics.median(row.samples[figure.limit]), row.digits)
    return figure.limit


def _section(result: Result) -> str:
    head, rows = grid(result)
    lines = [
        f"## {result.title}",
        "",
        f"{result.machine}; commit {result.commit}, {result.when}. The second figure is the 99th "
        "percentile, or the worst of fewer than a hundred samples.",
        "",
        _cells(head),
        "|---|" + "---:|" * (len(head) - 1),
    ]
    lines += map(_cells, rows)
    if result.notes:
        lines += ["", *(f"- {note}" for note in result.notes)]
    return "\n".join(lines)
