"""A simulated process, and the times that the whole world agrees on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ftrun.core.lighthouse.events import LighthouseSettings

if TYPE_CHECKING:
    from tests.sim.world import World

JOIN_TIMEOUT_S = 2.0
HEARTBEAT_TIMEOUT_S = 1.0
ISOLATION_LIMIT_S = 3.0
HANG_TIMEOUT_S = 64.0
"""Longer than it may take to find a process that another one waits for."""
HANG_TIMEOUT_SHORT_S = 4.0
"""In half of the worlds where a process may hang: agents then check silent workers."""
STANDSTILL_LIMIT_S = 4.0
"""In worlds where a loop may stall: the least time that peers wait for one."""
STANDSTILL_FACTOR = 10.0
BUILD_TIMEOUT_S = 2.0
OPERATION_TIMEOUT_S = 6.0
QUORUM_TIMEOUT_S = 30.0

SETTINGS = LighthouseSettings(
    takeover_grace_s=1.0,
    rejoin_timeout_s=1.0,
    build_timeout_s=BUILD_TIMEOUT_S,
    promise_timeout_s=2.0,
    reassign_grace_s=1.0,
    probe_s=0.45,  # longer than the slowest question and answer
    attach_s=0.8,  # longer than an agent's pause between two tries and its Hello's way
    switch_retry_max_s=0.5,
)


class Crashed(Exception):  # no error: a planned death between two instructions
    """The actor has died in the middle of an event."""


class Actor:
    """A process: it can die, and it can be stopped for a while (SIGSTOP, a slow machine).

    ``crash_in``: the number of instructions that are still carried out before it dies.
    ``dies_before``, ``dies_after``: the kind of instruction at which it dies.
    """

    name = ""
    role = ""
    world: World

    def __init__(self) -> None:
        self.alive = True
        self.paused_until = 0.0
        self.hangs = False
        self.was_paused = False
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.crash_in: int | None = None
        self.dies_before: type | None = None
        self.dies_after: type | None = None
        self._dies_now = False

    def crash(self) -> None:
        """Die at once."""
        raise NotImplementedError

    def pause(self, duration_s: float) -> None:
        """Do nothing for this time, or until an earlier pause ends, if that is later."""
        until = self.world.now + duration_s
        self.was_paused = True
        if until > self.paused_until:
            self.paused_until = until
            self.world.at(duration_s, None, self._wake)

    def hang(self) -> None:
        """Do nothing forever: only a kill ends it."""
        self.hangs = True
        self.paused_until = math.inf

    def hold(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Hold an action that is due in a pause; all are done in order when the pause ends."""
        self._held.append((action, args))

    def go_on(self) -> None:
        """The pause is over, or was ended early."""
        if self.hangs:
            return
        self.paused_until = 0.0
        held, self._held = self._held, []
        for action, args in held:
            self.world.at(0.0, self, action, *args)

    def _wake(self) -> None:
        if self.paused_until <= self.world.now:  # otherwise a longer pause has begun
            self.go_on()

    def spare(self) -> None:
        """Cancel the planned death."""
        self.crash_in = None
        self.dies_before = self.dies_after = None
        self._dies_now = False

    def before_instruction(self, instruction: object) -> None:
        """The place between two instructions, where a process can die.

        Raises:
            Crashed: the process has died.
        """
        if self.crash_in is None and not (self.dies_before or self.dies_after):
            return
        kind = type(instruction)
        if self.crash_in is not None:
            self.crash_in -= 1
        if self._dies_now or kind == self.dies_before or (self.crash_in or 0) < 0:
            if self.world.coverage is not None:
                self.world.coverage.died(self.role, kind.__name__)
            self.crash()
            raise Crashed
        self._dies_now = kind == self.dies_after
