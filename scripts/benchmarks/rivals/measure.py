"""Kills one of 4 workers under each launcher in turn: whether, when and how it recovers.

Timed from outside by the workers' time stamps. A kill counts as recovered when all ranks, the
killed one in another process, have taken steps again within a limit, and the job has then passed
the step of the kill. If a job does not recover, the next kill is in a new job. Launchers take
turns, with a few kills in each job. Some kills are followed at once by the kill of another worker.

A group without replicas must end like an undisturbed run, bit by bit. The reference for each end
comes from an undisturbed run under torchrun.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from benchmarks.jobs import Job, Line, read, run_job
from benchmarks.results import Result, Row, quantile
from benchmarks.rivals.launchers import RIVALS, WORKERS, launcher
from tests.jobs import Late, wait

WORKER = Path(__file__).parent / "worker.py"
KILLS_PER_JOB = 3
FIRST_STEP, STEP_S = 15, 0.05
STEPS_AGAIN = 3
CALM_STEPS = 12  # past the step of the kill, plus up to one interval of checkpoints
INTERVAL_STEPS = 10
RECOVERY_TIMEOUT_S = 120.0
VICTIMS = (1, 2, 3, 0)
OUTPUT_LINES = 12
SECOND_KILL_S = 0.2
EQUAL, UNEQUAL, LATE = "equal on all", "unequal", "did not end when told"


@dataclass(frozen=True)
class Kill:
    """A kill from which the job recovered."""

    again_s: float  # until all ranks have taken a step again
    stall_s: float  # survivors' longest time between two steps, beyond their median
    repeated: int  # steps that a survivor computed twice, or that did not count


@dataclass
class Record:
    """The results of a launcher."""

    peer: str
    kills: list[Kill] = field(default_factory=list)
    failed: int = 0
    unstarted: int = 0  # jobs
    ends: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)  # with the step, of those that were equal

    @property
    def count(self) -> int:
        """The number of kills so far."""
        return len(self.kills) + self.failed


def measure(
    kills: int,
    mode: str,
    seed: int,
    sites: Path,
    peers: Sequence[str] = (),
    others: int = 0,
    second: float = 0.0,
) -> Result:
    """``kills`` kills under each launcher that is installed; ``peers``: only these.

    ``sites``: the directory that has NVRx and lm-resiliency, in directories of their names.
    ``others``: the kills for each launcher except ftrun; 0: the same number. ``second``: the
    probability that another worker is killed within ``SECOND_KILL_S`` of the first.
    """
    rng = random.Random(seed)
    asked = [rival for rival in RIVALS if not peers or rival.name in peers]
    left_out = [reason for rival in asked if (reason := rival.left_out(mode, sites))]
    present = [rival for rival in asked if not rival.left_out(mode, sites)]
    records = {rival.name: Record(rival.name) for rival in present}
    wanted = dict.fromkeys(records, others or kills) | {"ftrun": kills}
    while left := [n for n, r in records.items() if r.count < wanted[n] and r.unstarted < 2]:
        for name in left:
            record = records[name]
            count = min(wanted[name] - record.count, KILLS_PER_JOB)
            _run_job(record, count, mode, sites, rng, second)
    installed = [
        f"{rival.name}{_version(sites / rival.name)}: {rival.note}."
        for rival in present
        if rival.note
    ]
    if second:
        words = f"{second:.0%} of the kills were of two workers"
        installed.append(f"{words}, within {SECOND_KILL_S} s.")
    return _result(mode, records, [*left_out, *installed], _equal(mode, records, sites))


def _equal(mode: str, records: Mapping[str, Record], sites: Path) -> dict[str, list[float]]:
    """For each job whose ranks ended equal: 1 if an undisturbed run ends like this too."""
    last = max((int(x.split()[0]) for r in records.values() for x in r.digests), default=0)
    if mode == "ddp" or not last:  # replicas train on with fewer
        return {}
    started = launcher("torchrun", mode, sites)
    steps: dict[str, Any] = {"mode": mode, "reference": last}
    with run_job("torchrun", WORKERS, 1, script=WORKER, launcher=started, **steps) as job:
        job.await_step(last, RECOVERY_TIMEOUT_S * 10)
        wait(lambda: len(job.ends()) == WORKERS, "the undisturbed run to end", RECOVERY_TIMEOUT_S)
        known = set((job.out / "reference").read_text().splitlines())
    return {peer: [float(x in known) for x in record.digests] for peer, record in records.items()}


def _run_job(
    record: Record, kills: int, mode: str, sites: Path, rng: random.Random, second: float = 0.0
) -> None:
    """One job with up to ``kills`` kills. The first one without recovery ends it."""
    peer = record.peer
    started = launcher(peer, mode, sites)
    try:
        with run_job(peer, WORKERS, FIRST_STEP, script=WORKER, launcher=started, mode=mode) as job:
            for _ in range(kills):
                victim = VICTIMS[record.count % len(VICTIMS)]
                try:
                    record.kills.append(_kill(job, victim, rng, second))
                except (Late, ProcessLookupError) as error:
                    record.failed += 1
                    _show(job, error)
                    return
            record.ends.append(_end(job))
            if record.ends[-1] == EQUAL:
                record.digests += {text.strip() for text in job.ends().values()}
    except Late as late:
        record.unstarted += 1
        print(f"{peer}: not started: {late}")


def _kill(job: Job, victim: int, rng: random.Random, second: float = 0.0) -> Kill:
    """Kill ``victim`` at a random moment of a step, and watch until the job has passed the step.

    ``second``: the probability that another worker is killed soon after.

    Raises:
        Late: the job did not recover.
        ProcessLookupError: the victim had ended before.
    """
    job.await_step(job.reached() + 1 + rng.randrange(INTERVAL_STEPS), RECOVERY_TIMEOUT_S)
    time.sleep(rng.random() * STEP_S)
    victims = [victim]
    if rng.random() < second:
        victims.append((victim + 1 + rng.randrange(WORKERS - 1)) % WORKERS)
    top, dead = job.reached(), {rank: job.pid(rank) for rank in victims}
    killed = job.kill(victim)
    for rank in victims[1:]:
        time.sleep(rng.random() * SECOND_KILL_S)
        with contextlib.suppress(ProcessLookupError):  # a launcher may have ended all by then
            job.kill(rank)

    def recovered() -> bool:
        if any(process.process.poll() is not None for process in job.launched):
            raise Late("its launcher has ended")
        if any(job.pid(rank) == pid for rank, pid in dead.items()):
            return False
        newest = [read(job.newest(rank)) for rank in range(WORKERS)]
        steps = ([line for line in each if _counts(line, killed)] for each in newest)
        return all(len(each) >= STEPS_AGAIN for each in steps)

    wait(recovered, "steps at all ranks after a kill", RECOVERY_TIMEOUT_S)
    job.await_step(top + CALM_STEPS, RECOVERY_TIMEOUT_S)
    everybody = {rank: [read(path) for path in job.processes(rank)] for rank in range(WORKERS)}
    return judge(everybody, victims, killed)


def _counts(line: Line, killed: float) -> bool:
    return line.committed and line.when > killed


def judge(
    everybody: Mapping[int, Sequence[Sequence[Line]]], victims: Sequence[int], killed: float
) -> Kill:
    """The effects of a kill, from the lines of each rank's processes, oldest process first."""
    again = max(
        next(line.when for line in processes[-1] if _counts(line, killed))
        for processes in everybody.values()
    )
    stalls, repeated = [], 0
    for processes in (them for rank, them in everybody.items() if rank not in victims):
        lines = sorted(itertools.chain(*processes), key=lambda line: line.when)
        steps = [line for line in lines if line.committed]
        gaps = [(later.when, later.when - line.when) for line, later in itertools.pairwise(steps)]
        usual = statistics.median(gap for _, gap in gaps)
        stalls.append(max(gap for when, gap in gaps if killed < when) - usual)
        repeated = max(repeated, _repeated(lines, killed))
    return Kill(again - killed, max(*stalls, 0.0), repeated)


def _repeated(lines: Sequence[Line], killed: float) -> int:
    """Steps of a rank after the kill that it had computed before, or that did not count."""
    count, top = 0, -1
    for line in lines:
        count += line.when > killed and (not line.committed or line.step <= top)
        top = max(top, line.step) if line.committed else top
    return count


def _end(job: Job) -> str:
    try:
        job.stop()
    except Late:
        return LATE
    return EQUAL if len(set(job.ends().values())) == 1 else UNEQUAL


def _show(job: Job, error: Exception) -> None:
    """The last output of a job that did not recover."""
    print(f"{job.peer}: not recovered: {error}")
    for process in job.launched:
        print(*(f"  | {line}" for line in process.output.splitlines()[-OUTPUT_LINES:]), sep="\n")


def _version(site: Path) -> str:
    """The version of the package that a rival's directory is for."""
    packages = (each for each in distributions(path=[str(site)]) if "resiliency" in each.name)
    return "".join(f" {each.version}" for each in packages)


def _result(
    mode: str,
    records: Mapping[str, Record],
    notes: Sequence[str],
    equal: dict[str, list[float]],
) -> Result:
    def of(name: str) -> dict[str, list[float]]:
        return {
            peer: [float(getattr(kill, name)) for kill in record.kills]
            for peer, record in records.items()
        }

    recovered = {
        peer: [1.0] * len(record.kills) + [0.0] * record.failed for peer, record in records.items()
    }
    form = "DDP" if mode == "ddp" else "FSDP2"
    return Result(
        "rivals" if mode == "ddp" else f"rivals-{mode}",
        f"SIGKILL of one of {WORKERS} workers under each launcher, {form}",
        [
            Row("recovered", "recovered", "kills", recovered, higher_is_better=True, is_count=True),
            Row("again_s", "SIGKILL → the next step at all ranks", "s", of("again_s"), digits=2),
            Row("stall_s", "survivors' longest step, beyond the median", "s", of("stall_s"),
                digits=2),
            Row("repeated", "steps repeated by survivors", "steps", of("repeated"), digits=0),
            *([Row("equal", "end equal to an undisturbed run, to the bit", "jobs", equal,
                   higher_is_better=True, is_count=True)] if equal else []),
        ],
        notes=[
            *notes,
            *(_spread(peer, record) for peer, record in records.items() if record.kills),
            *(
                f"{peer}: {record.unstarted} jobs did not start."
                for peer, record in records.items()
                if record.unstarted
            ),
            "Final parameters: "
            + "; ".join(f"{p}: {_told(r.ends)}" for p, r in records.items())
            + ".",
        ],
    )  # fmt: skip


def _spread(peer: str, record: Record) -> str:
    again = [kill.again_s for kill in record.kills]
    half, most, worst = (quantile(again, share) for share in (0.5, 0.9, 1.0))
    return f"{peer}: again after {half:.2f} s median, {most:.2f} s p90, {worst:.2f} s at worst."


def _told(ends: Sequence[str]) -> str:
    return (
        ", ".join(f"{end} ({ends.count(end)} jobs)" for end in sorted(set(ends))) or "no job ended"
    )
