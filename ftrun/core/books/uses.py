"""The use of a slot's time, at each moment: exactly one ``Use`` (docs/ACCOUNT.md).

``use_of`` decides it from the slot, the job's stage and the worker's last Progress. Not here: the
seconds (ledger.py), when the use is asked for and from when on it counts (account.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from ftrun.core.activity import Activity
from ftrun.core.books.facts import Seen, Stage
from ftrun.core.messages import LeaveReason


class Use(Enum):
    """The values are for the status, in the order in which they are shown."""

    TRAINING = "training"
    OUTSIDE = "outside"
    WAITING = "waiting"
    REPAIRING = "repairing"
    HEALING = "healing"
    STARTING = "starting"
    BACKOFF = "backoff"
    NO_QUORUM = "no quorum"
    STOPPED = "stopped"
    ABSENT = "absent"
    DRAINED = "drained"
    FINISHED = "finished"
    RUNNING = "running"

    __hash__ = object.__hash__  # an Enum's own is slow, and the books look uses up often


NOT_COUNTED = frozenset({Use.DRAINED, Use.FINISHED, Use.RUNNING})
"""A replica that was asked to leave, or whose script has ended, need not train.

It is not known whether a script without a Manager trains.
"""
LOST = frozenset(Use) - NOT_COUNTED - {Use.TRAINING, Use.OUTSIDE}
"""The replica should train and cannot."""
GOES_ON = frozenset({Use.TRAINING, Use.OUTSIDE})
"""The script makes progress, as far as is known."""

_BY_ACTIVITY = MappingProxyType(
    {
        Activity.STARTING: Use.STARTING,
        Activity.QUORUM: Use.NO_QUORUM,
        Activity.STEP: Use.TRAINING,
        Activity.WAITING: Use.WAITING,
        Activity.OUTSIDE: Use.OUTSIDE,
        Activity.COLLECTIVE: Use.OUTSIDE,
        Activity.HEALING: Use.HEALING,
        Activity.JOINING: Use.HEALING,
        Activity.TOO_FEW: Use.NO_QUORUM,
        Activity.ENDING: Use.FINISHED,
        Activity.STOPPED: Use.TRAINING,  # it is over when it is reported (account.py)
        Activity.LEFT: Use.FINISHED,
        Activity.PAUSED: Use.OUTSIDE,
        Activity.APART: Use.RUNNING,
    }
)
_BUSY = frozenset({Activity.OUTSIDE, Activity.COLLECTIVE, Activity.PAUSED})
"""What the script does without its peers: no quorum begins or ends it."""


def goodput(spent: Mapping[Use, int]) -> float | None:
    """The share of training in all that counts; None: nothing counts yet."""
    counted = sum(time for use, time in spent.items() if use not in NOT_COUNTED)
    return round(spent.get(Use.TRAINING, 0) / counted, 6) if counted else None


def use_of(slot: Seen, stage: Stage, *, is_forming: bool) -> Use:
    """The use of this slot's time now. ``is_forming``: no replica trains yet, or any more."""
    if slot.is_finished:
        return Use.FINISHED
    if not slot.incarnation:
        return _without_replica(slot)
    if slot.leaving is not None:
        return Use.DRAINED if slot.leaving is LeaveReason.DRAINED else Use.FINISHED
    if stage is Stage.TAKEOVER:
        return _in_takeover(slot)
    if not slot.is_member:
        return Use.NO_QUORUM if slot.is_known else _before_its_reports(slot)
    if stage is Stage.STANDS:
        return _of_member(slot)
    if slot.progress is not None and slot.progress.phase in _BUSY:
        return Use.OUTSIDE
    return Use.NO_QUORUM if is_forming else Use.REPAIRING


def _without_replica(slot: Seen) -> Use:
    if slot.is_drained:
        return Use.DRAINED
    if slot.is_backing_off:
        return Use.BACKOFF
    return Use.STARTING if slot.is_first else Use.ABSENT


def _in_takeover(slot: Seen) -> Use:
    """The lighthouse decides nothing yet, and the quorums of its last life train on."""
    if not slot.is_known:
        return _before_its_reports(slot)
    is_in_quorum = any(report.is_in_quorum for report in slot.reports)
    return _of_member(slot) if is_in_quorum else Use.NO_QUORUM


def _before_its_reports(slot: Seen) -> Use:
    is_apart = slot.progress is not None and slot.progress.phase is Activity.APART
    return Use.RUNNING if is_apart else Use.STARTING


def _of_member(slot: Seen) -> Use:
    """The use of a member while its quorum is in force."""
    progress = slot.progress
    if progress is not None and (not slot.is_overtaken or progress.phase in _BUSY):
        return _BY_ACTIVITY[progress.phase]
    if slot.heals:
        return Use.NO_QUORUM if slot.awaits_switch else Use.HEALING
    return Use.TRAINING
