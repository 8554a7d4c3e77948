"""The deadline of imports: a notice first, the job's end much later."""

from __future__ import annotations

from ftrun.core.agent.imports import LIMIT_S, NOTICE_AFTER_S, ImportDeadline
from ftrun.lighthouse.server import HELLO_TIMEOUT_S


def test_it_is_said_once_and_ends_at_the_limit() -> None:
    import_deadline = ImportDeadline(100.0)
    assert import_deadline.deadline() == 100.0 + NOTICE_AFTER_S
    assert not import_deadline.is_slow(119.9)
    assert import_deadline.is_slow(120.0)
    import_deadline.shown = True
    assert not import_deadline.is_slow(121.0)
    assert import_deadline.deadline() == 100.0 + LIMIT_S
    assert not import_deadline.is_over(999.9)
    assert import_deadline.is_over(1000.0)


def test_what_is_done_is_neither_slow_nor_over() -> None:
    import_deadline = ImportDeadline(100.0, is_done=True)
    assert import_deadline.deadline() is None
    assert not import_deadline.is_slow(1e9)
    assert not import_deadline.is_over(1e9)


def test_a_lighthouse_waits_longer_for_a_hello_than_an_agent_for_its_imports() -> None:
    assert HELLO_TIMEOUT_S > LIMIT_S
