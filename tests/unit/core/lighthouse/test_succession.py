"""Succession, checked against a deliberately dumb second implementation."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import event, given, settings
from hypothesis import strategies as st

from ftrun.core.ids import Attempt, StateId
from ftrun.core.lighthouse.choice import Choice
from ftrun.core.lighthouse.succession import Candidate, Case, Succession, first, succeed
from ftrun.core.quorum import Member, Quorum
from tests.suite.properties import examples
from tests.unit.core.lighthouse.test_choice import dumb_choose

NAMES = ("0", "1", "2", "3")
AT_5, AT_6 = StateId(5, "x"), StateId(6, "x")


def quorum(
    *keys: str,
    donors: tuple[str, ...] = (),
    newcomers: tuple[str, ...] = (),
    step: int | None = 5,
    state: StateId | None = None,
) -> Quorum:
    """``keys``: replica and incarnation in one, as in ``0a``."""
    members = tuple(Member(key[0], key[1], (), "s:1") for key in keys)
    return Quorum(Attempt(1, 1), members, "s:1", step, state, newcomers, donors)


def at(key: str, held: StateId | None = AT_5, **more: object) -> Candidate:
    return replace(Candidate(key[0], key[1], held), **more)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the dumb one


def dumb_succeed(case: Case) -> Succession:
    """Ask each question again wherever it comes up, one replica at a time."""
    here = list(case.survivors)
    if not dumb_may_decide(case, here):
        here += [replica for replica in case.ready if replica.was_removed]
        if not dumb_may_decide(case, here):
            for waits in (case.finishing, case.departed):
                if waits:
                    return Succession(False, names(here), waits)
    here = without_late_newcomers(case, here)
    here = without_strangers_that_heal(case, here)
    is_enough = len(here) >= case.needed and not [r for r in here if r.too_few]
    members = list(here)
    for replica in (*case.survivors, *case.ready):
        if replica not in members and not is_enough:
            members.append(replica)
    may_decide = dumb_may_decide(case, here)
    if not is_enough:
        found = dumb_choice(members, here if may_decide else [], case)
        members = without_ready_that_heal(case, members, here, found)
    if len(members) < case.needed:
        return Succession(may_decide, names(here))
    best = dumb_choice(members, here if may_decide else [], case)
    return Succession(may_decide, names(here), frozenset(), names(members), best)


def dumb_choice(members: list[Candidate], here: list[Candidate], case: Case) -> Choice | None:
    """The state of those that may decide, with the names of all others that hold it."""
    held = {r.replica_id: r.held for r in members}
    mine = {
        r.replica_id: r.held if r.has_healed and (r in here or was_member(case, r)) else None
        for r in members
    }
    best = dumb_choose(mine) if here else None
    if best is not None:
        # The rest may add their names to the survivors' best state, and nothing else.
        for name, state in held.items():
            if state != best.state and mine[name] is None:
                held[name] = None
    return dumb_choose(held)


def without_ready_that_heal(
    case: Case, members: list[Candidate], here: list[Candidate], found: Choice | None
) -> list[Candidate]:
    """Drop the ready that must heal at a barred step, if a ready holder makes up for them."""
    if found is None:
        return members
    rest = [r for r in members if r in case.survivors or r.replica_id in found.donors]
    bars = [step for replica in rest for step in replica.bars_at]
    grows = len(rest) > len(case.survivors)
    return rest if found.state.step in bars and grows and len(rest) >= case.needed else members


def without_late_newcomers(case: Case, here: list[Candidate]) -> list[Candidate]:
    """Drop the newcomers of a switch if an old member bars its step and the old ones are enough."""
    if case.quorum is None or not case.is_switch:
        return here
    old = [replica for replica in here if replica.replica_id not in case.quorum.newcomers]
    for replica in here:
        if replica.too_few or len(old) < case.needed:
            return here
    for replica in old:
        for step in replica.bars_at:
            if step == case.quorum.step:
                return old
    return here


def without_strangers_that_heal(case: Case, here: list[Candidate]) -> list[Candidate]:
    """Drop who belongs to no old quorum and holds another state, if those that stay bar its step.

    Nothing is dropped if somebody needs more contributors, or if those that stay could not do alone
    what all could.
    """
    decides = dumb_may_decide(case, here)
    best = dumb_choice(here, here if decides else [], case)
    if best is None:
        return here
    stay = []
    for replica in here:
        if replica.too_few:
            return here
        if was_member(case, replica) or replica.replica_id in best.donors:
            stay.append(replica)
    for replica in stay:
        if best.state.step in replica.bars_at and len(stay) >= case.needed:
            return stay if dumb_may_decide(case, stay) == decides else here
    return here


def dumb_may_decide(case: Case, here: list[Candidate]) -> bool:
    """Try to find a member that trains on without us, and one that may hold more than we do."""
    for old in (case.prior, case.quorum):
        if old is not None and old.members:
            trains_on = True
            for replica in here:
                for member in old.members:
                    if (member.replica_id, member.incarnation) == replica.key:
                        trains_on = False
            if trains_on:
                return False
    old = case.prior if case.prior is not None else case.quorum
    if old is None:
        return True
    for replica in here:
        if is_where_it_began(old, replica):
            return True
    lost = []
    for donor in old.donors:
        is_back = False
        for replica in here:
            if replica.replica_id == donor and is_member(old, replica):
                is_back = True
        if not is_back:
            lost.append(donor)
    return bool(old.donors) and not lost


def is_where_it_began(old: Quorum, replica: Candidate) -> bool:
    began = 0 if old.step is None else old.step
    if replica.held is None or replica.held.step < began:
        return False
    if began == 0 and replica.held.step == 0:
        return True
    if not replica.has_healed:
        return False
    return replica.held.step > began or old.state is None or old.state == replica.held


def is_member(old: Quorum | None, replica: Candidate) -> bool:
    return old is not None and old.index(replica.replica_id, replica.incarnation) is not None


def was_member(case: Case, replica: Candidate) -> bool:
    return is_member(case.prior, replica) or is_member(case.quorum, replica)


def names(replicas: list[Candidate]) -> frozenset[str]:
    return frozenset(replica.replica_id for replica in replicas)


# ---------------------------------------------------------------- the two agree

steps = st.sampled_from([1, 1, 1, 0, 2])
states = st.builds(StateId, steps, st.sampled_from(["x", "y"]))
subsets = st.sets(st.sampled_from(NAMES)).map(frozenset)


@st.composite
def quorums(draw: st.DrawFn) -> Quorum:
    keys = sorted(draw(subsets))
    donors = tuple(name for name in keys if draw(st.booleans()))
    newcomers = tuple(name for name in keys if name not in donors)
    members = [name + draw(st.sampled_from("aab")) for name in keys]
    step, state = draw(steps), draw(st.none() | states)
    return quorum(*members, donors=donors, newcomers=newcomers, step=step, state=state)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any case, also those that no job comes to."""
    often, seldom = (
        st.sampled_from([True, True, True, False]),
        st.sampled_from([True] + 3 * [False]),
    )
    places: dict[bool, list[Candidate]] = {True: [], False: []}
    for name in NAMES:
        if draw(often):
            one = Candidate(
                name,
                draw(st.sampled_from("aab")),
                draw(st.none() | states),
                has_healed=draw(often),
                was_removed=draw(st.booleans()),
                too_few=draw(seldom),
                bars_at=draw(st.sampled_from([frozenset(), frozenset({1})])),
            )
            places[draw(st.booleans())].append(one)
    return Case(
        draw(quorums() | quorums() | st.none()),
        tuple(places[True]),
        tuple(places[False]),
        draw(st.integers(1, 3)),
        prior=draw(st.none() | quorums()),
        is_switch=draw(often),
        finishing=draw(st.just(frozenset()) | subsets),
        departed=draw(st.just(frozenset()) | subsets),
    )


@settings(max_examples=examples(500))
@given(cases())
def test_succeed_agrees_with_the_dumb_one(case: Case) -> None:
    found = succeed(case)
    outcome = "waits" if found.wait_for else "goes on" if found.members else "too few"
    event(f"{outcome}, may decide: {found.may_decide}")
    assert found == dumb_succeed(case)


@settings(max_examples=examples(150))
@given(cases())
def test_survivors_that_decide_have_stopped_every_quorum_and_lose_no_step(case: Case) -> None:
    """Q3 and C6, whatever the rules are."""
    found = succeed(case)
    if not found.may_decide or found.choice is None:
        return
    everybody = (*case.survivors, *case.ready)
    deciders = [r for r in everybody if r.replica_id in found.survivors]
    for old in (case.prior, case.quorum):
        assert old is None or not old.members or any(is_member(old, r) for r in deciders)
    held = [r.held.step for r in deciders if r.held is not None and r.has_healed]
    assert found.choice.state.step >= max(held, default=0)


# ---------------------------------------------------------------- cases by name

LAST = quorum("0a", "1a", "2a", donors=("0", "1", "2"), step=5, state=AT_5)


def test_one_survivor_that_has_kept_up_decides_without_the_lost() -> None:
    found = succeed(Case(LAST, (at("0a"),), (), 1, departed=frozenset("12")))
    assert found == Succession(True, frozenset("0"), members=frozenset("0"), choice=only("0"))


def test_a_newcomer_that_has_not_healed_waits_for_a_holder() -> None:
    last = quorum("0a", "1a", donors=("0",), newcomers=("1",), step=5, state=AT_5)
    late = at("1a", StateId(0, "fresh"), has_healed=False)
    found = succeed(Case(last, (late,), (), 1, departed=frozenset("0")))
    assert (found.may_decide, found.wait_for, found.members) == (False, {"0"}, frozenset())


def test_a_removed_member_that_is_back_decides_with_the_survivors() -> None:
    last = quorum("0a", "1a", donors=("0",), newcomers=("1",), step=5, state=AT_5)
    late = at("1a", StateId(0, "fresh"), has_healed=False)
    found = succeed(Case(last, (late,), (at("0a", was_removed=True),), 1, departed=frozenset("0")))
    assert found.may_decide and found.survivors == {"0", "1"}
    assert found.choice == Choice(AT_5, ("0",), ("1",))


def test_in_a_switch_both_quorums_need_a_survivor() -> None:
    old, new = quorum("0a", "1a"), quorum("1a", "2a", donors=("1",), newcomers=("2",))
    case = Case(new, (at("0a"),), (), 1, prior=old, is_switch=True, departed=frozenset("1"))
    assert succeed(case).wait_for == {"1"}
    assert succeed(replace(case, survivors=(at("1a"),))).may_decide


def test_all_donors_have_lost_what_they_reported_and_nobody_else_holds_it() -> None:
    all_here = (at("0a", StateId(4, "x")), at("1a", StateId(4, "x")), at("2a", StateId(4, "x")))
    assert succeed(Case(LAST, all_here, (), 1)).may_decide
    assert not succeed(Case(LAST, all_here[:2], (), 1)).may_decide


def test_a_replica_of_an_abandoned_history_counts_for_nothing_whatever_it_holds() -> None:
    stray = at("3a", StateId(9, "old"), was_removed=True)
    found = succeed(Case(LAST, (at("0a"),), (stray,), 2))
    assert found.choice == Choice(AT_5, ("0",), ("3",))


def test_where_nobody_may_decide_and_all_others_are_fenced_the_highest_step_wins() -> None:
    found = succeed(Case(LAST, (at("0b"),), (at("3a", AT_6),), 2))
    assert not found.may_decide
    assert found.choice == Choice(AT_6, ("3",), ("0",))


def test_the_job_waits_for_what_has_finished_before_it_waits_for_the_lost() -> None:
    case = Case(LAST, (at("0b"),), (), 1, finishing=frozenset("1"), departed=frozenset("2"))
    assert succeed(case).wait_for == {"1"}


def test_newcomers_of_a_barred_step_join_later_unless_they_are_needed() -> None:
    last = quorum("0a", "1a", donors=("0",), newcomers=("1",), step=5)
    old, new = at("0a", bars_at=frozenset({5})), at("1a", AT_6)
    case = Case(last, (old, new), (), 1, is_switch=True)
    assert succeed(case).members == {"0"}
    assert succeed(replace(case, needed=2)).members == {"0", "1"}
    assert succeed(replace(case, survivors=(replace(old, too_few=True), new))).members == {"0", "1"}


def test_at_a_barred_step_too_few_take_ready_holders_first() -> None:
    """Q9, seed 7128251: a removed member was back, and a fresh replica joined with it."""
    stuck = at("0a", too_few=True, bars_at=frozenset({5}))
    back, fresh = at("1a"), at("3a", StateId(0, "fresh"))
    case = Case(LAST, (stuck,), (back, fresh), 1)
    assert succeed(case).members == {"0", "1"}
    assert succeed(replace(case, needed=3)).members == {"0", "1", "3"}, "too few without it"
    assert succeed(replace(case, ready=(fresh,))).members == {"0", "3"}, "nobody else can help"
    free = replace(case, survivors=(replace(stuck, bars_at=frozenset()),))
    assert succeed(free).members == {"0", "1", "3"}


def test_a_survivor_of_no_quorum_in_force_does_not_heal_at_a_barred_step() -> None:
    """Q9, seed 14067049: it was lost, and came back while the job waited for all the others."""
    last = quorum("0a", "1a", donors=("0", "1"), step=5, state=AT_5)
    stranger = at("2a", None, has_healed=False)
    back = at("0a", was_removed=True, bars_at=frozenset({5}))
    case = Case(last, (stranger,), (back,), 1, departed=frozenset("01"))
    assert succeed(case) == Succession(
        True, frozenset("0"), members=frozenset("0"), choice=only("0")
    )
    assert succeed(replace(case, needed=2)).members == {"0", "2"}, "too few without it"
    free = replace(back, bars_at=frozenset())
    assert succeed(replace(case, ready=(free,))).members == {"0", "2"}


def test_survivors_that_are_too_few_take_whoever_is_ready_or_wait() -> None:
    assert succeed(Case(LAST, (at("0a"),), (at("3a"),), 2)).members == {"0", "3"}
    assert succeed(Case(LAST, (at("0a"),), (), 2)) == Succession(True, frozenset("0"))


def test_a_first_quorum_begins_with_the_best_state() -> None:
    found = first((at("0a", StateId(0, "fresh")), at("1a", AT_5)), needed=1)
    assert found == Succession(True, members=frozenset("01"), choice=Choice(AT_5, ("1",), ("0",)))
    assert first((at("0a", None),), needed=1).choice is None


def test_in_a_first_quorum_nobody_joins_at_a_step_that_a_holder_bars() -> None:
    """Q9, seed 4111887: all were given up by the lighthouse, and came back with a frozen step."""
    fresh, frozen = at("2a", StateId(0, "fresh")), frozenset({5})
    held = (at("0a", bars_at=frozen), at("1a", bars_at=frozen))
    assert first((*held, fresh), needed=2) == Succession(
        True, members=frozenset("01"), choice=Choice(AT_5, ("0", "1"), ())
    )
    assert first((*held, fresh), needed=3).members == {"0", "1", "2"}, "too few without it"
    elsewhere = (at("0a", bars_at=frozenset({4})), fresh)
    assert first(elsewhere, needed=1).members == {"0", "2"}


def only(name: str) -> Choice:
    return Choice(AT_5, (name,), ())
