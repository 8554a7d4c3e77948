"""Texts for people: the supervisor's notices and the reasons with which a job ends.

Pure functions. A text states what happened, to which replica, what ftrun does next, and what the
user can do. Not here: when a text is shown (supervisor.py, ending.py), a failure's cause
(failures.py), a worker that is replaced inside its group (mend_words.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ftrun.base.words import amount
from ftrun.core.agent.events import ShowNotice, WorkerLife
from ftrun.core.agent.failures import Failure, signal_name
from ftrun.core.agent.imports import NOTICE_AFTER_S
from ftrun.core.forms import Form
from ftrun.core.messages import USAGE_CODE

REMEDY_APART = (
    "For replicas that train together and heal, give the script a Manager (docs/MANAGER.md); for "
    "one training of N workers, use --workers-per-replica N."
)

# ---------------------------------------------------------------- slots and workers


def idle() -> ShowNotice:
    text = "All replicas run on other nodes. This node stands by until a replica moves here."
    return _notice("idle", text)


def resized(text: str) -> ShowNotice:
    return _notice("resized", text)


def lost(failure: Failure, workers_per_replica: int, then: str = "") -> ShowNotice:
    """A worker has failed; ``then``: the text about the consequences."""
    who = f"replica {failure.replica_id}"
    if workers_per_replica > 1:
        who += f", worker {failure.group_rank}"
    pid = f" (pid {failure.pid})" if failure.pid else ""
    text = f"{who}{pid} {failure.cause()}. {then}".rstrip()
    log = WorkerLife(failure.replica_id, failure.group_rank, failure.restarts)
    return ShowNotice("lost", (failure.replica_id,), text, log)


def restart(failure: Failure, delay_s: float, number: int, budget: int, at_start: bool) -> str:
    """The text after a failure that leads to restart ``number`` of ``budget``."""
    when = f"in {delay_s:g} s" if delay_s else "now"
    if not number:
        return f"It restarts {when}."
    is_usage = failure.status == USAGE_CODE
    alike = "no replica has trained yet" if is_usage else "all replicas fail in this way"
    unless = f", unless {alike}" if at_start else ""
    return f"Restart {number} of {budget} {when}{unless}."


def will_not_help(failure: Failure, step: int | None) -> str:
    where = "before the first step" if step is None else f"at step {step}"
    return (
        f"restarting will not help: replica {failure.replica_id} has failed twice in the same way "
        f"{where} ({failure.words()})"
    )


def crash_loop(failure: Failure, strikes: int) -> str:
    return (
        f"crash loop: replica {failure.replica_id} has failed {strikes} times in the same way "
        f"({failure.words()}) without a new step in between"
    )


def budget_spent(failure: Failure, budget: int) -> str:
    left = f"no restart is left of {budget}" if budget else "--max-restarts is 0"
    return f"replica {failure.replica_id} has failed ({failure.words()}) and {left}"


def job_ends(replica_id: str, reason: str) -> ShowNotice:
    return _notice("failed", f"The job ends: {reason}.", replica_id)


def job_ends_here(reason: str) -> ShowNotice:
    return _notice("failed", f"The job ends here: {reason}.")


def killed(replica_id: str, how: str) -> ShowNotice:
    return _notice("killed", f"replica {replica_id} {how}.", replica_id)


def out_of_grace(grace_s: float) -> str:
    return (
        f"did not end within --grace {grace_s:g} s and was killed; its checkpoint may be unfinished"
    )


def stuck(replica_id: str, group_ranks: Iterable[int]) -> ShowNotice:
    ranks = ", ".join(str(rank) for rank in sorted(group_ranks))
    text = (
        f"replica {replica_id}: worker {ranks} is dead, but its process is not gone: the kernel "
        "still frees its memory, or is stuck in a driver. Its replica waits for that."
    )
    return _notice("stuck", text, replica_id)


def apart(replica_id: str, target: str, replicas: int, has_stepped: bool) -> ShowNotice:
    does, each = ("trains", "trains") if has_stepped else ("has ended", "ran")
    text = (
        f"{target} {does} without a Manager, so its {replicas} replica groups are only supervised: "
        f"each {each} by itself. {REMEDY_APART}"
    )
    return _notice("apart", text, replica_id)


ELSEWHERE = (
    "the script makes its process group in a process that ftrun did not start: a child of a "
    "worker, or what a worker became by exec"
)


def elsewhere(can_begin_again: bool) -> ShowNotice:
    then = (
        "ftrun restarts the job as one world of all workers"
        if can_begin_again
        else "its replica alone restarts"
    )
    text = (
        f"{ELSEWHERE}. It runs as under torchrun, and does not heal, because ftrun restores only "
        f"what its own workers train. If a worker fails, {then}."
    )
    return _notice("elsewhere", text[0].upper() + text[1:])


IN_VAIN = ": a restart from the states that are held did not help"
HAS_ENDED = ": a part of the job has ended already"


def nothing_held(has_memory: bool, can_leave: bool) -> str:
    """Why replicas cannot resume from a step."""
    if has_memory:
        return ": no replica has left a sound state in memory"
    if can_leave:
        return ": no replica that trains could leave its state in memory"
    return (
        ": nothing outside the workers holds the state of a step. --memory-snapshots auto or "
        "--snapshot DIR would"
    )


def begins_again(
    replica_id: str, form: Form, reason: str, workers: int, why: str, *, is_kept: bool
) -> ShowNotice:
    """The run begins again in another form.

    ``workers``: of all replicas. ``why``: from which step. ``is_kept``: one world has memory
    snapshots.
    """
    how = "A failure restarts all of them"
    if is_kept:
        how += ", unless a memory snapshot replaces the failed one"
    then = {
        Form.ONE_WORLD: f"ftrun restarts the job as torchrun would: as one world of {workers} "
        f"workers{why}. {how}",
        Form.EXPLICIT: "ftrun restarts the job with each replica as its own world, as --inject "
        "explicit does",
        Form.DDP: "ftrun restarts the job with all replicas as one world, as --inject ddp does",
    }
    return _notice("again", f"{reason}. {then[form]}.", replica_id)


def begins_together(
    replica_id: str, reason: str, whose: Sequence[str], step: int, is_all: bool
) -> ShowNotice:
    """All replicas resume from a state that is held.

    ``whose``: the replicas that have it; "": a snapshot on a disk. ``is_all``: each has its own.
    """
    first = whose[0]
    if not first:
        where = "the state is the newest snapshot on the disk"
    elif is_all:
        where = "each has its own state in memory"
    elif len(whose) == 1:
        where = f"replica {first} has the state in memory, and the others take it from there"
    else:
        names = f"{', '.join(whose[:-1])} and {whose[-1]}"
        where = (
            f"replicas {names} have the state in memory, and the others take that of replica "
            f"{first}"
        )
    text = f"{reason}. All replicas restart together from step {step}: {where}."
    return _notice("together", text, replica_id)


def cannot_join(replica_id: str, reason: str) -> ShowNotice:
    return _notice("again", f"replica {replica_id} cannot join the others: {reason}", replica_id)


def cannot_begin_again(form: Form, reason: str) -> str:
    """Why a job on several nodes ends if its script needs another form."""
    if form not in (Form.ONE_WORLD, Form.TOGETHER):
        return f"{reason}. Give --inject {form.value} on every node"
    return f"{reason}; and one world of workers on several nodes is not offered"


def stands_in(replica_id: str, places: Iterable[tuple[int, str]]) -> ShowNotice:
    """The innermost frames of a replica's main threads, before it is killed.

    A worker without an answer is stopped, or has not reached its script yet.
    """
    known = sorted(places)
    each = [
        f"worker {rank} in {place or 'no Python code that could be read'}" for rank, place in known
    ]
    text = f"replica {replica_id} hangs: {'; '.join(each) or 'its stacks could not be taken'}."
    return _notice("hangs", text, replica_id)


def timer_expired(scope: str) -> str:
    return f"the timer {scope!r} of its script has expired"


def timer_signal(replica_id: str, group_rank: int, why: str, number: int) -> ShowNotice:
    """A timer has expired, and its script asks for a signal that need not end it, or for none."""
    then = (
        f"it is sent {signal_name(number)}, as it asked" if number > 0 else "it asked for nothing"
    )
    text = f"replica {replica_id}, worker {group_rank}: {why}; {then}."
    return _notice("timer", text, replica_id)


def no_more_standbys(deaths: int, status: int) -> ShowNotice:
    text = (
        f"Standby workers have ended {deaths} times before they were used, the last one with "
        f"status {status}. ftrun keeps no more of them. The job continues."
    )
    return _notice("standby", text)


def no_room_for_standbys(free: int) -> str:
    """``free``: the memory in bytes that they may use."""
    return (
        f"No standby worker is kept: {amount(max(0, free))} of memory may still be used, of this "
        "machine or its control group. A replacement is forked when it is needed."
    )


def draining(reason: str, grace_s: float) -> ShowNotice:
    return _notice("draining", f"{reason}: leaving within {grace_s:g} s.")


def leaves_already(name: str) -> ShowNotice:
    text = f"{name}: this node is leaving already. Another request stops it at once."
    return _notice("draining", text)


def does_not_begin(name: str) -> ShowNotice:
    return _notice("killed", f"{name}: the job does not restart.")


def second_request(name: str) -> ShowNotice:
    return _notice("killed", f"{name}: a second request to stop. All workers are killed now.")


def not_handled(name: str) -> ShowNotice:
    text = f"{name} is not one of --signals-to-handle: the job stops at once, and nothing is saved."
    return _notice("killed", text)


def stacks_wanted(name: str) -> ShowNotice:
    return _notice("stacks", f"{name}: the stacks of all workers follow. The job continues.")


# ---------------------------------------------------------------- imports and the lighthouse


def imports_are_slow(limit_s: float) -> ShowNotice:
    text = (
        f"torch (and any module of --preload) is still being imported after "
        f"{NOTICE_AFTER_S:g} s. No worker can start before that. ftrun waits {limit_s:g} s at most."
    )
    return _notice("importing", text)


def not_imported(limit_s: float) -> str:
    """The reason of a job that ends because no worker could ever be started."""
    return (
        "no worker could be started: torch (and any module of --preload) was not imported "
        f"within {limit_s:g} s (a longer --join-timeout allows more)"
    )


def lighthouse_back() -> ShowNotice:
    return _notice("lighthouse", "The lighthouse is back.")


def another_lighthouse(at: str, epoch: int, former: str) -> ShowNotice:
    text = f"The lighthouse is now at {at} (epoch {epoch}). It was at {former}."
    return _notice("lighthouse", text)


def lighthouse_gone(reason: str, limit_s: float) -> ShowNotice:
    text = (
        f"The connection to the lighthouse has ended ({reason}). Training continues until a "
        f"replica is lost, and for {limit_s:g} s at most (--isolation-limit)."
    )
    return _notice("lighthouse", text)


def no_quorum(step: int, stood_s: float) -> ShowNotice:
    text = (
        f"Training has stopped at step {step} for {stood_s:.0f} s, because a new quorum needs the "
        "lighthouse. It continues when the lighthouse is back."
    )
    return _notice("lighthouse", text)


def isolated(at: str, silent_s: float, end_code: int, left_s: float) -> ShowNotice:
    """The lease is over, and training waits; ``left_s``: the time until this node ends."""
    text = (
        f"{_lighthouse(at)} has not answered for {silent_s:.0f} s, so training has stopped. It "
        f"continues when the lighthouse is back. If that takes more than {left_s:.0f} s "
        "(--lighthouse-timeout), the scripts here are asked to stop, and this node ends with exit "
        f"code {end_code}."
    )
    return _notice("isolated", text[0].upper() + text[1:])


def trains_on(at: str, silent_s: float) -> ShowNotice:
    text = (
        f"{_lighthouse(at)} has not answered for {silent_s:.0f} s. The script has no Manager, so "
        "it runs on, and ftrun waits for the lighthouse as long as it runs."
    )
    return _notice("isolated", text[0].upper() + text[1:])


def lighthouse_lost(at: str, silent_s: float) -> str:
    """Why a node ends whose workers wait for a lighthouse that does not answer."""
    return f"{_lighthouse(at)} has not answered for {silent_s:g} s (--lighthouse-timeout)"


def _lighthouse(at: str) -> str:
    return f"the lighthouse at {at}" if at else "the lighthouse"


def _notice(kind: str, text: str, replica_id: str = "") -> ShowNotice:
    return ShowNotice(kind, (replica_id,) if replica_id else (), text)
