"""Whose value a replica takes that joins its peers: each line of the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.core.worker.origins import Known, Origin, origin, random_origin

ALIKE = Known(own_step=-1, donor_step=9, left_step=8, together=((1, 1), (2, 2)), together_step=8)
DIFFER = replace(ALIKE, together=((0.5, 0.1), (0.7, 0.05)))
GREW = replace(ALIKE, together=((0.5, 0.25), (0.75, 1.25)))
ONCE = replace(ALIKE, together=((0.5, 0.25),), now=(0.75, 0.25))
EMPTIED = replace(ALIKE, together=(("4 a", "4 b"),), lengths=(4, 4, 1, 4))
SHIFTED = replace(ALIKE, together=((8, 12), (16, 20)))


@pytest.mark.parametrize(
    ("known", "found"),
    [
        (ALIKE, Origin.DONOR),
        (replace(ALIKE, own_step=10), Origin.OWN),
        (replace(ALIKE, is_unseen=True), Origin.UNSEEN),
        (replace(ALIKE, is_unseen=True, own_step=10), Origin.OWN),
        (replace(ALIKE, is_unseen=True, left_step=10), Origin.PREDECESSOR),
        (replace(ALIKE, left_step=10), Origin.PREDECESSOR),
        (replace(ALIKE, left_step=10, is_called_anew=True), Origin.DONOR),
        (replace(ALIKE, left_step=10, has_left=False), Origin.DONOR),
        (replace(ALIKE, together=()), Origin.DONOR),
        (replace(ALIKE, together=((2, 2.0),)), Origin.PREDECESSOR),
        (replace(ALIKE, together=((float("nan"), float("nan")),)), Origin.DONOR),
        (replace(ALIKE, together=((float("nan"), 2.0),)), Origin.PREDECESSOR),
        (DIFFER, Origin.PREDECESSOR),
        (replace(DIFFER, stands_alike=False), Origin.STAND_IN),
        (replace(DIFFER, stands_alike=False, donor_step=8), Origin.PREDECESSOR),
        (replace(DIFFER, is_called_anew=True), Origin.DONOR),
        (replace(DIFFER, has_left=False), Origin.DONOR),
        (replace(DIFFER, together=((0.5, 0.1), (0.7, 0.1))), Origin.PREDECESSOR),
        (GREW, Origin.CONTINUED),
        (replace(GREW, together=((-0.5, -0.25), (-0.75, -1.25))), Origin.CONTINUED),
        (replace(GREW, together=((0.5, 0.25), (float("inf"), 1.25))), Origin.PREDECESSOR),
        (replace(GREW, donor_step=8), Origin.PREDECESSOR),
        (replace(GREW, stands_alike=False), Origin.STAND_IN),
        (replace(GREW, is_called_anew=True), Origin.DONOR),
        (replace(GREW, has_left=False), Origin.DONOR),
        (ONCE, Origin.CONTINUED),  # it died in the step after the only one that is known
        (replace(ONCE, now=(0.75, 0.5)), Origin.CONTINUED),
        (replace(ONCE, now=(0.75, 0.1)), Origin.PREDECESSOR),
        (replace(ONCE, now=(0.5, 0.75)), Origin.PREDECESSOR),
        (replace(ONCE, now=(None, 0.75)), Origin.PREDECESSOR),
        (replace(ONCE, donor_step=8), Origin.PREDECESSOR),
        (replace(ONCE, stands_alike=False), Origin.STAND_IN),
        (EMPTIED, Origin.CONTINUED),
        (replace(EMPTIED, lengths=(4, 4, 5, 4)), Origin.PREDECESSOR),
        (replace(EMPTIED, lengths=(4, 4, 1, 2)), Origin.PREDECESSOR),
        (replace(EMPTIED, donor_step=8), Origin.PREDECESSOR),
        (replace(EMPTIED, stands_alike=False), Origin.STAND_IN),
        (SHIFTED, Origin.SHIFTED),
        (replace(SHIFTED, begins_here=True), Origin.OWN),
        (replace(SHIFTED, stands_alike=False, is_called_anew=True), Origin.SHIFTED),
        (replace(SHIFTED, has_left=False), Origin.DONOR),
        (replace(SHIFTED, together=((8, 12),)), Origin.PREDECESSOR),
        (replace(SHIFTED, together=((8, 12), (8, 12))), Origin.PREDECESSOR),
        (replace(SHIFTED, together=((8, 12), (16, 24))), Origin.PREDECESSOR),
        (replace(SHIFTED, together=((True, False), (False, True))), Origin.PREDECESSOR),
    ],
)
def test_the_table(known: Known, found: Origin) -> None:
    assert origin(known) is found


@pytest.mark.parametrize(("is_here", "was_alike"), [(True, True), (True, False), (False, False)])
def test_a_random_generator_is_the_donors_only_if_it_was_alike(
    is_here: bool, was_alike: bool
) -> None:
    assert random_origin(is_here=is_here, was_alike=was_alike) is Origin.PREDECESSOR
    assert random_origin(is_here=False, was_alike=True) is Origin.DONOR


def test_a_value_goes_on_as_far_from_the_donor_s_as_it_was() -> None:
    assert SHIFTED.as_far_from(24) == 28
    assert replace(SHIFTED, together=((12, 8), (20, 16))).as_far_from(24) == 20
    assert GREW.as_far_from(1.0) == 1.5
    assert GREW.as_far_from(0.5) == 1.0  # a sum of numbers of both signs
    assert GREW.as_far_from(0) == GREW.as_far_from(0.0) == 0  # begun again, as at each log line
    assert GREW.as_far_from(0.25) == 0.25  # and some steps ago
    assert ONCE.as_far_from(0) == 0 and ONCE.as_far_from(0.25) == 0.0
    assert GREW.as_far_from(None) == 1.25  # of another kind by now: what the predecessor had
