"""Asks the terminal for its background colour, to choose dark or light colours.

The question (OSC 11) is followed by one that every terminal answers (DA1), so the wait ends even if
the first is not answered. It is sent before textual is imported, and read after that. Not here: the
colours (palette.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import termios
from collections.abc import Mapping

from ftrun.base import clock

ANSWER_S = 2.0
"""Long, because a later answer would be taken for keys. Every terminal answers DA1."""
ANSWER_BYTES_MAX = 4096
QUESTION = b"\x1b]11;?\x1b\\\x1b[c"
_COLOUR = re.compile(rb"\x1b\]11;rgba?:([0-9a-fA-F]+)/([0-9a-fA-F]+)/([0-9a-fA-F]+)")
_LAST = re.compile(rb"\x1b\[\?[0-9;]*c")
_LIGHT_FROM = 7


class Background:
    """One question, sent at once. The terminal does not echo until it is answered."""

    def __init__(self) -> None:
        self._fd = -1
        self._before: list[object] = []
        with contextlib.suppress(OSError, ValueError, termios.error):
            fd = sys.stdin.fileno()
            if not os.isatty(fd) or not sys.stdout.isatty():
                return
            self._before = termios.tcgetattr(fd)
            quiet = termios.tcgetattr(fd)
            quiet[3] &= ~(termios.ECHO | termios.ICANON)
            termios.tcsetattr(fd, termios.TCSANOW, quiet)
            self._fd = fd
            os.write(sys.stdout.fileno(), QUESTION)

    def is_light(self) -> bool | None:
        """The answer; None: no answer within ``ANSWER_S``."""
        if self._fd < 0:
            return None
        found, deadline = b"", clock.now() + ANSWER_S
        try:
            while not _LAST.search(found) and len(found) < ANSWER_BYTES_MAX:
                left_s = deadline - clock.now()
                if left_s <= 0 or not select.select([self._fd], [], [], left_s)[0]:
                    break
                found += os.read(self._fd, 256) or b"\x1b[?c"
        except OSError:
            return None
        finally:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self._fd, termios.TCSANOW, self._before)  # type: ignore[arg-type]
        return is_light(found)


def is_light(answer: bytes) -> bool | None:
    """Whether the colour in a terminal's answer is nearer to white than to black."""
    found = _COLOUR.search(answer)
    if found is None:
        return None
    red, green, blue = (int(part, 16) / (16.0 ** len(part) - 1) for part in found.groups())
    brightness: float = 0.299 * red + 0.587 * green + 0.114 * blue
    return brightness > 0.5


def said_by(environ: Mapping[str, str]) -> bool | None:
    """The background according to COLORFGBG, which some terminals set."""
    last = environ.get("COLORFGBG", "").rpartition(";")[2]
    if not last.isdecimal():
        return None
    return int(last) == _LIGHT_FROM or 9 <= int(last) <= 15
