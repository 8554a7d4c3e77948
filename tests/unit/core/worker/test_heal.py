"""A worker's own state: when it may be written over, what a heal leaves, what a commit needs."""

from __future__ import annotations

import pytest

from ftrun.core.ids import Attempt, StateId, Tag, pack_quorum_id
from ftrun.core.worker.heal import HealState

OWN, JOB = StateId(0, "own"), StateId(7, "job")
TAG = Tag(Attempt(pack_quorum_id(1, 1), 1), 7)


def test_a_heal_from_its_beginning_to_its_end() -> None:
    heal = HealState(OWN, heals_first=False)
    heal.begin(True, JOB)
    assert heal.must_load and heal.after is None
    heal.overwrite()
    heal.loaded = JOB
    assert not heal.must_load and heal.after == JOB and heal.torn
    assert heal.apply(TAG)
    assert heal.state == JOB
    assert not (heal.healing or heal.torn or heal.is_fresh)
    heal.commit(TAG)
    assert heal.state == JOB.committed(TAG)


def test_the_job_s_state_is_not_written_over() -> None:
    heal = HealState(OWN, heals_first=False)
    heal.begin(False, OWN)
    heal.commit(Tag(TAG.attempt, 0))
    heal.begin(True, JOB)
    with pytest.raises(AssertionError, match="C6"):
        heal.overwrite()


def test_nobody_trains_from_a_torn_state_or_commits_while_it_heals() -> None:
    heal = HealState(OWN, heals_first=False)
    heal.begin(True, JOB)
    with pytest.raises(AssertionError, match="S3"):
        heal.commit(TAG)
    heal.overwrite()
    with pytest.raises(AssertionError, match="S3"):
        heal.begin(False, OWN)


def test_what_was_given_up_while_it_was_applied_is_nobody_else_s() -> None:
    heal = HealState(OWN, heals_first=False)
    heal.begin(True, JOB)
    heal.loaded = JOB
    heal.keep_loaded_if(StateId(8, "next"))
    assert heal.must_load
    assert not heal.spoil()
    assert not heal.apply(TAG)
    assert heal.state.step == OWN.step and heal.state.lineage not in (OWN.lineage, JOB.lineage)


def test_a_loaded_state_serves_the_next_quorum_that_begins_with_it() -> None:
    heal = HealState(OWN, heals_first=False)
    heal.begin(True, JOB)
    heal.loaded = JOB
    heal.begin(True, JOB)
    assert heal.loaded == JOB
    heal.begin(True, StateId(9, "other"))
    assert heal.must_load
