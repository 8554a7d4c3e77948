"""The part of the account that outlives the lighthouse: a document of whole microseconds.

A restarted lighthouse continues from it. What the replicas did meanwhile is known when their
workers have reported: a replica whose very incarnation lives trained, if its step has advanced.
Otherwise it kept its former use, or had no quorum. All others are booked as absent. A document that
contradicts itself is refused, and the account begins again. Not here: the file
(lighthouse/account_file.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ftrun.core.books.bands import BANDS_MAX, Bands
from ftrun.core.books.facts import Stage
from ftrun.core.books.ledger import Ledger, SlotBook
from ftrun.core.books.picture import Picture
from ftrun.core.books.records import AccountRecord
from ftrun.core.books.uses import Use

SCHEMA = "ftrun.account/1"
KEPT = frozenset({Use.FINISHED, Use.DRAINED})
"""Uses that a slot without a process keeps."""


@dataclass(frozen=True, slots=True)
class Former:
    """The state of a slot when the record was written.

    ``step_us``: the time of a step; None: not known.

    ``step``: its worker's, or the job's if its worker had reported none; it may have trained on
    from there.
    """

    use: Use
    incarnation: str
    step: int
    step_us: int | None

    def use_since(self, step: int, is_in_quorum: bool, at: int) -> tuple[Use, int | None]:
        """Its use since ``at``, and the time from which it had no quorum; None: it has one."""
        steps = max(0, step - self.step)
        if is_in_quorum:
            return (Use.TRAINING if steps else self.use), None
        if not steps:
            return Use.NO_QUORUM, None
        return Use.TRAINING, None if self.step_us is None else at + steps * self.step_us


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored account. The present of its ledger is the time of the record."""

    ledger: Ledger
    formers: dict[str, Former]
    stood_at: int | None
    steps: int
    highest: int
    empty: int


def document(
    picture: Picture, ledger: Ledger, stood_at: int | None, steps: int, empty: int
) -> dict[str, Any]:
    """The present state of the ledger, as plain JSON."""
    return {
        "schema": SCHEMA,
        "job_id": picture.job_id,
        "has_ended": picture.stage is Stage.ENDED,
        "wall": ledger.wall,
        "stood_at": None if stood_at is None else stood_at - ledger.began,
        "steps": steps,
        "empty": empty,
        "step": picture.step,
        "costs": {str(number): cost for number, cost in ledger.costs(ledger.now).items()},
        "width": ledger.bands.width,
        "band_steps": ledger.bands.steps,
        "bands": {use.value: row for use, row in ledger.bands.by_use.items()},
        "slots": [_slot(picture, name, ledger) for name in ledger.books],
    }


def _slot(picture: Picture, name: str, ledger: Ledger) -> dict[str, Any]:
    slot, book = picture.slots[name], ledger.books[name]
    progress = slot.progress
    return {
        "slot": slot.replica_id,
        "use": book.use.value,
        "spent": {use.value: spent for use, spent in book.seconds(ledger.now).items()},
        "lost_before": book.lost_before,
        "incarnation": slot.incarnation or None,
        "step": picture.step if progress is None else progress.step,
        "step_us": None
        if progress is None or not progress.steps
        else round(progress.usual_s * 1e6),
    }


def restored(record: AccountRecord, picture: Picture, now: int) -> Restored | None:
    """The account of an earlier life of this job; None: it is of another job, or of another run.

    Raises:
        ValueError: it contradicts itself.
    """
    found = record.document
    try:
        is_ours = found["schema"] == SCHEMA and found["job_id"] == picture.job_id
        if not is_ours or found["has_ended"] != (picture.stage is Stage.ENDED):
            return None
        age = 0 if found["has_ended"] else max(0, round(record.age_s * 1e6))
        return _restored(found, picture, now - age - _whole(found["wall"]))
    except (KeyError, TypeError, AttributeError, AssertionError, IndexError) as error:
        raise ValueError(f"it is no account ({type(error).__name__}: {error})") from error


def _restored(found: dict[str, Any], picture: Picture, began: int) -> Restored:
    slots = {x["slot"]: x for x in found["slots"]}
    if set(slots) != set(picture.slots):
        raise ValueError("other slots")
    ledger = Ledger(slots, began)
    ledger.now = began + _whole(found["wall"])
    ledger.bands = _bands(found, began)
    ledger.counts = {}
    formers: dict[str, Former] = {}
    for name, slot in slots.items():
        use = Use(slot["use"])
        spent = {Use(key): _whole(value) for key, value in slot["spent"].items()}
        for key, value in spent.items():
            ledger.spent[key] = ledger.spent.get(key, 0) + value
        is_known = slot["incarnation"] is not None and not found["has_ended"]
        if is_known:
            step_us = None if slot["step_us"] is None else _whole(slot["step_us"])
            incarnation = str(slot["incarnation"])
            formers[name] = Former(use, incarnation, _whole(slot["step"]), step_us)
        stays = found["has_ended"] or (use in KEPT and not is_known)
        now_use = use if stays else Use.ABSENT
        ledger.books[name] = SlotBook(
            now_use, ledger.now, ledger.now, 0, spent, lost_before=_whole(slot["lost_before"])
        )
        ledger.counts[now_use] = ledger.counts.get(now_use, 0) + 1
    ledger.restore_costs({int(key): _whole(cost) for key, cost in found["costs"].items()})
    ledger.check()
    stood = found["stood_at"]
    return Restored(
        ledger=ledger,
        formers=formers,
        stood_at=None if stood is None else began + _whole(stood),
        steps=_whole(found["steps"]),
        highest=_whole(found["step"]),
        empty=_whole(found.get("empty", 0)),
    )


def _bands(found: dict[str, Any], began: int) -> Bands:
    bands = Bands(began, max(1, _whole(found["width"])))
    bands.steps = [_whole(count) for count in found["band_steps"]]
    for key, row in found["bands"].items():
        bands.by_use[Use(key)] = [_whole(value) for value in row]
    if any(len(row) > BANDS_MAX for row in (bands.steps, *bands.by_use.values())):
        raise ValueError("too many bands")
    return bands


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError(f"{value!r} is no number of microseconds")
    return value
