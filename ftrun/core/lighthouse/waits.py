"""Reports what the job waits for, when a wait lasts and when its subject changes.

After every event ``run_rules`` finds the kind of the wait under way, in a few comparisons. A wait
that has lasted for ``NOTICE_AFTER_S`` is reported on every terminal. It is checked again each time
that this period has passed, and reported again if it is for others by then. The status shows the
wait at any time.

Not here: decisions; an agent's wait for a lighthouse (core/agent/supervisor.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ftrun.core.activity import Activity
from ftrun.core.ids import replica_order
from ftrun.core.lighthouse.assignment import Assignment
from ftrun.core.lighthouse.membership import Membership
from ftrun.core.lighthouse.phases import IN_QUORUM, Phase
from ftrun.core.lighthouse.presence import Presence
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.status import WaitStatus
from ftrun.core.lighthouse.words import replicas, sentence

NOTICE_AFTER_S = 3.0
NODES, GATHER, PEERS, ANSWERS, BOUNDARY = "nodes", "gather", "peers", "answers", "boundary"
TOO_FEW, SET_UP = "too few", "set-up"
ASKED = {
    Phase.BUILD: "to build the process group",
    Phase.PREPARE: "to build the next process group",
    Phase.PROPOSE: "for a step at which replicas may join or leave",
    Phase.SWITCH: "to reach the step of the switch",
    Phase.REJOIN: "to report its state",
}
OUTSIDE = "(an evaluation, a checkpoint?)"
BUSY = {
    Activity.OUTSIDE: f"it is outside a step {OUTSIDE}",
    Activity.COLLECTIVE: "it waits in a collective of the script's own",
    Activity.HEALING: "it heals",
    Activity.STARTING: "it has not reached its first step",
}


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait of the job.

    ``whom``: the replicas or, of ``NODES``, the agents; ``words``: for people, without times.
    ``since``: when it began; ``until``: when it ends at the latest, if that is known.
    """

    kind: str
    whom: tuple[str, ...]
    words: str
    since: float
    until: float | None = None

    def text(self, now: float) -> str:
        left_s = None if self.until is None else max(0.0, self.until - now)
        limit = "" if left_s is None else f" and {left_s:.0f} s more at most"
        return sentence(f"{self.words}, for {now - self.since:.0f} s so far{limit}.")

    def view(self, now: float) -> WaitStatus:
        left_s = None if self.until is None else round(self.until - now, 3)
        return {
            "for": self.words,
            "whom": [] if self.kind == NODES else list(self.whom),
            "since_s": round(now - self.since, 3),
            "at_most_s": left_s,
        }


class Waits:
    """The wait under way, and the one that was reported last."""

    def __init__(self, membership: Membership, assignment: Assignment, presence: Presence) -> None:
        self._state = membership.state
        self._membership = membership
        self._assignment = assignment
        self._presence = presence
        self._kind = ""
        self._phase: Phase | None = None  # of a wait for answers
        self._since = 0.0
        self._look_at: float | None = None
        self._shown: Wait | None = None

    def run_rules(self) -> None:
        """Find the wait under way; report it if it has lasted."""
        state, now = self._state, self._state.now
        kind = self._kind_of_wait()
        phase = state.phase if kind == ANSWERS else None
        if (kind, phase) != (self._kind, self._phase):
            if self._shown is not None:
                self._notice_end(self._shown)
            self._kind, self._phase, self._since = kind, phase, now
            self._look_at = now + NOTICE_AFTER_S if kind else None
        if self._look_at is None or now < self._look_at:
            return
        self._look_at = now + NOTICE_AFTER_S
        wait = self.current()
        if wait is not None and (self._shown is None or wait.whom != self._shown.whom):
            self._shown = wait
            whom = () if wait.kind == NODES else wait.whom
            self._state.outbox.notice("waiting", whom, wait.text(now))

    def next_deadline(self) -> float | None:
        """When to check the wait under way; None without a wait."""
        return self._look_at

    def current(self) -> Wait | None:
        find = {
            NODES: self._nodes,
            GATHER: self._gathering,
            SET_UP: self._setting_up,
            PEERS: self._peers,
            TOO_FEW: self._too_few,
            ANSWERS: self._answers,
        }.get(self._kind)
        return None if find is None else find()

    def _notice_end(self, shown: Wait) -> None:
        self._shown = None
        if shown.kind == PEERS:
            lasted_s = self._state.now - shown.since
            text = f"The wait for {replicas(shown.whom)} is over, after {lasted_s:.0f} s."
            self._state.outbox.notice("goes_on", shown.whom, text)

    # ------------------------------------------------------------ what is waited for

    def _kind_of_wait(self) -> str:
        state = self._state
        if not self._assignment.is_shared_out and self._assignment.is_gathering:
            return NODES
        if state.phase is Phase.EMPTY:
            if 0 < len(state.replicas.ready) < state.slots.open_count:
                return GATHER
            is_waited_for = self._presence.waits_for() or self._presence.latecomers()
            return SET_UP if is_waited_for else ""
        if state.too_few:
            return TOO_FEW
        if state.phase in ASKED and not state.waiting.done:
            return ANSWERS
        if state.phase is Phase.REJOIN and self._are_too_few:
            return GATHER
        return PEERS if state.stalled and state.phase in IN_QUORUM else ""

    @property
    def _are_too_few(self) -> bool:
        """The survivors have answered, and are fewer than a quorum needs."""
        state = self._state
        return 0 < len(state.live | state.replicas.ready) < state.needed

    def _nodes(self) -> Wait:
        state = self._state
        here, nodes = tuple(state.outbox.agents), state.nodes
        verb = "is" if len(here) == 1 else "are"
        words = f"{len(here)} of {nodes} nodes {verb} here, and the job waits for the rest"
        return Wait(NODES, here, words, self._since, self._assignment.gathered_at())

    def _gathering(self) -> Wait:
        """The replicas that are here wait for the others, before the first quorum or the next
        one.
        """
        state = self._state
        ready = state.replicas.ready | state.live
        late = {slot.replica_id for slot in state.slots.values() if not slot.is_finished} - ready
        least = f"{state.needed} of {state.spec.replicas} {'is' if state.needed == 1 else 'are'}"
        by = ", by the script's min_replica_size" * (state.least > state.spec.min_replicas)
        words = (
            f"{replicas(ready)} {_wait(ready)} for {replicas(late)} to reach a first step (at "
            f"least {least} needed{by})"
        )
        return Wait(GATHER, _ordered(late), words, self._since, self._membership.deadline)

    def _setting_up(self) -> Wait:
        """Scripts that set themselves up wait for their peers."""
        late, after = self._presence.waits_for(), self._presence.latecomers()
        if not late:
            words = (
                f"{replicas(after)} {_wait(after)} in the set-up until the others train, because "
                "they have exchanged their set-up's values already"
            )
            return Wait(SET_UP, after, words, self._since, None)
        words = f"the set-up of the scripts waits for {replicas(late)} to reach it"
        return Wait(SET_UP, late, words, self._since, None)

    def _answers(self) -> Wait:
        state = self._state
        silent = state.waiting.silent()
        if not state.waiting.unheard():
            joining = state.replicas.ready
            words = f"{replicas(joining)} {_wait(joining)} for "
            if self._are_outside(silent):
                words += f"{replicas(silent)} to begin a step {OUTSIDE}"
            else:
                words += (
                    "a step in which its peers let a replica join (a script may forbid it: "
                    "start_quorum() with allow_heal=False or shrink_only=True)"
                )
            return Wait(BOUNDARY, silent, words, self._since)
        words = f"the lighthouse waits for {replicas(silent)} {ASKED[state.phase]}"
        return Wait(ANSWERS, silent, words, self._since, self._membership.deadline)

    def _are_outside(self, replica_ids: Collection[str]) -> bool:
        found = [self._state.replicas[name].progress for name in replica_ids]
        return all(x is not None and x.phase is Activity.OUTSIDE for x in found)

    def _too_few(self) -> Wait:
        state = self._state
        wanted = {slot.replica_id for slot in state.slots.values() if not slot.is_finished}
        ended = {name for name in state.live if _has_ended(state.replicas[name])}
        if ended:
            late = wanted - ended
            whom = f"for {replicas(late)}" if late else "for each other"
            words = (
                f"{replicas(ended)} {'has' if len(ended) == 1 else 'have'} reached the end of the "
                f"script, and {_wait(ended)} {whom if late or len(ended) > 1 else 'to leave'}"
            )
            return Wait(TOO_FEW, _ordered(late), words, min(state.too_few.values()))
        late = wanted - state.live
        words = (
            f"{replicas(state.live)} {_repeat(state.live)} step {state.step_max} until more "
            "replicas contribute, as the script's min_replica_size asks"
        )
        return Wait(TOO_FEW, _ordered(late), words, min(state.too_few.values()))

    def _peers(self) -> Wait:
        """Members wait in a reduction for members that have not joined it."""
        state = self._state
        stalled = set(state.stalled)
        since = min(state.stalled.values())
        busy = state.live - stalled
        if not busy:
            words = f"{replicas(stalled)} wait for each other's data (check the network)"
            return Wait(PEERS, _ordered(stalled), words, since)
        words = f"{replicas(stalled)} {_wait(stalled)} for {replicas(busy)}"
        if len(busy) == 1:
            words += f" ({self._why(min(busy))})"
        return Wait(PEERS, _ordered(busy), words, since)

    def _why(self, replica_id: str) -> str:
        progress = self._state.replicas[replica_id].progress
        if progress is not None and progress.phase is Activity.PAUSED:
            return f"it is in an announced pause: {progress.pause}"
        found = BUSY.get(progress.phase) if progress is not None else None
        return found or "it is in no reduction"


def _ordered(replica_ids: set[str]) -> tuple[str, ...]:
    return tuple(sorted(replica_ids, key=replica_order))


def _has_ended(replica: Replica) -> bool:
    return replica.progress is not None and replica.progress.phase is Activity.ENDING


def _wait(replica_ids: Collection[str]) -> str:
    return "waits" if len(replica_ids) == 1 else "wait"


def _repeat(replica_ids: Collection[str]) -> str:
    return "repeats" if len(replica_ids) == 1 else "repeat"
