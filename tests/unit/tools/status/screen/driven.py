"""Drives the screen by its keys, as textual's pilot does, and reads what is on it as text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from textual.pilot import Pilot

from ftrun.base import clock
from ftrun.core.lighthouse.status import Status
from ftrun.tools.status.screen.app import StatusApp
from ftrun.tools.status.source import Picture, State
from tests.unit.tools.status.still import Still

WAIT_S = 60.0


class Driven:
    """A screen in a separate terminal."""

    def __init__(self, app: StatusApp, pilot: Pilot[int], doors: Still) -> None:
        self.app = app
        self.pilot = pilot
        self.doors = doors

    def lines(self) -> list[str]:
        """All lines, as they are painted."""
        strips = self.app.screen._compositor.render_strips()
        return [strip.text for strip in strips]

    def text(self) -> str:
        """All of it."""
        return "\n".join(self.lines())

    def line(self, words: str) -> str:
        """The first line with these words."""
        found = [line for line in self.lines() if words in line]
        assert found, f"{words!r} is not in:\n{self.text()}"
        return found[0]

    async def press(self, *keys: str) -> None:
        """Press keys, and let all that follows come to its end."""
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def take(self, status: Status | None, state: State = State.LIVE, **facts: object) -> None:
        """A new picture comes."""
        at = float(facts.pop("taken_at", clock.now()))  # type: ignore[arg-type]
        self.app.take(Picture(state, status, at, **facts))  # type: ignore[arg-type]
        await self.pilot.pause()

    async def until(self, words: str) -> None:
        """Wait until these words are on the screen."""
        deadline = clock.now() + WAIT_S
        while words not in self.text():
            assert clock.now() < deadline, f"{words!r} did not come:\n{self.text()}"
            await self.pilot.pause(0.02)

    @property
    def chosen(self) -> str | None:
        """The key of the row that the cursor is on, in the pane that has the keys."""
        from ftrun.tools.status.screen.widgets import Table

        assert isinstance(self.app.focused, Table)
        return self.app.focused.key


def drive(
    picture: Picture | Status | None,
    test: Callable[[Driven], Awaitable[None]],
    *,
    size: tuple[int, int] = (120, 36),
    doors: Still | None = None,
) -> None:
    """Run the test in a terminal of this size, whose first picture this is."""
    doors = Still() if doors is None else doors
    if picture is not None and not isinstance(picture, Picture):
        picture = Picture(State.LIVE, picture, clock.now())

    async def run() -> None:
        app = StatusApp(doors, picture, is_light=False)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await test(Driven(app, pilot, doors))

    asyncio.run(run())
