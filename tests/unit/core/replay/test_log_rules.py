"""What is logged of each kind of call."""

from __future__ import annotations

import pytest

from ftrun.core.replay.falls import Fall
from ftrun.core.replay.log_rules import Keeps, keeps, of_all


@pytest.mark.parametrize(
    ("kind", "root", "other"),
    [
        ("allreduce", Keeps.ALIKE, Keeps.ALIKE),
        ("_allgather_base", Keeps.INPUT, Keeps.INPUT),
        ("broadcast", Keeps.ALIKE, Keeps.ALIKE),
        ("gather", Keeps.RESULT, Keeps.NOTHING),
        ("scatter", Keeps.RESULT, Keeps.RESULT),
        ("barrier", Keeps.NOTHING, Keeps.NOTHING),
        ("send", None, None),
    ],
)
def test_what_is_logged(kind: str, root: Keeps | None, other: Keeps | None) -> None:
    assert keeps(kind, is_root=True) is root
    assert keeps(kind, is_root=False) is other


def test_each_reason_has_words_and_a_number_that_is_not_0() -> None:
    assert all(reason.words and reason for reason in Fall)
    assert len({reason.words for reason in Fall}) == len(Fall)


def test_ranks_take_turns_in_what_is_alike() -> None:
    assert [of_all(call, (1, 4, 5)) for call in range(5)] == [1, 4, 5, 1, 4]
