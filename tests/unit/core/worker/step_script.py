"""A small language for the step machine's transcripts: events in, instructions out, as text.

    worker 0 holds 5/A workers=2
    > new quorum 1.1#1 at 5/A: 0 1 2 newcomers 2
    build 1.1#1
    = waiting

A line ``> …`` is an event; ``> [61.5] tick`` is one at 61.5 s. The lines below it are the machine's
instructions. A line ``= …`` is its phase, fate and state, if these have changed. A state is
``step/lineage``; ``6/A+1.1#1`` follows from ``5/A`` by a commit under attempt 1.1#1. The donors of
a quorum are the members that are not newcomers.

Not here: the transcripts themselves (tests/transcripts/step).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from ftrun.core import messages as m
from ftrun.core.ids import NO_ATTEMPT, Attempt, StateId, Tag, WorkerKey, pack_quorum_id
from ftrun.core.quorum import Endpoint, Member, Quorum
from ftrun.core.worker import events as e
from ftrun.core.worker.facts import StepPhase
from ftrun.core.worker.machine import StepMachine
from tests.unit.core.worker import alike

ENDPOINT = Endpoint("127.0.0.1", "127.0.0.1:1")


def attempt_of(text: str) -> Attempt:
    """``1.2#3``: epoch 1, seq 2, number 3."""
    match = re.fullmatch(r"(\d+)\.(\d+)#(\d+)", text)
    assert match, f"not an attempt: {text!r}"
    epoch, seq, number = map(int, match.groups())
    return Attempt(pack_quorum_id(epoch, seq), number)


def tag_of(text: str) -> Tag:
    """``1.2#3@5``: attempt 1.2#3 at step 5."""
    attempt, step = text.split("@")
    return Tag(attempt_of(attempt), int(step))


def state_of(text: str) -> StateId:
    """``5/A``, or ``6/A+1.1#1`` after a commit."""
    step, lineage = text.split("/")
    first, *commits = lineage.split("+")
    state = StateId(int(step) - len(commits), first)
    for commit in commits:
        state = state.committed(Tag(attempt_of(commit), state.step))
    return state


def member(replica_id: str, workers: int = 1) -> Member:
    """A member whose incarnation is named after its slot: ``0`` is of incarnation ``i0``."""
    return Member(replica_id, f"i{replica_id}", (ENDPOINT,) * workers, "127.0.0.1:2")


def quorum_of(
    attempt: str,
    state: str | None,
    members: str,
    newcomers: str = "",
    recomputes: str = "",
    standing: str = "",
    stands_as: str = "",
) -> Quorum:
    """``quorum_of("1.1#1", "5/A", "0 1 2", "2")``; a state of None comes by a switch."""
    begins_with = state_of(state) if state is not None else None
    joins = tuple(newcomers.split())
    return Quorum(
        attempt_of(attempt),
        tuple(member(name) for name in members.split()),
        "127.0.0.1:2",
        begins_with.step if begins_with is not None else None,
        begins_with,
        joins,
        tuple(recomputes.split()),
        attempt_of(stands_as) if stands_as else None,
        tuple(map(int, standing.split())),
    )


def machine_of(line: str) -> StepMachine:
    """The machine that a ``worker …`` line describes."""
    match = re.fullmatch(r"worker (\S+) holds (\S+)((?: \w+=\w+)*)", line)
    assert match, f"not a worker: {line!r}"
    replica_id, state, options = match.groups()
    found = re.findall(r"(\w+)=(\w+)", options)
    settings: dict[str, Any] = {name: int(value) for name, value in found}
    serves_between_steps = bool(settings.pop("serves_between_steps", False))
    sets_up_together = bool(settings.pop("sets_up_together", False))
    machine = StepMachine(
        WorkerKey(replica_id, f"i{replica_id}", 0),
        ENDPOINT,
        state_of(state),
        workers_per_replica=settings.pop("workers", 1),
        repair=bool(settings.pop("repair", True)),
        heal_first=bool(settings.pop("heal_first", False)),
        **settings,
    )
    machine.serves_between_steps = serves_between_steps
    machine.sets_up_together = sets_up_together
    return machine


# ---------------------------------------------------------------- events

QUORUM = (
    r"(\S+)(?: at (\S+))?:((?: \d+)*)(?: newcomers((?: \d+)+))?(?: recomputes((?: \d+)+))?"
    r"(?: standing((?: \d+)+) as (\S+))?"
)

EVENTS: dict[str, Callable[..., e.Event]] = {
    r"boundary( freeze)?( to catch up)?": lambda freeze, catches_up: e.BoundaryReached(
        bool(freeze), bool(catches_up)
    ),
    r"issue( batched)?( closes)?": lambda batched, closes: e.OperationIssued(
        bool(batched), bool(closes)
    ),
    r"done (\S+) (\d+)": lambda a, i: e.OperationCompleted(attempt_of(a), int(i)),
    r"failed (\S+) (\d+)( refused| unclear)?: (.*)": lambda a, i, by, why: e.OperationFailed(
        attempt_of(a), int(i), why, {" refused": True, " unclear": None}.get(by, False)
    ),
    r"refused: (.*)": e.OperationRefused,
    r"vote": e.VoteStarted,
    r"decide (commit|no)( shared)?( torn)?(?:: (.*))?": lambda outcome, shared, torn, why: (
        e.Decided(outcome == "commit", bool(shared), why or "", bool(torn))
    ),
    r"loaded (\S+) (\S+)": lambda tag, state: e.StateLoaded(tag_of(tag), state_of(state)),
    r"overwrite (\S+)": lambda tag: e.OverwriteBegun(tag_of(tag)),
    r"spoiled: (.*)": lambda why: e.StateSpoiled(why),
    r"heal (failed|refused) (\S+): (.*)": lambda how, tag, why: e.HealFailed(
        tag_of(tag), why, is_refused=how == "refused"
    ),
    r"applied from ([\d ]+)": lambda donors: e.StateApplied(tuple(donors.split()), 1000, 0.5),
    r"state kept": lambda: e.StateKept(),
    r"reset to (\S+)": lambda state: e.StateReset(state_of(state)),
    r"built (\S+)": lambda attempt: m.Built(attempt_of(attempt)),
    r"not built (\S+): (.*)": lambda a, why: m.BuildFailed(attempt_of(a), why),
    r"go away: (.*)": lambda reason: e.WentAway(m.LeaveReason(reason)),
    r"tick": e.Ticked,
    r"interrupt (\S+)": lambda attempt: m.Interrupt(attempt_of(attempt)),
    rf"new quorum {QUORUM}(?:, (.*) in (\d+))?(, pauses)?": lambda *q: m.NewQuorum(
        _quorum(*q[:-3]), q[-3] or "", int(q[-2] or 0), bool(q[-1])
    ),
    rf"prepare {QUORUM}": lambda *q: m.Prepare(_quorum(*q)),
    r"propose (\S+)": lambda tag: m.ProposeSwitch(tag_of(tag).attempt, tag_of(tag).step),
    r"switch (\S+)": lambda tag: m.Switch(tag_of(tag).attempt, tag_of(tag).step),
    r"cancel (\S+)": lambda attempt: m.Cancel(attempt_of(attempt)),
    r"ask": m.AskReport,
    r"isolated": lambda: m.Lease(-math.inf),
    r"reachable": lambda: m.Lease(math.inf),
    r"lease (\d+)": lambda until_s: m.Lease(float(until_s)),
    r"leave now( in a quorum)?": lambda in_quorum: m.LeaveNow(
        m.LeaveReason.DRAINED, bool(in_quorum)
    ),
}


def _quorum(attempt: str, state: str | None, members: str, *groups: str | None) -> Quorum:
    return quorum_of(attempt, state, members, *(names or "" for names in groups))


def event_of(text: str) -> e.Event:
    """The event that this text means."""
    for pattern, make in EVENTS.items():
        match = re.fullmatch(pattern, text)
        if match:
            return make(*match.groups())
    raise ValueError(f"not an event: {text!r}")


# ---------------------------------------------------------------- instructions


class Names:
    """Names for states. Lineages are hashes, so the successors of a known state are remembered."""

    def __init__(self) -> None:
        self._known: dict[StateId, str] = {}

    def learn(self, text: str) -> None:
        """Remember the states that a line of the transcript mentions."""
        for word in re.findall(r"\b\d+/[A-Z][+.#\d]*", text):
            self._known[state_of(word)] = word

    def foresee(self, tag: Tag) -> None:
        """Remember the state that a commit under ``tag`` makes of each known one."""
        for state, word in list(self._known.items()):
            if state.step == tag.step:
                after = f"{tag.step + 1}/{word.split('/')[1]}+{tag.attempt}"
                self._known[state.committed(tag)] = after

    def __call__(self, state: StateId) -> str:
        return self._known.get(state, str(state))


def words_of(instruction: e.Instruction, name: Names) -> str:
    """One instruction as text."""
    match instruction:
        case e.Send(message):
            return f"send {_message(message, name)}"
        case e.BuildGroup(quorum):
            return f"build {quorum.attempt}"
        case e.UseGroup(quorum):
            return f"use {quorum.attempt}"
        case e.AbortGroup(attempt):
            return f"abort {attempt}"
        case e.DropGroup(attempt):
            return f"drop {attempt}"
        case e.Reissue():
            return "reissue"
        case e.HandOut(indices):
            return f"hand out {_row(indices)}"
        case e.FailScript(reason):
            return f"fail script: {reason}"
        case e.FailOperations(reason):
            return _plain(f"fail operations: {reason}", name)
        case e.LoadState(tag, _, in_place, catches_up):
            kept = ", also one that is kept" if catches_up else ""
            return f"load {tag}{kept}" if in_place else f"load {tag}{kept} into new memory"
        case e.OfferState(tag, state, receivers, kept):
            who = " that catch up" if kept else ""
            return f"offer {tag} {name(state)} to {receivers}{who}"
        case e.RetireState(tag):
            return f"retire {tag}"
        case e.ShowProgress(activity, since_s):
            return f"show {activity.value} for {since_s:g} s"
    raise AssertionError(f"no words for {instruction}")


def _message(message: m.FromWorker, name: Names) -> str:
    match message:
        case m.Report():
            return _report(message, name)
        case m.Built(attempt):
            return f"built {attempt}"
        case m.BuildFailed(attempt, reason):
            return f"not built {attempt}: {reason}"
        case m.Promised(attempt, step):
            return f"promised {attempt}@{step}"
        case m.Refused(attempt, step, current, later):
            return f"refused {attempt}@{step}: {current} has begun" + ", later" * later
        case m.InForce(attempt, step):
            return f"in force {attempt}@{step}"
        case m.Errored(attempt, step, reason, own):
            return _plain(f"errored {attempt}@{step}{' by itself' * own}: {reason}", name)
        case m.Healed(attempt, step, donors):
            return f"healed {attempt}@{step} from {_row(donors)}"
        case m.Leaving(reason, step):
            return f"leaving: {reason.value}{'' if step is None else f' at {step}'}"
        case m.Progress():
            raise ValueError("the machine does not send Progress")
    raise AssertionError(f"no words for {message}")


def _report(report: m.Report, name: Names) -> str:
    words = [f"report {name(report.state)}"]
    if report.interrupted != NO_ATTEMPT:
        words.append(f"interrupted {report.interrupted}")
    if report.in_force is not None:
        words.append(f"in force {report.in_force.attempt}")
    if report.pending is not None:
        words.append(f"pending {report.pending.quorum.attempt}")
        promise = report.pending.promise
        if promise is not None:
            words.append(f"{'confirmed' if promise.confirmed else 'promised'} {promise.step}")
    of_step = f"has {report.done}, and gave {report.handed}, of"
    under = report.under if report.under != report.reduced else None
    for word, tag in (("reduced", report.reduced), (of_step, under), ("voted", report.voted)):
        if tag is not None:
            words.append(f"{word} {tag}")
    if report.healing:
        words.append("healing")
    if report.torn:
        words.append("torn")
    if report.freezes_membership:
        words.append("nobody joins")
    if report.too_few:
        words.append("too few")
    if not report.repairable:
        words.append("cannot repair")
    if report.refused:
        words.append(f"refused: {report.refused}")
    if report.refused_tries:
        words.append(f"tries in vain: {report.refused_tries}")
    return ", ".join(words)


def _row(items: Iterable[object]) -> str:
    return " ".join(map(str, items))


def _plain(text: str, name: Names) -> str:
    for state, word in name._known.items():
        text = text.replace(str(state), word)
    return text


def standing(machine: StepMachine, name: Names) -> str:
    """The machine's phase, fate and state, in one line."""
    words = [machine.phase.value]
    if machine.in_step:
        words += [machine.fate.value, str(machine.tag)]
        words += [f"commits as {machine.commits_as}"] if machine.commits_as != machine.tag else []
        words += [f"counts {_row(machine.contributors())}"] if machine.contributors() else []
        words += ["healing"] if machine.healing else []
        words += ["torn"] if machine.heal.torn else []
        words += ["decidable"] if machine.is_decidable else []
        voting = machine.phase is StepPhase.VOTING
        words += ["votes"] if voting and machine.votes else []
        words += ["verdict known"] if voting and machine.verdict_known else []
    else:
        words.append("holds torn" if machine.heal.torn else f"holds {name(machine.state)}")
    return ", ".join(words)


# ---------------------------------------------------------------- the replay


def replay(script: str) -> str:
    """The script with the machine's real answers in place of the expected ones."""
    names = Names()
    names.learn(script)
    machine: StepMachine | None = None
    last = ""
    lines: list[str] = []
    for line in script.splitlines():
        if line.startswith("worker "):
            machine = machine_of(line)
            last = standing(machine, names)
        if line.startswith("> "):
            assert machine is not None, "a transcript begins with its worker"
            lines += [line, *_answers(machine, line, names)]
            now = standing(machine, names)
            lines += [f"= {now}"] if now != last else []
            last = now
        elif not line or line.startswith(("#", "worker ")):
            lines.append(line)
    return "\n".join(lines) + "\n"


def _answers(machine: StepMachine, line: str, names: Names) -> list[str]:
    match = re.fullmatch(r"> (?:\[([\d.]+)\] )?(.*)", line)
    assert match
    instructions = alike.handle(machine, event_of(match[2]), float(match[1] or 0.0))
    machine.check()
    if machine.tag is not None:
        names.foresee(machine.tag)
    return [words_of(instruction, names) for instruction in instructions]
