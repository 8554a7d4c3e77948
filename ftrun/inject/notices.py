"""The warnings of ftrun's modules, in a worker whose script has configured no logging.

Python prints such a warning without its origin. Here it begins with ``ftrun:``, like other notices.
If the script has configured logging, its format is used.
"""

from __future__ import annotations

import logging
import sys


class _Notices(logging.Handler):
    """Prints to the real standard error, if the root logger has no handler."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("ftrun: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if logging.root.handlers or sys.__stderr__ is None:
            return
        try:
            sys.__stderr__.write(self.format(record) + "\n")
            sys.__stderr__.flush()
        except OSError:
            self.handleError(record)


def install() -> None:
    """Call it once, before the script runs."""
    logging.getLogger("ftrun").addHandler(_Notices())
