"""Random lives of a room: the core and a dumb second implementation answer alike."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ftrun.core.torchft_quorum.machine import TorchftRooms
from ftrun.core.torchft_quorum.records import (
    Answer,
    CallEnded,
    HeartbeatReceived,
    Joined,
    QuorumEvent,
    QuorumMember,
    QuorumSettings,
    RoomsRecord,
    SaveRooms,
    TimerFired,
)
from tests.suite.properties import examples
from tests.unit.core.torchft_quorum.dumb_lighthouse import DumbLighthouse

NAMES = "abcde"
ROOM = "room"
TICK_S = 0.25  # exact in binary: both sides compare the same sums

steps = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(1, 12)),
        st.tuples(st.just("beat"), st.sampled_from(NAMES)),
        st.tuples(
            st.just("join"),
            st.sampled_from(NAMES),
            st.sampled_from([0, 0, 0, 1]),
            st.sampled_from([False, True]),
        ),
        st.tuples(st.just("leave"), st.integers(0, 30)),
        st.tuples(st.just("all"), st.just(0)),
    ),
    max_size=60,
)


class Both:
    """The core and the dumb one, side by side."""

    def __init__(self, quorum_settings: QuorumSettings) -> None:
        self.core = TorchftRooms(quorum_settings)
        self.dumb = DumbLighthouse(quorum_settings)
        self.now = 0.0
        self.calls = 0
        self.answers: dict[int, tuple[int, tuple[str, ...]]] = {}
        self.saved = RoomsRecord()

    def feed(self, event: QuorumEvent) -> None:
        for instruction in self.core.handle(event, self.now):
            if isinstance(instruction, SaveRooms):
                self.saved = instruction.record
            elif isinstance(instruction, Answer):
                quorum = instruction.quorum
                assert self.saved.rooms[ROOM].quorum_id == quorum.quorum_id, "sent, not saved"
                assert instruction.call not in self.answers, "answered twice"
                self.answers[instruction.call] = (quorum.quorum_id, quorum.replica_ids)

    def step(self, step: tuple[object, ...]) -> None:
        kind, value = step[0], step[1]
        if kind == "pass":
            for _ in range(int(str(value))):
                self.now += TICK_S
                due = self.core.next_deadline()
                if due is not None and due <= self.now:
                    self.feed(TimerFired())
                self.dumb.look(self.now)
        elif kind == "beat":
            self.feed(HeartbeatReceived(ROOM, str(value)))
            self.dumb.heartbeat(str(value), self.now)
        elif kind == "join":
            self.join(str(value), int(str(step[2])), bool(step[3]))
        elif kind == "all":
            for name in NAMES[:3]:
                self.join(name, 0, False)
        else:
            call = int(str(value))
            self.feed(CallEnded(call))
            self.dumb.leave(call, self.now)

    def join(self, name: str, failures: int, shrinks: bool) -> None:
        member = QuorumMember(name, commit_failures=failures, shrink_only=shrinks)
        self.feed(Joined(self.calls, ROOM, member))
        self.dumb.join(self.calls, member, self.now)
        self.calls += 1


@settings(max_examples=examples(400))
@given(
    steps,
    st.integers(1, 3),
    st.sampled_from([0.25, 1.0, 2.5]),
    st.sampled_from([0.5, 1.0, 3.0]),
)
@example(  # who waits since when, once the newer of its calls is given up: as in second_call.txt
    [
        *[("all", 0)] * 4,
        ("pass", 1),
        ("join", "e", 0, True),
        ("all", 0),
        ("pass", 1),
        ("join", "e", 0, False),
        ("leave", 16),
        ("all", 0),
    ],
    1,
    0.25,
    0.5,
)
def test_the_same_events_have_the_same_answers(
    found: list[tuple[object, ...]], min_replicas: int, join_s: float, heartbeat_s: float
) -> None:
    both = Both(QuorumSettings(min_replicas, join_s, heartbeat_s))
    for step in found:
        both.step(step)
        assert both.answers == both.dumb.answers, step
    room = both.core.rooms.get(ROOM)
    if room is not None:
        assert sorted(room.calls) == sorted(call for call, _ in both.dumb.calls)


@settings(max_examples=examples(100))
@given(steps, steps, st.integers(1, 3))
def test_an_id_means_one_list_of_members_over_a_kill(
    before: list[tuple[object, ...]], after: list[tuple[object, ...]], min_replicas: int
) -> None:
    """One id is never sent with two lists of members, before and after a kill -9."""
    both = Both(QuorumSettings(min_replicas, 1.0, 1.0))
    for step in before:
        both.step(step)
    sent = dict(both.answers.values())
    again = Both(QuorumSettings(min_replicas, 1.0, 1.0))
    again.core = TorchftRooms(both.core.settings, both.saved, both.now)
    again.saved, again.now = both.saved, both.now
    for step in after:
        again.step(step)
    for number, names in again.answers.values():
        assert sent.get(number, names) == names
        assert number >= max(sent, default=0)
