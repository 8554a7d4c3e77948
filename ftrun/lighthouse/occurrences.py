"""The events of a job, for ``events.jsonl``, the metrics and the spans.

They are derived from the core's instructions to the shell: notices, incidents, changes of
membership, the account. docs/EVENTS.md has each event's fields. Not here: the file (event_file.py),
the names of the metrics (metrics.py), spans (traces.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ftrun.core.books.history import Change
from ftrun.core.ids import WorkerKey
from ftrun.core.lighthouse.account_status import account_status, rate_status
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.messages import Healed, Notice
from ftrun.lighthouse.event_file import EventFile
from ftrun.lighthouse.traces import Traces

ACCOUNT_INTERVAL_S = 10.0
"""How often the account is written while agents are attached."""
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histograms' buckets."""


@dataclass(slots=True)
class Histogram:
    """Counts of durations up to each bound of ``SECONDS``, and above the last one."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total_s += seconds


@dataclass(slots=True)
class Totals:
    """The counts since this lighthouse started. The core bounds the sets of names.

    ``recoveries``: times from a failure until its replica trained again. ``heals``: durations of
    heals.
    """

    failures: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    heal_bytes: int = 0
    recoveries: Histogram = field(default_factory=Histogram)
    heals: Histogram = field(default_factory=Histogram)
    change_times: Histogram = field(default_factory=Histogram)


class Occurrences:
    """Notes events. The shell calls it, in the order of events."""

    def __init__(
        self, core: Lighthouse, file: EventFile | None = None, traces: Traces | None = None
    ) -> None:
        self.totals = Totals()
        self._traces = traces
        self._core = core
        self._file = file if file is not None else EventFile()
        self._last_change: Change | None = None
        self._last_incident = 0
        self._open: set[int] = set()  # incidents that are not over
        self._job_id = ""
        self._has_ended = False

    def looked(self, now: float) -> None:
        """An event was handled: note a new job, completed changes, and the job's end."""
        state = self._core.state
        if state.spec.job_id != self._job_id:
            self._job_id, self._has_ended = state.spec.job_id, False
            self._file.write("job", self._job())
        for change in self._complete(self._core.books.history.changes):
            view = change.view(now)
            self.totals.changes[change.kind] += 1
            self.totals.change_times.add(view["duration_s"])
            self._file.write("change", {k: v for k, v in view.items() if k != "under_way"})
            if self._traces is not None:
                self._traces.change(self._job_id, change, now)
        if state.outcome is not None and not self._has_ended:
            self._has_ended = True
            outcome = {"exit_code": state.outcome.exit_code, "reason": state.outcome.reason}
            self._file.write("ended", outcome)
            self.account(now, with_bands=True)  # write it now: this lighthouse may end at any time

    def notice(self, notice: Notice) -> None:
        facts = {"kind": notice.kind, "replicas": list(notice.replica_ids), "text": notice.text}
        self._file.write("notice", facts)

    def incident(self, document: dict[str, Any]) -> None:
        first, number = document["first_cause"], document["number"]
        if number > self._last_incident:
            self._last_incident = number
            self._open.add(number)
            self.totals.failures[first["kind"]] += 1
        back_s = first["back_after_s"]
        if not document["is_open"] and number in self._open:
            self._open.discard(number)
            if back_s is not None:
                self.totals.recoveries.add(back_s)
        facts = {name: document[name] for name in ("number", "is_open", "step", "verdict", "cost")}
        facts["replica"], facts["host"] = first["replica_id"], first["host"]
        facts |= {name: first[name] for name in ("kind", "cause", "back_after_s", "healed")}
        facts["began"] = document["time"]
        self._file.write("incident", facts)
        if self._traces is not None:
            self._traces.incident(document)

    def healed(self, healed: Healed, key: WorkerKey) -> None:
        self.totals.heal_bytes += healed.nbytes
        if key.group_rank == 0:
            self.totals.heals.add(healed.duration_s)
            if self._traces is not None:
                self._traces.healed(self._job_id, key.replica_id, healed)

    def account(self, now: float, *, with_bands: bool = False) -> None:
        """Write the account, with the job's step and speed.

        ``with_bands``: also its course over time, at the lighthouse's end.
        """
        if not self._core.books.account.is_open:
            return
        state, account = self._core.state, dict(account_status(self._core.books.account, now))
        if not with_bands:
            del account["bands"]
        rate = rate_status(self._core.books.account, now)
        facts = {"step": state.step_max, "members": len(state.live), "rate": rate}
        self._file.write("account", {**facts, **self._step_times(), **account})

    def _step_times(self) -> dict[str, Any]:
        """The median of the members' last step times, and the longest own part and whose it was."""
        state = self._core.state
        found = [(name, state.replicas.get(name)) for name in sorted(state.live)]
        told = [(name, r.progress) for name, r in found if r is not None and r.progress is not None]
        steps = [progress.step_s for _, progress in told if progress.step_s is not None]
        own = [(progress.own_s, name) for name, progress in told if progress.own_s is not None]
        longest_s, slowest = max(own, default=(None, None))
        return {"step_s": median(steps) if steps else None, "own_s": longest_s, "slowest": slowest}

    def _job(self) -> dict[str, Any]:
        spec = self._core.state.spec
        return {
            "job_id": spec.job_id,
            "replicas": spec.replicas,
            "workers_per_replica": spec.workers_per_replica,
            "min_replicas": spec.min_replicas,
            "nodes": spec.nodes,
            "epoch": self._core.state.attempts.epoch,
        }

    def _complete(self, changes: Sequence[Change]) -> list[Change]:
        """The changes that have completed since the last call, oldest first."""
        found: list[Change] = []
        for change in reversed(changes):
            if change is self._last_change:
                break
            if change.ended_at is not None:
                found.append(change)
        if found:
            self._last_change = found[0]
        return found[::-1]
