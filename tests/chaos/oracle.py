"""S6: one process replays a job's commit log, and must end with the job's final state, bit for bit.

The oracle knows only each step's contributors and their samples, from the log. It computes each
contributor's gradient, averages, steps, and compares at every commit. Not here: other checks of a
log (checks.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ftrun.core.ids import Attempt, Tag, extend_lineage
from tests.chaos.journal import Commit, Member, Process, Try
from tests.chaos.model import Trained


class Unreplayable(AssertionError):
    """The log contradicts itself, or the replay ends in another state."""


def replay(processes: list[Process], goal: Commit) -> int:
    """Replay the chain of commits that ends at ``goal``; returns its number of steps.

    Raises:
        Unreplayable: S6 is broken, with the step.
    """
    log = Log(processes)
    chain = log.chain(goal)
    start = log.starts[log.parent(chain[0])]
    trained = Trained(start.seed, start.ballast_bytes)
    _compare("S6: the initial weights", trained.digest(), start.hash)
    for commit in chain:
        _step(trained, [log.ids(member, commit) for member in commit.who])
        _compare(f"S6: the state after step {commit.step}", trained.digest(), commit.hash)
    return len(chain)


def _step(trained: Trained, contributions: list[tuple[int, ...]]) -> None:
    parameters = list(trained.model.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for ids in contributions:
        trained.optimizer.zero_grad()
        trained.loss(trained.model, list(ids)).backward()
        for sum_, parameter in zip(total, parameters, strict=True):
            assert parameter.grad is not None
            sum_ += parameter.grad
    for sum_, parameter in zip(total, parameters, strict=True):
        parameter.grad = sum_ / len(contributions)
    trained.optimizer.step()


class Log:
    """All entries of the log, by their keys."""

    def __init__(self, processes: Iterable[Process]) -> None:
        self.starts: dict[str, Process] = {}
        self._commits: dict[str, Commit] = {}
        self._tries: dict[tuple[Member, int], list[Try]] = {}
        for process in processes:
            self.starts[process.lineage] = process
            for commit in process.commits:
                self._commits.setdefault(commit.lineage, commit)
            for try_ in process.tries:
                self._tries.setdefault((process.member, try_.step), []).append(try_)

    def chain(self, goal: Commit) -> list[Commit]:
        """The commits up to and including ``goal``, oldest first."""
        found = [goal]
        while (parent := self.parent(found[-1])) not in self.starts:
            if parent not in self._commits:
                raise Unreplayable(f"S6: nobody wrote down the commit before step {found[-1].step}")
            found.append(self._commits[parent])
        return found[::-1]

    def parent(self, commit: Commit) -> str:
        """The lineage that a contributor held when it began the step, which the tag extends."""
        quorum_id, number, step = commit.tag
        tag = Tag(Attempt(quorum_id, number), step)
        for member in commit.who:
            for try_ in self._tries.get((member, commit.step - 1), ()):
                if extend_lineage(try_.lineage, tag) == commit.lineage:
                    return try_.lineage
        raise Unreplayable(f"S6: no contributor's state leads to step {commit.step} by {tag}")

    def hash(self, lineage: str) -> str:
        """The hash of the state with this name, as its first holder logged it."""
        if lineage in self._commits:
            return self._commits[lineage].hash
        if lineage in self.starts:
            return self.starts[lineage].hash
        raise Unreplayable(f"S6: nobody wrote down the state {lineage[:6]}")

    def ids(self, member: Member, commit: Commit) -> tuple[int, ...]:
        """The samples of ``member``, which it logs before it computes."""
        tries = self._tries.get((member, commit.step - 1))
        if not tries:
            raise Unreplayable(f"S6: {member} never began the step that became {commit.step}")
        return tries[-1].ids


def _compare(what: str, replayed: str, written: str) -> None:
    if replayed != written:
        raise Unreplayable(f"{what} is {written} in the job and {replayed} when replayed")
