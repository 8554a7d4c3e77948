"""The one timer of a shell: it fires once, at the deadline that was set last."""

from __future__ import annotations

import asyncio

from ftrun.base import clock
from ftrun.base.timer import DeadlineTimer

LONG_S = 3600.0


def test_it_fires_once_at_the_latest_deadline_set() -> None:
    async def scenario() -> None:
        fired = asyncio.Event()
        times: list[float] = []

        def on_time() -> None:
            times.append(clock.now())
            fired.set()

        timer = DeadlineTimer(on_time)
        timer.set(clock.now() + LONG_S)
        at = clock.now() + 0.01
        timer.set(at)
        timer.set(at)
        await asyncio.wait_for(fired.wait(), 60)
        assert len(times) == 1
        assert times[0] >= at - 0.005

    asyncio.run(scenario())


def test_no_deadline_and_a_closed_timer_never_fire() -> None:
    async def scenario() -> None:
        fired: list[str] = []
        unset = DeadlineTimer(lambda: fired.append("unset"))
        unset.set(clock.now())
        unset.set(None)
        closed = DeadlineTimer(lambda: fired.append("closed"))
        closed.set(clock.now())
        closed.close()
        closed.set(clock.now())
        last = asyncio.Event()
        DeadlineTimer(last.set).set(clock.now() + 0.01)
        await asyncio.wait_for(last.wait(), 60)
        assert fired == []

    asyncio.run(scenario())


def test_the_same_deadline_can_be_set_again_once_it_has_passed() -> None:
    async def scenario() -> None:
        at = clock.now()
        calls = 0
        done = asyncio.Event()

        def on_time() -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                done.set()
            else:
                timer.set(at)

        timer = DeadlineTimer(on_time, delay_min_s=0.001)
        timer.set(at)
        await asyncio.wait_for(done.wait(), 60)
        assert calls == 3

    asyncio.run(scenario())
