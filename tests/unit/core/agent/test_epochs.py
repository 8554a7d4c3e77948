"""An agent follows no lighthouse of an earlier epoch."""

from __future__ import annotations

from ftrun.core.agent.epochs import EpochGuard


def test_an_earlier_epoch_is_refused_and_the_same_one_is_not() -> None:
    guard = EpochGuard()
    assert [guard.accepts(epoch) for epoch in (5, 5, 4, 7, 6)] == [True, True, False, True, False]
    assert guard.highest == 7
