"""What a worker reports: the activity of its main thread by the latest event, and its presence.

Not here: when an activity is sent again (shown.py), the events (machine.py).
"""

from __future__ import annotations

from ftrun.core import messages as m
from ftrun.core.activity import LONG_S, Activity
from ftrun.core.worker import events as e
from ftrun.core.worker.facts import StepFacts, StepPhase
from ftrun.core.worker.under_way import Fate


class Showing(StepFacts):
    """The reports of one worker."""

    def activity(self) -> tuple[Activity, float]:
        """The main thread's activity by the latest event, and when it began."""
        step = self._step
        if self.shown.pause is not None and self.phase is not StepPhase.LEFT:
            return Activity.PAUSED, self.shown.pause.since
        if self._too_few > 1 and self.in_force is not None:
            return Activity.TOO_FEW, self._too_few_since
        if step is None:
            return self._activity_between()
        if self.lingers and step.fate is Fate.OPEN and not self.healing:
            return Activity.ENDING, step.began_at
        if step.fate.awaits_quorum or self.isolated:
            return Activity.QUORUM, step.touched_at
        is_late = self._now - step.touched_at >= LONG_S
        waits = step.fate is Fate.OPEN and is_late and (step.is_awaited or step.waits_for_repair)
        if self.healing and (self.heal.must_load or not waits):
            return Activity.HEALING, step.began_at
        if self.shown.collective is not None:
            return Activity.COLLECTIVE, self.shown.collective.since
        if waits:
            return Activity.JOINING if self.healing else Activity.WAITING, step.touched_at
        return Activity.STEP, step.began_at

    def _activity_between(self) -> tuple[Activity, float]:
        since = self._between_since
        if self.phase is StepPhase.LEFT:
            return Activity.LEFT, since
        if self.phase is StepPhase.WAITING:
            return Activity.QUORUM, since
        if not self.begun:
            return Activity.STARTING, since
        if self.shown.collective is not None:
            return Activity.COLLECTIVE, self.shown.collective.since
        is_long = self._now - since >= LONG_S and not self.trains_between_steps
        return Activity.OUTSIDE if is_long else Activity.STEP, since

    def report_activity(self) -> tuple[Activity, float]:
        """The activity for a report that is sent now, and its seconds so far.

        Later ticks are compared with this report. Otherwise a tick's activity would not be reported
        if it equalled that of an earlier tick.
        """
        activity, since = self.activity()
        self.shown.reported(activity)
        return activity, max(0.0, self._now - since)

    def _show_progress(self, waited_s: float) -> None:
        """Report the main thread's activity if it has changed since the last report."""
        shown = self.shown.tick(*self.activity(), self._now, waited_s)
        self._out += [e.ShowProgress(activity, lasted_s) for activity, lasted_s in shown]

    def _send(self, message: m.FromWorker) -> None:
        if self.repeats:
            return
        self.has_reported = True
        self._out.append(e.Send(message))

    def _on_ask_report(self, _event: m.AskReport) -> None:
        self._send(self.report())
        self.shown.forget()  # the lighthouse that asks may be new, and knows no activity

    def _on_peers_asked(self, _event: e.PeersAsked) -> None:
        self.asks_for_peers = self.has_asked_for_peers = True
        ended, state = self.ended_with, self.state
        if ended is not None and (ended.step, ended.lineage) != (state.step, state.lineage):
            ended = m.Mark(state.step, state.lineage, "", is_late=True)  # it has healed since
        present = m.Present(self.endpoint, self._part, self.sets_up_together, ended)
        self._out.append(e.Send(present))

    def _on_roster(self, event: m.Roster) -> None:
        if self.asks_for_peers:
            self.asks_for_peers = False
            names = () if event.has_begun else event.entries
            self._part = tuple(entry.replica_id for entry in names)
            self._out.append(e.ShowPeers(event))

    def story(self) -> list[str]:
        """The last events, oldest first."""
        return [f"{when:.3f} {event}" for when, event in self._story]
