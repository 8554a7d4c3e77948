"""Every message survives the wire; any other bytes raise ProtocolError and nothing else."""

from __future__ import annotations

import time
import types
import typing
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.base.errors import ProtocolError
from ftrun.core import ids, messages
from ftrun.core.activity import Activity
from ftrun.core.ids import Attempt, StateId, WorkerKey
from ftrun.core.messages import (
    FailureReport,
    Heartbeat,
    Hello,
    JobSpec,
    Loss,
    NewQuorum,
    Notice,
    Progress,
    Report,
    ToWorkers,
    WorkerMessage,
)
from ftrun.core.quorum import Endpoint, Member, Quorum
from ftrun.protocol import ftrun_pb2
from ftrun.protocol.codec import MESSAGE_CLASSES, decode, encode
from ftrun.protocol.limits import (
    COUNT_FIELDS,
    COUNT_MAX,
    ID_BYTES_MAX,
    ID_FIELDS,
    INT_MAX,
    TEXT_BYTES_MAX,
    clip,
)
from ftrun.protocol.records import RecordCodec, record_codec
from ftrun.protocol.shared_records import GONE_KEPT
from tests.suite.properties import examples

SPEC = JobSpec("job", 2, 1, 1, 5.0, 2.0, 60.0)
ATTEMPT = Attempt(1 << 32, 1)

ids_text = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=ID_BYTES_MAX)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def values_of(name: str, hint: Any) -> st.SearchStrategy[Any]:
    """All values that the protocol allows for a field."""
    args = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return st.one_of([st.none() if a is type(None) else values_of(name, a) for a in args])
    if typing.get_origin(hint) is tuple:
        if args[-1] is not Ellipsis:
            return st.tuples(ids_text, st.floats(allow_nan=False))
        return st.lists(values_of(name, args[0]), max_size=3).map(tuple)
    if is_dataclass(hint):
        return records(typing.cast(type, hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if hint is str:
        return ids_text if name in ID_FIELDS else texts
    if hint is float:
        is_time = name.endswith("_s")
        least = 0 if is_time else None
        return st.floats(least, allow_nan=False, allow_infinity=not is_time)
    if hint is bool:
        return st.booleans()
    highest = COUNT_MAX if name in COUNT_FIELDS else INT_MAX
    return st.integers(-255 if name == "exit_code" else 0, highest)


def records(cls: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{f.name: values_of(f.name, hints[f.name]) for f in fields(cls)})


@pytest.mark.parametrize("cls", MESSAGE_CLASSES, ids=lambda cls: cls.__name__)
def test_every_message_comes_back_as_it_was(cls: type) -> None:
    @settings(max_examples=examples(40))
    @given(records(cls))
    def round_trip(message: Any) -> None:
        data = encode(message)
        back = decode(data)
        assert back == message
        # A field that is bytes here is a message to a peer that uses ftrun.proto alone.
        assert decode(ftrun_pb2.Envelope.FromString(data).SerializeToString()) == message
        assert type(back) is cls

    round_trip()


def test_every_class_of_the_protocol_has_a_place() -> None:
    """A message added to core/messages/ cannot be forgotten in ftrun.proto."""
    for alias in (messages.ToWorker, messages.FromWorker, messages.FromAgent, messages.ToAgent):
        assert set(typing.get_args(alias)) <= set(MESSAGE_CLASSES)
    known = {f.name for f in ftrun_pb2.Envelope.DESCRIPTOR.oneofs_by_name["message"].fields}
    assert len(known) == len(MESSAGE_CLASSES)
    for module in (ids, messages):
        for name, cls in vars(module).items():
            if is_dataclass(cls) and isinstance(cls, type) and cls is not ids.OfIncarnation:
                assert hasattr(ftrun_pb2, name)
                RecordCodec(cls)


def test_a_class_that_differs_from_its_message_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"JobSpec.*nodes"):
        RecordCodec(messages.JobSpec, "Progress")


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_noise_is_a_protocol_error_or_a_message(data: bytes) -> None:
    try:
        message = decode(data)
    except ProtocolError:
        return
    assert isinstance(message, MESSAGE_CLASSES)


@settings(max_examples=examples(300))
@given(st.one_of([records(cls) for cls in (Hello, WorkerMessage, ToWorkers)]), st.data())
def test_damaged_messages_are_a_protocol_error_or_a_message(message: Any, data: Any) -> None:
    raw = bytearray(encode(message))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut])):
        try:
            assert isinstance(decode(damaged), MESSAGE_CLASSES)
        except ProtocolError:
            continue


def test_what_is_required_cannot_be_left_out() -> None:
    with pytest.raises(ProtocolError, match=r"Envelope.message is missing"):
        decode(b"")
    wire = ftrun_pb2.Envelope()
    wire.report.endpoint.host = "h"
    with pytest.raises(ProtocolError, match=r"Report.state is missing"):
        decode(wire.SerializeToString())
    wire = ftrun_pb2.Envelope()
    wire.worker_message.key.replica_id = "0"
    with pytest.raises(ProtocolError, match=r"WorkerMessage.message is missing"):
        decode(wire.SerializeToString())


def test_limits_hold_on_both_sides() -> None:
    long_id = "x" * (ID_BYTES_MAX + 1)
    long_text = "ä" * (TEXT_BYTES_MAX // 2 + 1)
    many = ("0",) * (COUNT_MAX + 1)
    wire = ftrun_pb2.Envelope()
    wire.assign_slots.replica_ids.extend(many)
    too_many = wire.SerializeToString()
    for message in (
        replace(SPEC, job_id=long_id),
        Hello("a", SPEC, 1, long_text, "s"),
        messages.AssignSlots(many),
        Hello("a\n", SPEC, 1, "h", "s"),
        Hello("a", replace(SPEC, join_timeout_s=float("nan")), 1, "h", "s"),
        Hello("a", replace(SPEC, join_timeout_s=-1.0), 1, "h", "s"),
        messages.Built(Attempt(INT_MAX + 1, 0)),
        messages.Built(Attempt(-1, 0)),
    ):
        with pytest.raises(ProtocolError):
            encode(message)
    with pytest.raises(ProtocolError, match="65537 items"):
        decode(too_many)
    wire = ftrun_pb2.Envelope()
    wire.restart_replica.replica_id = long_id
    with pytest.raises(ProtocolError, match="over 128 bytes"):
        decode(wire.SerializeToString())
    wire = ftrun_pb2.Envelope()
    wire.rejected.reason = long_text
    with pytest.raises(ProtocolError, match="over 65536 bytes"):
        decode(wire.SerializeToString())


@pytest.mark.parametrize(
    "message",
    [
        None,
        "text",
        pytest.param(object(), id="object()"),
        StateId(0, "x"),
        Loss("0", "i", "c"),
        WorkerMessage(WorkerKey("0", "i", 0), Heartbeat()),  # type: ignore[arg-type]
        WorkerMessage(None, Progress(0, 0, Activity.STEP)),  # type: ignore[arg-type]
        Progress(0, 0, "step"),  # type: ignore[arg-type]
        NewQuorum(quorum=None),  # type: ignore[arg-type]
        Progress(step=1.5, batches=0, phase=Activity.STEP),  # type: ignore[arg-type]
        Progress(0, 0, Activity.STEP, scalars=(("loss",),)),  # type: ignore[arg-type]
        Notice("kind", ("0",), text=None),  # type: ignore[arg-type]
        Notice("\ud800", (), ""),
    ],
    ids=repr,
)
def test_what_is_no_message_is_not_sent(message: object) -> None:
    with pytest.raises(ProtocolError):
        encode(message)


def test_prose_is_cut_not_refused() -> None:
    """A traceback of any length reaches the launcher: its beginning and its end."""
    report = FailureReport("ValueError", "bad \udcff name", "first\n" + "x" * 200_000 + "\nlast")
    back = decode(encode(report))
    assert back.message == "bad ? name"
    assert len(back.traceback.encode()) <= TEXT_BYTES_MAX
    assert back.traceback.startswith("first\n")
    assert back.traceback.endswith("\nlast")
    assert "left out" in back.traceback


@given(st.text(), st.integers(80, 200))
def test_clip_keeps_the_limit(text: str, limit: int) -> None:
    assert len(clip(text, limit).encode()) <= limit


def test_the_codec_is_quick_enough_for_the_recovery_path() -> None:
    """A generous limit: about 10 µs each way is usual, 80 µs on a slow machine."""
    report = WorkerMessage(
        WorkerKey("0", "aa", 0), Report(StateId(3, "ab" * 16), Endpoint("h", "h:1"), ATTEMPT)
    )
    data = encode(report)
    best = min(_timed(report, data) for _ in range(20))
    assert best < 2e-3


def _timed(message: Any, data: bytes) -> float:
    start = time.perf_counter()
    encode(message)
    decode(data)
    return time.perf_counter() - start


def test_a_quorum_of_a_thousand_fits() -> None:
    member = Member("0", "i" * 16, (Endpoint("127.0.0.1", "127.0.0.1:12345"),), "127.0.0.1:1")
    quorum = Quorum(ATTEMPT, (member,) * 1000, "127.0.0.1:1", 3, StateId(3, "ab" * 16))
    assert decode(encode(NewQuorum(quorum))) == NewQuorum(quorum)


def test_the_same_quorum_is_read_once_and_never_mixed_up() -> None:
    """A lighthouse receives the same quorum from every worker: it decodes to one object."""
    quorums = [
        Quorum(Attempt(ATTEMPT.quorum_id, number), (), "s", step)
        for number in range(1, 12)
        for step in (None, 0, 1)
    ]
    for quorum in quorums * 2:
        report = Report(StateId(3, "ab"), Endpoint("h", "h:1"), in_force=quorum)
        first, second = decode(encode(report)), decode(encode(replace(report, local_step_index=1)))
        assert first == report
        assert second.in_force is first.in_force


@pytest.mark.parametrize("side", ["decodes", "encodes"])
def test_records_of_workers_that_are_gone_are_forgotten(side: str) -> None:
    """Q8: 1,000 restarts had left 2 MiB in the agent, and 16,384 would have left 32."""
    for number in range(1, 4 * GONE_KEPT):
        quorum = Quorum(Attempt(number, 1), tuple(lives(number, 3)), "s", 1)
        if side == "encodes":
            encode(NewQuorum(quorum))
        else:
            codec = record_codec(Quorum)
            codec.decode_part(codec.encode_part(quorum))
        for size in sizes(Member, Endpoint):
            assert size <= GONE_KEPT + 4 * 3 + 3


def test_those_of_a_large_job_stay() -> None:
    """They come again with every quorum, and must not be decoded again each time."""
    count = 2 * GONE_KEPT
    for number in (1, 2, 3):
        quorum = Quorum(Attempt(number, 1), tuple(lives(1, count)), "s", 1)
        assert decode(encode(NewQuorum(quorum))) == NewQuorum(quorum)
    assert min(sizes(Member)) >= count


def lives(number: int, count: int) -> list[Member]:
    """Members of ``count`` replicas, each in its ``number``-th incarnation."""
    return [
        Member(str(slot), f"i{number}", (Endpoint("h", f"h:{number}"),), "s")
        for slot in range(count)
    ]


def sizes(*classes: type) -> list[int]:
    """How many records are cached, encoded and decoded."""
    codecs = [record_codec(cls) for cls in classes]
    caches: list[Any] = [cache for c in codecs for cache in (c.encode_part, c.decode_part)]
    return [cache.cache_info().currsize for cache in caches]


def test_a_quorum_that_is_refused_is_not_remembered() -> None:
    bad = Quorum(ATTEMPT, (Member("0", "\n", (), "s"),), "s")
    for _ in range(2):
        with pytest.raises(ProtocolError, match="printed"):
            encode(NewQuorum(bad))
    wire = ftrun_pb2.Envelope()
    wire.prepare.quorum.store = "s"
    for _ in range(2):
        with pytest.raises(ProtocolError, match=r"Quorum.attempt is missing"):
            decode(wire.SerializeToString())


@pytest.mark.parametrize("name", sorted(COUNT_FIELDS - {"capacity"}))
def test_counts_by_which_the_reader_makes_things_are_bounded(name: str) -> None:
    """X3; found by fuzzing: a job of 2**62 replicas took all memory there was."""
    most: dict[str, Any] = {name: COUNT_MAX}
    hello = Hello("node", replace(SPEC, **most), 8, "h", "s")
    assert decode(encode(hello)) == hello
    with pytest.raises(ProtocolError, match=name):
        encode(replace(hello, spec=replace(SPEC, **{**most, name: COUNT_MAX + 1})))
    wire = ftrun_pb2.Envelope.FromString(encode(hello))
    setattr(wire.hello.spec, name, 1 << 62)
    with pytest.raises(ProtocolError, match=name):
        decode(wire.SerializeToString())
