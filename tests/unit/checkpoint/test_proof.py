"""Proofs of a heal's requests: what they cover, that they count, and that they reveal nothing."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.base.errors import Bug, ProtocolError
from ftrun.checkpoint.proof import (
    PROOF_FIELD,
    Proofs,
    challenge_field,
    heal_key,
    new_challenge,
    read_challenge,
)

TOKEN = "5" * 64
CHALLENGE = "0123456789abcdef" * 2
CERTIFICATE = "ab" * 32
LINE = "GET /state/8.1.10/data?offset=0&length=8 HTTP/1.1"
FIELDS = {"host": "127.0.0.1:1", "x-ftrun-receiver": "r1", "x-ftrun-lacks": "0-1"}


def proofs(token: str = TOKEN, challenge: str = CHALLENGE, certificate: str = "") -> Proofs:
    return Proofs(heal_key(token), challenge, certificate)


def dumb(token: str, number: int, line: str, fields: Mapping[str, str]) -> str:
    """A second implementation, from the description in docs/PROTOCOL.md."""
    key = hmac.new(token.encode(), b"ftrun heal 1", hashlib.sha256).digest()
    said = b""
    for part in [CHALLENGE, CERTIFICATE, f"{number}", line]:
        said += len(part).to_bytes(4, "big") + part.encode("ascii")
    for name, value in sorted(fields.items()):
        for part in (name, value):
            said += len(part).to_bytes(4, "big") + part.encode("ascii")
    return "FtrunMac " + hmac.new(key, said, hashlib.sha256).hexdigest()


def test_proofs_are_what_the_protocol_says() -> None:
    made = proofs(certificate=CERTIFICATE)
    for number in (1, 2, 3):
        assert made.next(LINE, FIELDS) == dumb(TOKEN, number, LINE, FIELDS)


def test_a_proof_of_today_is_a_proof_tomorrow() -> None:
    """Replicas of two versions of ftrun heal from each other: a change here would break that."""
    assert proofs().next("GET / HTTP/1.1", {"host": "h"}) == (
        "FtrunMac 6d7f926a471b7b81522ac8f7e76b1db8fe0ff74c213cf72d153c71de8593383d"
    )


def test_both_ends_count_alike() -> None:
    receiver, donor = proofs(), proofs()
    for line in (LINE, LINE, "POST /state/8.1.10/done HTTP/1.1"):
        fields = {**FIELDS, PROOF_FIELD: receiver.next(line, FIELDS)}
        assert donor.holds_next(line, fields)
    assert not donor.holds_next(line, fields)


def test_a_proof_holds_for_its_place_only() -> None:
    proof = proofs().next(LINE, FIELDS)
    signed = {**FIELDS, PROOF_FIELD: proof}
    assert proofs().holds_next(LINE, signed)
    assert not proofs(token="6" * 64).holds_next(LINE, signed)
    assert not proofs(challenge="f" * 32).holds_next(LINE, signed)
    assert not proofs(certificate=CERTIFICATE).holds_next(LINE, signed)
    later = proofs()
    later.next(LINE, FIELDS)
    assert not later.holds_next(LINE, signed)


WORDS = st.text("ab:\r\n 0-", max_size=4)
HEADS = st.tuples(WORDS, st.dictionaries(WORDS.filter(lambda n: n != PROOF_FIELD), WORDS))


@given(HEADS, HEADS)
def test_unlike_heads_have_unlike_proofs(
    one: tuple[str, dict[str, str]], other: tuple[str, dict[str, str]]
) -> None:
    assert (proofs().next(*one) == proofs().next(*other)) == (one == other)


@given(st.text(max_size=80))
def test_no_other_word_is_a_proof(word: str) -> None:
    right = proofs().next(LINE, FIELDS)
    assert proofs().holds_next(LINE, {**FIELDS, PROOF_FIELD: word}) == (word == right)


def test_the_token_cannot_be_seen_in_key_or_proof() -> None:
    key = heal_key(TOKEN)
    assert len(key) == 32
    for form in (TOKEN.encode(), bytes.fromhex(TOKEN), hashlib.sha256(TOKEN.encode()).digest()):
        assert form not in key
    assert TOKEN not in proofs().next(LINE, FIELDS)


def test_there_is_no_key_without_a_token() -> None:
    with pytest.raises(Bug, match="without a token"):
        heal_key("")


def test_a_challenge_goes_there_and_back_and_is_never_the_same() -> None:
    found = {new_challenge() for _ in range(100)}
    assert len(found) == 100
    for challenge in found:
        assert read_challenge({"www-authenticate": challenge_field(challenge)}) == challenge


@pytest.mark.parametrize(
    "given_field",
    ["", "FtrunMac", "FtrunMac ", CHALLENGE, f"Basic {CHALLENGE}", f"FtrunMac {CHALLENGE}0",
     f"FtrunMac {CHALLENGE[:-1]}", f"FtrunMac {CHALLENGE.upper()}", f"FtrunMac {CHALLENGE}\n"],
)  # fmt: skip
def test_what_is_no_challenge_is_not_taken_for_one(given_field: str) -> None:
    with pytest.raises(ProtocolError, match="no proof"):
        read_challenge({"www-authenticate": given_field})
    with pytest.raises(ProtocolError, match="no proof"):
        read_challenge({})
