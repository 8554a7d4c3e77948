"""Sessions of the web page: what a browser holds instead of the job's token.

A code from ``POST /links`` is for one use within a minute, so a link with it is harmless in a
history or a log. It buys a session: a date and a MAC over it under a key that is derived from the
token. So nothing is kept about sessions, they outlive the lighthouse, and another token ends all.

The date is of the wall clock, because a session may meet another lighthouse; a clock that jumps
ends it, and the page asks again. Not here: the routes (page_routes.py), their guard (guard.py).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from ftrun.base import clock
from ftrun.protocol.auth import BEARER

CODES_MAX = 32
CODE_S = 60.0
SESSION_S = 8 * 3600
_PURPOSE = b"ftrun web session 1"
_SESSION = re.compile(r"([0-9]{1,12})\.([0-9a-f]{32})\.([0-9a-f]{64})")


class Sessions:
    """Makes and checks sessions of one token; keeps the codes that nobody has used yet."""

    def __init__(self, token: str) -> None:
        self._key = hmac.digest(token.encode(), _PURPOSE, "sha256") if token else b""
        self._codes: dict[bytes, float] = {}

    def new_code(self) -> str:
        """A code for one session. Of too many unused ones the oldest is forgotten."""
        self._forget_old()
        while len(self._codes) >= CODES_MAX:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_hex(32)
        self._codes[_digest(code)] = clock.now() + CODE_S
        return code

    def use_code(self, code: str) -> bool:
        """True if the code stands, which is over with this call."""
        self._forget_old()
        return self._codes.pop(_digest(code), None) is not None

    def new_session(self) -> str:
        ends = int(clock.wall().timestamp()) + SESSION_S
        return self._signed(f"{ends}.{secrets.token_hex(16)}")

    def admits(self, header: str | None) -> bool:
        """True if an ``authorization`` header carries a session that has not ended."""
        if not self._key or header is None or not header.startswith(BEARER):
            return False
        given = header[len(BEARER) :]
        found = _SESSION.fullmatch(given)
        if found is None:
            return False
        is_ours = hmac.compare_digest(given, self._signed(f"{found[1]}.{found[2]}"))
        return is_ours and clock.wall().timestamp() < int(found[1])

    def _signed(self, text: str) -> str:
        return f"{text}.{hmac.digest(self._key, text.encode(), 'sha256').hex()}"

    def _forget_old(self) -> None:
        now = clock.now()
        self._codes = {code: ends for code, ends in self._codes.items() if now < ends}


def _digest(code: str) -> bytes:
    """The key of a code: the duration of a look-up by digest reveals nothing about the codes."""
    return hashlib.sha256(code.encode("utf-8", "replace")).digest()
