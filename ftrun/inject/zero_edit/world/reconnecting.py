"""The mending thread of a worker carries out decrees: it ends broken groups and connects new ones.

core/replay/settling.py decides each step. Not here: the calls themselves (replayed.py).
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
        world: its lock guards all attributes.
        joined: the decree whose groups it has; -1: none.

    Attributes:
        first: by group, the first call under the decree whose groups are connected or about to be;
            None: there is no such decree.
        is_open: these groups are in force, and calls begun earlier were issued again.
        joined: the decree whose groups are in force.
        told: the last decree at which this worker has reported that it is back.
    """

    def __init__(self, world: ReplayedWorld, joined: int) -> None:
        self._world, self._board = world, world.board
        self.joined, self.told, self._cut = joined, joined, -1
        self.first: Counts | None = None if joined < 0 else {}
        self.is_open = joined >= 0
        self._again: list[ReplayedCall] = []
        self._place = ("", "")

    def starts(self, store: str, prefix: str) -> None:
        """Start the thread. The groups of each decree connect through this store."""
        self._place = store, prefix
        threading.Thread(target=self._mend, name="ftrun-mend", daemon=True).start()

    def note_back(self) -> None:
        """Report that this worker is back, if it has caught up with the decree. Under the lock.

        Called after a call was begun, because others may wait for that call.
        """
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
        """Stop all groups, and end all calls under way."""
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
        """Connect the groups of a decree; gives up when a newer decree comes."""
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
        except PeerError:  # a worker has died, and its decree is still to come
            shut_down([built for _, built in made if built is not None])
            with world.changed:
                self.first = None
            if self._board.wait(number, LATE_S) == number:  # no decree: let all workers retry
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
        """Issue calls again that not all workers have; False: one cannot be issued again."""
        world = self._world
        kept = {}
        for call in world.flying.values():
            assert call.line is not None, "it is numbered"
            if call.number >= first[call.line.id]:
                if not call.is_bare:
                    kept[call.line.id, call.number] = call
            elif call.state is not State.THROUGH:
                world.answer_from_log(call)  # all workers' logs have it, this one's too
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
    """Shut groups down in a separate thread, because a backend may wait forever for a lost peer."""

    def work() -> None:
        for group in groups:
            group.shutdown()

    threading.Thread(target=work, name="ftrun-shutdown", daemon=True).start()
