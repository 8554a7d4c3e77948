"""A process's place among the tasks that an engine has started alike. Pure.

The consequences are the same for all engines: some options have other defaults (``variables``), and
the nodes meet in a directory that is unique to this try of the job (``meeting``).

Not here: the engines' variables (slurm.py), which jobs are connected (readers.py), a node's work
(keeper.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ftrun.config.layers import Stated, as_variables

JOB_ID_CHARS_MAX = 64


@dataclass(frozen=True, slots=True)
class Place:
    """One task of a job.

    Attributes:
        node: this node's number.
        nodes: the names of all nodes, by which they reach each other.
        task: this task's number on its node.
        name: the job's, for people.
        job, attempt: the engine's id of the job, and how often it was started before.
        launcher: the address of the process that has started the tasks and waits for them.
        requeue, cancel: the engine's commands to requeue the job, and to end it.
        topology: what this node shares with the nodes near it.
    """

    engine: str
    node: int
    nodes: tuple[str, ...]
    task: int
    name: str
    job: str
    attempt: int = 0
    launcher: str = ""
    requeue: tuple[str, ...] = ()
    cancel: tuple[str, ...] = ()
    topology: str = ""

    @property
    def own_name(self) -> str:
        """This node's name."""
        return self.nodes[self.node]

    @property
    def others(self) -> tuple[str, ...]:
        """The other nodes' names."""
        return tuple(name for number, name in enumerate(self.nodes) if number != self.node)

    def agent_id_of(self, node: str) -> str:
        """An id that is the same for each agent of a node, so that a new one gets the old one's
        replicas."""
        return f"{node[:JOB_ID_CHARS_MAX]}-{self.job}.{self.attempt}"

    def needless(self) -> str:
        """Why a second task of a node ends at once."""
        return (
            f"{self.engine} has started task {self.task} of {self.own_name} beside task 0: one "
            "ftrun runs all workers of a node, so this one ends. Start one task a node "
            "(--ntasks-per-node=1)."
        )

    def job_id(self) -> str:
        """The default id of the job. Each attempt has a separate directory of logs."""
        again = f".attempt-{self.attempt}" if self.attempt else ""
        tail = f"-{self.job}{again}"
        stem = re.sub(r"[^A-Za-z0-9._-]", "-", self.name).strip("-._")
        return f"{stem[: JOB_ID_CHARS_MAX - len(tail)] or 'job'}{tail}"

    def variables(self, stated: Mapping[str, Stated]) -> dict[str, str]:
        """The variables of options that are not stated."""
        values = {
            "nodes": str(len(self.nodes)),
            "node_rank": str(self.node),
            "exit_with": "job",
            "job_id": self.job_id(),
            "topology": self.topology,
        }
        return as_variables(values, stated)

    def meeting(self, directory: Path, purpose: str = "lighthouse") -> Path:
        """Where the nodes meet: unique to this job and attempt.

        The launcher's port distinguishes it from an earlier job with the same id.
        """
        names = (self.engine.lower(), f"{self.job}.{self.attempt}", self.launcher.split(":")[-1])
        return directory / "-".join((purpose, *filter(None, names)))
