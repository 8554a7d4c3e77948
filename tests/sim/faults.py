"""Bad luck, planned by the seed: which kinds of fault, how often, when, and after which message.

Swarm testing: every seed draws its own subset of kinds, so that rare combinations come up and one
kind does not hide another. Half of the faults strike at a random time; half right after the
lighthouse has said something in particular, where most bugs live.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftrun.core import messages as m
from ftrun.core import supervisor_events as s

if TYPE_CHECKING:
    from tests.sim.node import Agent, Host
    from tests.sim.worker import Worker
    from tests.sim.world import World

STRUCK_MESSAGES = ("Interrupt", "NewQuorum", "Prepare", "ProposeSwitch", "Switch", "Cancel")
RATES = {"build_failure": 0.15, "reduction_error": 0.02, "script_error": 0.03}


@dataclass
class Trigger:
    """After the ``count``-th ``message`` of the lighthouse, ``delay_s`` later: ``kind``."""

    message: str
    count: int
    delay_s: float
    kind: str


@dataclass
class Faults:
    """One seed's bad luck. Nothing of it strikes once the world is calm."""

    window_s: float = 6.0
    delay_max_s: float = 0.003
    timed: tuple[tuple[float, str], ...] = ()
    triggers: list[Trigger] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    @staticmethod
    def draw(rng: random.Random, focus: tuple[str, ...] = ()) -> Faults:
        """From one fault to a handful, of a few kinds; of ``focus`` only, if there is one."""
        window_s = 8.0 if rng.random() < 0.1 else rng.uniform(1.0, 3.5)
        kinds = [kind for kind in KINDS if rng.random() < 0.3] or [rng.choice(list(KINDS))]
        if focus:
            kinds, window_s = list(focus), rng.uniform(2.0, 8.0)
        timed, triggers = [], []
        for _ in range(rng.choice((1, 1, 2, 2, 3, 4, 6))):
            kind = rng.choice(kinds)
            if rng.random() < 0.5:
                timed.append((rng.uniform(0.2, window_s), kind))
            else:
                message = rng.choice(STRUCK_MESSAGES)
                delay_s = rng.choice((0.0, rng.uniform(0.0, 0.005), rng.uniform(0.0, 0.08)))
                triggers.append(Trigger(message, rng.randint(1, 8), delay_s, kind))
        rates = {kind: rate for kind, rate in RATES.items() if rng.random() < 0.2}
        delay_max_s = rng.choice((0.003, 0.003, 0.03, 0.2))
        return Faults(window_s, delay_max_s, tuple(timed), triggers, rates)

    def plan(self, world: World) -> None:
        """Put the timed ones into the queue."""
        for when_s, kind in self.timed:
            world.at(when_s, None, self._strike, world, kind)

    def strikes(self, world: World, kind: str) -> bool:
        """Whether a fault that lies in wait comes up here."""
        if world.calm or kind not in self.rates:
            return False
        return world.rng.random() < self.rates[kind]

    def heard(self, world: World, message: m.ToWorker) -> None:
        """The lighthouse has said something: perhaps somebody waits for just that."""
        for trigger in self.triggers:
            if trigger.message == type(message).__name__:
                trigger.count -= 1
                if trigger.count == 0:
                    world.at(trigger.delay_s, None, self._strike, world, trigger.kind)

    def _strike(self, world: World, kind: str) -> None:
        if not world.calm:
            world.note("world", "fault", kind)
            self.done.append(kind)
            KINDS[kind](world)


# ---------------------------------------------------------------- workers


def _any_worker(world: World) -> Worker | None:
    workers = [worker for host in world.hosts for worker in host.workers()]
    return world.rng.choice(workers) if workers else None


def _kill_worker(world: World) -> None:
    worker = _any_worker(world)
    if worker is not None:
        worker.crash()


def _kill_worker_between_instructions(world: World) -> None:
    worker = _any_worker(world)
    if worker is not None:
        worker.crash_in = world.rng.randint(0, 12)


def _pause_worker(world: World) -> None:
    worker = _any_worker(world)
    if worker is not None:
        world.invariants.excuse(worker.key.incarnation, "it was stopped")
        worker.paused_until = world.now + world.rng.choice((0.05, 0.5, 1.5, 3.0))


def _repeat_to_worker(world: World) -> None:
    """A message of the lighthouse comes once more, late."""
    worker = _any_worker(world)
    if worker is not None and worker.heard:
        worker.from_agent.send(world.rng.choice(worker.heard[-12:]))


def _repeat_to_house(world: World) -> None:
    """A worker's answer comes once more, late. (A Report never does: a stream keeps the order.)"""
    worker = _any_worker(world)
    if worker is not None:
        answers = [said for said in worker.said if not isinstance(said, (m.Report, m.Leaving))]
        if answers:
            worker.to_agent.send(world.rng.choice(answers[-6:]))


# ---------------------------------------------------------------- agents and their streams


def _any_host(world: World) -> Host:
    return world.rng.choice(world.hosts)


def _any_agent(world: World) -> Agent | None:
    agents = [host.agent for host in world.hosts if host.agent and host.agent.alive]
    return world.rng.choice(agents) if agents else None


def _kill_agent(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None:
        agent.crash()


def _kill_agent_between_instructions(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None:
        agent.crash_in = world.rng.randint(0, 8)


def _pause_agent(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None:
        agent.host.excuse("its agent was stopped")
        # The last is longer than the isolation limit: its workers must find out by themselves.
        agent.paused_until = world.now + world.rng.choice((0.05, 0.5, 1.5, 4.5))


def _cut(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None and agent.stream is not None:
        agent.host.excuse("its agent's stream was cut")
        agent.stream.cut()


def _half_open(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None and agent.stream is not None:
        agent.host.excuse("its agent's stream was cut")
        agent.stream.cut(half_open=True)


def _cut_off(world: World) -> None:
    host = _any_host(world)
    host.excuse("its host was cut off")
    host.cut_off_until = world.now + world.rng.choice((0.3, 1.5, 5.0))
    if host.agent is not None and host.agent.stream is not None:
        host.agent.stream.cut(half_open=world.rng.random() < 0.5)


def _cut_off_trainers(world: World) -> None:
    """Everybody who trains is out of the lighthouse's reach; who is left may take their slots."""
    duration_s = world.rng.choice((1.5, 6.0, 8.0))
    for host in world.hosts:
        if host.workers():
            host.excuse("its host was cut off")
            host.cut_off_until = world.now + duration_s
            if host.agent is not None and host.agent.stream is not None:
                host.agent.stream.cut(half_open=world.rng.random() < 0.3)


def _stall_up(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None and agent.stream is not None:
        agent.host.excuse("its words were held up")
        agent.stream.up.stall(world.rng.choice((0.05, 0.5, 1.5, 3.0)))


def _stall_down(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None and agent.stream is not None:
        agent.host.excuse("words to it were held up")
        agent.stream.down.stall(world.rng.choice((0.05, 0.5, 1.5, 3.0)))


def _drain(world: World) -> None:
    agent = _any_agent(world)
    if agent is not None and len(world.hosts) > 1:
        agent.host.excuse("it was asked to leave")
        agent.handle(s.DrainAsked("SIGTERM", 75))


# ---------------------------------------------------------------- the lighthouse


def _kill_house(world: World) -> None:
    if world.house is not None and world.house.alive:
        world.house.crash()


def _kill_house_between_instructions(world: World) -> None:
    if world.house is not None and world.house.alive:
        world.house.crash_in = world.rng.randint(0, 10)


def _lose_journal(world: World) -> None:
    if world.house is not None and world.house.alive:
        world.house.crash()
        world.lose_disk()


def _pause_house(world: World) -> None:
    if world.house is not None and world.house.alive:
        for host in world.hosts:
            host.excuse("the lighthouse was stopped")
        world.house.paused_until = world.now + world.rng.choice((0.05, 0.5, 1.5, 4.0))


KINDS: dict[str, Callable[[World], None]] = {
    "kill_worker": _kill_worker,
    "kill_worker_between": _kill_worker_between_instructions,
    "pause_worker": _pause_worker,
    "repeat_to_worker": _repeat_to_worker,
    "repeat_to_house": _repeat_to_house,
    "kill_agent": _kill_agent,
    "kill_agent_between": _kill_agent_between_instructions,
    "pause_agent": _pause_agent,
    "cut": _cut,
    "half_open": _half_open,
    "cut_off": _cut_off,
    "cut_off_trainers": _cut_off_trainers,
    "stall_up": _stall_up,
    "stall_down": _stall_down,
    "drain": _drain,
    "kill_house": _kill_house,
    "kill_house_between": _kill_house_between_instructions,
    "lose_journal": _lose_journal,
    "pause_house": _pause_house,
}
