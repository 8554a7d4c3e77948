"""What is known of the runs of a trial. Pure.

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
    """A node was lost after ``step`` steps.

    ``copied``: of which step another node had its workers' states; ``again``: how many steps that
    were taken before were taken again after it.
    """

    step: int
    copied: int
    again: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """The facts that are known after one run.

    ``refused``: what could not be carried, or None. ``reports``: what each replica has left at the
    end, by number; one that did not come to it has left none. ``joins``: of newcomers in their
    order, with their replica's number. ``kills``: those that struck. ``differences``: between
    replicas that the lighthouse has found. ``files``: those that it has written; ``early``: those
    among them that were last written before any step was taken. ``again``: for
    each death, how many steps another worker took again after it, and how many its replacement.
    ``told``: why not every death could be mended; ``fell``: after which. ``beside``: how its files
    compare with those of the undisturbed run. ``loss``: of a node.
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
        """Whether all replicas have come to its end."""
        ended = not (self.refused or self.is_late or self.exit_code)
        return ended and len(self.reports) == replicas


@dataclass(slots=True)
class Trial:
    """All runs. ``exact`` must end as ``undisturbed``; in ``counted`` replicas died in evaluations,
    in which their peers counted for them. None: there was no such run.

    ``is_group``: workers are replaced in their group, and each is seen as one of ``replicas``.
    ``workers``: of each replica of the job, on ``nodes``, of which one was lost in ``lost``.
    ``again``: undisturbed once more, by an uneven clock: what is another one in each run, or
    follows from the time, shows there, in values as in the files. It cannot be compared."""

    replicas: int
    workers: int
    timeout_s: float
    undisturbed: Run
    plan: Plan | None = None
    exact: Run | None = None
    counted: Run | None = None
    again: Run | None = None
    is_group: bool = False
    nodes: int = 1
    lost: Run | None = None

    @property
    def kind(self) -> str:
        """What has a number."""
        return "worker" if self.is_group else "replica"

    @property
    def are_several(self) -> bool:
        """Whether there are several replicas whose workers are replaced in their group."""
        return self.is_group and self.replicas > self.workers

    @property
    def lost_node(self) -> str:
        """The node that is lost in a run, and who runs there."""
        each = self.workers // self.nodes
        node = max(self.undisturbed.reports) // each
        ranks = range(node * each, (node + 1) * each)
        who = f"workers {ranks[0]} to {ranks[-1]}" if each > 1 else f"worker {ranks[0]}"
        return f"node {node} ({who})"

    def named(self, index: int) -> str:
        """What has a number, with it."""
        if self.are_several:
            return f"worker {index // self.workers}.{index % self.workers}"
        if self.nodes > 1:
            return f"worker {index} (node {index * self.nodes // self.workers})"
        return f"{self.kind} {index}"

    def who(self, kill: Kill) -> str:
        """The process that was killed."""
        if self.is_group:
            return self.named(kill.victim)
        worker = f"worker {self.workers - 1} of " if self.workers > 1 else ""
        return f"{worker}replica {kill.victim}"
