"""The faults of a chaos run: the action, the target and the allowed consequences of each.

A stage is the setup of a job (``local``, ``disk``, ``service``, ``nodes``); a fault belongs to some
stages. Not here: the draw of faults (run.py), the checks (checks.py).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ftrun.base import linux
from ftrun.tools.chaos.proxy import BACKWARD, FORWARD, Proxy
from tests.chaos.job import HEARTBEAT_TIMEOUT_S, Job
from tests.chaos.network import Network
from tests.jobs import wait, write_at_once

TRAP_S = 90.0
LIGHTHOUSE_BACK_S = 90.0
HANGS_S = 4.0
"""A worker stopped for longer may be replaced: members wait about this long for a message."""
BACK = "The lighthouse is back"
GRACE_S = 4.0
EXIT_PREEMPTED, EXIT_BUG = 75, 70


@dataclass
class Stage:
    """A job and its surroundings."""

    job: Job
    rng: random.Random
    proxies: list[Proxy] = field(default_factory=list)
    network: Network | None = None
    disk: Path | None = None
    struck: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    service: threading.Lock = field(default_factory=threading.Lock)


class Nobody(Exception):
    """No process can be the victim of this fault now."""


@dataclass
class Effect:
    """A fault's action and its allowed consequences.

    ``gone``: pids that must be replaced. ``may_go``: replicas whose processes may be replaced.
    ``causes``: patterns that the output must show (P6). ``codes``: exit codes, if it ends the job.
    """

    gone: set[int] = field(default_factory=set)
    may_go: set[str] = field(default_factory=set)
    causes: list[str] = field(default_factory=list)
    codes: list[int] | None = None

    def __ior__(self, other: Effect) -> Effect:
        self.gone |= other.gone
        self.may_go |= other.may_go
        self.causes += other.causes
        self.codes = other.codes if other.codes is not None else self.codes
        return self


@dataclass(frozen=True)
class Fault:
    """``ends``: it ends the job, so no other fault can follow."""

    name: str
    stages: tuple[str, ...]
    strike: Callable[[Stage], Effect]
    ends: bool = False


# ---------------------------------------------------------------- workers


def _victims(stage: Stage, number: int) -> list[tuple[str, int]]:
    """Replicas without another fault; one is always left, or the state would be lost.

    Raises:
        Nobody: too few are left.
    """
    with stage.lock:
        free = {r: pid for r, pid in stage.job.workers().items() if r not in stage.struck}
        if len(stage.struck) + number >= stage.job.replicas or len(free) < number:
            raise Nobody(f"{sorted(stage.struck)} are struck already")
        found = stage.rng.sample(sorted(free.items()), number)
        stage.struck |= {replica for replica, _ in found}
        return found


def _kill(stage: Stage, number: int = 1) -> Effect:
    effect = Effect()
    for replica, pid in _victims(stage, number):
        _signal(stage, pid, signal.SIGKILL, f"replica {replica}")
        effect |= Effect({pid}, {replica}, [_died(replica, pid, "SIGKILL")])
    return effect


def _died(replica: str, pid: int, how: str) -> str:
    # A worker that hangs at its exit is reported without a pid.
    return rf"replica {replica}( \(pid {pid}\)|) [a-z ]+: {how}"


def _signal(stage: Stage, pid: int, number: signal.Signals, who: str) -> None:
    """Signal by pidfd, so that no other process with a reused pid is hit."""
    stage.job.tell(f"{number.name} to {who} (pid {pid})")
    row = linux.process_row(pid)
    fd = linux.send_signal(row, number) if row is not None else None
    if fd is not None:
        os.close(fd)


def _pause(stage: Stage) -> Effect:
    ((replica, pid),) = _victims(stage, 1)
    began = time.monotonic()
    _signal(stage, pid, signal.SIGSTOP, f"replica {replica}")
    stage.job.pause(stage.rng.uniform(0.3, 2.5))
    _signal(stage, pid, signal.SIGCONT, f"replica {replica}")
    return Effect(may_go={replica} if time.monotonic() - began > HANGS_S else set())


def _hang(stage: Stage) -> Effect:
    """Stop a worker for good; a watchdog ends it."""
    ((replica, pid),) = _victims(stage, 1)
    _signal(stage, pid, signal.SIGSTOP, f"replica {replica}")
    stage.job.pause(stage.rng.uniform(0.3, 1.5))
    _signal(stage, pid, signal.SIGKILL, f"replica {replica}")
    return Effect({pid}, {replica}, [_died(replica, pid, "SIGKILL")])


def _trap(place: str, how: str) -> Callable[[Stage], Effect]:
    """A worker falls into a trap in its own script."""

    def strike(stage: Stage) -> Effect:
        ((replica, pid),) = _victims(stage, 1)
        _set_trap(stage.job, replica, place)
        _await_traps(stage.job)
        return Effect({pid}, {replica}, [how and _died(replica, pid, how)])

    return strike


def _die_in_heal(stage: Stage) -> Effect:
    """The newcomer dies while it loads the state."""
    ((replica, pid),) = _victims(stage, 1)
    _set_trap(stage.job, replica, "load")
    _signal(stage, pid, signal.SIGKILL, f"replica {replica}")
    _await_traps(stage.job)
    return Effect({pid}, {replica}, [_died(replica, pid, "SIGKILL")])


def _second(place: str) -> Callable[[Stage], Effect]:
    """Kill one worker; the consequence kills another."""

    def strike(stage: Stage) -> Effect:
        (one, pid), (other, other_pid) = _victims(stage, 2)
        _set_trap(stage.job, other, place)
        _signal(stage, pid, signal.SIGKILL, f"replica {one}")
        _await_traps(stage.job)
        causes = [_died(one, pid, "SIGKILL"), _died(other, other_pid, "SIGKILL")]
        return Effect({pid, other_pid}, {one, other}, causes)

    return strike


def _set_trap(job: Job, replica: str, place: str) -> None:
    job.tell(f"a trap for replica {replica}: {place}")
    write_at_once(job.out / f"trap.{replica}", place)


def _await_traps(job: Job) -> None:
    """Wait until each trap has caught a worker."""

    def sprung() -> list[str]:
        return [path.name for path in job.out.glob("trap.*.sprung.*")]

    set_ = lambda: len(list(job.out.glob("trap.*"))) - len(sprung())  # noqa: E731
    wait(lambda: not set_(), "the traps to be sprung", TRAP_S)
    job.tell(f"fell into traps: {sorted(sprung())}")


def _deaf(stage: Stage) -> Effect:
    """A worker hangs and ignores SIGTERM; then the job is asked to stop."""
    ((replica, _),) = _victims(stage, 1)
    _set_trap(stage.job, replica, "deaf")
    _await_traps(stage.job)
    stage.job.stop()
    return Effect(codes=[EXIT_PREEMPTED])


# ---------------------------------------------------------------- agent, spawner, lighthouse


def _guards(*victims: str) -> Callable[[Stage], Effect]:
    def strike(stage: Stage) -> Effect:
        job = stage.job
        pids = {"agent": job.agents[0].pid, "spawner": job.family.titled("ftrun spawner")[0]}
        for victim in victims:
            _signal(stage, pids[victim], signal.SIGKILL, victim)
        return Effect(codes=[-9 if "agent" in victims else EXIT_BUG])

    return strike


def _lighthouse(lose: bool) -> Callable[[Stage], Effect]:
    """Kill the embedded lighthouse: its agent restarts it."""

    def strike(stage: Stage) -> Effect:
        pids = stage.job.family.titled("ftrun lighthouse")
        if not pids:
            raise Nobody("the lighthouse is dead already")
        pid = pids[0]
        if lose:
            _signal(stage, pid, signal.SIGSTOP, "the lighthouse")
            for path in stage.job.directory.glob("**/lighthouse/journal*"):
                path.unlink()
                stage.job.tell(f"{path.name} of the lighthouse is lost")
        backs = stage.job.text().count(BACK)
        _signal(stage, pid, signal.SIGKILL, "the lighthouse")
        is_back = lambda: stage.job.text().count(BACK) > backs  # noqa: E731
        wait(is_back, "the lighthouse to be back", LIGHTHOUSE_BACK_S)
        return Effect()

    return strike


def _service(lose: bool) -> Callable[[Stage], Effect]:
    """Kill the separate lighthouse and restart it after a while."""

    def strike(stage: Stage) -> Effect:
        if not stage.service.acquire(blocking=False):
            raise Nobody("the lighthouse is struck already")  # at the same time, by the other fault
        try:
            _kill_service(stage, lose)
        finally:
            stage.service.release()
        return Effect()

    return strike


def _kill_service(stage: Stage, lose: bool) -> None:
    job = stage.job
    assert job.service is not None
    _signal(stage, job.service.pid, signal.SIGKILL, "the lighthouse")
    job.service.kill()
    if lose:
        shutil.rmtree(job.service_dir)
        job.tell("the lighthouse's state directory is lost")
    job.pause(stage.rng.uniform(0.0, 2.0))
    backs = job.text().count(BACK)
    job.restart_service()
    agents = len(job.agents) - len(job.lost_agents)
    all_back = lambda: job.text().count(BACK) >= backs + agents  # noqa: E731
    wait(all_back, "the agents to be back at the lighthouse", LIGHTHOUSE_BACK_S)


def _node(stage: Stage) -> Effect:
    """Kill an agent with all its processes; the other agent takes its slots over."""
    job = stage.job
    index = stage.rng.randrange(len(job.agents))
    there = {r: pid for r, pid in job.workers().items() if job.agent_of(pid) == index}
    if job.lost_agents or stage.struck - set(there):
        raise Nobody("the other agent's replicas are struck already")
    stage.struck |= set(there)
    _signal(stage, job.agents[index].pid, signal.SIGKILL, f"agent {index} of {sorted(there)}")
    job.agents[index].kill()
    job.lost_agents.add(index)
    return Effect(set(there.values()), set(there))


def _freeze(what: str) -> Callable[[Stage], Effect]:
    """Stop an agent or the lighthouse, and continue it."""

    def strike(stage: Stage) -> Effect:
        job, rng = stage.job, stage.rng
        assert job.service is not None
        index = rng.randrange(len(job.agents))
        pid = job.agents[index].pid if what == "agent" else job.service.pid
        seconds = rng.uniform(0.3, 2.0 * HEARTBEAT_TIMEOUT_S)
        long = seconds > 0.5 * HEARTBEAT_TIMEOUT_S
        may_go = _of_agent(job, index) if what == "agent" and long else set()
        _signal(stage, pid, signal.SIGSTOP, f"{what}, for {seconds:.1f} s")
        job.pause(seconds)
        _signal(stage, pid, signal.SIGCONT, what)
        return Effect(set(), may_go)

    return strike


# ---------------------------------------------------------------- paths and disks


def _of_agent(job: Job, index: int) -> set[str]:
    return {replica for replica, pid in job.workers().items() if job.agent_of(pid) == index}


def _proxy(kind: str) -> Callable[[Stage], Effect]:
    def strike(stage: Stage) -> Effect:
        job, rng = stage.job, stage.rng
        index = rng.randrange(len(stage.proxies))
        proxy = stage.proxies[index]
        may_go: set[str] = set()
        seconds = rng.uniform(0.5, 1.5)
        if kind == "delay":
            proxy.delay_s = rng.uniform(0.05, 0.4)
            job.tell(f"agent {index}: every chunk takes {proxy.delay_s:.2f} s for {seconds:.1f} s")
        elif kind == "loss":
            proxy.loss = rng.uniform(0.1, 0.5)
            may_go = _of_agent(job, index)
            job.tell(f"agent {index}: connections break by {proxy.loss:.0%} for {seconds:.1f} s")
            proxy.reset()
        else:
            seconds = rng.uniform(0.5, 1.8 * HEARTBEAT_TIMEOUT_S)
            ways = rng.choice([{FORWARD}, {BACKWARD}, {FORWARD, BACKWARD}])
            proxy.stalled = frozenset(ways)
            may_go = _of_agent(job, index) if seconds > 0.5 * HEARTBEAT_TIMEOUT_S else set()
            job.tell(f"agent {index}: half open ({sorted(ways)}) for {seconds:.1f} s")
        effect = _kill(stage) if rng.random() < 0.5 else Effect()
        job.pause(seconds)
        proxy.behave()
        job.tell(f"agent {index}: the path is well again")
        return Effect(effect.gone, effect.may_go | may_go, effect.causes)

    return strike


def _cut(outward: bool, inward: bool) -> Callable[[Stage], Effect]:
    def strike(stage: Stage) -> Effect:
        job, network = stage.job, stage.network
        assert network is not None
        index = stage.rng.randrange(len(network.nodes))
        seconds = stage.rng.uniform(0.3, 2.0 * HEARTBEAT_TIMEOUT_S)
        may_go = _of_agent(job, index)
        ways = " and ".join(w for w, cut in (("out", outward), ("in", inward)) if cut)
        job.tell(f"node {index} (replicas {sorted(may_go)}) is cut {ways} for {seconds:.1f} s")
        network.cut(index, outward, inward)
        job.pause(seconds)
        network.mend(index)
        job.tell(f"node {index} is connected again")
        return Effect(set(), may_go)

    return strike


def _full_disk(stage: Stage) -> Effect:
    """Fill the disk of the logs and of the lighthouse's journal; a death makes both be written."""
    assert stage.disk is not None
    filler = stage.disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError as error:
            stage.job.tell(f"the disk is full: {error.strerror}")
    effect = _kill(stage)
    stage.job.pause(stage.rng.uniform(0.5, 1.5))
    filler.unlink()
    stage.job.tell("the disk has space again")
    return effect


LOCAL, DISK, SERVICE, NODES = ("local",), ("disk",), ("service",), ("nodes",)
FAULTS = {
    fault.name: fault
    for fault in (
        Fault("worker SIGKILL", (*LOCAL, *SERVICE, *NODES), _kill),
        Fault("worker SIGSEGV", LOCAL, _trap("segv", "SIGSEGV")),
        Fault("worker SIGSTOP, SIGCONT", (*LOCAL, *SERVICE), _pause),
        Fault("worker SIGSTOP, SIGKILL", LOCAL, _hang),
        Fault("worker out of memory", LOCAL, _trap("memory", "MemoryError")),
        Fault("worker raises", LOCAL, _trap("exception", "ValueError: the trap")),
        Fault("two workers SIGKILL", LOCAL, lambda stage: _kill(stage, 2)),
        Fault("death during a heal", LOCAL, _die_in_heal),
        Fault("a donor's death", LOCAL, _second("donate")),
        Fault("death during a reconfigure", LOCAL, _second("build")),
        Fault("death during a repair", LOCAL, _second("repair")),
        Fault("lighthouse -9", LOCAL, _lighthouse(lose=False)),
        Fault("lighthouse -9, journal lost", LOCAL, _lighthouse(lose=True)),
        Fault("worker hangs, ignores SIGTERM", LOCAL, _deaf, ends=True),
        Fault("agent -9", LOCAL, _guards("agent"), ends=True),
        Fault("spawner -9", LOCAL, _guards("spawner"), ends=True),
        Fault("agent and spawner -9", LOCAL, _guards("agent", "spawner"), ends=True),
        Fault("disk full", DISK, _full_disk),
        Fault("own lighthouse -9", SERVICE, _service(lose=False)),
        Fault("own lighthouse -9, state lost", SERVICE, _service(lose=True)),
        Fault("one agent of two -9", SERVICE, _node),
        Fault("agent SIGSTOP, SIGCONT", SERVICE, _freeze("agent")),
        Fault("lighthouse SIGSTOP, SIGCONT", SERVICE, _freeze("lighthouse")),
        Fault("path slow", SERVICE, _proxy("delay")),
        Fault("path breaks", SERVICE, _proxy("loss")),
        Fault("path half open", SERVICE, _proxy("half-open")),
        Fault("node cut both ways", NODES, _cut(True, True)),
        Fault("node cut outward", NODES, _cut(True, False)),
        Fault("node cut inward", NODES, _cut(False, True)),
    )
}
