"""A death at the end of a script: the state to which the successor heals, and its way to the end.

The successor joins at the place of the last step, and runs the script from there to its end,
without a further step. The code after the last step may depend on the state of that moment: an
evaluation, an average that is updated once an epoch, a file. But its peers have come to the end,
and may have loaded other weights there, such as their best ones. So each replica copies its state
when a loop around steps ends, or a loader of training batches, and keeps the copy until the next
commit: it is the state of the last commit, if no step follows. Without a copy, because it would be
large, the successor heals to the state of the end, and gets it once more at its own end.

Not here: when a replica follows peers that have finished (loop.py, moving.py), how these wait for
it (training/lingering.py).
"""

from __future__ import annotations

import copy
from datetime import timedelta
from functools import partial
from sys import maxsize
from typing import TYPE_CHECKING, Any

import torch

from ftrun.base.errors import UserError
from ftrun.checkpoint.format import pack
from ftrun.checkpoint.leaves import clone_of
from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.carried import CALLBACKS
from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.mates import Mates
from ftrun.inject.zero_edit.states import BETWEEN
from ftrun.inject.zero_edit.values.tensors import STEP
from ftrun.inject.zero_edit.values.units import leaves, mapped, version_of
from ftrun.training.manager import Manager

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script

STEPS_A_COPY, BYTES_A_STEP, STEPS_AHEAD = 16, 4 << 20, 1_000
"""A copy takes up to a third of a step's time. So it must have so many steps, or one for so many of
its bytes; and as many as the last are there at the start."""
LINGER = timedelta(minutes=5)
"""How long those that have come to the end wait for the others: as long as torchrun's agents do."""
COPY_BYTES_MAX = 2 << 30
OF_COMMIT = "of_commit"
"""In the state that heals: it is that of the last commit, not of the script's end."""
State = dict[str, Any]
_NOTHING: tuple[State, State] = {}, {}


class Ending:
    """The state that one replica gives and takes, also at the end of its script.

    Its state functions are those of the Manager.

    Attributes:
        has_followed: this replica has joined peers that have finished.
        is_behind: it has joined peers that train, some steps after its place.
        is_replaying: it goes through these steps; ``replays``: so many are left.
        is_offered: who heals gets the copy, if there is one; False: the state of that moment.
        is_late: the end of a loop was skipped since the last step (``skips``).
        stands_still: nothing may step, because this replica holds the state after these steps.
    """

    def __init__(self, script: Script) -> None:
        self._script, self._carried, self._tensors = script, script.carried, script.tensors
        self.replays = 0
        self._copy: tuple[State, State] | None = None
        self._given: tuple[State, State] = _NOTHING
        self.has_followed = self.is_behind = self.is_replaying = False
        self.stands_still = self.is_offered = self.is_late = False
        self._at_draw: Any = None
        self._trained: list[tuple[torch.nn.Parameter, bool]] = []
        self._price = 0  # of a copy, in steps
        self._left = STEPS_AHEAD  # steps that no copy has taken

    @property
    def _is_of_commit(self) -> bool:
        return self._copy is not None and bool(self._copy[0].get(OF_COMMIT))

    # ------------------------------------------------------------ while it trains

    def _live(self) -> tuple[State, State]:
        return self._carried.state(), self._tensors.state()

    def loop_ended(self, steps: int, *, has_lost: bool) -> bool:
        """A loop around so many steps has ended, and none is under way.

        What follows, such as an evaluation, may need all peers. So those that have committed the
        last step keep a copy of its result, which ``state`` and ``tensors`` give until the next
        step begins; and others, which have lost it, take that at once. False: not yet.
        """
        if self._copy is not None:
            return True
        script, skips = self._script, self._skips(steps)
        live = _NOTHING if skips else self._live()
        is_small = not skips and _bytes_of(live) <= COPY_BYTES_MAX
        if has_lost:
            what = "at the end of each loop so short" if skips else "of a state so large"
            why = f"its peers keep no copy {what}. It heals at the next step"
            why = self._catch_up() if not script.mates.any(not is_small) else why
            live = self._live()
            if why:
                told.say(
                    f"replica {script.here.replica_id} has lost the last step of a loop, and "
                    f"continues with the state before that step: {why}"
                )
        if not self.is_late:
            script.marking.loop_ended()
        if is_small and script.course.now is BETWEEN:
            of_commit = {} if self.is_late else {OF_COMMIT: True}
            self._copy = _copied({**live[0], **of_commit}), _copied(live[1])
            self.is_offered = True
            script.manager().session.keep_state()
        return not skips

    def _skips(self, steps: int) -> bool:
        """Whether nothing is kept at the end of a loop around so many steps: it is short, as over
        the batches that a policy has collected, and there were too many copies. The loop around it
        ends with a copy that the script may have changed since the step. All replicas skip the same
        ends, but a newcomer may skip fewer."""
        if not self._price:
            of_bytes = 1 << (_bytes_of(self._live()) // BYTES_A_STEP).bit_length()
            self._price = max(STEPS_A_COPY, of_bytes)
        skips = max(self._left, steps) < self._price
        self._left -= 0 if skips else min(self._left, self._price)
        self.is_late |= skips
        return skips

    def _catch_up(self) -> str:
        """Take the peers' state. Returns the reason why this replica has not."""
        session, inside = self._script.manager().session, self._script.inside
        try:
            while self._script.mates.any(not session.catch_up(inside.joins_others)):
                pass  # interrupted: each try waits for a quorum, which has a deadline
            if inside.joins_others():
                inside.begin()
        except TimeoutError as error:
            return str(error)
        return ""

    def step_ended(self) -> None:
        """A step has ended, mostly with a commit: drop the copy, which is older."""
        self._copy, self._given, self.is_late = None, _NOTHING, False
        self._left += 1

    # ------------------------------------------------------------ the state that heals

    def _has_begun(self) -> bool:
        """Whether a step is committed."""
        return self._script.manager().current_step() > 0

    def state(self) -> State:
        """The state of the script's objects."""
        if not self._has_begun():
            return self._carried.first_state()
        return self._copy[0] if self.is_offered and self._copy else self._carried.state()

    def tensors(self) -> State:
        """The state of the tensors and arrays outside them."""
        if not self._has_begun():
            return {}
        return self._copy[1] if self.is_offered and self._copy else self._tensors.state()

    def load(self, state: State) -> None:
        """Take the peers' state of the script's objects.

        Raises:
            Refused: this replica has made other objects than its peers.
        """
        self._given = state, self._given[1]
        self._trained = self._carried.trained()
        self._carried.load(state)

    def load_tensors(self, state: State) -> None:
        """Take the peers' state of the tensors and arrays outside them."""
        self._given = self._given[0], state
        if state and not (self._carried.has_ended or self._carried.is_put_off):
            is_own = self._script.is_in_place or self._script.counters.has_all
            self._tensors.left = self._script.own.find(state.get(STEP, maxsize))
            self._tensors.load(state, is_own=is_own)

    def load_later(self) -> None:
        """Take what was put off: this replica has come to its peers' place."""
        self._script.charge.let_go(joins=True)
        self._carried.apply(self._given[0])
        self.load_tensors(self._given[1])

    # ------------------------------------------------------------ a newcomer before its first pass

    def joined_at_draw(self) -> None:
        """This replica has the state of peers that have come to the pass of their step, and stands
        at the draw of its batch: the script may change its model in between, for example normalize
        a weight, or step a scheduler. That is in the state already."""
        live = self._live()
        self._at_draw = _seen(live)
        is_small = _bytes_of(live) <= COPY_BYTES_MAX
        self._copy = (_copied(live[0]), _copied(live[1])) if is_small else None

    def pass_begins(self) -> None:
        """The first pass after a draw at which it has joined: it has its peers' state again."""
        before, self._at_draw = self._at_draw, None
        if before is None:
            return
        if before != _seen(self._live()):
            if self._copy is None:
                told.once(
                    "what the script's lines between the draw of a batch and the forward pass "
                    "change was changed twice in this replica, because the state of its peers is "
                    "too large to copy"
                )
            self._restore(is_late=True)
        self._copy = None

    # ------------------------------------------------------------ steps that its peers have taken

    def replay(self, steps: int, *, is_over: bool) -> None:
        """This replica has healed to the state of peers that have taken ``steps`` steps after the
        place at which it stands: it goes through these alone, and nothing is stepped. ``is_over``:
        they have finished."""
        self.has_followed, self.is_behind = is_over, not is_over
        self.replays = max(1, steps)
        self.is_replaying = self.stands_still = True
        self._copy = _copied(self._given[0]), _copied(self._given[1])
        self._given = _NOTHING
        for parameter, is_trained in self._trained:
            # The peers may have frozen it since, for another step of their turn (Lightning).
            parameter.requires_grad_(is_trained)
        self._trained = []
        if is_over and self._is_of_commit:
            self._script.marking.loop_ended()

    @property
    def goes_again(self) -> bool:
        """Whether the next pass is of a step that peers have taken which train on."""
        return self.is_behind and self.replays > 0

    def step_again(self) -> None:
        """A step ends that this replica has gone through again: its result has healed already.

        What it has changed, such as buffers, becomes what the peers have given.

        Raises:
            UserError: its peers have finished before this step.
        """
        if not self.replays:
            raise UserError(
                f"this replica was restarted, and its script trains on at {call_site()}, where its "
                "peers have finished. Either it joined them at the same lines in another call, or "
                "it continues by values that ftrun does not restore"
            )
        self.replays -= 1
        if self.is_behind and not self.replays:
            # Before the next pass, which may begin with a broadcast of buffers. What it has made
            # anew of its batch is of this step; the peers have given that of an older one.
            self._restore(is_late=True)

    def meets_peers(self, at: int = 0) -> None:
        """A call of the script's meets its peers, who have begun their step there: all that they
        have done since the steps that it went through again has healed too. ``at``: not before this
        one, because all peers go through these steps again."""
        if at and self._script.world.count < at:
            self._script.world.on_live = partial(self.meets_peers, at)
            return
        if self.is_behind and self.is_replaying and not self.replays:
            self.goes_on()
            if self._tensors.lacking:
                told.once(
                    f"this rank has its own {', '.join(self._tensors.lacking)}: the script made it "
                    "between the last step and the collective at which the peers wait, so it could "
                    "not be restored"
                )

    def goes_on(self, *, draws: bool = False) -> bool:
        """The script draws, or begins a pass or a reduction: whether that is of its own steps.

        What it has changed after the replay, for example an average, is restored first: peers that
        have finished have given that of their loop's end, others that of the step's beginning,
        which may come some draws later.
        """
        if self.is_replaying and not self.replays:
            self._script.counters.take_within()
        if self.is_replaying and not self.replays and not (draws and self.is_behind):
            is_behind, self.is_replaying, self.is_behind = self.is_behind, False, False
            self.stands_still = self.has_followed and not self._is_of_commit
            self._restore(is_late=is_behind)
        return not (self.is_replaying or self.has_followed)

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        """The script has come to its end: peers may heal from this replica once more.

        A replica that has followed gives them the state that it got. The code after its last step
        may have changed tensors outside the objects, and they cannot be set back: the variables
        that held them are gone.
        """
        if self.has_followed and not self._is_of_commit:
            self._restore()
        elif not self._is_of_commit:
            self._copy = None
        self.is_offered = True

    def _restore(self, *, is_late: bool = False) -> None:
        if self._copy is None:
            return
        state, tensors = copy.deepcopy(self._copy)
        with self._carried.versions_kept():
            self._carried.apply({**state, CALLBACKS: []})
            if tensors and not self._carried.has_ended:
                self._tensors.load(tensors, is_late=is_late)


def part(manager: Manager, mates: Mates, replica_id: str) -> None:
    """At the end of the script: wait for the others, and tell if some are missing."""
    mates.any(False)  # they come together: one of them may still write a file
    keeper = mates.keeper  # a mate that has left did so together with the worker replaced here
    is_together = (keeper is not None and keeper.may_leave) or manager.linger(LINGER)
    if manager.session.ends_early:
        told.left_early(replica_id, manager.current_step())
    elif not is_together:
        told.say(f"replica {replica_id} ends. Others have not reached the end of the script")


def _bytes_of(state: tuple[State, State]) -> int:
    return sum(getattr(leaf, "nbytes", 0) for leaf in leaves([*state]))


def _seen(state: tuple[State, State]) -> Any:
    """The plain values of a state, and the versions of its tensors."""
    found = pack(state)
    tensors = (x.value for x in found.leaves if isinstance(x.value, torch.Tensor))
    return found.structure, [version_of(x) for x in tensors]


def _copied(tree: Any) -> Any:
    """A copy of a state in the host's memory; shards of FSDP2 stay where they are."""
    return mapped(tree, _copied_leaf)


def _copied_leaf(leaf: Any) -> Any:
    if type(leaf) is torch.Tensor:
        return leaf.detach().to("cpu", copy=True)
    return clone_of(leaf) if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf)
