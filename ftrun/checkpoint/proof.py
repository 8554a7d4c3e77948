"""The proof that the sender of a request for a state knows the job's token.

The token is never sent. Both ends derive a key from it. The donor sends each connection a random
challenge, and each request carries a MAC under that key over

    the challenge, the number of the request on its connection, the donor's certificate (TLS only),
    the request line (method, path with the tag, query) and every other field of the head.

So a recorded request proves nothing elsewhere: any other connection, to any donor, has another
challenge, and on the same connection its number has passed. A donor stores nothing about
connections that have ended, so an attacker cannot fill its memory. A field that is added to
requests later is covered without a change here.

The proof hides nothing and does not prove answers. An attacker on a plaintext network can read the
state, or change it on the way; TLS (tls.py) prevents both. With TLS the certificate is in the MAC,
so an attacker cannot relay a proof from one connection to another.

Not here: which requests there are (requests.py), sockets (serve.py, donor.py).
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Mapping

from ftrun.base.errors import Bug, ProtocolError

PROOF_FIELD = "authorization"
CHALLENGE_FIELD = "www-authenticate"
SCHEME = "FtrunMac"
CHALLENGE_BYTES = 16

_LABEL = b"ftrun heal 1"
_CHALLENGE = re.compile(rf"{SCHEME} ([0-9a-f]{{{2 * CHALLENGE_BYTES}}})")


class Proofs:
    """The proofs of one connection's requests, in order; both ends compute the same.

    Args:
        key: from ``heal_key``.
        challenge: that the donor has sent on this connection.
        certificate: the fingerprint of the donor's certificate; empty without TLS.
    """

    def __init__(self, key: bytes, challenge: str, certificate: str) -> None:
        self._key = key
        self._begin = (challenge, certificate)
        self._number = 0

    def next(self, line: str, fields: Mapping[str, str]) -> str:
        """The value of ``PROOF_FIELD`` for the next request; its other fields are ``fields``."""
        self._number += 1
        named = (part for name in sorted(fields) for part in (name, fields[name]))
        signed = _joined((*self._begin, str(self._number), line, *named))
        return f"{SCHEME} {hmac.digest(self._key, signed, 'sha256').hex()}"

    def holds_next(self, line: str, fields: Mapping[str, str]) -> bool:
        """Whether the next request, with this head, carries its proof."""
        others = {name: value for name, value in fields.items() if name != PROOF_FIELD}
        expected = self.next(line, others)
        return hmac.compare_digest(fields.get(PROOF_FIELD, "").encode(), expected.encode())


def heal_key(token: str) -> bytes:
    """The key of the proofs. It reveals nothing about the token.

    Raises:
        Bug: there is no token.
    """
    if not token:
        raise Bug("a state is served or fetched without a token")
    return hmac.digest(token.encode(), _LABEL, "sha256")


def new_challenge() -> str:
    """A new, unique challenge."""
    return secrets.token_hex(CHALLENGE_BYTES)


def challenge_field(challenge: str) -> str:
    """The value of ``CHALLENGE_FIELD`` in an answer 401."""
    return f"{SCHEME} {challenge}"


def read_challenge(fields: Mapping[str, str]) -> str:
    """The challenge in the fields of an answer 401.

    Raises:
        ProtocolError: the fields have no challenge.
    """
    found = _CHALLENGE.fullmatch(fields.get(CHALLENGE_FIELD, ""))
    if found is None:
        raise ProtocolError("the donor asks for no proof: is it of another version of ftrun?")
    return found[1]


def _joined(parts: Iterable[str]) -> bytes:
    """Each part after its length, so that no two sequences encode to the same bytes."""
    encoded = [part.encode() for part in parts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)
