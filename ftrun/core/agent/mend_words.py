"""Texts about a worker that is replaced inside its group, for people and for its incident.

Pure functions. Not here: when a text is shown (replacing.py), the reasons of falls
(core/replay/falls.py), all other texts of the supervisor (words.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from ftrun.base.words import counted, ranges
from ftrun.core.agent.events import ShowNotice, WorkerLife
from ftrun.core.agent.failures import Failure
from ftrun.core.failure_kinds import CORRUPTED
from ftrun.core.replay.afterwards import Waits
from ftrun.core.replay.alike import NEVER, Unlike
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.settling import Counts


def replaced(failure: Failure, then: str, *, is_told: bool = False) -> ShowNotice:
    """A worker has died and was replaced inside its group; ``then``: the text about what followed.

    ``is_told``: the replacement was reported before.
    """
    who = f"worker {failure.replica_id}.{failure.group_rank}"
    pid = f" (pid {failure.pid})" if failure.pid else ""
    log = WorkerLife(failure.replica_id, failure.group_rank, failure.restarts)
    what = "was replaced, and its group did not continue" if is_told else failure.cause()
    return ShowNotice("lost", (failure.replica_id,), f"{who}{pid} {what}. {then}", log)


WAS_TO_BE_REPLACED = "It was to be replaced when its group ended."
WOULD_FAIL_AGAIN = (
    "It would fail again in the step that its replacement repeats, so its replica restarts. "
)
WAS_LATE = (
    "The other replicas trained on before its replacement was ready, so its replica restarts. "
)


def is_replaced(failure: Failure, step: int) -> ShowNotice:
    """A worker that died is being replaced, and this takes long."""
    return replaced(
        failure, f"Its replacement repeats the work since step {step} from memory. The others wait."
    )


def went_on(step: int, after_s: float, number: int, budget: int, lost: int | None = 0) -> str:
    """The text after a death. ``lost``: the number of lost steps; None: it is not known."""
    cost = "no step was lost"
    if lost is None:
        cost = "the group ended before it was known whether a step was lost"
    if lost:
        were = "was" if lost == 1 else "were"
        cost = f"{counted(lost, 'step')} {were} not committed"
    return (
        f"Its replacement repeated the work since step {step} from memory. All continued after "
        f"{after_s:.2g} s, and {cost}. Restart {number} of {budget}."
    )


def began_again(step: int, reached: int, after_s: float, number: int, budget: int) -> str:
    """The text after a fall from which all workers have resumed from memory."""
    again = "" if reached <= step else f", and repeat {counted(reached - step, 'step')}"
    return (
        f"After {after_s:.2g} s all resumed from step {step}, the last that each had in memory"
        f"{again}. Restart {number} of {budget}."
    )


def restarted_with(rank: int) -> str:
    """The group restarts, and ``rank`` was replaced as well: the cost is reported once."""
    return f"Its group restarts. The incident of worker {rank} has the cost."


def corrupted(found: Unlike) -> str:
    """The cause of a worker whose parameters are not its mates' any more."""
    others = [rank for rank in found.mates if rank not in found.odd]
    since = f"since a step after {found.agreed} and up to {found.step}"
    if found.odd:
        also = found.odd[:-1]
        more = f", as {'is' if len(also) == 1 else 'are'} {_workers(also)}," if also else ""
        return (
            f"{CORRUPTED}{more} {since}: its parameters differ from those of {_workers(others)}, "
            "because memory or a device has altered them (silent corruption)"
        )
    return (
        f"{CORRUPTED}, or {_workers(others[:-1])}, {since}: their parameters differ, because "
        "memory or a device has altered some (silent corruption)"
    )


def differ_by_script(found: Unlike) -> str:
    """Workers whose parameters differ again, or have never been equal, are trained so."""
    odd = found.odd or found.mates[-1:]
    others = [rank for rank in found.mates if rank not in odd]
    why = (
        "and they were never seen equal after a step"
        if found.agreed == NEVER
        else f"again after all had resumed from step {found.agreed}"
    )
    return (
        f"has other parameters than {_workers(others)} at step {found.step}, {why}: the script "
        "changes them by its rank, or this node's memory is defective. They are not compared any "
        "more"
    )


def waits_for_node(replica_id: str, step: int) -> ShowNotice:
    text = (
        f"The nodes that are left have the states of step {step} in memory. All workers resume "
        "from there as soon as a node takes the lost one's place."
    )
    return ShowNotice("lost", (replica_id,), text)


def would_go_on(replica_id: str, step: int) -> ShowNotice:
    text = f"With another node all workers could resume from step {step}."
    return ShowNotice("lost", (replica_id,), text)


def not_replaced(
    group_rank: int,
    reason: Fall | None,
    found: str,
    life: int | None = None,
    staying: Sequence[int] = (),
    *,
    is_one: bool = True,
) -> str:
    """Why all workers of a group are started again, although there are memory snapshots.

    ``found``: a worker's detail. ``is_one``: it is the only replica. ``life``: the replacement's
    life, whose log shows the reason. ``staying``: the workers that have not left their broken
    group.
    """
    why = "an earlier one could not be" if reason is None else reason.because(found)
    if reason is Fall.STAYS:
        why += f" ({', '.join(f'worker {rank}' for rank in staying)})"
    if life is not None:
        why += f" (the replacement's log is {life}.log)"
    then = "all workers restart" if is_one else "its replica restarts"
    return f"Worker {group_rank} cannot be replaced alone, so {then}: {why}. "


def do_not_go_on(
    replica_id: str,
    ranks: Sequence[int],
    still_s: float,
    done: Sequence[Counts],
    waits: Sequence[Waits | None],
) -> ShowNotice:
    """After a mend some workers have waited in a call for long. ``ranks``: the replaced ones."""
    text = (
        f"Since {_workers(ranks)} came back, some workers have waited {still_s:.0f} s in one call: "
        f"{where_all_are(done, waits)}. They keep waiting, because another worker may still be "
        "computing. `ftrun stack` shows where each stands. A worker that you end by kill -9 is "
        "replaced; --hang-factor F does that by itself."
    )
    return ShowNotice("waits", (replica_id,), text)


def where_all_are(done: Sequence[Counts], waits: Sequence[Waits | None]) -> str:
    """The call in which each worker waits. ``done``: by rank, the calls of each group."""
    groups = [*dict.fromkeys(group for own in done for group in own)]
    places: dict[str, list[int]] = {}
    for rank, known in enumerate(waits):
        places.setdefault(_place(groups, known), []).append(rank)
    found = [f"{_workers(ranks)} {place}" for place, ranks in places.items()]
    for group in sorted({known.group for known in waits if known and known.call >= 0}):
        members = [rank for rank, own in enumerate(done) if group in own]
        found.append(f"group {groups.index(group) + 1} is of {_workers(members)}")
    return ", ".join(found)


def _place(groups: Sequence[int], known: Waits | None) -> str:
    if known is None or not known.is_fresh:
        return "silent (stopped, or in a library that holds Python's lock)"
    if known.call < 0:
        return "in no collective"
    number = groups.index(known.group) + 1
    return f"in call {known.call} ({known.kind.strip('_')}) of group {number}"


def _workers(ranks: Sequence[int]) -> str:
    return f"{'worker' if len(ranks) == 1 else 'workers'} {ranges([*map(str, ranks)])}"


def would_have_gone_on(step: int) -> str:
    """No restart is left for a worker that could have been replaced."""
    return f"It could have resumed from step {step}. " if step >= 0 else ""
