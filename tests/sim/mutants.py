"""Planted bugs, to prove that the simulation would find real ones.

Each bug replaces one attribute of a core by a broken one, within ``planted``.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ftrun.core import ids
from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.agent.evidence import Unconfirmed
from ftrun.core.agent.hang_watch import Silence
from ftrun.core.agent.settings import SupervisorSettings
from ftrun.core.agent.supervisor import Supervisor
from ftrun.core.books.ledger import Ledger
from ftrun.core.books.uses import Use
from ftrun.core.data.plan import DataPlan, DataPosition
from ftrun.core.lighthouse import forming, membership, succession, takeover
from ftrun.core.lighthouse.attempts import AttemptCounter
from ftrun.core.lighthouse.choice import Choice
from ftrun.core.lighthouse.departed import DepartedMembers
from ftrun.core.lighthouse.divergence import Divergence
from ftrun.core.lighthouse.events import JournalState
from ftrun.core.lighthouse.leaving import Leaving
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.membership import Membership
from ftrun.core.lighthouse.operation_table import OperationTable
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.presence import Presence
from ftrun.core.lighthouse.reach import Reach
from ftrun.core.lighthouse.replicas import Replicas
from ftrun.core.lighthouse.slots import SlotTable
from ftrun.core.lighthouse.standstill import Standstill
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.switching import Switching
from ftrun.core.lighthouse.waiting import Waiting
from ftrun.core.quorum import Quorum
from ftrun.core.step_times import StepTimes
from ftrun.core.worker import events as e
from ftrun.core.worker import facts
from ftrun.core.worker.asking import AskPeer, Known
from ftrun.core.worker.comparison import Comparison, Entry, Question
from ftrun.core.worker.exchange import PEEKS, Kept, Names
from ftrun.core.worker.exchanging import Exchanging
from ftrun.core.worker.facts import StepFacts
from ftrun.core.worker.heal import HealState
from ftrun.core.worker.machine import StepMachine
from ftrun.core.worker.offer import StateOffer
from ftrun.core.worker.operations import OperationLedger
from ftrun.core.worker.parting import Parting, Stage
from ftrun.core.worker.quorums import Quorums
from ftrun.core.worker.under_way import Fate, StepUnderWay
from tests.sim.deaths import DYING_FROM
from tests.sim.freezes import SPARING_FROM
from tests.sim.healing import Fetch, Offer
from tests.sim.invariants import CANNOT_SERVE
from tests.sim.keeping import KEEPING_FROM
from tests.sim.lighthouse import LighthouseProcess
from tests.sim.node import Agent
from tests.sim.parting import EARLY_FROM, LINGERING_FROM
from tests.sim.rings import Ballot
from tests.sim.worker import Worker
from tests.sim.world import KEPT_AGENTS


@dataclass(frozen=True)
class Mutant:
    """``owner.attribute`` becomes ``broken``; ``breaks``: the codes of INVARIANTS.md at stake.

    ``focus``: the kinds of fault that reveal it soonest; none: the usual swarm. ``start``: the
    first seed of the schedules that can reveal it.
    """

    owner: Any
    attribute: str
    broken: Any
    breaks: str
    focus: tuple[str, ...] = ()
    start: int = 0


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run the block with this bug; "": without."""
    if not name:
        yield
        return
    mutant = MUTANTS[name]
    sound = mutant.owner.__dict__[mutant.attribute]
    setattr(mutant.owner, mutant.attribute, mutant.broken)
    try:
        yield
    finally:
        setattr(mutant.owner, mutant.attribute, sound)


# ---------------------------------------------------------------- the worker's bugs

_at_promise = Quorums.at_promise
_contributors = facts.contributors  # type: ignore[attr-defined]


def _counts_any_attempt(self: StepUnderWay, attempt: ids.Attempt) -> bool:
    return self.fate is Fate.OPEN


def _forgets_its_promise(self: Quorums, own_step: int) -> bool:
    return self.pending is not None and self.pending.confirmed and _at_promise(self, own_step)


def _promises_anything(self: Quorums, step: int) -> bool:
    return True


def _counts_everybody(self: StepMachine) -> tuple[int, ...]:
    return tuple(range(len(self.in_force.members))) if self.in_force is not None else ()


def _accepts_late_interrupts(self: StepMachine, event: m.Interrupt) -> None:
    self._abort(event.attempt)
    self._send(self.report())


def _commits_without_the_vote(self: StepMachine, event: Any) -> None:
    step = self._step
    if step is not None:
        may = step.fate is not Fate.VOID and not self.healing
        self._end_step(step, may, False, event.reason)


def _repairs_half(self: OperationLedger) -> None:
    pass


def _counts_spares(
    quorum: Quorum, step: int, heal_first: bool = False, at_most: int | None = None
) -> tuple[int, ...]:
    return _contributors(quorum, step, heal_first)


def _does_nothing(self: Any, *_: Any) -> None:
    pass


def _forgets_the_number(
    self: Unconfirmed, incarnations: tuple[str, ...], number: int, *, is_open: bool
) -> None:
    if not is_open:
        self._sent = deque(x for x in self._sent if x[1].incarnation not in incarnations)


_rules = Agent._rules


def _names_by_the_node(self: Agent) -> SupervisorSettings:
    return replace(_rules(self), agent_id=self.agent_id)


_drain_gathered = Leaving.drain_gathered


def _gathers_nobody(self: Leaving, *, are_all_here: bool) -> None:
    _drain_gathered(self, are_all_here=True)


def _nothing(self: OperationTable) -> tuple[()]:
    return ()


def _prepares_only(self: Quorums) -> bool:
    return self.pending is not None and bool(self.pending.quorum.newcomers)


def _never(self: Any, *_: Any, **__: Any) -> bool:
    return False


def _nobody(*_: Any) -> tuple[str, ...]:
    return ()


def _any_is_enough(votes: Any) -> bool:
    return any(flag for _, _, flag in votes.values())


_operation_failed = StepMachine._on_operation_failed


def _takes_a_refusal_for_a_failure(self: StepMachine, _: StepUnderWay, reason: str) -> None:
    self._give_up(reason)


def _never_finds_out(self: StepMachine, event: e.OperationFailed) -> None:
    _operation_failed(self, replace(event, refused=bool(event.refused)))


# ---------------------------------------------------------------- the exchanges' bugs


def _keeps_late_answers(self: Any, ask: AskPeer, found: Any, known: Known) -> None:
    self._kept.add(self._name, found)
    this_round = self._peeking if ask.question.how == PEEKS else self._round
    if this_round is not None:
        this_round.open.discard(ask.replica_id)


_step_begun = Names.step_begun


def _counts_on(self: Names, step: int) -> None:
    if step != self._step:
        _step_begun(self, step)


def _asks_for_no_place(self: Fetch) -> str:
    return ""


def _waits_for_the_unreached(self: Any, ask: AskPeer, *, reached: bool) -> None:
    pass


# ---------------------------------------------------------------- the samples' bugs

_after, _slices = DataPlan.after, DataPlan.slices


def _loses_what_the_dead_had(
    self: DataPlan, position: DataPosition, contributors: Any
) -> DataPosition:
    after = _after(self, position, range(self.slots))
    return replace(after, counted=tuple(sorted(contributors)))


def _slices_by_rank(self: DataPlan, position: DataPosition, contributors: Any) -> Any:
    counted = tuple(sorted(contributors)) or position.counted
    return _slices(self, replace(position, counted=counted), contributors)


# ---------------------------------------------------------------- the lighthouse's bugs

_state_journal = MembershipState.journal
_rejoin = forming.Forming.rejoin
_write = LighthouseProcess._journal
_choose = succession.choose  # type: ignore[attr-defined]
_member_reported = Membership._member_reported


_knows_of = Divergence._of


def _compares_other_steps(divergence: Divergence, mark: m.Mark) -> Any:
    return _knows_of(divergence, replace(mark, step=mark.step // 10, lineage=""))


def _ignores_lineage(group_states: Any) -> Choice | None:
    known = {name: state for name, state in group_states.items() if state is not None}
    if not known:
        return None
    top = max(state.step for state in known.values())
    donors = [name for name in sorted(group_states) if name in known and known[name].step == top]
    newcomers = [name for name in sorted(group_states) if name not in donors]
    return Choice(known[donors[0]], tuple(donors), tuple(newcomers))


def _prefers_the_majority(group_states: Any) -> Choice | None:
    known = Counter(state for state in group_states.values() if state is not None)
    if not known:
        return None
    state = max(known, key=lambda s: (known[s], s.step, s.lineage))
    donors = tuple(name for name in sorted(group_states) if group_states[name] == state)
    newcomers = tuple(name for name in sorted(group_states) if group_states[name] != state)
    return Choice(state, donors, newcomers)


def _forgets_results_that_stand(reports: Any) -> ids.StateId | None:
    states = {report.state for report in reports}
    return states.pop() if len(states) == 1 else None


def _journals_no_epoch(self: MembershipState) -> None:
    epoch, self.attempts.epoch = self.attempts.epoch, 0
    _state_journal(self)
    self.attempts.epoch = epoch


def _journals_nothing(self: MembershipState) -> None:
    pass


def _numbers_by_attempt_only(self: AttemptCounter, members: Any) -> ids.Attempt:
    self.highest = replace(self.highest, number=self.highest.number + 1)
    return self.highest


def _takes_newcomers_for_survivors(self: forming.Forming) -> bool:
    state = self._state
    if state.live and state.waiting.done and state.replicas.ready:
        return self._issue(
            succession.first(self._candidates(state.live | state.replicas.ready), state.needed)
        )
    return _rejoin(self)


def _needs_no_fence(self: DepartedMembers, isolation_limit_s: float) -> float:
    return -math.inf


def _waits_for_no_grace(self: takeover.Takeover) -> bool:
    return True


def _switches_without_promises(self: Switching) -> bool:
    return self._hindered() or (self.plan is not None and self._confirm(self.plan) is None)


def _writes_later(self: LighthouseProcess, record: JournalState) -> None:
    _write(self, getattr(self, "late_record", record))
    self.late_record = record  # type: ignore[attr-defined]


def _begins_with_the_first_caller(self: forming.Forming) -> bool:
    ready = sorted(self._state.replicas.ready)
    return bool(ready) and self._issue(
        succession.first(self._candidates(ready[:1]), self._state.needed)
    )


def _chooses_the_lowest(group_states: Any) -> Choice | None:
    known = [state for state in group_states.values() if state is not None]
    low = min((state.step for state in known), default=0)
    return _choose(
        {k: s if s is not None and s.step == low else None for k, s in group_states.items()}
    )


def _chains_steps_only(lineage: str, tag: ids.Tag) -> str:
    return ids._digest(f"{lineage}|{tag.step}")


def _ignores_giving_up(self: Membership, replica: Any, rank: int, report: m.Report) -> None:
    if self.state.phase is Phase.REJOIN:
        _member_reported(self, replica, rank, report)


def _never_asks(self: Silence, now: float) -> bool:
    self.look_at = now + self.limit_s
    return False


def _waits_for_ever(self: Standstill) -> None:
    return None


def _has_no_patience(self: StepTimes, factor: float, least_s: float) -> float | None:
    return 0.2 if self.is_known else None


_failed = Parting.failed


def _takes_the_unreached_for_gone(self: Parting, ask: Any, now: float, *, reached: bool) -> None:
    _failed(self, ask, now, reached=reached)
    if not reached:
        for mate in self._mates.values():
            mate.stage = Stage.LEAVES


_OFFERS_KEPT = StateOffer.offer_kept
_LOSSES = ("kill_worker", "cut")
_DEATHS = ("kill_worker", "kill_two_workers")
_REQUESTS = ("operator_restart", "kill_lighthouse")
_FILES_LOST = ("kill_worker", "lose_journal")
_REPEATS = ("repeat_to_worker", "kill_worker")
_BETWEEN = ("kill_worker", "kill_worker_between")
_CUT_OFF = ("cut_off_trainers",)
_JOURNAL = ("kill_lighthouse_between", "kill_lighthouse_at_journal", "kill_worker")
_STOPPED = ("pause_agent",)
_HANGS = ("hang_worker",)
_STANDS = ("stand_still", "kill_worker")
_ONE_WAY = ("one_way_down",)
_SILENCE = ("silence_host",)
_EPOCHS = ("lose_journal", "clock_jump")

_EXCHANGES = ("exchanges", "kill_worker", "kill_two_workers", "cut")
_EXCHANGES_CUT_OFF = ("exchanges", "kill_worker", "cut_off", "part_workers")
_EXCHANGES_DRAINS = ("exchanges", "drain", "kill_worker")

_REFUSALS = ("refusals",)
_LATENESS = ("lateness",)

_TRUE = property(lambda self: True)


def _takes_all_for_alike(self: Comparison, asked: Question, replica_id: str, _: Entry) -> None:
    self._open.discard(replica_id)


_sends = StepFacts.look_up


def _answers_at_once(self: StepMachine, question: Question) -> Entry | None:
    return _sends(self, replace(question, cleared=False))


def _offers_to_peers_only(
    self: StateOffer, state: ids.StateId, quorums: Quorums
) -> list[e.Instruction]:
    quorum = quorums.in_force
    if quorum is None or not self.trained_with.issuperset(quorum.members):
        return []
    return list(_OFFERS_KEPT(self, state, quorums))


def _never_over(_self: StepMachine, entry: Entry) -> bool:
    return not entry.over


_add = Ledger._add


def _counts_twice(self: Ledger, use: Use, began: int, ended: int, slots: int) -> None:
    """What is dated back is not taken from its former use."""
    if slots > 0:
        _add(self, use, began, ended, slots)


def _overlooks_processes(self: Replicas, replica_id: str) -> None:
    _remove(self, replica_id)
    self.changed.discard(replica_id)


_remove = Replicas.remove


def _names_nobody(self: takeover.Takeover) -> dict[str, str]:
    return {}


def _gives_no_time(self: Reach, agent: Any) -> float:
    return 0.0 if self._is_awaited(agent) else self._state.settings.probe_s


def _ends_with_its_newcomers(self: Worker, tag: ids.Tag) -> None:
    self.offers[tag].is_refused = True
    self.world.invariants.cannot_serve(self.key)
    self.fatal = CANNOT_SERVE


_SERVING = ("cannot_serve", "nobody_can_serve", "kill_worker", "kill_two_workers")

MUTANTS: dict[str, Mutant] = {
    "no attempt number": Mutant(StepUnderWay, "counts", _counts_any_attempt, "C3", _BETWEEN),
    "promise not kept": Mutant(Quorums, "at_promise", _forgets_its_promise, "Q5"),
    "promises what it has begun": Mutant(Quorums, "can_promise", _promises_anything, "Q5"),
    "divisor counts healing ranks": Mutant(StepFacts, "contributors", _counts_everybody, "C4"),
    "late Interrupt accepted": Mutant(
        StepMachine, "_on_interrupt", _accepts_late_interrupts, "Q2", _REPEATS
    ),
    "isolation ignored": Mutant(StepMachine, "_isolate", _does_nothing, "Q3", _CUT_OFF),
    "lease ignored": Mutant(StepMachine, "_on_lease", _does_nothing, "Q3", _STOPPED),
    "vote ignored": Mutant(StepMachine, "_on_decided", _commits_without_the_vote, "C1"),
    "repair keeps old results": Mutant(OperationLedger, "start_again", _repairs_half, "C3"),
    "lineage ignored": Mutant(succession, "choose", _ignores_lineage, "S2"),
    "states of other steps compared": Mutant(Divergence, "_of", _compares_other_steps, "Z2"),
    "majority before step": Mutant(succession, "choose", _prefers_the_majority, "Q3", _LOSSES),
    "results that stand forgotten": Mutant(
        succession, "group_state", _forgets_results_that_stand, "C1", _LOSSES
    ),
    "epoch not persisted": Mutant(MembershipState, "journal", _journals_no_epoch, "Q1"),
    "journal not written": Mutant(MembershipState, "journal", _journals_nothing, "Q1"),
    "quorum id used twice": Mutant(AttemptCounter, "issue", _numbers_by_attempt_only, "Q1"),
    "newcomers as survivors": Mutant(
        forming.Forming, "rejoin", _takes_newcomers_for_survivors, "Q4"
    ),
    "nodes leave one by one": Mutant(
        Leaving, "drain_gathered", _gathers_nobody, "Q10", ("drain_two",)
    ),
    "peers are believed": Mutant(Reach, "_has_answered", _never, "Q4", ("false_alarm",)),
    "a lighthouse that is cut off believes its node": Mutant(
        Reach, "_is_in_touch", _TRUE, "Q4", ("hears_one",)
    ),
    "what peers see counts for nothing": Mutant(
        Reach, "reported", _does_nothing, "N1", ("power_off",)
    ),
    "a takeover waits for the lost": Mutant(
        takeover.Takeover, "awaited", _names_nobody, "N1", ("lose_first_node",)
    ),
    "a takeover gives agents no time to come": Mutant(
        Reach, "_time_for", _gives_no_time, "Q6", ("false_alarm", "kill_lighthouse")
    ),
    "incarnations have their node's name": Mutant(
        Agent, "_rules", _names_by_the_node, "Q2", (KEPT_AGENTS, "kill_agent")
    ),
    "no fence": Mutant(DepartedMembers, "all_fenced_at", _needs_no_fence, "Q3", _CUT_OFF),
    "no takeover grace": Mutant(takeover.Takeover, "is_complete", _waits_for_no_grace, "Q6"),
    "switch without promises": Mutant(Switching, "propose", _switches_without_promises, "Q5"),
    "journal not fsynced": Mutant(LighthouseProcess, "_journal", _writes_later, "Q1", _JOURNAL),
    "first caller alone": Mutant(forming.Forming, "gather", _begins_with_the_first_caller, "Q4"),
    "lowest step wins": Mutant(succession, "choose", _chooses_the_lowest, "C6", _LOSSES),
    "one voter's false ignored": Mutant(Ballot, "outcome", staticmethod(_any_is_enough), "C1"),
    "stale heal served": Mutant(Offer, "retire", _does_nothing, "S4"),
    "newcomer does not heal": Mutant(Quorums, "is_newcomer", _never, "C4"),
    "spares counted": Mutant(facts, "contributors", _counts_spares, "C4"),
    "repairs what was handed out": Mutant(OperationLedger, "untouched", _TRUE, "S7"),
    "errors ignored": Mutant(Membership, "_on_errored", _does_nothing, "L1"),
    "no heartbeat timeout": Mutant(Lighthouse, "_sweep", _does_nothing, "L1", _SILENCE),
    "who hangs is kept": Mutant(Waiting, "silent", _nobody, "L1", _HANGS),
    "who is silent stays": Mutant(Silence, "asks", _never_asks, "L1", _HANGS),
    "answers are not heard": Mutant(Silence, "received", _does_nothing, "Q4", _HANGS),
    "who stands still stays": Mutant(Standstill, "find", _waits_for_ever, "L1", _STANDS),
    "slow is taken for still": Mutant(StepTimes, "limit_s", _has_no_patience, "Q4", _STANDS),
    "who gave up stays": Mutant(Membership, "_member_reported", _ignores_giving_up, "L1", _ONE_WAY),
    "attempts not outrun": Mutant(AttemptCounter, "outrun", _never, "Q2", _EPOCHS),
    "a hold is not held": Mutant(Quorums, "bars", _never, "Q9"),
    "who is held off joins at once": Mutant(succession, "_held_off", _nobody, "Q9"),
    "an unknown quorum has no newcomers": Mutant(
        Quorums, "awaits_newcomers", property(_prepares_only), "Q9", ("kill_worker",), SPARING_FROM
    ),
    "too few for ever": Mutant(
        Membership, "_note_too_few", _does_nothing, "L1", ("kill_worker",), LINGERING_FROM
    ),
    "nothing is compared": Mutant(Comparison, "_is_changed", _never, "C7"),
    "unlike goes out": Mutant(Comparison, "answer", _takes_all_for_alike, "C7"),
    "the reference tells too early": Mutant(StepFacts, "look_up", _answers_at_once, "C7", _DEATHS),
    "the end is not compared": Mutant(Comparison, "end", _does_nothing, "C7"),
    "a second is booked twice": Mutant(Ledger, "_add", _counts_twice, "A1"),
    "a dead slot is not looked at": Mutant(Replicas, "remove", _overlooks_processes, "A1"),
    "a request is forgotten": Mutant(OperationTable, "journaled", _nothing, "CHECK", _REQUESTS),
    "a failure is told twice": Mutant(
        Unconfirmed, "recorded", _forgets_the_number, "CHECK", _FILES_LOST
    ),
    "answers of an earlier round are kept": Mutant(
        Exchanging, "answered", _keeps_late_answers, "E1", _EXCHANGES_CUT_OFF
    ),
    "who is late gives at once": Mutant(Exchanging, "_is_late", _never, "E1", _EXCHANGES),
    "a void step is exchanged about": Mutant(Names, "is_void", _never, "L1", _EXCHANGES_CUT_OFF),
    "who is not reached is waited for": Mutant(
        Exchanging, "failed", _waits_for_the_unreached, "L1", _EXCHANGES_DRAINS
    ),
    "another try has other names": Mutant(
        Names, "step_begun", _counts_on, "L1", _EXCHANGES_CUT_OFF
    ),
    "who has declined gives": Mutant(Kept, "has_declined", _never, "E1", _EXCHANGES),
    "a place is not asked for": Mutant(Fetch, "_place", _asks_for_no_place, "Z1", _EXCHANGES),
    "the end is left at once": Mutant(
        Parting, "_are_enough", _TRUE, "L4", ("kill_worker",), LINGERING_FROM
    ),
    "who has left the loop waits": Mutant(
        StepFacts, "trains_from", property(lambda self: None), "L1", ("kill_worker",), EARLY_FROM
    ),
    "an early end is a good one": Mutant(
        SlotTable, "absent", _nobody, "L5", ("kill_lighthouse",), EARLY_FROM
    ),
    "who is slower trains on": Mutant(
        StepFacts,
        "trains_from",
        property(lambda self: self.state),
        "L4",
        ("kill_worker",),
        LINGERING_FROM,
    ),
    "a mate that is not reached has left": Mutant(
        Parting, "failed", _takes_the_unreached_for_gone, "L1", _HANGS, LINGERING_FROM
    ),
    "the end is no reason to join": Mutant(
        membership,
        "REACHES_NO_LATER",
        frozenset({Activity.TOO_FEW}),
        "L1",
        ("kill_worker",),
        LINGERING_FROM,
    ),
    "a lost step waits for the next one": Mutant(
        StateOffer, "offer_kept", lambda *_: (), "L1", ("kill_worker",), KEEPING_FROM
    ),
    "a newcomer keeps a lost step lost": Mutant(
        StateOffer, "offer_kept", _offers_to_peers_only, "L1", ("kill_worker",), KEEPING_FROM
    ),
    "who joins at the end is not told": Mutant(
        StepFacts, "takes", _never_over, "L1", ("kill_worker",), LINGERING_FROM
    ),
    "latecomers wait for who needs them": Mutant(
        Presence, "_need_more", lambda *_: False, "L1", (), 400_007_900
    ),
    "the dying are gone": Mutant(
        Supervisor, "_worker_dying", Supervisor._worker_exited, "P8", ("kill_worker",), DYING_FROM
    ),
    "who cannot serve ends": Mutant(
        Worker, "cannot_serve", _ends_with_its_newcomers, "H1", _SERVING
    ),
    "what the script needs is not known": Mutant(
        MembershipState, "least", property(lambda self: self.spec.min_replicas), "Q4", _LOSSES
    ),
    "who is refused tries on": Mutant(HealState, "refuse", _never, "H1", _SERVING),
    "a refusal is a failure": Mutant(
        StepMachine, "_refuse_step", _takes_a_refusal_for_a_failure, "C8", _REFUSALS
    ),
    "an unclear failure is never a refusal": Mutant(
        StepMachine, "_on_operation_failed", _never_finds_out, "C8", _REFUSALS
    ),
    "who is late tries less often": Mutant(
        StepMachine, "_catch_up", _does_nothing, "C8", _REFUSALS
    ),
    "refusals are counted": Mutant(forming.Forming, "forgive", _does_nothing, "C8", _REFUSALS),
    "peers repair what was refused": Mutant(
        forming.Forming, "_refused", lambda *_: (False, "", 0), "C8", _REFUSALS
    ),
    "a reduction has no end": Mutant(StepUnderWay, "awaited_s", lambda *_: 0.0, "L2", _LATENESS),
    "samples of the dead are lost": Mutant(
        DataPlan, "after", _loses_what_the_dead_had, "D2", _LOSSES
    ),
    "slices follow the quorum": Mutant(DataPlan, "slices", _slices_by_rank, "D1", _LOSSES),
    "lineage without its tag": Mutant(ids, "extend_lineage", _chains_steps_only, "S1", _LOSSES),
}
