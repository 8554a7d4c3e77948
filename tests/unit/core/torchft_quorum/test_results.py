"""What each rank makes of a quorum: who heals from whom, and where the ranks meet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.torchft_quorum.records import QuorumMember, TorchftQuorum
from ftrun.core.torchft_quorum.results import rank_quorum


def quorum(*steps: int, failures: int = 0) -> TorchftQuorum:
    members = [
        QuorumMember(
            f"r{number}",
            f"manager{number}",
            f"store{number}",
            step,
            commit_failures=failures if number == 0 else 0,
            reconfigure_handles=(f"h{number}.0",),
        )
        for number, step in enumerate(steps)
    ]
    return TorchftQuorum(9, tuple(members))


def test_one_that_is_behind_heals_from_one_that_is_not() -> None:
    found = rank_quorum(quorum(5, 3, 5, failures=2), "r1", 0, init_sync=True)
    assert found is not None
    assert found.heal and found.recover_src_replica_rank == 0
    assert found.recover_src_manager_address == "manager0"
    assert (found.replica_rank, found.replica_world_size, found.max_step) == (1, 3, 5)
    assert (found.max_replica_rank, found.max_world_size) == (None, 2)
    assert found.commit_failures == 2 and found.quorum_id == 9
    assert found.reconfigure_handles == ["h0.0", "h1.0", "h2.0"]
    donor = rank_quorum(quorum(5, 3, 5), "r0", 0, init_sync=True)
    assert donor is not None and donor.recover_dst_replica_ranks == [1] and not donor.heal
    # Another rank takes another donor and another store.
    other = rank_quorum(quorum(5, 3, 5), "r1", 1, init_sync=True)
    assert other is not None and other.recover_src_replica_rank == 2
    assert other.store_address == "store2" and other.reconfigure_handles == ["", "", ""]


def test_at_the_first_step_all_take_the_primarys_state_if_the_script_wants_it() -> None:
    found = rank_quorum(quorum(0, 0, 0), "r0", 0, init_sync=True)
    assert found is not None and found.recover_dst_replica_ranks == [1, 2]
    found = rank_quorum(quorum(0, 0, 0), "r2", 0, init_sync=False)
    assert found is not None and not found.heal
    assert rank_quorum(quorum(0), "stranger", 0, init_sync=True) is None


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, 5), st.booleans())
def test_each_that_heals_has_one_donor_that_knows_it(
    steps: list[int], rank: int, init_sync: bool
) -> None:
    found = quorum(*steps)
    views = [rank_quorum(found, f"r{x}", rank, init_sync) for x in range(len(steps))]
    for place, view in enumerate(views):
        assert view is not None and view.replica_rank == place
        assert view.heal == (view.recover_src_replica_rank is not None)
        assert view.heal or steps[place] == max(steps)
        source = view.recover_src_replica_rank
        if source is not None:
            donor = views[source]
            assert donor is not None and not donor.heal and steps[source] == max(steps)
            assert place in donor.recover_dst_replica_ranks
            assert view.recover_src_manager_address == f"manager{source}"
    assert len({view.store_address for view in views if view is not None}) == 1
    healing = sum(view.heal for view in views if view is not None)
    told = sum(len(view.recover_dst_replica_ranks) for view in views if view is not None)
    assert healing == told
