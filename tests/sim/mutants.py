"""Planted bugs, to prove that the simulation would find real ones.

Each bug replaces one attribute of a core by a broken one, within ``planted``.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
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
from ftrun.core.ids import StateId
from ftrun.core.lighthouse import forming, membership, succession, takeover
from ftrun.core.lighthouse.attempts import AttemptCounter
from ftrun.core.lighthouse.choice import Choice, Standing, standing
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
from ftrun.core.worker.showing import Showing
from ftrun.core.worker.under_way import Fate, StepUnderWay
from tests.sim import mending
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


def _stands_where_one_has_it(groups: Any) -> Standing | None:
    groups = [
        {rank: replace(report, done=report.handed) for rank, report in group.items()}
        for group in groups
    ]
    for rank in groups[0]:
        most = max(group[rank].handed for group in groups)
        for group in groups:
            group[rank] = replace(group[rank], done=most)
    return standing(groups)


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


def _nobody_is_spared(_: Any) -> frozenset[str]:
    return frozenset()


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
    if quorum is None or not self.trained_with.issuperset(x.key for x in quorum.members):
        return []
    return list(_OFFERS_KEPT(self, state, quorums))


def _heals_at_any_step(self: StepFacts) -> bool:
    return self.healing and (self.heal.heals_first or self.position == 0)


def _never_over(_self: StepMachine, entry: Entry) -> bool:
    return not entry.over


_add = Ledger._add


def _counts_twice(self: Ledger, use: Use, began: int, ended: int, slots: int) -> None:
    """Time that is dated back is not subtracted from its former use."""
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


_MENDS = (mending.MEND,)
_FALLS = (mending.MEND, mending.FALL)
_SERVING = ("cannot_serve", "nobody_can_serve", "kill_worker", "kill_two_workers")

# ---------------------------------------------------------------- a successor's bugs


_repair_under = StepMachine._repair_under


def _puts_all_inputs_back(self: StepMachine, step: StepUnderWay, quorum: Quorum) -> None:
    _repair_under(self, step, quorum)
    self._out = [e.Reissue(0) if isinstance(x, e.Reissue) else x for x in self._out]


def _sends_while_it_repeats(self: StepMachine, message: m.FromWorker) -> None:
    self.has_reported = True
    self._out.append(e.Send(message))


_on_went_out = StepMachine._on_went_out


def _counts_as_when_it_began(self: StepMachine, event: e.WentOut) -> None:
    if self.in_force is not None:
        event = e.WentOut(replace(self.in_force, attempt=event.quorum.attempt))
    _on_went_out(self, event)


def _logs_after_handing_out(log: mending.Log) -> dict[tuple[int, int], Quorum]:
    return {key: at for key, at in log.handed.items() if key[0] < log.begun}


# ---------------------------------------------------------------- bugs with what is left in memory

_choose = succession.choose  # type: ignore[attr-defined]


def _takes_the_oldest(group_states: Mapping[str, StateId | None]) -> Choice | None:
    steps = [x.step for x in group_states.values() if x is not None]
    least = min(steps, default=0)
    found = {k: x if x is not None and x.step == least else None for k, x in group_states.items()}
    return _choose(found)


def _takes_each_ranks_newest(self: mending.Left, replica_id: str, until: float) -> Any:
    ranks = self._of.get(replica_id, [])
    return [known[-1] for known in ranks] if ranks and all(ranks) else None


MUTANTS: dict[str, Mutant] = {
    "accepts messages of any attempt": Mutant(
        StepUnderWay, "counts", _counts_any_attempt, "C3", _BETWEEN
    ),
    "swaps without regard to its promise": Mutant(
        Quorums, "at_promise", _forgets_its_promise, "Q5"
    ),
    "promises a step that has begun": Mutant(Quorums, "can_promise", _promises_anything, "Q5"),
    "divides by healing replicas too": Mutant(StepFacts, "contributors", _counts_everybody, "C4"),
    "accepts a late Interrupt": Mutant(
        StepMachine, "_on_interrupt", _accepts_late_interrupts, "Q2", _REPEATS
    ),
    "commits while isolated": Mutant(StepMachine, "_isolate", _does_nothing, "Q3", _CUT_OFF),
    "commits after its lease": Mutant(StepMachine, "_on_lease", _does_nothing, "Q3", _STOPPED),
    "commits without the group's vote": Mutant(
        StepMachine, "_on_decided", _commits_without_the_vote, "C1"
    ),
    "a repair keeps results of the old group": Mutant(
        OperationLedger, "start_again", _repairs_half, "C3"
    ),
    "chooses a state by its step alone": Mutant(succession, "choose", _ignores_lineage, "S2"),
    "compares states of different steps": Mutant(Divergence, "_of", _compares_other_steps, "Z2"),
    "prefers the majority's state to the newest": Mutant(
        succession, "choose", _prefers_the_majority, "Q3", _LOSSES
    ),
    "chooses a state without the results that stand": Mutant(
        succession, "group_state", _forgets_results_that_stand, "C1", _LOSSES
    ),
    "journals no epoch": Mutant(MembershipState, "journal", _journals_no_epoch, "Q1"),
    "journals nothing": Mutant(MembershipState, "journal", _journals_nothing, "Q1"),
    "uses a quorum id twice": Mutant(AttemptCounter, "issue", _numbers_by_attempt_only, "Q1"),
    "counts newcomers as survivors": Mutant(
        forming.Forming, "rejoin", _takes_newcomers_for_survivors, "Q4"
    ),
    "drains nodes one by one": Mutant(
        Leaving, "drain_gathered", _gathers_nobody, "Q10", ("drain_two",)
    ),
    "loses a node although its agent answers": Mutant(
        Reach, "_has_answered", _never, "Q4", ("false_alarm",)
    ),
    "loses nodes while it is cut off itself": Mutant(
        Reach, "_is_in_touch", _TRUE, "Q4", ("hears_one",)
    ),
    "ignores reports of unreachable peers": Mutant(
        Reach, "reported", _does_nothing, "N1", ("power_off",)
    ),
    "a takeover waits for lost nodes": Mutant(
        takeover.Takeover, "awaited", _names_nobody, "N1", ("lose_first_node",)
    ),
    "a takeover loses agents before they can attach": Mutant(
        Reach, "_time_for", _gives_no_time, "Q6", ("false_alarm", "kill_lighthouse")
    ),
    "reuses incarnations after an agent's restart": Mutant(
        Agent, "_rules", _names_by_the_node, "Q2", (KEPT_AGENTS, "kill_agent")
    ),
    "starts without waiting for isolated workers": Mutant(
        DepartedMembers, "all_fenced_at", _needs_no_fence, "Q3", _CUT_OFF
    ),
    "a takeover ends before its grace": Mutant(
        takeover.Takeover, "is_complete", _waits_for_no_grace, "Q6"
    ),
    "switches before all have promised": Mutant(
        Switching, "propose", _switches_without_promises, "Q5"
    ),
    "sends before the journal is on disk": Mutant(
        LighthouseProcess, "_journal", _writes_later, "Q1", _JOURNAL
    ),
    "forms a quorum of the first reporter": Mutant(
        forming.Forming, "gather", _begins_with_the_first_caller, "Q4"
    ),
    "chooses the lowest step": Mutant(succession, "choose", _chooses_the_lowest, "C6", _LOSSES),
    "commits if any rank votes for it": Mutant(
        Ballot, "outcome", staticmethod(_any_is_enough), "C1"
    ),
    "serves a state after it has changed": Mutant(Offer, "retire", _does_nothing, "S4"),
    "a newcomer trains without healing": Mutant(Quorums, "is_newcomer", _never, "C4"),
    "counts spares as contributors": Mutant(facts, "contributors", _counts_spares, "C4"),
    "repairs results that were handed out": Mutant(OperationLedger, "untouched", _TRUE, "S7"),
    "ignores reported errors": Mutant(Membership, "_on_errored", _does_nothing, "L1"),
    "has no heartbeat timeout": Mutant(Lighthouse, "_sweep", _does_nothing, "L1", _SILENCE),
    "keeps a member that does not report": Mutant(Waiting, "silent", _nobody, "L1", _HANGS),
    "never replaces a silent worker": Mutant(Silence, "asks", _never_asks, "L1", _HANGS),
    "replaces workers that answer": Mutant(Silence, "received", _does_nothing, "Q4", _HANGS),
    "never replaces a worker that stands still": Mutant(
        Standstill, "find", _waits_for_ever, "L1", _STANDS
    ),
    "replaces slow workers": Mutant(StepTimes, "limit_s", _has_no_patience, "Q4", _STANDS),
    "keeps a member that gave the quorum up": Mutant(
        Membership, "_member_reported", _ignores_giving_up, "L1", _ONE_WAY
    ),
    "issues attempts below those of the last life": Mutant(
        AttemptCounter, "outrun", _never, "Q2", _EPOCHS
    ),
    "lets replicas join at a barred step": Mutant(Quorums, "bars", _never, "Q9"),
    "lets a held-off replica join at once": Mutant(succession, "_held_off", _nobody, "Q9"),
    "expects no newcomers in an unknown quorum": Mutant(
        Quorums, "awaits_newcomers", property(_prepares_only), "Q9", ("kill_worker",), SPARING_FROM
    ),
    "waits for ever for more replicas": Mutant(
        Membership, "_note_too_few", _does_nothing, "L1", ("kill_worker",), LINGERING_FROM
    ),
    "compares no operations": Mutant(Comparison, "_is_changed", _never, "C7"),
    "issues operations that differ": Mutant(Comparison, "answer", _takes_all_for_alike, "C7"),
    "answers comparisons before its step is certain": Mutant(
        StepFacts, "look_up", _answers_at_once, "C7", _DEATHS
    ),
    "does not compare the end of a step": Mutant(Comparison, "end", _does_nothing, "C7"),
    "books time twice": Mutant(Ledger, "_add", _counts_twice, "A1"),
    "books no time of dead slots": Mutant(Replicas, "remove", _overlooks_processes, "A1"),
    "forgets an operator's request": Mutant(
        OperationTable, "journaled", _nothing, "CHECK", _REQUESTS
    ),
    "reports a failure twice": Mutant(
        Unconfirmed, "recorded", _forgets_the_number, "CHECK", _FILES_LOST
    ),
    "keeps answers of an earlier round": Mutant(
        Exchanging, "answered", _keeps_late_answers, "E1", _EXCHANGES_CUT_OFF
    ),
    "a late member contributes at once": Mutant(Exchanging, "_is_late", _never, "E1", _EXCHANGES),
    "exchanges about a void step": Mutant(Names, "is_void", _never, "L1", _EXCHANGES_CUT_OFF),
    "waits for unreachable members": Mutant(
        Exchanging, "failed", _waits_for_the_unreached, "L1", _EXCHANGES_DRAINS
    ),
    "names the exchanges of a retry differently": Mutant(
        Names, "step_begun", _counts_on, "L1", _EXCHANGES_CUT_OFF
    ),
    "contributes after it has declined": Mutant(Kept, "has_declined", _never, "E1", _EXCHANGES),
    "heals without the donors' place": Mutant(
        Fetch, "_place", _asks_for_no_place, "Z1", _EXCHANGES
    ),
    "leaves at the script's end before all are there": Mutant(
        Parting, "_are_enough", _TRUE, "L4", ("kill_worker",), LINGERING_FROM
    ),
    "leaves at the script's end before all are compared": Mutant(
        Parting, "_are_judged", lambda self, now: self._are_enough, "Z2", (), LINGERING_FROM
    ),
    "waits at its end for replicas that train on": Mutant(
        StepFacts, "trains_from", property(lambda self: None), "L1", ("kill_worker",), EARLY_FROM
    ),
    "counts an early end as success": Mutant(
        SlotTable, "absent", _nobody, "L5", ("kill_lighthouse",), EARLY_FROM
    ),
    "trains on though its peers have ended": Mutant(
        StepFacts,
        "trains_from",
        property(lambda self: self.state),
        "L4",
        ("kill_worker",),
        LINGERING_FROM,
    ),
    "takes an unreachable mate for gone": Mutant(
        Parting, "failed", _takes_the_unreached_for_gone, "L1", _HANGS, LINGERING_FROM
    ),
    "lets nobody join at the script's end": Mutant(
        membership,
        "REACHES_NO_LATER",
        frozenset({Activity.TOO_FEW}),
        "L1",
        ("kill_worker",),
        LINGERING_FROM,
    ),
    "serves a kept state to nobody": Mutant(
        StateOffer, "offer_kept", lambda *_: (), "L1", ("kill_worker",), KEEPING_FROM
    ),
    "serves a kept state to members only": Mutant(
        StateOffer, "offer_kept", _offers_to_peers_only, "L1", ("kill_worker",), KEEPING_FROM
    ),
    "catches up with a later state": Mutant(
        StepFacts, "heals_first", property(_heals_at_any_step), "Z1", (), KEEPING_FROM
    ),
    "compares operations with an ended peer for ever": Mutant(
        StepFacts, "takes", _never_over, "L1", ("kill_worker",), LINGERING_FROM
    ),
    "a latecomer waits for replicas that wait for it": Mutant(
        Presence, "_need_more", lambda *_: False, "L1", (), 400_007_900
    ),
    "takes a dying worker for ended": Mutant(
        Supervisor, "_worker_dying", Supervisor._worker_exited, "P8", ("kill_worker",), DYING_FROM
    ),
    "fails where a donor cannot serve its state": Mutant(
        Worker, "cannot_serve", _ends_with_its_newcomers, "H1", _SERVING
    ),
    "ignores min_replica_size": Mutant(
        MembershipState, "least", property(lambda self: self.spec.min_replicas), "Q4", _LOSSES
    ),
    "heals again from donors that refuse": Mutant(HealState, "refuse", _never, "H1", _SERVING),
    "reports a refused operation as a failure": Mutant(
        StepMachine, "_refuse_step", _takes_a_refusal_for_a_failure, "C8", _REFUSALS
    ),
    "never takes an unclear failure for a refusal": Mutant(
        StepMachine, "_on_operation_failed", _never_finds_out, "C8", _REFUSALS
    ),
    "a late member skips refused tries": Mutant(
        StepMachine, "_catch_up", _does_nothing, "C8", _REFUSALS
    ),
    "counts refusals as failures of the step": Mutant(
        forming.Forming, "forgive", _does_nothing, "C8", _REFUSALS
    ),
    "repairs a refused operation": Mutant(
        forming.Forming, "_refused", lambda *_: (False, "", 0), "C8", _REFUSALS
    ),
    "waits for ever for a reduction": Mutant(
        StepUnderWay, "awaited_s", lambda *_: 0.0, "L2", _LATENESS
    ),
    "a successor sends while it repeats": Mutant(
        Showing, "_send", _sends_while_it_repeats, "Q2", _MENDS
    ),
    "a successor commits under the attempt that it began with": Mutant(
        StepMachine, "_on_went_out", _does_nothing, "S1", _MENDS
    ),
    "a successor counts those of the quorum that it began with": Mutant(
        StepMachine, "_on_went_out", _counts_as_when_it_began, "C4", _MENDS
    ),
    "a successor compares again": Mutant(Comparison, "meets_nobody", _does_nothing, "S1", _MENDS),
    "results stand that only some have": Mutant(
        forming, "standing", _stands_where_one_has_it, "C7", _MENDS
    ),
    "puts inputs back in place of results that stand": Mutant(
        StepMachine, "_repair_under", _puts_all_inputs_back, "S7", _MENDS
    ),
    "gives up replicas in a mend": Mutant(
        forming.Forming, "_to_spare", _nobody_is_spared, "Q4", _MENDS
    ),
    "a successor does not answer": Mutant(mending, "answers", _does_nothing, "Q2", _MENDS),
    "results are handed out before they are logged": Mutant(
        mending, "logged", _logs_after_handing_out, "C1", _MENDS
    ),
    "goes on from the oldest state in memory": Mutant(
        succession, "choose", _takes_the_oldest, "E7", _FALLS
    ),
    "each worker goes on from its own newest state in memory": Mutant(
        mending.Left, "claims", _takes_each_ranks_newest, "E7", _FALLS
    ),
    "loses samples of dead replicas": Mutant(
        DataPlan, "after", _loses_what_the_dead_had, "D2", _LOSSES
    ),
    "slices samples by quorum rank": Mutant(DataPlan, "slices", _slices_by_rank, "D1", _LOSSES),
    "chains lineages without the tag": Mutant(
        ids, "extend_lineage", _chains_steps_only, "S1", _LOSSES
    ),
}
