"""Evidence of one incarnation's failure: which worker failed first, and which ones followed.

All workers that end badly before they are stopped are noted with their times. Once the last process
has ended, the first cause is chosen: the earliest failure. An error that names a lost peer comes
after every other kind, because it may be seen before the end of that peer.

Workers that were stopped because of the failure are not in it. Not here: the order among several
replicas (core/books/incidents.py); memory, output and stacks of a process (agent/).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from ftrun.core import failure_kinds as kinds
from ftrun.core.agent.failures import Failure
from ftrun.core.messages import FailedWorker, FailureEvidence

WORKERS_MAX = 8
"""The limit of workers in one incarnation's evidence: the first cause and seven more."""
UNCONFIRMED_MAX = 16


@dataclass(slots=True)
class Ends:
    """The bad ends of one incarnation's workers: each worker's, with the time of its first failure.

    ``stacks``: by group_rank, of workers that were given up as hanging. ``of_node``: health checks
    of the node that failed before the restart.
    """

    failures: dict[int, tuple[float, Failure]] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)
    of_node: deque[tuple[float, Failure]] = field(default_factory=lambda: deque(maxlen=4))

    def note(self, at: float, failure: Failure) -> None:
        """A worker has ended badly, or has raised, at ``at``. A later fact has more detail."""
        first = self.failures.get(failure.group_rank)
        self.failures[failure.group_rank] = (at if first is None else first[0], failure)

    def in_order(self) -> list[tuple[float, Failure]]:
        """The first cause, then its consequences."""
        return [*sorted(self.failures.values(), key=_order), *self.of_node]

    def first(self) -> Failure:
        return self.in_order()[0][1]


def _order(end: tuple[float, Failure]) -> tuple[bool, float]:
    at, failure = end
    return failure.kind in kinds.CONSEQUENCES, at


def failed_worker(at: float, failure: Failure, now: float, stacks: str = "") -> FailedWorker:
    """One worker's part in the message to the lighthouse; the shell adds its output."""
    report = failure.report
    return FailedWorker(
        group_rank=failure.group_rank,
        pid=failure.pid,
        status=failure.status,
        kind=failure.kind,
        cause=failure.cause(),
        age_s=max(0.0, now - at),
        error_type=report.error_type if report is not None else "",
        message=report.message if report is not None else "",
        traceback=report.traceback if report is not None else "",
        memory=failure.memory,
        stacks=stacks,
    )


def failed_workers(ends: Ends, now: float) -> tuple[FailedWorker, ...]:
    """The workers in the message: those that failed. Stacks are added where they were taken."""
    return tuple(
        failed_worker(at, failure, now, ends.stacks.get(failure.group_rank, ""))
        for at, failure in ends.in_order()[:WORKERS_MAX]
    )


class Unconfirmed:
    """Evidence without a final record of the lighthouse: it is sent again to a new lighthouse.

    The oldest is dropped if there are ``UNCONFIRMED_MAX``. ``last_number``: the highest number of a
    record that has arrived.
    """

    def __init__(self) -> None:
        self._sent: deque[tuple[float, FailureEvidence]] = deque(maxlen=UNCONFIRMED_MAX)
        self.last_number = 0

    def __len__(self) -> int:
        return len(self._sent)

    def sent(self, evidence: FailureEvidence, now: float) -> None:
        """This evidence was sent, or would have been sent if there were a stream."""
        self._sent.append((now, evidence))

    def recorded(self, incarnations: tuple[str, ...], number: int, *, is_open: bool) -> None:
        """The lighthouse has sent a record about these incarnations.

        The number of an open one is kept.

        A lighthouse that has lost its files learns from the number that the failure was reported
        before.
        """
        self.last_number = max(self.last_number, number)
        kept: list[tuple[float, FailureEvidence]] = []
        for at, evidence in self._sent:
            if evidence.incarnation not in incarnations:
                kept.append((at, evidence))
            elif is_open:
                kept.append((at, replace(evidence, incident=number)))
        self._sent = deque(kept, maxlen=UNCONFIRMED_MAX)

    def again(self, now: float) -> tuple[FailureEvidence, ...]:
        """The failures that the agent's new lighthouse may not know, with their present age."""
        return tuple([_aged(evidence, now - at) for at, evidence in self._sent])


def _aged(evidence: FailureEvidence, seconds: float) -> FailureEvidence:
    workers = tuple(replace(x, age_s=x.age_s + max(0.0, seconds)) for x in evidence.workers)
    return replace(evidence, workers=workers)
