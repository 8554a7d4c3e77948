"""The agent's view of its job, for the line under the output. It sends no requests of its own.

The lighthouse's answers to heartbeats have the job's step, rate, replicas and lost time; a node's
own workers report their steps and heals sooner. Not here: the line's text (status_line.py), its
ticks (line.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.agent.status_line import Bar, LineFacts
from ftrun.agent.watch import WorkerStarted
from ftrun.base import clock
from ftrun.base.words import amount
from ftrun.core.agent import events as e
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import HealProgress, JobGlance, NoManager, Progress, Report

GLANCE_S = 20.0
"""For this time the last answer of a silent lighthouse is still shown."""


@dataclass(slots=True)
class _Replica:
    """One replica of this node. ``is_ready``: it has reached its first step.

    ``heal``: the heal of the worker with group_rank 0.
    """

    incarnation: str
    is_ready: bool = False
    heal: HealProgress | None = None


class JobView:
    """Collects the agent's events; ``facts`` returns the content of the line."""

    def __init__(self, job_id: str, replicas: int, own: int) -> None:
        self._job_id = job_id
        self._wanted = replicas
        self._own = own
        self._replicas: dict[str, _Replica] = {}
        self._step: int | None = None
        self._glance: JobGlance | None = None
        self._glance_at = 0.0
        self._began_at = clock.now()
        self._is_apart = self._has_begun = False

    def watch(self, fact: e.Event | e.Instruction | WorkerStarted) -> None:
        match fact:
            case WorkerStarted(key):
                found = self._replicas.get(key.replica_id)
                if found is None or found.incarnation != key.incarnation:
                    self._replicas[key.replica_id] = _Replica(key.incarnation)
            case e.WorkerSent(_, NoManager()):
                self._is_apart = True
            case e.WorkerSent(key, Report() | Progress() as message):
                self._note_message(key, message)
            case e.WorkerDying(e.WorkerExited(incarnation)) | e.WorkerExited(incarnation):
                gone = [x for x, one in self._replicas.items() if one.incarnation == incarnation]
                for replica_id in gone:
                    del self._replicas[replica_id]
            case _:
                pass

    def note_glance(self, glance: JobGlance) -> None:
        self._glance, self._glance_at = glance, clock.now()

    def facts(self, event: str) -> LineFacts:
        """The content of the line now. ``event``: ftrun's last line."""
        now = clock.now()
        is_old = now - self._glance_at > GLANCE_S
        glance = None if self._is_apart or is_old else self._glance
        steps = [x for x in (self._step, glance.step if glance is not None else None) if x]
        is_known = glance is not None and self._has_begun
        return LineFacts(
            self._job_id,
            max(steps, default=None),
            glance.steps_per_s if glance is not None else None,
            glance.live if glance is not None and is_known else None,
            self._wanted,
            glance.lost_s if glance is not None else None,
            self._bar(),
            event,
            int(now - self._began_at),
        )

    def _note_message(self, key: WorkerKey, message: Report | Progress) -> None:
        replica = self._replicas.get(key.replica_id)
        if replica is None or replica.incarnation != key.incarnation:
            return
        self._is_apart = False
        if isinstance(message, Report):
            replica.is_ready = True
            self._has_begun = self._has_begun or self._ready() >= self._own
        if isinstance(message, Progress) and key.group_rank == 0:
            replica.heal = message.heal
            self._step = max(self._step or 0, message.step)

    def _ready(self) -> int:
        return sum(replica.is_ready for replica in self._replicas.values())

    def _bar(self) -> Bar | None:
        """The progress bar: of the heals in progress or, at the start, of the replicas that are
        ready.
        """
        heals = {x: one.heal for x, one in self._replicas.items() if one.heal is not None}
        if heals:
            names = sorted(heals)
            name = f"replica {names[0]} heals" if len(names) == 1 else f"{len(names)} replicas heal"
            return _heal_bar(name, list(heals.values()))
        if self._has_begun or self._is_apart or self._wanted < 2:
            return None
        ready = self._ready()
        return Bar("starting", ready, self._own, f"{ready} of {self._own} ready")


def _heal_bar(name: str, heals: list[HealProgress]) -> Bar:
    done = sum(heal.done_bytes for heal in heals)
    totals = [heal.total_bytes for heal in heals if heal.total_bytes is not None]
    if len(totals) < len(heals) or not sum(totals):
        return Bar(name, 0, 0, amount(done) if done else "")
    total = sum(totals)
    return Bar(name, done, total, f"{done * 100 // total} % of {amount(total)}")
