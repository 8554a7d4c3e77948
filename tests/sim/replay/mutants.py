"""Planted bugs that the schedules of world.py must find: each is one change of one part."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from ftrun.core.replay import log_rules, settling
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.log_rules import Keeps, keeps
from ftrun.core.replay.mending import SOUND, Decree, Mending, Outcome
from ftrun.core.replay.mirroring import Elsewhere, Mirror, RankWords
from ftrun.core.replay.pacing import Pace
from ftrun.core.replay.settling import Board, Counts, Generation, Logged, Source, Step
from tests.sim.replay.group import Call, Group
from tests.sim.replay.memory import Area, Calls, Log, Slot, Thread, Words
from tests.sim.replay.process import Process, Rules
from tests.sim.replay.script import Id
from tests.sim.replay.world import World

# ---------------------------------------------------------------- decisions


def _newest(
    generations: Collection[Generation],
    logs: Collection[Logged],
    done: Sequence[Counts],
    rank: int,
    full: Collection[int] = (),
) -> Generation | Fall:
    return settling.begin(generations, logs, [done[rank]] * len(done), rank)


def _whatever_is_logged(
    generations: Collection[Generation],
    _: Collection[Logged],
    done: Sequence[Counts],
    rank: int,
    full: Collection[int] = (),
) -> Generation | Fall:
    return settling.begin(generations, [Logged(0, 1 << 30)], done, rank)


def _without_waiting(board: Board, rank: int, cut: int, group: int) -> Step:
    found = settling.next_step(board, rank, cut, group)
    return Step.CONNECT if found is Step.WAIT else found


def _without_cut(board: Board, rank: int, cut: int, group: int) -> Step:
    found = settling.next_step(board, rank, 1 << 30, group)
    if found is Step.CONNECT and cut < board.number:
        return Step.CUT
    return found


def _each_begins_a_log(
    logs: Collection[Logged], generations: Collection[Generation], begun: int, **known: bool
) -> bool:
    older = [log for log in logs if log.first < begun]
    return log_rules.begins(older, generations, begun=begun, **known)


def _by_its_own_log(begun: dict[int, int], done: Sequence[dict[int, int]]) -> bool:
    return settling.others_are_ahead(begun, done[:1])  # of rank 0, which announces


def _only_its_own_next(first: Counts, begun: Counts, kept: Sequence[Id]) -> list[Id] | Fall:
    found = settling.again(first, begun, kept)
    return found if isinstance(found, Fall) else found[-1:]


def _backwards(first: Counts, begun: Counts, kept: Sequence[Id]) -> list[Id] | Fall:
    found = settling.again(first, begun, kept)
    return found if isinstance(found, Fall) else found[::-1]


def _group_by_group(first: Counts, begun: Counts, kept: Sequence[Id]) -> list[Id] | Fall:
    found = settling.again(first, begun, kept)
    return found if isinstance(found, Fall) else sorted(found)


def _from_the_log_if_it_can(
    call: int, first: int | None, done: Sequence[int], *, is_open: bool
) -> Source:
    return settling.source(call, first if is_open else None, done, is_open=is_open)


def _at_once(call: int, first: int | None, done: Sequence[int], *, is_open: bool) -> Source:
    found = settling.source(call, first, done, is_open=is_open)
    is_early = found is Source.WAIT and first is None and call < max(done)
    return Source.LOG if is_early else found


def _everything(_: int | None, __: Sequence[int], *, is_open: bool) -> int:
    return 0


def _last_only(_: int | None, done: Sequence[int], *, is_open: bool) -> int:
    return max(done) - 1


def _what_any_has(done: Sequence[Counts]) -> dict[int, int]:
    return {group: max(x.get(group, 0) for x in done) for own in done for group in own}


def _what_its_first_member_has(done: Sequence[Counts]) -> dict[int, int]:
    return {group: number for own in reversed(done) for group, number in own.items()}


def _the_least_of_all_groups(done: Sequence[Counts]) -> dict[int, int]:
    found = settling.in_all_logs(done)
    return dict.fromkeys(found, min(found.values()))


def _by_the_calls_of_all_ranks(
    generations: Collection[Generation],
    logs: Collection[Logged],
    done: Sequence[Counts],
    rank: int,
    full: Collection[int] = (),
) -> Generation | Fall:
    of_all = [replace(x, calls={0: x.calls[0]}) for x in generations]
    found = settling.begin(of_all, [Logged(0, 1 << 30)], done, rank)
    if isinstance(found, Fall):
        return found
    found = next(x for x in generations if x.number == found.number)
    return found


def _any_rank(call: int, members: Sequence[int]) -> int:
    return call % (max(members) + 1)


def _what_one_has(generations: Sequence[Collection[Generation]], logs: Any = None) -> int | None:
    return settling.common(generations[:1], logs and logs[:1])


def _none(log: Logged, generations: Any) -> int:
    return 0


def _up_to_the_place(log: Logged, generations: Any) -> int:
    return log_rules.needed(log, [replace(x, calls=x.before) for x in generations])


def _nothing_of_a_reduce(kind: str, *, is_root: bool, spans: bool = False) -> Keeps | None:
    return Keeps.NOTHING if kind == "reduce" else keeps(kind, is_root=is_root, spans=spans)


def _oldest(
    generations: Sequence[Collection[Generation]],
    logs: Sequence[Collection[Logged]] | None = None,
) -> int | None:
    steps = sorted({one.step for own in generations for one in own})
    known = ([[x for x in own if x.step <= step] for own in generations] for step in steps)
    found = (settling.common(one, logs) for one in known)
    return next((step for step in found if step is not None), None)


def _whatever_is_copied(opened: Sequence[int], _: int, newest: Sequence[int]) -> bool:
    return len(opened) > 1 and min(newest) >= opened[-2]


def _always(*_: object) -> bool:
    return True


class _AnnouncesTheNextStep(Pace):
    """A step is announced that a replacement's peers may have begun."""

    def begins(self, step: int, *args: Any, **kwargs: Any) -> int:
        return super().begins(step - 1, *args, **kwargs)


class _ForgetsWhatIsDue(Pace):
    """An announced step is forgotten before others reach it."""

    def begins(self, step: int, announced: int, *args: Any, **kwargs: Any) -> int:
        word = super().begins(step, announced, *args, **kwargs)
        return word if word == announced else word >> 8 << 8 | 1


# ---------------------------------------------------------------- processes


class WritesDoneInReplay(Process):
    """A replacement counts what it takes from the log."""

    def answer(self, call: Call) -> Thread:
        yield from super().answer(call)
        self.board.done[self.rank][call.group] = call.number + 1


class ChoosesLate(Process):
    """A replacement chooses its generation when it may be connected already."""

    def chosen(self) -> Generation | Fall:
        return self.choose()


class CountsBeforeItLogs(Process):
    """``done`` is raised first."""

    def log(self) -> Thread:
        call = self.next_logged()
        if call is not None and call.at == self.logged:
            self.board.done[self.rank][call.group] += 1
            yield "call counted"
            self.board.done[self.rank][call.group] -= 1
        yield from super().log()


class GivesBeforeItLogs(Process):
    """The script gets a result, and may overwrite it, before it is logged."""

    def wait(self, call: Call) -> Thread:
        yield lambda: call.found is not None
        given, call.found = call.found, -1
        return given


class ChangesWhileItCopies(Process):
    """The optimizer does not wait for the copy."""

    def copy(self, number: int, step: int, calls: Calls, shown: list[int]) -> Thread:
        self.is_copying = step == 0
        yield from self.area.write(number, step, self.state, calls, shown)
        self.is_copying = False


class ForgetsWhatWasLogged(Process):
    """A log begins with a call that the lost worker had logged but not counted."""

    def open_log(self, step: int) -> Thread:
        logged = self.area.logged
        self.area.logged = list  # type: ignore[method-assign]
        try:
            yield from super().open_log(step)
        finally:
            self.area.logged = logged  # type: ignore[method-assign]


class ReadsTheFirstCallLate(Process):
    """The first call is read when the group is connected."""

    def enter(self, group: Group, first: dict[int, int]) -> Thread:
        self.first = settling.in_all_logs(self.board.done)
        yield from super().enter(group, self.first)


class PublishesInTheMiddle(Process):
    """A call completed before the cut is still logged after ``done`` was published."""

    def publish(self, number: int) -> Thread:
        self.board.published[self.rank] = number
        yield "published"


class ReadsAPeerOnce(Process):
    """A peer's log is read once, although the peer may overwrite it meanwhile."""

    def is_other(self, entry: object, former: object) -> bool:
        return False


class JoinsEarly(Process):
    """A replacement counts as joined as soon as it is connected."""

    def note_joined(self) -> None:
        if self.group is not None:
            self.board.joined[self.rank] = self.group.number


class LeavesAlone(Process):
    """A process ends with its own script."""

    def main(self) -> Thread:
        for stop in super().main():
            yield stop
            if stop == "over":
                self.has_left = True
                return


class AnswersLate(Process):
    """A call is taken from the log only if it is there when the call begins."""

    def from_log(self) -> list[Call]:
        return [call for call in super().from_log() if call is self.calls[-1]]


class IsLiveFromThenOn(Process):
    """Once a call is live, all later ones are, including those of other groups."""

    is_live = False

    def from_where(self, call: Call) -> Source:
        found = super().from_where(call)
        self.is_live |= found is Source.LIVE
        return Source.LIVE if self.is_live and self.is_open else found


class DropsInAllGroups(Process):
    """Inputs are dropped by the number of the call that begins, whatever their group is."""

    def is_past(self, call: Call, group: int, known: int) -> bool:
        return call.number < known and call.is_through


class IssuesWhatIsNotThere(Process):
    """A call is issued again whose input was not kept."""

    def again(self) -> list[Call]:
        return [call for call in self.calls if call.is_kept]


class IsBackInOneGroup(Process):
    """A replacement counts as joined when it has reached the first call of one of its groups."""

    def note_joined(self) -> None:
        first = self.first
        is_back = first and any(self.begun[group] >= first[group] for group in self.begun)
        if self.is_open and self.group and is_back:
            self.board.joined[self.rank] = self.group.number


# ---------------------------------------------------------------- memory and agent


class WholeTooEarly(Area):
    """A generation is whole before its words are there."""

    def write(
        self, number: int, step: int, state: list[int], calls: Calls, shown: list[int]
    ) -> Thread:
        slot = self.slots[number % len(self.slots)]
        slot.step, (slot.calls, slot.before) = step, calls
        slot.number, slot.shown = number, shown
        yield "generation whole"
        yield from super().write(number, step, state, calls, shown)


class EmptiesTheLog(Process):
    """A replacement empties the log that the lost worker had begun."""

    def load(self) -> Thread:
        log = max(self.area.logs, key=lambda known: known.number)
        self.area.cut(log, 0)
        return (yield from super().load())


class EndsLogsAtACopy(Area):
    """A log ends when the second generation after its own is whole here."""

    def write(
        self, number: int, step: int, state: list[int], calls: Calls, shown: list[int]
    ) -> Thread:
        yield from super().write(number, step, state, calls, shown)
        self.drop_logs(self.newest_log - 2)


class TwoSlots(Area):
    """The generation before the newest one is given up at once."""

    def write(
        self, number: int, step: int, state: list[int], calls: Calls, shown: list[int]
    ) -> Thread:
        for slot in self.slots:
            if slot.number < number - 1:
                slot.number = -1
        yield from super().write(number, step, state, calls, shown)
        for slot in self.slots:
            if slot.number < number:
                slot.number = -1


class FindsByNumber(Area):
    """A log's entries are found by their numbers, whatever their group is."""

    def find(self, call: Id) -> tuple[Log, str, int, int] | None:
        for log in self.logs:
            for (_, number), kind, offset, size in log.index[: log.count]:
                if log.number >= 0 and number == call[1]:
                    return log, kind, offset, size
        return None


class OneDecree(Mending):
    """A death while a worker is being replaced does not cause another decree."""

    def died(self, rank: int, place: Generation | Fall, now: float, *size: float) -> Outcome:
        is_under_way, number = self.is_under_way, self.number
        found = super().died(rank, place, now)
        if isinstance(found, Decree) and is_under_way:
            self.number = number
            return None
        return found


class FallsTwice(Mending):
    """A fall ends nothing."""

    def _fall(self, reason: Fall) -> Fall:
        return reason


class ForgetsTheDead(Mending):
    """All others are in one group again."""

    def look(
        self,
        board: Board,
        joined: Sequence[int],
        falls: Sequence[int],
        now: float,
        *more: Sequence[int],
    ) -> Outcome:
        for rank in self._deaths:
            joined = [self.number if one == rank else x for one, x in enumerate(joined)]
        return super().look(board, joined, falls, now, *more)


class OverIsBack(Mending):
    """A worker whose script is over is not needed any more."""

    def look(
        self,
        board: Board,
        joined: Sequence[int],
        falls: Sequence[int],
        now: float,
        *more: Sequence[int],
    ) -> Outcome:
        pairs = zip(joined, board.over, strict=True)
        joined = [self.number if over else number for number, over in pairs]
        return super().look(board, joined, falls, now, *more)


class ConnectsOnce(Mending):
    """A group that could not be connected is not tried again."""

    def look(
        self,
        board: Board,
        joined: Sequence[int],
        falls: Sequence[int],
        now: float,
        *more: Sequence[int],
    ) -> Outcome:
        return super().look(board, joined, falls, now)


class LetsThemStay(Mending):
    """A living worker may take forever to leave its broken group."""

    def look(
        self,
        board: Board,
        joined: Sequence[int],
        falls: Sequence[int],
        now: float,
        *more: Sequence[int],
    ) -> Outcome:
        if self.staying(board):
            self._moved_at = now
        return super().look(board, joined, falls, now, *more)


class CountsADeath(Mending):
    """A rank that dies again counts as dead once."""

    def died(self, rank: int, *args: Any) -> Outcome:
        if self._deaths[rank] > 1:
            self._deaths[rank] = 1
        return super().died(rank, *args)


class RewindsForEver(Mending):
    """All begin again whenever memory is sound."""

    @property
    def can_rewind(self) -> bool:
        return self.fallen in SOUND


class GivesUpWhatMoves(Mending):
    """Workers are given up without a wait."""

    def look(self, *args: Any) -> Outcome:
        limit_s, self.limit_s = self.limit_s, 0.0
        found = super().look(*args)
        self.limit_s = limit_s
        return found


class _StartsAtOnce(World):
    """The replacement starts while the dead process's last threads still write."""

    def replace(self, process: Process, rewinds: int) -> Thread:
        yield "replace"
        self.ranks[process.rank] = self.start(process.rank, True)


class _KeepsLogs(World):
    """The logs stay at a rewind."""

    def clear(self, boundary: int, node: int = 0) -> None:
        logs = [[replace(log, index=list(log.index)) for log in area.logs] for area in self.areas]
        super().clear(boundary, node)
        for area, known in zip(self.areas, logs, strict=True):
            area.logs = known


class _KeepsNewer(Area):
    """The generations that are newer than the boundary stay."""

    def rewind(self, step: int, has_logs: bool) -> dict[int, int]:
        numbers = [slot.number for slot in self.slots]
        found = super().rewind(step, has_logs)
        for slot, number in zip(self.slots, numbers, strict=True):
            slot.number = number
        return found


class _KeepsDone(World):
    """``done`` stays at a rewind."""

    def clear(self, boundary: int, node: int = 0) -> None:
        done = [dict(own) for own in self.board.done]
        super().clear(boundary, node)
        self.board.done[:] = done


class BeginsAtTheCopy(Process):
    """A replacement begins at the calls before the copy, and at the step's place."""

    def began(self, slot: Slot) -> dict[int, int]:
        return dict(slot.calls)


class RewindsToTheCopy(Area):
    """After a rewind all begin at the copy, although they must begin at the step's place."""

    def rewind(self, step: int, has_logs: bool) -> dict[int, int]:
        for slot in self.slots:
            slot.before = slot.calls
        return super().rewind(step, has_logs)


class RewindsWithoutLogs(Area):
    """After a rewind the calls from the place to the copy count as new, although logs have them."""

    def rewind(self, step: int, has_logs: bool) -> dict[int, int]:
        return super().rewind(step, False)


class _RewindsAllAlike(World):
    """At a rewind each rank has the calls of rank 0."""

    def clear(self, boundary: int, node: int = 0) -> None:
        super().clear(boundary, node)
        first = self.board.done[0]
        for own in self.board.done:
            own.update({group: first.get(group, 0) for group in own})


class ChoosesUnheard(Process):
    """A replacement reads the progress of all ranks before all nodes have reported it."""

    def await_words(self) -> Thread:
        yield "started"


class TakesOldWords(Mirror):
    """Words of an older decree count."""

    def came(self, number: int, rows: Sequence[RankWords]) -> list[RankWords]:
        return super().came(max(number, self.number), rows)


class TellsOnce(Mirror):
    """Words that were sent before a decree are not sent again."""

    def raised(self, number: int) -> list[RankWords]:
        sent = dict(self._sent)
        found = super().raised(number)
        self._sent.update(sent)
        return found


class ForgetsEarlyWords(Mirror):
    """Words of a decree that is not in force here are dropped."""

    def raised(self, number: int) -> list[RankWords]:
        super().raised(number)
        return []


class TakesItsOwnWords(Elsewhere):
    """What this rank has done counts as done by all."""

    def completes(self, call: int) -> None:
        self.logged = call + 1


class NoWindow(Elsewhere):
    """A worker that has begun a call counts as having completed all calls before it."""

    def begins(self, call: int, awaited: int) -> None:
        pass


class TellsARankOnce(Mirror):
    """Later changes are not sent to other nodes."""

    def news(self, rows: Sequence[RankWords]) -> list[RankWords]:
        known = set(self._sent)
        return [row for row in super().news(rows) if row.group_rank not in known]


class KnowsTheStepAhead(Elsewhere):
    """At the begin of a step all count as having met in that step."""

    def step_begins(self, call: int) -> None:
        self.logged = max(self.logged, call)


class _ReadsDoneFirst(World):
    """``done`` may be older than the decree that it is published at."""

    def _read(self, node: int, rank: int) -> Thread:
        words = self.boards[node]
        done = dict(words.done[rank])
        yield "words read"
        row = self._row(node, rank)
        return replace(row, groups=tuple(done), done=tuple(done.values()))


class _WritesPublishedFirst(World):
    """``published`` is written before the words that it covers."""

    def write(self, words: Words, row: RankWords) -> Thread:
        words.published[row.group_rank] = row.published
        yield "published written"
        yield from super().write(words, row)


class MakesACallTwice(Process):
    """A replacement makes its first live call twice, as if the result were of other members."""

    has_erred = False

    def begin(self, kind: str, group: int, *args: int) -> Call:
        call = super().begin(kind, group, *args)
        if self.is_new and not self.has_erred and self.from_where(call) is Source.LIVE:
            self.has_erred = True
            self.world.group(self.board.number).misses.add(group)
            call = super().begin(kind, group, *args)
        return call


class NeverLooksAfter(Mending):
    """Once all are connected, the board is not checked any more."""

    is_watched = False


def _as_on_one_node(kind: str, *, is_root: bool, spans: bool = False) -> Keeps | None:
    return keeps(kind, is_root=is_root)


MUTANTS: dict[str, dict[str, Any]] = {
    "chooses before all have told": {"process": ChoosesUnheard, "nodes": True},
    "takes words of an older decree": {"mirror": TakesOldWords, "nodes": True},
    "tells its words once": {"mirror": TellsOnce, "nodes": True},
    "forgets early words": {"mirror": ForgetsEarlyWords, "nodes": True},
    "others have what it has": {"elsewhere": TakesItsOwnWords, "nodes": True},
    "others have all before the call": {"elsewhere": NoWindow, "nodes": True},
    "tells done of before": {"world": _ReadsDoneFirst, "nodes": True},
    "published comes first": {"world": _WritesPublishedFirst, "nodes": True},
    "logs gathers as on one node": {"rules": Rules(keeps=_as_on_one_node), "nodes": True},
    "begins at its newest generation": {"rules": Rules(begin=_newest)},
    "begins though the log has a gap": {"rules": Rules(begin=_whatever_is_logged)},
    "connects before all have published": {"rules": Rules(next_step=_without_waiting)},
    "publishes before it has cut": {"rules": Rules(next_step=_without_cut)},
    "issues its last call alone again": {"rules": Rules(again=_only_its_own_next)},
    "issues again backwards": {"rules": Rules(again=_backwards)},
    "takes from the log while it connects": {"rules": Rules(source=_from_the_log_if_it_can)},
    "takes from the log what not all have": {"rules": Rules(source=_at_once)},
    "keeps inputs for ever": {"rules": Rules(needed_from=_everything)},
    "keeps the last input only": {"rules": Rules(needed_from=_last_only)},
    "the first call is what one has": {"rules": Rules(in_all_logs=_what_any_has)},
    "the first call is what the first member has": {
        "rules": Rules(in_all_logs=_what_its_first_member_has)
    },
    "one first call for all groups": {"rules": Rules(in_all_logs=_the_least_of_all_groups)},
    "begins by the calls of all ranks": {"rules": Rules(begin=_by_the_calls_of_all_ranks)},
    "issues again group by group": {"rules": Rules(again=_group_by_group)},
    "is live from then on": {"process": IsLiveFromThenOn},
    "drops inputs in all groups": {"process": DropsInAllGroups},
    "joins when it is back in one group": {"process": IsBackInOneGroup},
    "finds a call by its number": {"area": FindsByNumber},
    "a rank outside of the group logs for it": {"rules": Rules(of_all=_any_rank)},
    "rewinds all alike": {"world": _RewindsAllAlike},
    "begins at the copy": {"process": BeginsAtTheCopy},
    "rewinds to the copy": {"area": RewindsToTheCopy},
    "the root of a reduce logs nothing": {"rules": Rules(keeps=_nothing_of_a_reduce)},
    "announces by its own log": {"rules": Rules(others_are_ahead=_by_its_own_log)},
    "announces the next step": {"rules": Rules(pace=_AnnouncesTheNextStep)},
    "forgets what is due": {"rules": Rules(pace=_ForgetsWhatIsDue)},
    "chooses its generation late": {"process": ChoosesLate, "focus": "new main"},
    "newcomer writes done in replay": {"process": WritesDoneInReplay},
    "counts before it logs": {"process": CountsBeforeItLogs},
    "gives before it logs": {"process": GivesBeforeItLogs},
    "the optimizer does not wait for the copy": {"process": ChangesWhileItCopies, "focus": "copy"},
    "a log begins with what is logged": {"process": ForgetsWhatWasLogged},
    "each replacement begins a log": {
        "rules": Rules(begins=_each_begins_a_log),
        "breaks": True,
        "nodes": True,
    },
    "begins again without the logs": {"area": RewindsWithoutLogs},
    "keeps nothing of a full log": {"rules": Rules(needed=_none), "small": True},
    "keeps nothing behind the place": {"rules": Rules(needed=_up_to_the_place), "small": True},
    "the first call is read late": {"process": ReadsTheFirstCallLate},
    "publishes in the middle of a call": {"process": PublishesInTheMiddle},
    "reads a peer's log without a second look": {
        "process": ReadsAPeerOnce,
        "focus": "new completer",
        "groups": False,
    },
    "joins before it has caught up": {"process": JoinsEarly},
    "ends with its own script": {"process": LeavesAlone},
    "takes from the log only at the begin": {"process": AnswersLate},
    "a generation is whole too early": {"area": WholeTooEarly},
    "a replacement empties the log": {"process": EmptiesTheLog},
    "only the newest generation is kept": {"area": TwoSlots},
    "a log ends too early": {"area": EndsLogsAtACopy},
    "issues again what it has not kept": {"process": IssuesWhatIsNotThere, "small": True},
    "one decree for two deaths": {"mending": OneDecree},
    "a fall is told twice": {"mending": FallsTwice},
    "mended without the dead": {"mending": ForgetsTheDead},
    "over is back": {"mending": OverIsBack, "breaks": True},
    "waits for ever for one that lives": {"mending": LetsThemStay},
    "connects once": {"mending": ConnectsOnce, "breaks": True},
    "rewinds to what one has": {"rules": Rules(common=_what_one_has)},
    "keeps the logs at a rewind": {"world": _KeepsLogs},
    "keeps newer generations at a rewind": {"area": _KeepsNewer},
    "keeps done at a rewind": {"world": _KeepsDone},
    "a replacement starts at once": {"world": _StartsAtOnce},
    "rewinds to the oldest": {"rules": Rules(common=_oldest)},
    "frees a log while a copy is made": {
        "rules": Rules(is_over=_whatever_is_copied),
        "small": True,
    },
    "keeps nothing where there is room": {"rules": Rules(is_in_vain=_always)},
    "a rank is replaced time after time": {"mending": CountsADeath},
    "all begin again time after time": {"mending": RewindsForEver, "small": True},
    "gives up what still moves": {"mending": GivesUpWhatMoves},
    "tells a rank's words once": {"mirror": TellsARankOnce, "nodes": True},
    "makes a call twice": {"process": MakesACallTwice},
    "makes a call twice, and nobody looks": {
        "process": MakesACallTwice,
        "mending": NeverLooksAfter,
    },
    "knows a step ahead": {"elsewhere": KnowsTheStepAhead, "nodes": True},
}


def world(seed: int, name: str = "") -> World:
    """The schedule of a seed, with a planted bug."""
    changes = {"breaks": False, "nodes": False} | MUTANTS[name] if name else {}
    kind: type[World] = changes.pop("world", World)
    return kind(seed, **changes)
