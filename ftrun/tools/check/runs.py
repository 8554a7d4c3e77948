"""The facts about the runs of a trial. Pure.

Not here: how they are made (command.py), what follows (verdict.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftrun.tools.check.place import Files
from ftrun.tools.check.plan import Kill, Plan

Reports = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a node after ``step`` steps.

    ``copied``: the step of the copies that another node had of its workers' states. ``again``: the
    number of steps that were repeated after the loss.
    """

    step: int
    copied: int
    again: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """The facts about one run.

    Attributes:
        refused: values that could not be carried, or None.
        reports: by replica, its report at the end; a replica that did not reach the end has none.
        joins: of newcomers in order, with the replica's number.
        kills: the deaths that happened.
        differences: between replicas, found by the lighthouse.
        files: the files that it has written.
        early: those of ``files`` that were last written before any step.
        again: for each death, the most steps that another worker repeated, and how many the
            replacement repeated.
        told: reasons why a death was not repaired.
        fell: the deaths to which ``told`` applies.
        beside: how its files compare with those of the undisturbed run.
        loss: of a node.
    """

    exit_code: int
    is_late: bool
    refused: Mapping[str, Any] | None
    reports: Reports
    joins: Sequence[tuple[int, Mapping[str, Any]]] = ()
    kills: tuple[Kill, ...] = ()
    differences: Sequence[str] = ()
    files: dict[str, Path] = field(default_factory=dict)
    early: frozenset[str] = frozenset()
    again: tuple[tuple[int, int], ...] = ()
    told: tuple[str, ...] = ()
    fell: Mapping[Kill, str] = field(default_factory=dict)
    beside: Files = field(default_factory=Files)
    loss: Loss | None = None

    def is_whole(self, replicas: int) -> bool:
        """Whether all replicas have reached its end."""
        ended = not (self.refused or self.is_late or self.exit_code)
        return ended and len(self.reports) == replicas


@dataclass(slots=True)
class Trial:
    """All runs of a trial. A run is None if it was not made.

    Attributes:
        undisturbed: the run without deaths.
        training: the run with deaths in training; ``evaluations``: with those in evaluations. Both
            must end like ``undisturbed``.
        is_group: workers are replaced in their group, and each is treated as one of ``replicas``.
        workers: of each replica of the job, on ``nodes``.
        lost: the run in which a node was lost.
        again: a second undisturbed run, with an uneven clock. Values and files that differ between
            the undisturbed runs, or that depend on the time, cannot be compared.
    """

    replicas: int
    workers: int
    timeout_s: float
    undisturbed: Run
    plan: Plan | None = None
    training: Run | None = None
    evaluations: Run | None = None
    again: Run | None = None
    is_group: bool = False
    nodes: int = 1
    lost: Run | None = None

    @property
    def with_deaths(self) -> list[Run]:
        """The runs in which replicas or workers died."""
        return [x for x in (self.training, self.evaluations) if x is not None]

    @property
    def kind(self) -> str:
        """The noun for a number: "worker" or "replica"."""
        return "worker" if self.is_group else "replica"

    @property
    def are_several(self) -> bool:
        """Whether there are several replicas whose workers are replaced in their group."""
        return self.is_group and self.replicas > self.workers

    @property
    def lost_node(self) -> str:
        """The node that is lost in a run, and its workers, in words."""
        each = self.workers // self.nodes
        node = max(self.undisturbed.reports) // each
        ranks = range(node * each, (node + 1) * each)
        who = f"workers {ranks[0]} to {ranks[-1]}" if each > 1 else f"worker {ranks[0]}"
        return f"node {node} ({who})"

    def named(self, index: int) -> str:
        """The worker or replica of this number, in words."""
        if self.are_several:
            return f"worker {index // self.workers}.{index % self.workers}"
        if self.nodes > 1:
            return f"worker {index} (node {index * self.nodes // self.workers})"
        return f"{self.kind} {index}"

    def who(self, kill: Kill) -> str:
        """The killed process, in words."""
        if self.is_group:
            return self.named(kill.victim)
        worker = f"worker {self.workers - 1} of " if self.workers > 1 else ""
        return f"{worker}replica {kill.victim}"
