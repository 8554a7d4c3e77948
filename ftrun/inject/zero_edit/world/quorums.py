"""The groups of the script's world follow the Manager's quorums: settled, connected, put in force.

Not here: what a group does (shell.py), the decision about calls (core/worker/settling.py), the
quorums (core/worker/machine.py).
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from ftrun.base import clock
from ftrun.base.errors import PeerError
from ftrun.core.activity import Pause
from ftrun.core.ids import NO_ATTEMPT, Attempt
from ftrun.core.quorum import Quorum
from ftrun.core.worker.settling import Counted, Settled, count_alike, live_from, settle
from ftrun.inject.zero_edit.values.journal import packed, unpacked
from ftrun.inject.zero_edit.world.calls import Call, State, under_way_of
from ftrun.inject.zero_edit.world.kept import Sent
from ftrun.inject.zero_edit.world.kinds import Impossible
from ftrun.inject.zero_edit.world.shell import Gift, Shell, tag_of
from ftrun.inject.zero_edit.world.world import CANNOT, World
from ftrun.process_groups.built import AbortSignal, BuiltGroup
from ftrun.process_groups.store import StoreClient
from ftrun.training.context import WorkerContext

STORE_S = 2.0
"""The limit of a question to the store of a quorum in force."""
LEAVES_S = 10.0
"""So long the main thread may take to come to a wait, and leave its state."""

Connected = dict[str, tuple[tuple[int, ...], BuiltGroup | None]]
"""For each group the places of those that are there, and their connections."""


MADE_BEFORE = "a rank joins that has not made a process group which its peers made in training"


@dataclass(slots=True)
class _Build:
    """What one build has made: groups of the survivors, and those of all with the newcomers.

    ``told``: by each member, how far it is; ``shells``: the groups of this rank, as it has told.
    ``settled``: for each group that was aborted. ``bodies``: results that peers have given, by
    group and number. ``anew``: groups whose members count their calls anew, which this rank has
    not done: since when, and from which call on. ``full_at``: the step from which the groups of all
    are used. ``live``: newcomers join in the step under way, at these calls of each group.
    ``count``: of the script's calls when this rank told the others how far it is.
    """

    quorum: Quorum
    prefix: str
    shells: dict[str, Shell] = field(default_factory=dict)
    told: dict[int, Sent] = field(default_factory=dict)
    now: Connected = field(default_factory=dict)
    settled: dict[str, Settled] = field(default_factory=dict)
    bodies: dict[tuple[str, int], tuple[list[bytes], object]] = field(default_factory=dict)
    anew: dict[str, tuple[Attempt, int | None]] = field(default_factory=dict)
    full: Connected | None = None
    full_at: int = 0
    live: dict[str, int] | None = None
    count: int = 0
    seats: tuple[int, ...] = ()
    all_seats: tuple[int, ...] = ()

    def lacking(self) -> set[str]:
        """The keys of groups that other members have made, and this rank has not."""
        return {key for sent in self.told.values() for key in sent.groups}.difference(self.shells)

    def groups(self) -> list[BuiltGroup]:
        each = [*self.now.values(), *(self.full or {}).values()]
        return [built for _, built in each if built is not None]


class Quorums:
    """Makes the groups of each quorum: a ``Beside`` of the Manager's own group.

    Args:
        world: the groups of this process.
        here: this worker.
    """

    def __init__(self, world: World, here: WorkerContext) -> None:
        self._world, self._here = world, here
        world.waits_for = self.waits_for
        self._builds: dict[Attempt, _Build] = {}
        self._full: _Build | None = None
        self._members: dict[int, str] = {}  # by seat the incarnation that is in the groups
        self._posted = self._met = NO_ATTEMPT
        self.awaits: Pause | None = None

    @property
    def has_full(self) -> bool:
        """Whether groups with newcomers wait for a boundary: these heal in the step under way."""
        return self._full is not None

    def _seats(self, quorum: Quorum) -> tuple[int, ...]:
        workers = self._here.workers_per_replica
        return tuple(
            int(member.replica_id) * workers + rank
            for member in quorum.members
            for rank in range(workers)
        )

    def abort(self, attempt: Attempt) -> None:
        """A quorum is given up, or is not needed any more. From any thread."""
        with self._world.changed:
            build = self._builds.pop(attempt, None)
            aborted = []
            if attempt == self._world.in_use and self._world.is_open:
                self._world.connecting.trigger()
                aborted = self._world.stop(
                    [x for x in self._world.shells.values() if self._is_wide(x)]
                )
                if self._full is not None:
                    build, self._full = self._full, None
            self._world.changed.notify_all()
        for built in aborted:
            built.abort()
        if build is not None and self._world.following is not None:
            self._world.following.release(build.groups())

    def _is_wide(self, shell: Shell) -> bool:
        """Whether all members are in the group."""
        there = shell.there
        return there is not None and len(there.here) == len(self._world.members)

    def build(self, quorum: Quorum, prefix: str, timeout_s: float, signal: AbortSignal) -> None:
        """Make the groups of a quorum, in a thread that builds.

        Raises:
            PeerError: a member is gone meanwhile.
        """
        if not self._world.is_open:
            return
        made, is_kept = _Build(quorum, prefix), False
        try:
            with closing(StoreClient(quorum.store, clock.now() + timeout_s)) as client:
                unsubscribe = signal.subscribe(client.interrupt)
                try:
                    self._make(made, timeout_s, signal, client)
                finally:
                    unsubscribe()
            with self._world.changed:
                if not signal.triggered:
                    self._builds[quorum.attempt], is_kept = made, True
        finally:
            for built in () if is_kept else made.groups():
                built.shutdown()

    def _make(
        self, made: _Build, timeout_s: float, signal: AbortSignal, client: StoreClient
    ) -> None:
        quorum, prefix, seats = made.quorum, made.prefix, self._seats(made.quorum)
        is_switch = quorum.step is None
        if not is_switch:
            self._end_calls(self._same(quorum))
        if not is_switch and self._world.following is not None:
            # Its peers, which compute the step again before they give their state, wait for it in
            # no call meanwhile.
            self._world.is_walking |= self._world.following.heals_first
        told = self._meet(made, client, seats)
        if not is_switch:
            self._met = max(self._met, quorum.attempt)
        latest = max((x.met for x in told.values() if not x.is_walking), default=NO_ATTEMPT)
        old = tuple(  # not those that were left out of what the others have settled since
            seat for seat in seats if not told[seat].is_walking and told[seat].posted >= latest
        )
        made.seats = old if self._world.rank in old else ()
        if not is_switch and len(old) < len(seats):
            steps = {seat: told[seat].next_step - told[seat].in_step for seat in old}
            assert quorum.step is not None
            healing = {seat for seat, who in self._whose(quorum).items() if who in quorum.newcomers}
            steps |= dict.fromkeys(healing & {*old}, quorum.step)
            # Not in a step that stands: they heal to the state after it.
            is_theirs = {*steps.values()} == {quorum.step}
            made.live = _live(told, steps) if is_theirs else None
            if made.live is not None:
                made.full_at = steps[old[0]]
                made.seats = seats if made.seats else ()
            elif made.seats and self._world.needs_replicas and _lacking_in_step(told, old):
                # It would answer by itself what its peers wait for after this step.
                self._begins_again(f"{MADE_BEFORE}, in the middle of a step", signal)

        def connect(seats: tuple[int, ...], name: str, shells: dict[str, Shell]) -> Connected:
            """Connect ``shells`` among ``seats``; not those that a member has not made."""
            places = {key: self._world.places(shell, seats) for key, shell in shells.items()}
            return {
                key: (
                    here,
                    self._world.build_one(
                        shells[key], here, quorum.store, f"{prefix}/{name}/{key}", timeout_s, signal
                    ),
                )
                for key, here in sorted(places.items())
                if all(key in told[shells[key].seats[place]].groups for place in here)
            }

        if not is_switch and self._world.rank in old:
            changing = self._settle(made, client, old, signal)
            if made.live is not None:
                bases = {key: base or 0 for key, (_, base) in made.anew.items()}
                own = {key: first + bases.get(key, 0) for key, first in made.live.items()}
                self._world.joined_at(made.count, own)
            made.now = connect(made.seats, "now" if made.live is None else "all", changing)
        if is_switch or (len(old) < len(seats) and (made.live is None or not made.seats)):
            made.all_seats = seats  # also those of a quorum by which a rank leaves
            if made.live is None:
                made.full_at = 0 if is_switch else max(told[x].next_step for x in old or seats)
            made.full = connect(seats, "all", made.shells)

    def _same(self, quorum: Quorum) -> list[int]:
        """The seats whose workers are still those in the groups."""
        now = self._incarnations(quorum)
        return [seat for seat, who in now.items() if self._members.get(seat, who) == who]

    def _incarnations(self, quorum: Quorum) -> dict[int, str]:
        known = {member.replica_id: member.incarnation for member in quorum.members}
        return {seat: known[who] for seat, who in self._whose(quorum).items()}

    def _whose(self, quorum: Quorum) -> dict[int, str]:
        """By seat the id of its replica."""
        workers = self._here.workers_per_replica
        each = [member.replica_id for member in quorum.members for _ in range(workers)]
        return dict(zip(self._seats(quorum), each, strict=True))

    def _end_calls(self, seats: Sequence[int]) -> None:
        """Bring all calls to an end in the groups that change."""
        with self._world.changed:
            shells = [*self._world.shells.values()]
            # Of workers that are kept a lost one may be back, in its seat.
            may_be_new = self._world.keeper is not None and self._world.in_use != NO_ATTEMPT
            aborted = self._world.stop([x for x in shells if may_be_new or self._lacks(x, seats)])
            calls = [call for x in shells if x.is_stopped for call in x.calls.values()]
            under_way = under_way_of(calls)
        self._world.end_calls(aborted, under_way)

    def _lacks(self, shell: Shell, seats: Sequence[int]) -> bool:
        there = shell.there
        return there is not None and not {shell.seats[x] for x in there.here} <= set(seats)

    def _meet(self, made: _Build, client: StoreClient, seats: Sequence[int]) -> dict[int, Sent]:
        """Tell the others how far this rank is, and hear how far they are. The groups of now are
        connected, also if the script destroys one meanwhile: its peers wait for this rank there."""
        assert self._world.following is not None
        step = self._world.following.next_step
        with self._world.changed:
            self._world.open_calls = None
            groups, made.shells, made.count = {}, dict(self._world.shells), self._world.count
            for key, shell in made.shells.items():
                counted = Counted(shell.position(), shell.round, shell.base)
                groups[key] = [counted.encode(), shell.is_stopped]
            is_within = self._world.following.in_step
            own = Sent(self._world.is_walking, self._posted, self._met, step, is_within, groups)
            self._posted = max(self._posted, made.quorum.attempt)
        at = f"ftrun/{made.prefix}/at"
        client.set(f"{at}/{self._world.rank}", own.encode())
        others = [seat for seat in seats if seat != self._world.rank]
        made.told = {seat: Sent.decode(client.get(f"{at}/{seat}")) for seat in others}
        made.told[self._world.rank] = own
        return made.told

    def _settle(
        self, made: _Build, client: StoreClient, old: tuple[int, ...], signal: AbortSignal
    ) -> dict[str, Shell]:
        """Settle the calls of the groups that change; returns these."""
        changing: dict[str, Shell] = {}
        told = made.told
        for key, shell in sorted(made.shells.items()):
            those = [seat for seat in old if seat in shell.seats and key in told[seat].groups]
            if not any(told[seat].groups[key][1] for seat in those):
                continue
            changing[key] = shell
            alike = count_alike({seat: Counted.decode(told[seat].groups[key][0]) for seat in those})
            calls, gifts, moved = shell.calls, shell.gifts, 0
            if shell.round != alike.since:  # this rank has not come to that boundary
                made.anew[key] = alike.since, alike.base
                moved = alike.base or 0
                calls = {number - moved: call for number, call in calls.items()}
            settled = settle(alike.positions, alike.joined)
            made.settled[key] = settled
            self._see_that_it_can(calls, settled, signal)
            for number, (server, lacking) in sorted(settled.gives.items()):
                at = f"ftrun/{made.prefix}/result/{key}/{number}"
                if server == self._world.rank:
                    with self._world.changed:
                        known = calls.get(number) or gifts[number + moved]
                        bodies = known.bodies if isinstance(known, Gift) else known.bodies()
                        client.set(at, packed(tag_of(known), bodies))
                if self._world.rank in lacking:
                    tag, bodies, _ = unpacked(client.get(at))
                    made.bodies[key, number] = bodies, Attempt(*tag)
                    if number in calls and (record := calls[number].record) is not None:
                        record[-1] = bodies  # a newcomer may ask before the quorum is in force here
        return changing

    def _see_that_it_can(
        self, calls: dict[int, Call], settled: Settled, signal: AbortSignal
    ) -> None:
        again = [x for x in settled.again if x in calls and calls[x].kind.is_unsettled]
        numbers = set(settled.impossible).union(again)
        if numbers:
            call = next((calls[x] for x in sorted(numbers) if x in calls), None)
            what = "a collective" if call is None else call.kind.name
            reason = f"a rank died in the middle of {what}, which no other rank can make again"
            self._begins_again(reason, signal)

    def _begins_again(self, reason: str, signal: AbortSignal) -> None:
        """All are about to begin again, as soon as the main thread has left its state where it
        waits. If it does not come to a wait, they begin without.

        Raises:
            Exception: it was not to be.
        """
        self._world.begins_again(reason)
        is_over = threading.Event()
        unsubscribe = signal.subscribe(is_over.set)
        is_over.wait(LEAVES_S if self._world.leaves else 0.0)
        unsubscribe()
        if not signal.triggered:
            self._world.asks(reason)
        raise PeerError(reason)

    def use(self, quorum: Quorum) -> None:
        """A quorum is in force. Under the engine's lock."""
        with self._world.changed:
            made = self._builds.pop(quorum.attempt, None)
            if made is None:
                return
            self._world.connecting.trigger()
            self._world.in_use, self._world.store = quorum.attempt, quorum.store
            self._members = self._incarnations(quorum)
            if made.seats:
                self._world.members = made.seats
                self._use_now(made)
                if made.live is not None:
                    self._are_known(made)
                self._world.release(only_aborted=True)
                for shell in self._world.shells.values():
                    shell.is_stopped = False
            self._full = made if made.full is not None else None
            self._world.changed.notify_all()
        self._world.complete_futures()

    def _use_now(self, made: _Build) -> None:
        for key, (here, built) in made.now.items():
            shell = self._world.shells.get(key)
            if shell is None:  # the script has destroyed it meanwhile
                self._world.retire(built)
                continue
            if key in made.anew:
                shell.count_anew(*made.anew[key])
            self._world.put(shell, here, built)
            settled = made.settled[key]
            for number in sorted(settled.stands):
                if number in shell.gifts:
                    shell.gifts[number].is_half = False
                elif number in shell.calls:
                    shell.calls[number].stands()
            for number in settled.again:
                shell.gifts.pop(number, None)
            for (of, number), (bodies, tag) in sorted(made.bodies.items()):
                call = shell.calls.get(number)
                if of == key and call is None:
                    shell.gifts[number] = Gift(bodies, tag)
                elif of == key and call is not None:
                    call.take(call.decoded(bodies), tag)
            if made.live is not None:
                shell.count_anew(self._world.in_use, made.live[key])
        for group in [self._world.shells[key] for key in made.now if key in self._world.shells]:
            for number in sorted(group.calls):
                if group.calls[number].state in (State.FAILED, State.HELD):
                    self._again(group.calls[number])

    def _again(self, call: Call) -> None:
        there = call.shell.there
        assert there is not None
        if not there.is_full and self._world.holds_for_all(call):
            return
        try:
            call.issue(there)
            if not there.is_full:
                self._world.tells_of_deputy(call, call.site or call.kind.name.strip("_"))
        except Impossible as error:
            if not self._world.holds(call, error):
                what = call.site or call.kind.name
                self._world.begins_again(f"{what}: {error}{CANNOT}")
        except RuntimeError as error:
            call.state, call.error = State.FAILED, error

    def boundary(self, step: int) -> None:
        """A step begins. Under the engine's lock, in the main thread."""
        if self._full is None and self._world.is_as_before:
            return
        with self._world.changed:
            self._world.begins_step()
            full = self._full
            if full is None or step < full.full_at:
                self._world.release()
                return
            self._full = None
            assert full.full is not None
            for key, (here, built) in full.full.items():
                shell = self._world.shells.get(key)
                if shell is None:
                    self._world.retire(built)
                    continue
                waits = [call.number for call in shell.awaiting()]
                base = min(waits, default=shell.next)
                shell.count_anew(self._world.in_use, base if full.seats else None)
                self._world.put(shell, here, built)
            self._world.members = full.all_seats
            self._met = max(self._met, self._world.in_use)
            self._are_known(full)
            self._world.is_walking = False
            for shell in self._world.shells.values():
                for call in shell.awaiting():
                    self._again(call)
            self._world.changed.notify_all()

    def _are_known(self, made: _Build) -> None:
        """Ranks have joined, with the groups that they have told of."""
        lacking = made.lacking()
        self._world.made_before |= lacking
        if made.seats and self._world.shells.keys() - made.shells.keys():
            self._world.begins_again(
                "a process group was made while a rank was away that has joined now"
            )
        elif lacking & self._world.shells.keys():  # on its way to this boundary
            self._world.begins_again(MADE_BEFORE)

    def succeed(self, quorum: Quorum, seen: Attempt) -> None:
        """This rank is in the place of a lost one, which had ``quorum`` in force, and may have told
        its peers how far it was for all attempts that it had ``seen``. Under the world's lock."""
        world = self._world
        world.in_use, world.members, world.store = quorum.attempt, self._seats(quorum), quorum.store
        self._posted, self._met = seen, quorum.attempt
        world.is_walking = False

    # ------------------------------------------------------------ who waits for whom

    @contextmanager
    def waits_for(self, call: Call) -> Iterator[None]:
        """Tell the others in which call this rank waits: one whose script has ended never comes."""
        store, name = self._world.store, self._waits(self._world.rank)
        key, at = call.shell.key, call.shell.round
        text = json.dumps([key, [at.quorum_id, at.number], call.number]).encode()
        call.since = call.since or clock.now()
        self.awaits = Pause(call.words(), call.since)
        try:
            with contextlib.suppress(PeerError), self._client(store) as client:
                client.set(name, text)
            yield
        finally:
            self.awaits = None
            with contextlib.suppress(PeerError), self._client(store) as client:
                client.delete(name)

    def wanted_by(self, store: str) -> str:
        """See Beside."""
        if not self._world.is_open or self._world.is_apart:
            return ""
        with self._world.changed:
            begun = {
                **self._world.destroyed_at,
                **{x.key: (x.round, x.next) for x in self._world.shells.values()},
            }
            others = [seat for seat in self._world.members if seat != self._world.rank]
        with contextlib.suppress(PeerError), self._client(store) as client:
            for seat in others:
                if not client.has(self._waits(seat)):
                    continue
                key, since, number = json.loads(client.get(self._waits(seat)))
                if key in begun and begun[key][0] == Attempt(*since) and begun[key][1] <= number:
                    return str(seat // self._here.workers_per_replica)
        return ""

    def _waits(self, seat: int) -> str:
        return f"ftrun/{self._here.job_id}/waits/{seat}"

    def _client(self, store: str) -> closing[StoreClient]:
        if not store:
            raise PeerError("no quorum was formed")
        return closing(StoreClient(store, clock.now() + STORE_S))


def _changing(told: dict[int, Sent], old: Iterable[int]) -> set[str]:
    """The groups that change by a death."""
    each = [known for seat in old for known in told[seat].groups.items()]
    return {key for key, (_, is_stopped) in each if is_stopped}


def _lacking_in_step(told: dict[int, Sent], old: Collection[int]) -> bool:
    """Whether a step is under way, and a group changes that no newcomer has made."""
    known = {key for seat in told.keys() - set(old) for key in told[seat].groups}
    return any(told[seat].in_step for seat in old) and not _changing(told, old) <= known


def _live(told: dict[int, Sent], steps: dict[int, int]) -> dict[str, int] | None:
    """See ``live_from``; None also if a group changes that no newcomer has made."""
    old = [*steps]
    if not any(told[seat].in_step for seat in old) or _lacking_in_step(told, old):
        return None
    groups = {
        key: {
            seat: Counted.decode(told[seat].groups[key][0])
            for seat in old
            if key in told[seat].groups
        }
        for key in _changing(told, old)
    }
    return live_from(steps, groups)
