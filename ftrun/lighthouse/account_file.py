"""The account of the lighthouse's job on disk, so that a restarted lighthouse resumes it.

It is one JSON document, replaced as a whole and not fsynced: it is written every few seconds, and
may be lost in a power failure. Like the incidents' file, it is not needed to run a job. Its age is
measured by the monotonic clock or, after a reboot or on another machine, by the date. Not here: its
content (core/books/account_record.py).
"""

from __future__ import annotations

import json
import logging
from datetime import datetime
from pathlib import Path
from typing import Any

from ftrun.base import clock
from ftrun.base.files import write_whole
from ftrun.base.linux import boot_id
from ftrun.core.books.records import AccountRecord

ACCOUNT_FILE = "account.json"
FILE_BYTES_MAX = 64 * 1024 * 1024

log = logging.getLogger(__name__)


class AccountFile:
    """The file of one lighthouse. Without a path nothing is kept."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._has_failed = False

    def load(self) -> AccountRecord | None:
        """The last record; None: there is no readable one, and the account begins again."""
        if self._path is None:
            return None
        try:
            with open(self._path, "rb") as file:
                found = json.loads(file.read(FILE_BYTES_MAX))
            return AccountRecord(found["account"], _age_s(found))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning(
                "%s cannot be read (%s): the account of the job's time starts over now",
                self._path,
                error,
            )
            return None

    def write(self, document: dict[str, Any]) -> None:
        if self._path is None:
            return
        found = {
            "written": clock.wall().isoformat(timespec="milliseconds"),
            "monotonic_s": clock.now(),
            "boot_id": boot_id(),
            "account": document,
        }
        try:
            write_whole(self._path, json.dumps(found), mode=0o600)
        except OSError as error:
            if not self._has_failed:
                log.warning("%s cannot be written: %s", self._path, error.strerror)
            self._has_failed = True


def _age_s(found: dict[str, Any]) -> float:
    if found["boot_id"] and found["boot_id"] == boot_id():
        return max(0.0, clock.now() - float(found["monotonic_s"]))
    return max(0.0, (clock.wall() - datetime.fromisoformat(found["written"])).total_seconds())
