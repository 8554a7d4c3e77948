"""Which quorum is in force, from a journal and from reports in any order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ftrun.core import messages as m
from ftrun.core.ids import Attempt, StateId, WorkerKey, pack_quorum_id
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentSent,
    JournalState,
    LighthouseSettings,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.takeover import Takeover
from ftrun.core.messages import PendingQuorum, Report, SwitchPromise
from ftrun.core.quorum import Endpoint, Member, Quorum

SPEC = m.JobSpec("job", 2, 1, 1, 10.0, 5.0, 20.0)
HERE = Endpoint("h", "h:1")


def quorum(seq: int, *names: str) -> Quorum:
    members = tuple(Member(name[0], name[1:], (HERE,), "A:1") for name in names)
    return Quorum(Attempt(pack_quorum_id(1, seq), 1), members, "A:1", step=0)


def report(**more: Any) -> Report:
    return replace(Report(StateId(3, "x"), HERE), **more)


OLD, NEXT, LATER = quorum(1, "0a"), quorum(2, "0a", "1a"), quorum(3, "1a")
REPORTS = [
    report(in_force=OLD),
    report(in_force=OLD, pending=PendingQuorum(NEXT, SwitchPromise(7))),
    report(in_force=OLD, pending=PendingQuorum(NEXT, SwitchPromise(7, confirmed=True))),
    report(in_force=NEXT),
    report(pending=PendingQuorum(LATER, SwitchPromise(9))),
    report(),
]


def found(journal: JournalState, reports: list[Report]) -> Takeover:
    takeover = Takeover(MembershipState(LighthouseSettings(), journal, 0.0), journal)
    for one in reports:
        takeover.received(one)
    return takeover


@given(st.permutations(REPORTS))
def test_the_order_of_the_reports_does_not_matter(reports: list[Report]) -> None:
    takeover = found(JournalState(), list(reports))
    assert takeover.quorum is not None
    assert takeover.quorum.attempt == NEXT.attempt
    assert takeover.switch_step == 7
    assert takeover.prior == OLD


def test_a_promise_that_was_never_confirmed_counts_for_nothing() -> None:
    takeover = found(JournalState(), REPORTS[:2])
    assert takeover.quorum == OLD
    assert takeover.prior is None


def test_the_journal_knows_of_what_nobody_has_heard() -> None:
    journal = JournalState(epoch=1, quorum=NEXT, switch_step=7, spec=SPEC)
    takeover = found(journal, REPORTS[:2])
    assert takeover.quorum == NEXT
    assert (takeover.switch_step, takeover.prior) == (7, OLD)


def test_a_report_can_know_of_more_than_the_journal_did() -> None:
    journal = JournalState(epoch=1, quorum=OLD, spec=SPEC)
    assert found(journal, [report(in_force=NEXT)]).quorum == NEXT


def test_a_quorum_of_slots_that_this_job_has_not_is_lost_like_any_other() -> None:
    """A worker of a larger job, with a token of ours: odd, and no reason to fall over."""
    lighthouse = Lighthouse(LighthouseSettings(), JournalState(), 0.0)
    lighthouse.handle(TimerFired(), 0.0)
    hello = m.Hello("A", SPEC, 4, "h", "A:1", running=(m.RunningReplica("0", "a"),))
    lighthouse.handle(AgentAttached("A", hello), 0.0)
    from_afar = report(in_force=quorum(4, "0a", "7a"))
    key = WorkerKey("0", "a", 0)
    lighthouse.handle(AgentSent("A", (m.WorkerMessage(key, from_afar),)), 0.1)
    lighthouse.handle(TimerFired(), 5.0)
    assert lighthouse.state.phase is Phase.TAKEOVER, "somebody may run slot 1"
    lighthouse.handle(TimerFired(), 30.0)
    lighthouse.check()
    assert lighthouse.state.phase is Phase.REJOIN
    assert lighthouse.state.live == {"0"}


def test_who_has_watched_a_silence_waits_less_for_those_that_do_not_come() -> None:
    """But long enough for an agent that has just failed to reach it."""
    settings = LighthouseSettings()
    waits = {silent_s: settings.after_watching(silent_s) for silent_s in (0.0, 2.0, 3.0, 60.0)}
    assert {silent_s: x.takeover_grace_s for silent_s, x in waits.items()} == {
        0.0: settings.takeover_grace_s, 2.0: 3.0, 3.0: 2.0, 60.0: 2.0,
    }  # fmt: skip
    assert {x.attach_s for x in waits.values()} == {settings.probe_s}
    grace_s, attach_s = settings.takeover_grace_s, settings.attach_s
    assert replace(waits[3.0], takeover_grace_s=grace_s, attach_s=attach_s) == settings
