"""Sessions of the web page: what a browser holds instead of the job's token.

A code from ``POST /links`` can be used once, within a minute, so a link with it is harmless in a
history or a log. It is exchanged for a session: a date with a MAC under a key that is derived from
the token. So the lighthouse stores nothing about sessions, they outlive a lighthouse, and a new
token ends all of them.

The date is of the wall clock, because a session may be checked by another lighthouse. If a clock
jumps the session ends, and the page asks again. Not here: the routes (page_routes.py), their guard
(guard.py).
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
    """Makes and checks sessions of one token, and stores the unused codes."""

    def __init__(self, token: str) -> None:
        self._key = hmac.digest(token.encode(), _PURPOSE, "sha256") if token else b""
        self._codes: dict[bytes, float] = {}

    def new_code(self) -> str:
        """A code for one session. If there are too many unused codes the oldest is dropped."""
        self._forget_old()
        while len(self._codes) >= CODES_MAX:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_hex(32)
        self._codes[_digest(code)] = clock.now() + CODE_S
        return code

    def use_code(self, code: str) -> bool:
        """Whether the code is valid. This call uses it up."""
        self._forget_old()
        return self._codes.pop(_digest(code), None) is not None

    def new_session(self) -> str:
        ends = int(clock.wall().timestamp()) + SESSION_S
        return self._signed(f"{ends}.{secrets.token_hex(16)}")

    def admits(self, header: str | None) -> bool:
        """Whether an ``authorization`` header carries a session that has not expired."""
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
    """The key of a code. Look-ups by digest take a time that reveals nothing about the codes."""
    return hashlib.sha256(code.encode("utf-8", "replace")).digest()
