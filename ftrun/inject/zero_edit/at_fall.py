"""What a worker leaves in its launcher's memory where all replicas are about to begin again.

Theory of operation. A call that can be followed only while all ranks are there has met a rank that
is away: all replicas begin again (core/agent/together.py). Without memory snapshots the newest
state of the job is in those that train, and nowhere else. So each leaves what it would give to a
newcomer, with its random numbers, before it asks. Its successor takes all of that. That of a worker
that has died takes from another one what a newcomer gets.

The state is that of the last commit. If the step under way, or the one for which the script has
drawn, has a place, the successor stands there. Else it stands at the last place, and goes through
the steps since, as a newcomer does that is behind (ending.py). All ranks make the calls of these
steps again, and the state is given once more at the call at which this worker stands.

The main thread leaves its state, where the script makes such a call or waits for its peers: what
another thread finds out, or the launcher asks for, waits until it comes there. In a step it may
wait in a backward pass, in no code of ftrun's. Then another thread leaves the state, as it would
serve it.

Not here: the memory (snapshots/group_memory.py), how a state is claimed (inherited.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ftrun.base.free_memory import LEFT_SHARE, free_bytes
from ftrun.checkpoint.format import pack
from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.inherited import Inherited
from ftrun.inject.zero_edit.place import Place
from ftrun.inject.zero_edit.refusals import KILL_WAIT_S, LEAVING_S, Refused, refuse_away
from ftrun.inject.zero_edit.states import STEPPING
from ftrun.inject.zero_edit.values.journal import packed
from ftrun.inject.zero_edit.values.units import versions_of
from ftrun.snapshots.group_memory import AT_FALL, LEFT, GroupMemory
from ftrun.snapshots.states import described
from ftrun.training import context
from ftrun.training.healing import PASSED
from ftrun.training.resuming import Resuming

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.script import Script
    from ftrun.training.engine import Engine

LOOK_S = 0.25
"""A main thread that is twice at the same instruction waits, or is in a long call: what it changes
in that is seen."""


class AtFall:
    """Of one worker.

    Attributes:
        is_on: there is such memory; goes_on: with a state that is left there.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        own, *others = os.environ.get(AT_FALL, "").split() or [""]
        self._own, self._left = own, "".join(x for x in others if LEFT in x)
        self.is_on, self.goes_on = bool(own), bool(self._left)
        self._lock, self._is_over, self._has_left = threading.Lock(), threading.Event(), False
        if self.is_on:
            script.world.on_again = self._watch

    def keep(self) -> None:
        """The script's Manager is about to be made."""
        if self._left:
            context.Process.left = self._claim

    def connect(self, engine: Engine) -> None:
        """The Manager is made. Its waits are the main thread's."""
        engine.begins_again, engine.on_wait = self._is_asked, self.looks

    def _is_asked(self, reason: str) -> None:
        """Others are about to begin again: the main thread need not wait for their calls."""
        world = self._script.world
        world.begins_again(reason)
        with world.changed:
            aborted = world.stop([*world.shells.values()])
        for built in aborted:
            built.abort()

    def _watch(self) -> None:
        threading.Thread(target=self._leave_unseen, name="ftrun-leaves", daemon=True).start()

    def _leave_unseen(self) -> None:
        """Leave the state if the main thread waits somewhere in a step."""
        seen: Any = None
        while not self._is_over.wait(LOOK_S):
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            stands = frame, frame and frame.f_lasti, self._script.made, self._script.steps
            if stands == seen and self._script.course.now is STEPPING:
                with contextlib.suppress(Refused):
                    self.gives_up(self._script.world.why_again)
                return
            seen = stands

    def _claim(self, engine: Engine) -> Resuming | None:
        try:
            return Inherited(engine, self._left, lambda: self._script)
        except (OSError, ValueError):
            return None  # all train again, and it is free

    def looks(self) -> None:
        """The main thread waits, or begins a step: whether all are about to begin again.

        Raises:
            Refused: they are.
        """
        if reason := self._script.world.why_again:
            self.gives_up(reason)

    def gives_up(self, reason: str, since: int | None = None) -> NoReturn:
        """Leave the state, and ask. On a thread that runs the script.

        ``since``: the number of the script's call at which it stands; None: the next one.

        Raises:
            Refused: always.
        """
        self._is_over.set()
        if self.is_on:
            with self._lock:
                self._leave_once(since)
        refuse_away(reason, LEAVING_S if self.is_on else KILL_WAIT_S)

    def _leave_once(self, since: int | None) -> None:
        if self._has_left:
            return
        self._has_left = True  # whatever comes of it
        try:
            why = self._leave(since)
        except Exception as error:  # noqa: BLE001  # of the script's functions, too: it asks
            why = f"copying it failed: {type(error).__name__}: {error}"
        if why:
            here = self._script.here
            told.say(f"replica {here.replica_id} leaves no state in memory, because {why}")

    # ------------------------------------------------------------ a state

    def _leave(self, since: int | None) -> str:
        """Returns why it cannot."""
        script, made = self._script, self._script.made
        if made is None or not script.course.now.has_stepped or not made.current_step():
            return "it has not trained so far"
        machine, healing = made.session.machine, made.session.healing
        if machine.healing or healing.is_unread or script.ending.is_replaying:
            return "it is about to take it from others"
        if script.ending.has_followed or script.world.optimizer:
            return "it is in the middle of a step of its optimizer, or at its end"
        place = self._place(made.current_step(), script.world.count if since is None else since)
        names, random = script.randomness.encoded()
        passed = torch.tensor([healing.passes.has_passed()], dtype=torch.uint8)
        given = pack({**healing.tree(), PASSED: passed})
        head = {
            "place": place.encode(),
            "state": [machine.state.step, machine.state.lineage],
            "iterators": names,
            "random": len(random),
            **described(given),
        }
        memory = GroupMemory.open(self._own)
        area = memory.area(script.here.group_rank)
        area.lay_out_states()
        # Those that leave it at another place are not behind by as many steps.
        number = place.step + 1
        text = packed(head, [b"", *random])

        def has_room(more: int) -> bool:
            return more < free_bytes(left=LEFT_SHARE)

        every = (leaf.data for leaf in given.leaves)
        versions = versions_of([x for x in every if isinstance(x, torch.Tensor)])
        then, step = versions(), machine.state.step
        checks: Any = {"has_room": has_room, "is_whole": lambda: versions() == then}
        is_whole = area.write(number, text, given.leaves, step, {}, {}, **checks)
        return "" if is_whole else "it was changed while it was copied"

    def _place(self, step: int, count: int) -> Place:
        """Where a successor begins, with the state of so many steps; ``count``: the calls of the
        script's until it stands here."""
        script, standing = self._script, self._script.standing
        if not (script.course.now is STEPPING or script.come_for == script.steps):
            script.notes_next()
        # After a step that was lost the script is further, at the same number of commits.
        if script.come_for == script.steps and standing.place.step == standing.at == step:
            return standing.shown()
        standing.goes_back()
        place = standing.shown()
        return replace(place, again=max(0, count - place.exchanges))
