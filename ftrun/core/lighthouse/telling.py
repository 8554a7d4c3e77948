"""Tells the books what they cannot be told where it happens: how slots and the job stand now.

Not here: the facts (facts.py), what follows in the books (books.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ftrun.core.books.facts import Fact, Seen, Stage, Stood
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.slots import Slot
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.quorum import Quorum

STAGES: Mapping[Phase, Stage] = MappingProxyType(
    {
        Phase.TAKEOVER: Stage.TAKEOVER,
        Phase.EMPTY: Stage.EMPTY,
        Phase.BUILD: Stage.BROKEN,
        Phase.STEADY: Stage.STANDS,
        Phase.PREPARE: Stage.STANDS,
        Phase.PROPOSE: Stage.STANDS,
        Phase.SWITCH: Stage.STANDS,
        Phase.REJOIN: Stage.BROKEN,
        Phase.FENCE: Stage.BROKEN,
        Phase.ENDED: Stage.ENDED,
    }
)


class Teller:
    """Knows what the books were told last of the job."""

    def __init__(self, state: MembershipState) -> None:
        self._state = state
        self._phase: Phase | None = None
        self._step = 0
        self._quorum: Quorum | None = None

    def news(self) -> list[Fact]:
        """What has happened and has changed since the last call, in order."""
        state = self._state
        if state.changed:
            tell_changed(state)
        facts, state.facts = state.facts, []
        phase, step, quorum = state.phase, state.step_max, state.quorum
        if phase is not self._phase or step != self._step or quorum is not self._quorum:
            self._phase, self._step, self._quorum = phase, step, quorum
            words = state.outcome.reason if state.outcome is not None else ""
            facts.append(Stood(STAGES[phase], step, quorum, phase is Phase.BUILD, words))
        return facts


def tell_failure(state: MembershipState, failure: Fact) -> None:
    """A failure has come: its record has also how the other members stand now."""
    tell_changed(state)
    state.facts.append(failure)


def tell_changed(state: MembershipState) -> None:
    """Tell how the slots stand of which something has changed."""
    state.facts += [seen(state, state.slots[x]) for x in state.changed if x in state.slots]
    state.changed.clear()


def seen(state: MembershipState, slot: Slot) -> Seen:
    """How a slot stands now."""
    name = slot.replica_id
    replica = state.replicas.at(name)
    is_drained, is_backing_off = slot.is_withdrawn or slot.was_drained, slot.restart_at is not None
    if replica is None:
        is_first = slot.runs_at != "" and not (slot.dead or slot.restarts)
        return Seen(
            name, slot.is_open, slot.is_finished, is_drained, is_backing_off, is_first=is_first
        )
    joins = state.quorum is not None and name in state.quorum.newcomers
    return Seen(
        name,
        slot.is_open,
        slot.is_finished,
        is_drained,
        is_backing_off,
        incarnation=replica.incarnation,
        is_member=name in state.live,
        leaving=replica.leaving,
        is_known=replica.is_known(state.workers),
        reports=tuple(replica.reports.values()),
        progress=replica.progress,
        is_overtaken=replica.is_overtaken,
        heals=replica.heals,
        awaits_switch=replica.awaits_switch,
        is_unhealed=joins and replica.has_not_healed(),
    )
