"""The consequences of a quorum for one rank of a replica group: its place, its store, its heal.

The groups with the highest step are up to date. Each rank uses the store of one of them, its
*primary*: rank 0 the first's, rank 1 the second's, and so on, modulo their number. A group that is
behind heals, each rank from another group that is up to date. At step 0 all but the primary heal,
if the script asks for that, so that all begin with the same weights. The rules are torchft's, as
its manager's answers show them (tests/torchft/test_against_real.py). Not here: the rounds
(group.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftrun.core.torchft_quorum.records import QuorumMember, TorchftQuorum


@dataclass
class QuorumResult:
    """A quorum as one rank sees it: the answer of a manager. Scripts get it by torchft's name.

    Args:
        quorum_id (int): the quorum's id.
        replica_rank (int): the rank of this replica.
        replica_world_size (int): the number of replicas.
        recover_src_manager_address (str): the manager to heal from; empty: none.
        recover_src_replica_rank (int): the rank of that replica, or None.
        recover_dst_replica_ranks (list[int]): the ranks of the replicas that heal from this one.
        store_address (str): the store in which the ranks meet.
        max_step (int): the highest step.
        max_replica_rank (int): the rank among the replicas that have that step, or None.
        max_world_size (int): how many have it.
        heal (bool): whether this replica must heal.
        commit_failures (int): the highest count that any member reports.
        replica_ids (list[str]): the members' names.
        reconfigure_handles (list[str]): each member's handle for this rank.
    """

    quorum_id: int = 0
    replica_rank: int = 0
    replica_world_size: int = 1
    recover_src_manager_address: str = ""
    recover_src_replica_rank: int | None = None
    recover_dst_replica_ranks: list[int] = field(default_factory=list)
    store_address: str = ""
    max_step: int = 0
    max_replica_rank: int | None = None
    max_world_size: int = 1
    heal: bool = False
    commit_failures: int = 0
    replica_ids: list[str] = field(default_factory=list)
    reconfigure_handles: list[str] = field(default_factory=list)


def rank_quorum(
    quorum: TorchftQuorum, replica_id: str, group_rank: int, init_sync: bool
) -> QuorumResult | None:
    """The quorum as this rank sees it; None: its replica group is not a member."""
    members = sorted(quorum.participants, key=lambda member: member.replica_id)
    names = [member.replica_id for member in members]
    if replica_id not in names:
        return None
    rank = names.index(replica_id)
    max_step = max(member.step for member in members)
    newest = [member for member in members if member.step == max_step]
    primary = newest[group_rank % len(newest)]
    sources = _sources(members, primary, group_rank, all_heal=init_sync and max_step == 0)
    source = sources.get(rank)
    return QuorumResult(
        quorum_id=quorum.quorum_id,
        replica_rank=rank,
        replica_world_size=len(members),
        recover_src_manager_address="" if source is None else members[source].address,
        recover_src_replica_rank=source,
        recover_dst_replica_ranks=[to for to, of in sources.items() if of == rank],
        store_address=primary.store_address,
        max_step=max_step,
        max_replica_rank=newest.index(members[rank]) if members[rank] in newest else None,
        max_world_size=len(newest),
        heal=source is not None,
        commit_failures=max(member.commit_failures for member in members),
        replica_ids=names,
        reconfigure_handles=[_handle(member, group_rank) for member in members],
    )


def _sources(
    members: list[QuorumMember], primary: QuorumMember, group_rank: int, all_heal: bool
) -> dict[int, int]:
    """For each member that heals, by its place, the place of the one that it heals from."""
    healing = [
        place
        for place, member in enumerate(members)
        if member.step != primary.step or (all_heal and member is not primary)
    ]
    donors = [place for place in range(len(members)) if place not in healing]
    return {
        place: donors[(number + group_rank) % len(donors)] for number, place in enumerate(healing)
    }


def _handle(member: QuorumMember, group_rank: int) -> str:
    handles = member.reconfigure_handles
    return handles[group_rank] if group_rank < len(handles) else ""
