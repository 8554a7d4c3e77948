"""Prints notices of a worker that runs an unmodified script, on its standard error.

Not here: the notices of the lighthouse and the agent.
"""

from __future__ import annotations

import sys

BEGIN = "ftrun: "
LINES_MAX = 256
_SAID: set[str] = set()


def once(text: str) -> None:
    """Print ``text``, unless it was printed before, or ``LINES_MAX`` others were."""
    if text in _SAID or len(_SAID) >= LINES_MAX:
        return
    _SAID.add(text)
    say(text)


def say(text: str) -> None:
    """Print ``text``, but not by ``print``, which some scripts replace to print on rank 0 only."""
    if sys.__stderr__ is not None:
        sys.__stderr__.write(f"{BEGIN}{text}\n")
        sys.__stderr__.flush()


def made_late(site: str, what: str, steps: int) -> None:
    """Report that the script made something after ``steps`` steps, which newcomers may lack."""
    once(f"{site} {what} after {steps} steps")
    once(
        "What a script makes after its first step heals only if a restarted replica makes it too "
        "before it reaches its peers, as between two loops or in each turn of one. Otherwise the "
        "next death of a replica restarts the job as torchrun would run it; on several nodes the "
        "others continue without that replica. Make it before the first step, or between loops"
    )


def left_early(replica_id: str, step: int) -> None:
    """Report that the script has ended here while its peers continue from the same step."""
    say(
        f"replica {replica_id} has left the training loop at step {step}, and the others train on. "
        "It leaves the job, and they continue without it. If it was to stop, let all ranks leave "
        "the loop at the same step, for example by an all_reduce of a flag. If it has no more "
        "data, give all ranks the same number of batches"
    )


def lost(steps: int, of: int, *, come_again: bool) -> None:
    """Report that ``steps`` of ``of`` steps were not committed.

    ``come_again``: no sample is lost: it is trained again, or the peers have committed the step.
    """
    fate = "each of their samples is trained once" if come_again else "their batches are lost"
    say(f"{steps} of {of} steps were not committed: {fate}")
