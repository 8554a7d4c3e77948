"""The account as the status shows it: in seconds, until now.

Not here: the books (account.py), the fields' types (status.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from ftrun.core.books.account import Account
from ftrun.core.books.ledger import SlotBook
from ftrun.core.books.uses import Use
from ftrun.core.lighthouse.status import AccountStatus, BandsStatus, RateStatus

RATE_OVER = 30_000_000


def account_status(account: Account, now_s: float) -> AccountStatus:
    ledger, now = account.ledger, account.now(now_s)
    spent = ledger.total(now)
    seconds = in_seconds(spent)
    return {
        "wall_s": (now - ledger.began) / 1e6 if account.is_open else 0.0,
        "total_s": sum(spent.values()) / 1e6,
        "seconds": seconds,
        "goodput": account.goodput(now),
        "lost_s": sum(account.lost(book, now) for book in ledger.books.values()) / 1e6,
        "steps": account.steps,
        "bands": _bands(account, now),
    }


def in_seconds(spent: Mapping[Use, int]) -> dict[str, float]:
    """Seconds by use, in the order in which they are shown, without uses that have none."""
    return {use.value: spent[use] / 1e6 for use in Use if spent.get(use)}


def slot_seconds(account: Account, book: SlotBook, now_s: float) -> dict[str, float]:
    return in_seconds(book.seconds(account.now(now_s)))


def use_age_s(account: Account, book: SlotBook, now_s: float) -> float:
    return (account.now(now_s) - book.since) / 1e6


def rate_status(account: Account, now_s: float) -> RateStatus:
    """The job's commits per second, recently and since its first quorum."""
    now, step = account.now(now_s), account.step
    marks = [mark for mark in account.marks if now - mark.at >= RATE_OVER]
    mark = marks[-1] if marks else next(iter(account.marks), None)
    recent = None
    if mark is not None and now > mark.at:
        recent = round(max(0, step - mark.step) * 1e6 / (now - mark.at), 4)
    run = None
    if account.steps and account.stood_at is not None and now > account.stood_at:
        run = round(account.steps * 1e6 / (now - account.stood_at), 4)
    return {"now": recent, "run": run}


def _bands(account: Account, now: int) -> BandsStatus:
    """The bands up to now, past the last time that the books were carried forward.

    A band cannot be overdrawn.
    """
    bands = account.ledger.bands.until(now, account.ledger.ahead(now))
    count = bands.count(now) if account.is_open else 0
    seconds = {
        use.value: [value / 1e6 for value in _padded(bands.by_use[use], count)]
        for use in Use
        if any(bands.by_use.get(use, ()))
    }
    return {
        "width_s": bands.width / 1e6,
        "last_s": (now - bands.began - (count - 1) * bands.width) / 1e6 if count else 0.0,
        "seconds": seconds,
        "steps": _padded(bands.steps, count),
    }


def _padded(row: list[int], count: int) -> list[int]:
    return row + [0] * (count - len(row))
