"""Everything in ftrun that reads bytes from outside, each as one function with its declared errors.

Hypothesis (test_fuzz.py), ``scripts/fuzz.py`` and atheris feed the same functions. Any exception
but a declared one is a finding. Not here: whole processes (servers.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import torch

from ftrun.base.errors import EXIT_REASONS, ExitCode, ProtocolError, UserError
from ftrun.checkpoint.format import pack, unpack
from ftrun.checkpoint.header import decode_header, header_of
from ftrun.checkpoint.listening import Refusal
from ftrun.checkpoint.proof import (
    CHALLENGE_FIELD,
    PROOF_FIELD,
    Proofs,
    challenge_field,
    heal_key,
    read_challenge,
)
from ftrun.checkpoint.requests import Request, parse_request
from ftrun.checkpoint.wire import Head, parse_head, parse_ranges
from ftrun.core.ids import Attempt, StateId, Tag
from ftrun.core.lighthouse.events import JournalState, LighthouseSettings, TimerFired
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.lighthouse.journal import MAGIC, JournalFile
from ftrun.protocol.auth import bearer, bearer_matches, load_token
from ftrun.protocol.codec import MESSAGE_CLASSES, decode, encode
from ftrun.protocol.frames import FrameDecoder, encode_frame
from ftrun.protocol.records import RecordCodec
from ftrun.protocol.streams import StreamCodec, take_batch
from tests.fuzz import torchft_targets as torchft
from tests.fuzz.mutations import mutate, mutate_json, sample

NotAccepted = torchft.NotAccepted
TOKEN = "5a" * 32
LEAF_BYTES_MAX = 1 << 20
SAMPLES_PER_CLASS = 4
TREE = {
    "model": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(3, dtype=torch.bfloat16)},
    "optimizer": {"state": {0: {"step": torch.tensor(3.0), "m": torch.ones(2)}}, "groups": [1, 2]},
    "plain": (1, 2.5, float("nan"), 1 << 80, None, True, "text", torch.float32, torch.Size([2])),
    "rng": torch.arange(16, dtype=torch.uint8).numpy(),
    "raw": b"bytes",
    "own": [ExitCode.BUG, EXIT_REASONS[ExitCode.BUG], StateId(3, "ab")],
    "seen": defaultdict(list, {"a": [1]}),
    "best": [Path("a/b"), UUID(int=7), Decimal("1.5"), Fraction(1, 3), range(3), slice(1, None)],
    "times": [
        datetime(2026, 1, 2, tzinfo=timezone.utc),
        date(2026, 1, 2),
        time(3, 4),
        timedelta(5),
    ],
    "args": SimpleNamespace(lr=0.1, out=Path("out")),
}


class Refused(Exception):
    """The target refused by its answer, not by an exception."""


@dataclass(frozen=True)
class Target:
    """One reader of bytes. ``make``: an input for it; ``parse``: reads it, or raises a refusal."""

    name: str
    parse: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    make: Callable[[Random], bytes]

    def feed(self, data: bytes) -> bool:
        """True: accepted; False: refused by a declared error. Anything else is raised."""
        try:
            self.parse(data)
        except (*self.refusals, Refused, NotAccepted):  # type: ignore[misc]
            return False
        return True


def _of_torchft(place: Path) -> list[Target]:
    """What torchft's clients send; theirs is the only port without a token."""
    requests, files = partial(mutate, corpus=torchft.requests()), torchft.files(place)
    protocol = (ProtocolError,)
    read_file = partial(torchft.read_file, place)
    return [
        Target("torchft's quorum request", torchft.read_request, protocol, requests),
        Target("torchft's file", read_file, (), partial(mutate, corpus=files)),
        Target("torchft's record", read_file, (), torchft.sealed_file),
    ]


def targets(directory: Path | None = None) -> list[Target]:
    """All targets; files go to ``directory``."""
    place = Path(tempfile.mkdtemp(prefix="ftrun-fuzz-")) if directory is None else directory
    messages = _messages()
    frames = [encode_frame(message) for message in messages]
    envelopes = [encode(message) for message in messages]
    batches = [take_batch(deque(envelopes[i : i + 3])) for i in range(len(envelopes) - 2)]
    heads = [_HEAD.encode(), b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\nx-ftrun-digest: 00"]
    header = json.loads(_header())
    challenges = [challenge_field(TOKEN[:32]).encode()]
    ranges = [b"0-3,7-9,12-12", b"0-8,8-16,16-24", b"5-24"]
    protocol = (ProtocolError,)
    state = (ProtocolError, UserError)  # a class that is not here
    return [
        Target("frames, as they come", _feed_frames, protocol, partial(mutate, corpus=frames)),
        Target("codec", _decode, protocol, partial(mutate, corpus=envelopes)),
        Target("batches of a stream", _batch, protocol, partial(mutate, corpus=batches)),
        Target(
            "journal file", partial(_journal, place / "j"), protocol,
            partial(mutate, corpus=_journals()),
        ),
        Target("journal record", partial(_journal, place / "k"), protocol, _sealed_journal),
        Target("state header, bytes", _state, state, partial(mutate, corpus=[_header()])),
        Target("state header, JSON", _state, state, partial(_json_header, header)),
        *_of_torchft(place),
        Target("HTTP head of a heal", _head, protocol, partial(mutate, corpus=heads)),
        Target("request of a heal", _request, (ProtocolError, Refusal), _proved_request),
        Target("challenge of a donor", _challenge, protocol, partial(mutate, corpus=challenges)),
        Target("chunks that are lacking", _ranges, protocol, partial(mutate, corpus=ranges)),
        Target(
            "token file", partial(_token_file, place / "token"), (UserError,),
            partial(mutate, corpus=[TOKEN.encode() + b"\n"]),
        ),
        Target("bearer header", _bearer, (), partial(mutate, corpus=[bearer(TOKEN).encode()])),
    ]  # fmt: skip


# ---------------------------------------------------------------- messages


def _messages() -> list[Any]:
    rng = Random(1)
    found: list[Any] = []
    for cls in MESSAGE_CLASSES:
        while len(found) % SAMPLES_PER_CLASS or not found or type(found[-1]) is not cls:
            message = sample(cls, rng)
            try:
                encode(message)
            except ProtocolError:
                continue
            found.append(message)
    return found


def _decode(data: bytes) -> None:
    """An accepted message can be encoded again, and is the same then."""
    again = encode(decode(data))
    assert encode(decode(again)) == again


def _feed_frames(data: bytes) -> None:
    decoder = FrameDecoder()
    half = len(data) // 2
    decoder.feed(data[:half])
    decoder.feed(data[half:])


def _batch(data: bytes) -> None:
    codec = StreamCodec()
    for _ in range(2):  # The second time its quorums are known.
        for message in codec.decode(data):
            StreamCodec().encode(message)


# ---------------------------------------------------------------- journal

_JOURNAL_CODEC = RecordCodec(JournalState)


def _records() -> list[bytes]:
    rng = Random(2)
    found: list[bytes] = []
    while len(found) < 8:
        try:
            found.append(_JOURNAL_CODEC.encode(sample(JournalState, rng)))
        except ProtocolError:
            continue
    return found


def _sealed(record: bytes) -> bytes:
    return MAGIC + hashlib.blake2b(record, digest_size=16).digest() + record


def _journals() -> list[bytes]:
    return [_sealed(record) for record in _records()]


def _sealed_journal(rng: Random, records: list[bytes] = _records()) -> bytes:  # noqa: B008
    """A damaged record with a valid digest, which anybody who writes the file could make."""
    return _sealed(mutate(rng, records))


def _journal(path: Path, data: bytes) -> None:
    """A lighthouse starts with a readable journal, and without one that it must keep aside."""
    path.write_bytes(data)
    state = JournalFile(path).load()
    for aside in path.parent.glob(f"{path.name}.corrupt-*"):
        aside.unlink()
    if state is None:
        raise Refused
    core = Lighthouse(LighthouseSettings(), state, 0.0)
    core.handle(TimerFired(), 1.0)
    core.snapshot(1.0)


# ---------------------------------------------------------------- healing

_HEAD = (
    "GET /state/8.1.10/data?offset=0&length=8 HTTP/1.1\r\nhost: 127.0.0.1:1\r\n"
    f"authorization: FtrunMac {TOKEN}\r\nx-ftrun-receiver: r1\r\ncontent-length: 0"
)

_REQUESTS = [
    b"GET /state/8.1.10/data?offset=0&length=4194304 HTTP/1.1\r\nx-ftrun-receiver: r1",
    b"GET /state/8.1.10/data?offset=2097152&length=2097152 HTTP/1.1\r\nx-ftrun-receiver: r1\r\n"
    b"x-ftrun-lacks: 1-2,5-9",
]


def _header() -> bytes:
    return header_of(Tag(Attempt(8, 1), 10), StateId(10, "ab"), pack(TREE)).encode()


def _json_header(document: Any, rng: Random) -> bytes:
    return json.dumps(mutate_json(rng, document)).encode()


def _state(data: bytes) -> None:
    """The header, and the tree that it describes on memory that is all zeros."""
    header = decode_header(data)
    header.encode()
    if header.nbytes > LEAF_BYTES_MAX:
        return
    buffers = [torch.zeros(spec.nbytes, dtype=torch.uint8) for spec in header.specs]
    unpack(header.structure, header.specs, buffers)


def _head(data: bytes) -> None:
    parse_head(data).content_length()


def _proofs() -> Proofs:
    return Proofs(heal_key(TOKEN), TOKEN[:32], "")


def _proved_request(rng: Random) -> bytes:
    """A damaged request that is proved all the same; now and then it is damaged once more."""
    data = mutate(rng, _REQUESTS)
    with contextlib.suppress(ProtocolError):
        head = parse_head(data)
        data += f"\r\n{PROOF_FIELD}: {_proofs().next(head.line, head.fields)}".encode()
    return data if rng.random() < 0.9 else mutate(rng, [data])


def _request(data: bytes) -> None:
    """A state server's handling of a head, until the request is parsed."""
    head = parse_head(data)
    if not _proofs().holds_next(head.line, head.fields):
        raise Refused
    request = parse_request(head)
    if not isinstance(request, Request):
        return
    lacking, chunks = request.lacking(50 << 20), request.chunks(50 << 20)
    assert 0 <= chunks.start < chunks.stop <= 25
    assert all(0 <= first <= stop <= 25 for first, stop in lacking or [])


def _challenge(data: bytes) -> None:
    found = read_challenge(Head("", {CHALLENGE_FIELD: data.decode("latin-1")}).fields)
    assert len(bytes.fromhex(found)) == 16


def _ranges(data: bytes) -> None:
    for first, stop in parse_ranges(data.decode("latin-1"), 24):
        assert 0 <= first <= stop <= 24


# ---------------------------------------------------------------- token


def _token_file(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)
    token = load_token(path)
    assert len(token) == len(TOKEN)


def _bearer(data: bytes) -> None:
    text = data.decode("latin-1")
    if not bearer_matches(text, TOKEN):
        raise Refused
    assert text == bearer(TOKEN)
