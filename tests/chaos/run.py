"""One chaos run by seed: its plan, its course and its outcome.

The first faults of successive seeds go through the table in turn. All else is drawn: whether there
is a second fault, at once or after the first, and the rest. Not here: what faults do (faults.py),
what is checked (checks.py, oracle.py).
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ftrun.tools.chaos.proxy import Proxy
from tests.chaos import checks
from tests.chaos.faults import FAULTS, GRACE_S, Effect, Fault, Nobody, Stage
from tests.chaos.job import HEARTBEAT_TIMEOUT_S, Job
from tests.chaos.network import HUB_ADDRESS, LIGHTHOUSE, Network, why_no_namespaces
from tests.chaos.processes import vital_signs

RUN_S = 900.0
SECOND_CHANCE = 0.45
AT_ONCE_CHANCE = 0.5
COMPANIONS = (
    "worker SIGKILL",
    "worker SIGSTOP, SIGCONT",
    "lighthouse -9",
    "own lighthouse -9",
    "path half open",
    "path breaks",
    "node cut both ways",
    "node cut outward",
)
DISK_BYTES = 8 << 20
BALLAST_BYTES = 4 << 20


@dataclass(frozen=True)
class Plan:
    """The plan of one seed."""

    seed: int
    stage: str
    faults: tuple[str, ...]
    at_once: bool

    @property
    def replicas(self) -> int:
        """The number of replicas: enough that one survives."""
        return 3 if self.stage in ("local", "disk") and len(self.faults) == 1 else 4

    def __str__(self) -> str:
        joint = " + " if self.at_once else ", then "
        return f"{self.stage}: {joint.join(self.faults)}"


@dataclass
class Outcome:
    """The outcome of a run. ``skipped``: why the run could not be made here."""

    plan: Plan
    problems: list[str] = field(default_factory=list)
    recoveries_s: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    skipped: str = ""
    story: list[str] = field(default_factory=list)
    directory: str = ""

    @property
    def passed(self) -> bool:
        """Nothing is wrong."""
        return not self.problems and not self.skipped

    def line(self) -> str:
        """The run's one-line summary."""
        word = "skipped" if self.skipped else "passed" if self.passed else "FAILED"
        recovery = " ".join(f"{s:.2f}" for s in self.recoveries_s.values())
        head = f"seed {self.plan.seed:5}  {word:7} {self.seconds:5.1f} s  {self.plan}"
        more = self.skipped or "; ".join(p.splitlines()[0] for p in self.problems)
        return head + (f"  (recovery {recovery} s)" if recovery else "") + f"  {more}".rstrip()

    def json(self) -> dict[str, Any]:
        """The outcome as JSON."""
        return {**asdict(self), "passed": self.passed}


def read(found: dict[str, Any]) -> Outcome:
    """Read the outcome that ``Outcome.json`` has written."""
    plan = Plan(**{**found["plan"], "faults": tuple(found["plan"]["faults"])})
    kept = {key: value for key, value in found.items() if key not in ("plan", "passed")}
    return Outcome(plan, **kept)


def draw(seed: int) -> Plan:
    """Draw the plan of a seed: always the same one."""
    rng = random.Random(f"plan {seed}")
    names = list(FAULTS)
    first = FAULTS[names[seed % len(names)]]
    stage = rng.choice(first.stages)
    if rng.random() >= SECOND_CHANCE:
        return Plan(seed, stage, (first.name,), False)
    second = rng.choice([name for name in COMPANIONS if stage in FAULTS[name].stages] or [""])
    if not second:
        return Plan(seed, stage, (first.name,), False)
    if first.ends:
        return Plan(seed, stage, (second, first.name), False)
    return Plan(seed, stage, (first.name, second), rng.random() < AT_ONCE_CHANCE)


def run(seed: int, *, keep: bool = False) -> Outcome:
    """Make the run of a seed and judge it. Call it in a main thread: it has a hard deadline."""
    plan = draw(seed)
    outcome = Outcome(plan)
    if plan.stage == "nodes" and (why := why_no_namespaces()):
        outcome.skipped = why
        return outcome
    began = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
    try:
        with _deadline(RUN_S), _stage(plan, directory) as stage:
            try:
                _go(plan, stage, outcome)
            except AssertionError as error:
                outcome.problems.append(str(error))
            except Exception:  # noqa: BLE001 - a bug of the test bed is a failure with its story
                outcome.problems.append(f"the run broke: {traceback.format_exc()}")
            outcome.story = [*stage.job.story, "--- output", *stage.job.text().splitlines()]
    except Unstageable as error:
        outcome.skipped = str(error)
    except AssertionError as error:
        outcome.problems.append(f"the stage: {error}")
    outcome.seconds = time.monotonic() - began
    if keep or not (outcome.passed or outcome.skipped):
        outcome.directory = str(directory)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


def _go(plan: Plan, stage: Stage, outcome: Outcome) -> None:
    job = stage.job
    job.await_members()
    signs = _signs(job)
    total = Effect()
    for faults in _rounds(plan):
        stage.struck.clear()
        before, goal, struck_at = job.workers(), job.step(), time.monotonic()
        effect = _strike(stage, faults)
        total |= effect
        if effect.codes is not None:
            break
        job.await_recovery(goal, effect.gone)
        outcome.recoveries_s[" + ".join(f.name for f in faults)] = time.monotonic() - struck_at
        if plan.stage in ("service", "nodes"):  # silent members are given up only later
            job.pause(HEARTBEAT_TIMEOUT_S)
            job.await_recovery(job.step(), effect.gone)
        outcome.problems += checks.check_pids(before, job.workers(), effect.may_go)
        job.tell(f"workers: {job.workers()}")
    if total.codes is None:
        outcome.problems += checks.check_flat(signs, _signs(job))
    _end(plan, job, total, struck_at, outcome)


def _rounds(plan: Plan) -> list[list[Fault]]:
    faults = [FAULTS[name] for name in plan.faults]
    return [faults] if plan.at_once else [[fault] for fault in faults]


def _strike(stage: Stage, faults: list[Fault]) -> Effect:
    """Inject the faults, each in its own thread."""
    effects: list[Effect] = []
    errors: list[BaseException] = []

    def one(fault: Fault) -> None:
        try:
            effects.append(fault.strike(stage))
        except Nobody as error:
            stage.job.tell(f"{fault.name}: {error}")
        except Exception as error:  # noqa: BLE001 - raised below, where it is awaited
            errors.append(error)

    threads = [threading.Thread(target=one, args=(fault,)) for fault in faults]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    total = Effect()
    for effect in effects:
        total |= effect
    return total


def _end(plan: Plan, job: Job, total: Effect, struck_at: float, outcome: Outcome) -> None:
    if total.codes is None:
        expected = [-9 if index in job.lost_agents else 0 for index in range(len(job.agents))]
        codes = job.end_at_a_step()
    else:
        expected = total.codes
        codes = job.await_end()
        job.await_nothing()
        outcome.recoveries_s[plan.faults[-1]] = time.monotonic() - struck_at
    if codes != expected:
        outcome.problems.append(f"exit codes {codes}, not {expected}")
    took = job.await_nothing()
    job.tell(f"nothing is left after {took:.2f} s")
    outcome.problems += checks.check_output(job, total.causes)
    outcome.problems += checks.check_account(job)
    outcome.problems += checks.check_history(job, finished=total.codes is None)


def _signs(job: Job) -> dict[str, dict[str, int]]:
    pids = {f"agent {i}": a.pid for i, a in enumerate(job.agents) if i not in job.lost_agents}
    pids |= {f"spawner {pid}": pid for pid in job.family.titled("ftrun spawner")}
    return {name: vital_signs(pid) for name, pid in pids.items()}


# ---------------------------------------------------------------- stages


class Unstageable(Exception):
    """This machine lacks something that the run needs."""


@contextmanager
def _stage(plan: Plan, directory: Path) -> Iterator[Stage]:
    ballast = BALLAST_BYTES if any("heal" in n or "donor" in n for n in plan.faults) else 0
    job = Job(directory, plan.replicas, CHAOS_BALLAST_BYTES=str(ballast))
    stage = Stage(job, random.Random(f"run {plan.seed}"))
    job.tell(f"seed {plan.seed}: {plan}, {plan.replicas} replicas")
    try:
        _START[plan.stage](stage)
        yield stage
    finally:
        for proxy in stage.proxies:
            proxy.close()
        job.close()
        if stage.network is not None:
            stage.network.close()
        if stage.disk is not None:
            subprocess.run(["umount", "-l", stage.disk], capture_output=True, check=False)


def _start_local(stage: Stage) -> None:
    stage.job.start_agent("--grace", str(GRACE_S))


def _start_disk(stage: Stage) -> None:
    """Mount a small file system for logs and journal."""
    disk = stage.job.directory / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "chaos", str(disk)]
    try:
        subprocess.run(mount, capture_output=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unstageable(f"no small file system can be mounted here ({error})") from error
    stage.disk = disk
    stage.job.start_agent("--log-dir", str(disk / "logs"), "--state-dir", str(disk / "lighthouse"))


def _start_service(stage: Stage) -> None:
    """Start two agents, each behind its own proxy, and a separate lighthouse."""
    job = stage.job
    address = job.start_service()
    for index in range(2):
        proxy = Proxy(address, stage.rng.randrange(1 << 30) + index)
        stage.proxies.append(proxy)
        job.start_agent(*job.agent_options(proxy.address, 2))


def _start_nodes(stage: Stage) -> None:
    """Start two agents and the lighthouse, each in its own network namespace."""
    job = stage.job
    stage.network = network = Network(str(job.directory.name)[-8:], 2)
    job.start_service(f"{HUB_ADDRESS}:29510", network.inside(network.hub))
    for node in network.nodes:
        job.start_agent(*job.agent_options(LIGHTHOUSE, 2), wrap=network.inside(node))


_START = {
    "local": _start_local,
    "disk": _start_disk,
    "service": _start_service,
    "nodes": _start_nodes,
}


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """The hard deadline of a run."""

    def late(*_: object) -> None:
        raise AssertionError(f"the run took longer than {seconds:g} s")

    former = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
