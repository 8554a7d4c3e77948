"""The exit code and the reason of a job whose scripts have all ended well. Pure.

0 means that the job has done what was asked for: all replicas have, or at least as many as the user
has stated (``--min-replicas``), and no difference between their ends is known (divergence.py). Not
here: when a job is over (leaving.py, forming.py), a job that fails.
"""

from __future__ import annotations

from ftrun.base.errors import ExitCode
from ftrun.core.lighthouse.slots import GIVEN_UP, IDLE
from ftrun.core.lighthouse.state import MembershipState

ABSENT_SHOWN = 8
ALL = "all replicas have finished"
NOBODY_HOLDS_IT = "some replicas have finished, and no replica that is left holds their work"
NOBODY_IS_LEFT = "some replicas have finished, and no replica is left that could"
RANK_0 = "what rank 0 alone does at the end was not done, so its files may be missing or old"


def outcome(state: MembershipState, if_none_is_absent: str = ALL) -> tuple[int, str]:
    """The outcome of a job in which some replica has done what was asked for, or none has trained.

    A replica that people have drained does not count. If none has trained, the scripts only had to
    run. ``if_none_is_absent``: the reason if no replica is absent.
    """
    absent, done = state.slots.absent(), state.slots.done()
    none_has_trained = not done and all(x.how == IDLE for x in absent)
    if state.unlike:
        return int(ExitCode.CORRUPTED), f"all have reached the end, but {state.unlike}"
    if not absent or none_has_trained:
        return 0, if_none_is_absent
    spec, verb = state.spec, "has" if done == 1 else "have"
    words = [x.words() for x in absent[:ABSENT_SHOWN]]
    if len(absent) > ABSENT_SHOWN:
        words.append(f"and {len(absent) - ABSENT_SHOWN} more")
    if any(x.replica_id == "0" and x.how == GIVEN_UP for x in absent):
        words.append(RANK_0)
    text = f"{done} of {done + len(absent)} replicas {verb} finished"
    if spec.accepts_fewer and done >= spec.min_replicas:
        allowed = f", which --min-replicas {spec.min_replicas} allows"
        return 0, f"{text}{allowed}: {'; '.join(words)}"
    return int(ExitCode.DEGRADED), f"{text}: {'; '.join(words)}"
