"""Every place at which a fault can strike a small job: two groups of two ranks, two steps.

The world runs once without a fault and records every point: an actor's event, and each instruction
of it. Then it runs once for each point and each fault that fits there: a crash before the
instruction, the loss of all messages under way on the stream, an error of the reduction or of the
build. For two faults each such run is extended, from the point of its first fault on.

Two runs that differ only in times have one history; a second fault is tried once per history. Times
are drawn once, from the seed. Not here: swarms (faults.py).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.sim.actor import Actor
from tests.sim.faults import Faults
from tests.sim.network import Pipe, Stream
from tests.sim.node import Agent
from tests.sim.rings import End, Ring
from tests.sim.violation import Violation
from tests.sim.world import Job, World

MANY = 1 << 30
NUMBERS = re.compile(r"\d+\.\d{3,}(e-\d+)?")

SMALL_JOB = Job(
    replicas=2,
    min_replicas=1,
    workers=2,
    agents=2,
    operations=1,
    batched=True,
    waits_each=False,
    heal_first=False,
    init_sync=True,
    repair=True,
    spares=False,
    min_size=1,
    step_s=0.15,
    steps=2,
)


@dataclass(frozen=True, slots=True)
class Point:
    """One fault: what happens right before the ``event``-th event, or inside it.

    ``kind``: "crash" (before its ``instruction``-th instruction), "cut", "error".
    """

    event: int
    kind: str
    instruction: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """The outcome of one case: its points, its history without times, its failure."""

    faults: tuple[Point, ...]
    points: tuple[Point, ...]
    history: bytes
    failure: str


class CountedWorld(World):
    """A world with faults at given points; records the points of further faults."""

    def __init__(self, seed: int, faults: tuple[Point, ...]) -> None:
        super().__init__(seed, job=SMALL_JOB, faults=Faults(window_s=6.0))
        self.points: list[Point] = []
        self._planned = {point.event: point for point in faults}
        self._number = 0

    def _act(self, actor: Actor | None, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._number += 1
        if self.calm or actor is None:
            super()._act(actor, action, args)
            return
        planned = self._planned.get(self._number)
        if planned is not None and self._strikes(planned, actor, action, args):
            return
        actor.crash_in = MANY if planned is None else planned.instruction
        super()._act(actor, action, args)
        if planned is None:
            self._write_down(action, MANY - actor.crash_in)
            actor.crash_in = None

    def _write_down(self, action: Callable[..., None], carried_out: int) -> None:
        self.points += [Point(self._number, "crash", nth) for nth in range(carried_out)]
        if _stream_of(action) is not None:
            self.points.append(Point(self._number, "cut"))
        elif getattr(action, "__func__", None) in (Ring._complete, Ring._finish_build):
            self.points.append(Point(self._number, "error"))

    def _strikes(
        self, point: Point, actor: Actor, action: Callable[..., None], args: tuple[Any, ...]
    ) -> bool:
        """Inject the planned fault instead of the event; False: it is a crash in the middle of
        it."""
        stream = _stream_of(action)
        if point.kind == "cut" and stream is not None:
            agent: Agent = stream.agent
            agent.host.excuse("its agent's stream was cut")
            stream.cut()
            return True
        if point.kind == "error":
            end: End = args[0]
            if getattr(action, "__func__", None) is Ring._complete:
                end.ring._fail(end, args[1])
            else:
                end.ring._fail_build(end, "build failure")
            return True
        return False


def _stream_of(action: Callable[..., None]) -> Stream | None:
    """The stream, if the event is the delivery of a message on it."""
    pipe = getattr(action, "__self__", None)
    return pipe.stream if isinstance(pipe, Pipe) else None


def run_case(seed: int, faults: tuple[Point, ...]) -> Run:
    """Run one case."""
    world = CountedWorld(seed, faults)
    failure = ""
    try:
        world.run()
    except Violation as violation:
        failure = str(violation)
    digest = hashlib.blake2b(digest_size=16)
    for _, actor, kind, detail in world.trace:
        digest.update(NUMBERS.sub("t", f"{actor}|{kind}|{detail!r}\n").encode())
    return Run(faults, tuple(world.points), digest.digest(), failure)


def second_faults(run: Run) -> Iterator[tuple[Point, ...]]:
    """Every case that adds a fault after the last one of ``run``."""
    last = run.faults[-1].event
    return ((*run.faults, point) for point in run.points if point.event > last)
