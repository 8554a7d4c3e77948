"""The thread of a worker that carries out decrees: it ends broken groups and connects new ones.

core/replay/settling.py says what comes next. Not here: the calls themselves (replayed.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftrun.base.errors import PeerError
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.settling import Counts, Step, again, in_all_logs, is_back, next_step
from ftrun.inject.zero_edit.world.calls import State, under_way_of
from ftrun.inject.zero_edit.world.replayed_call import ReplayedCall
from ftrun.inject.zero_edit.world.shell import Shell
from ftrun.inject.zero_edit.world.world import WAIT_S
from ftrun.process_groups.built import AbortSignal, BuiltGroup
from ftrun.snapshots.board import Word

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.world.replayed import ReplayedWorld

LOOK_S = 0.0005
LATE_S = 0.2


class Reconnecting:
    """Follows the decrees for the groups of a world.

    Args:
        world: whose lock guards all that is here.
        joined: the decree whose groups it has; -1: it has none.

    Attributes:
        first: by group, the first call of the decree whose groups are connected or are about to be;
            None: none are.
        is_open: they are in force, and what was begun before is issued again.
        joined: the decree whose groups are in force; ``told``: at which this worker has told others
            that it is back.
    """

    def __init__(self, world: ReplayedWorld, joined: int) -> None:
        self._world, self._board = world, world.board
        self.joined, self.told, self._cut = joined, joined, -1
        self.first: Counts | None = None if joined < 0 else {}
        self.is_open = joined >= 0
        self._again: list[ReplayedCall] = []
        self._place = ("", "")

    def starts(self, store: str, prefix: str) -> None:
        """The groups of each decree meet in this store."""
        self._place = store, prefix
        threading.Thread(target=self._mend, name="ftrun-mend", daemon=True).start()

    def note_back(self) -> None:
        """A call was begun: it may be the first one that others wait in. Under the lock."""
        if self.told == self.joined or not self.is_open or self.first is None:
            return
        has_come = self._world.is_proven and not self._world.has_left()
        if has_come and is_back(self.first, self._world.begun()):
            self.told = self.joined
            self._board.set(self._world.rank, Word.JOINED_AT, time.monotonic_ns())
            self._board.set(self._world.rank, Word.JOINED, self.joined)

    def _mend(self) -> None:
        world = self._world
        try:
            while True:
                words = self._board.look()
                match next_step(words, world.rank, self._cut, self.joined):
                    case Step.GO_ON:
                        self._board.wait(words.number, WAIT_S)
                        world.end_errors()
                        world.says()
                    case Step.CUT:
                        self._drop_groups()
                        self._cut = words.number
                    case Step.PUBLISH:
                        self._board.set(world.rank, Word.PUBLISHED, words.number)
                    case Step.WAIT:
                        time.sleep(LOOK_S)
                    case Step.CONNECT if world.is_apart:
                        time.sleep(LOOK_S)
                    case Step.CONNECT:
                        self._connect(words.number, in_all_logs(words.done))
        except Exception as error:
            world.falls(Fall.SCRIPT, f"{type(error).__name__}: {error}")
            raise

    def _drop_groups(self) -> None:
        """Bring all calls to an end."""
        world = self._world
        with world.changed:
            self.first, self.is_open = None, False
            groups = world.stop([*world.shells.values()])
            under_way = under_way_of([*world.flying.values(), *self._again])
        world.end_calls(groups, under_way)
        with world.changed:
            self._again.clear()
        self._board.set(world.rank, Word.CUT_AT, time.monotonic_ns())

    def _connect(self, number: int, first: Counts) -> None:
        """Connect the groups of a decree, unless a newer one comes."""
        signal, is_over, world = AbortSignal(), threading.Event(), self._world

        def watch() -> None:
            while not is_over.is_set():
                if self._board.wait(number, 0.1) > number:
                    signal.trigger()
                    return

        threading.Thread(target=watch, name="ftrun-decrees", daemon=True).start()
        store, prefix = self._place
        with world.changed:
            self.first = first
        made: list[tuple[Shell, BuiltGroup | None]] = []
        try:
            for key, shell in sorted(world.shells.items()):
                here, limit_s = tuple(range(len(shell.seats))), shell.timeout.total_seconds()
                name = f"{prefix}/{number}/{key}"
                made.append((shell, world.build_one(shell, here, store, name, limit_s, signal)))
        except PeerError:  # another has died, and the decree is still to come
            shut_down([built for _, built in made if built is not None])
            with world.changed:
                self.first = None
            if self._board.wait(number, LATE_S) == number:  # nobody has: let all try once more
                self._board.set(world.rank, Word.BROKEN, number)
                self._board.wait(number, WAIT_S)
            return
        finally:
            is_over.set()
        with world.changed:
            for shell, built in made:
                world.put(shell, tuple(range(len(shell.seats))), built)
            self.joined = number
            self.is_open = self._issue_again(first)
            self.note_back()
            world.changed.notify_all()
        world.complete_futures()
        shut_down(world.retired())

    def _issue_again(self, first: Counts) -> bool:
        """Whether all could be issued that must be."""
        world = self._world
        kept = {}
        for call in world.flying.values():
            assert call.line is not None, "it is numbered"
            if call.number >= first[call.line.id]:
                if not call.is_bare:
                    kept[call.line.id, call.number] = call
            elif call.state is not State.THROUGH:
                world.answer_from_log(call)  # all have it, and so has this replacement's log
        order = again(first, world.begun(), list(kept))
        if isinstance(order, Fall):
            world.falls(order)
            return False
        for one in order:
            call = kept[one]
            known = call.scratch() if call.state is State.THROUGH else call
            if known is None or known.shell.there is None:
                world.falls(Fall.INPUT)
                return False
            if known is not call:
                known.number = -1
                self._again.append(known)
            try:
                known.issue(known.shell.there)
            except RuntimeError as error:
                known.state, known.error = State.FAILED, error
        return True


def shut_down(groups: Sequence[BuiltGroup]) -> None:
    """In a thread of its own: the backend may wait for ever for an operation of a lost peer."""

    def work() -> None:
        for group in groups:
            group.shutdown()

    threading.Thread(target=work, name="ftrun-shutdown", daemon=True).start()
