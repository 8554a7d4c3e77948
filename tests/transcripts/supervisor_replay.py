"""Replays a transcript of one node's supervisor: its events, and the exact instructions.

A line at the margin is an event; the indented lines below it are the instructions that follow, and
``= 0 stopping`` where a slot's phase changes. ``@12.5`` before them is when the timer fired, if it
did so while time passed. ``#`` begins a comment. ``0a`` is the first incarnation of slot 0, ``0b``
the next; ``0a.1`` is worker 1 of it. Workers have the pids 1000, 1001, … by their group rank.

    agent [importing] workers_per_replica=2 max_restarts=1 wanted=2 preempt=SIGUSR1 …
                                  a new supervisor, by the names of its settings (first line)
    ready | warm                  the spawner can start workers | has imported all modules
    +0.25                         time passes; the timer fires when it is due
    assign 0,1 | assign -         the lighthouse's word on the slots of this node
    0a exits -9 | 0a cannot start: reason
    memory holds 16 of 1, 17 of the disk | memory holds nothing     whose whole states there are
    memory holds 16@9 of 1                                          at which place of its script
    0a exits 5 having recorded KeyError: inner | 0a exits -9 for want of memory: words
    0a dies -9                    the same words: its process is not gone so far
    0a.1 exits -9 keeping 7 | 0a.1 exits -9 keeping LOG_FULL        the step of its memory snapshot
    0a.1 exits -9 keeping what has written LATE_GROUP         a process has given that as a reason
    0a board: number 1; published 1,1; done 5,5; joined 1,0; over 0,0; falls 0,0
    0a raises [at 7] [healing]: ValueError: no
    0a has no manager [and trains] | 0a wants world: reason | 0a beats | 0a pauses for 30: eval
    the script makes a manager              and nobody has asked for memory snapshots
    another world is made [for good]        by no worker [and the form of the run is fixed]
    0a sets timer NAME for 5, signal 9 | 0a releases timer NAME | 0a disconnects
    0a used 1.5 | 0a stacks: 0 words; 1 words        seconds of processor time | its stacks
    0a: report | inforce 7 | healed 7 | leaving drained | leaving early 7
    0a: progress 7 [healing] [for 5]        its activity, and since how many seconds
    0a is well | 0a is unwell: reason       the answer of --health-check
    0a is given up: reason                  by the lighthouse
    people stop 0a|0 [to restart] [at a boundary] | people kill 0a.0,1
    signal SIGINT | drain 75 [by SIGINT] [as a notice]: reason | stop
    job ends 0 [script|all have left]: reason | spawner lost 70: reason | standby-1 exits -9
    record 7 of 0a,1a [open]                the lighthouse has recorded these failures
    lighthouse answers [of 1.5] | lighthouse sends | lighthouse gone: reason
    facts                         what a Hello and the final report would say now

``python -m tests.transcripts.supervisor_replay FILE…`` writes the supervisor's present instructions
into the files: read the difference before you commit it. Not here: any expectation of its own.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from math import inf
from typing import Any

from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.agent import events as e
from ftrun.core.agent.failures import signal_name
from ftrun.core.agent.restarts import RestartRules
from ftrun.core.agent.settings import SupervisorSettings
from ftrun.core.agent.signals import SignalRules
from ftrun.core.agent.slot_state import SlotSummary
from ftrun.core.agent.standby import StandbyRules
from ftrun.core.agent.supervisor import Supervisor
from ftrun.core.ids import NO_ATTEMPT, StateId, WorkerKey
from ftrun.core.quorum import Endpoint
from ftrun.core.replay.afterwards import Waits
from ftrun.core.replay.alike import NEVER, Unlike
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.settling import Board, Generation
from tests.transcripts.replay import main

TIMERS_MAX = 200
FIRST_PID = 1000
TRACE = 'Traceback:\n  File "train.py", line 3, in <module>\nValueError: no'
USUAL: dict[str, Any] = {
    "agent_id": "a",
    "workers_per_replica": 1,
    "max_restarts": 10,
    "grace_s": 10.0,
    "isolation_limit_s": 60.0,
    "join_timeout_s": 30.0,
}
RULES = {"restarts": RestartRules, "standbys": StandbyRules, "signals": SignalRules}
"""The settings that are records of their own: their fields are given by name like all others."""


class Replay:
    """One transcript's supervisor, and the names of its incarnations."""

    def __init__(self) -> None:
        self._out: list[str] = []
        self._reset()

    def _reset(self) -> None:
        self.now = 0.0
        self.core: Supervisor | None = None
        self._names: dict[str, str] = {}
        self._incarnations: dict[str, str] = {}
        self._slots: dict[str, str] = {}
        self._isolated = False

    # ------------------------------------------------------------ one line

    def line(self, text: str) -> list[str]:
        """Play one event line; returns the lines of its instructions."""
        self._out = []
        for pattern, make in EVENTS.items():
            if match := re.fullmatch(pattern, text):
                event = make(self, *match.groups())
                if event is not None:
                    self._feed(event)
                return self._out
        raise AssertionError(f"no event: {text!r}")

    def begin(self, words: str) -> None:
        """A new supervisor, at time 0."""
        self._reset()
        given = words.split()
        values = USUAL | dict(_setting(word) for word in given if "=" in word)
        for name, kind in RULES.items():
            own = {x.name: values.pop(x.name) for x in fields(kind) if x.name in values}
            values[name] = kind(**own)
        self.core = Supervisor(SupervisorSettings(**values), self.now)
        if "importing" not in given:
            self._feed(e.SpawnerReady())

    def pass_time(self, seconds: str) -> None:
        """Let time pass, and the timer fire exactly when the supervisor wants it."""
        assert self.core is not None
        end = round(self.now + float(seconds), 6)
        for _ in range(TIMERS_MAX):
            due = self.core.next_deadline()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            before = len(self._out)
            self._feed(e.TimerFired())
            if len(self._out) > before:
                self._out.insert(before, f"@{self.now:g}")
        else:
            raise AssertionError(f"the timer fires for ever at {self.now}")
        self.now = end

    def key(self, name: str) -> WorkerKey:
        """``0a.1``: worker 1 of the first incarnation of slot 0."""
        replica, _, rank = name.partition(".")
        return WorkerKey(replica.rstrip(LETTERS), self.incarnation(replica), int(rank or 0))

    def incarnation(self, name: str) -> str:
        """``0a``; one that was never started has its name only, and ``0`` is any of slot 0."""
        return "" if name.isdigit() else self._incarnations.get(name, name)

    # ------------------------------------------------------------ what follows

    def _feed(self, event: e.Event) -> None:
        assert self.core is not None, "an agent comes first"
        for instruction in self.core.handle(event, self.now):
            if isinstance(instruction, e.StartReplica):
                self._name(instruction)
            self._out.append(self._shown(instruction))
        self.core.check()
        summary = self.core.slots.summary()
        slots = {x.replica_id: f"{x.phase.value}{_outcome(x)}" for x in summary}
        for name in sorted(self._slots.keys() | slots.keys(), key=int):
            if self._slots.get(name) != slots.get(name):
                self._out.append(f"= {name} {slots.get(name, 'is not here')}")
        self._slots = slots
        if self.core.isolated != self._isolated:
            self._isolated = self.core.isolated
            self._out.append("= isolated" if self._isolated else "= not isolated")

    def _name(self, start: e.StartReplica) -> None:
        slot = start.replica_id
        known = sum(name.rstrip(LETTERS) == slot for name in self._incarnations)
        name = f"{slot}{LETTERS[known]}"
        self._incarnations[name] = start.incarnation
        self._names[start.incarnation] = name

    def _of(self, record: Any) -> str:
        return self._short(record.incarnation)

    def _short(self, incarnation: str) -> str:
        incarnation, dash, life = incarnation.partition("-")
        return self._names.get(incarnation, incarnation) + dash + life

    def _worker(self, key: WorkerKey) -> str:
        return f"{self._of(key)}.{key.group_rank}"

    def _shown(self, instruction: e.Instruction) -> str:
        match instruction:
            case e.StartReplica(_, _, restarts, standbys, peers_train, until):
                by = _by(",".join(standbys))
                joins = ", peers train" if peers_train else ""
                if until >= 0:
                    joins += ", or from memory"
                    joins += "" if until == inf else f" of step {until:g} or before"
                return f"start {self._of(instruction)}: restart {restarts}{by}{joins}"
            case e.ReplaceWorker(key, restarts, standby):
                return f"replace {self._worker(key)}: restart {restarts}" + _by(standby)
            case e.MakeDecree(_, _, number):
                return f"decree {number} to {self._of(instruction)}"
            case e.HoldGroup():
                return f"hold {self._of(instruction)}"
            case e.RewindMemory(_, _, number, boundary):
                return f"rewind {self._of(instruction)} to {boundary}, decree {number}"
            case e.LetDiffer():
                return f"let differ {self._of(instruction)}"
            case e.SetNodesAside(ranks):
                return f"set the nodes of {','.join(map(str, ranks))} aside"
            case e.ShareMemory(replica_id, step):
                return f"share step {step} of replica {replica_id}"
            case e.LookAtBoard():
                return f"look at the board of {self._of(instruction)}"
            case e.StartStandby(name):
                return f"start {name}"
            case e.SignalReplica(_, _, number):
                return f"{signal_name(number)} to {self._of(instruction)}"
            case e.SignalWorker(key, number):
                return f"{signal_name(number)} to {self._worker(key)} alone"
            case e.AskToStop(_, _, number):
                return f"ask {self._of(instruction)} to stop by {signal_name(number)}"
            case e.PassSignal(number):
                return f"pass on {signal_name(number)}"
            case e.ShowStacks():
                return "show stacks"
            case e.DropMemory(replica_id):
                return f"drop the memory of {replica_id or 'all'}"
            case e.SweepReplica():
                return f"sweep {self._of(instruction)}"
            case e.SendToLighthouse(message):
                return f"send {self._sent(message)}"
            case e.SendToWorkers(lease):
                return f"all workers <- lease until {lease.until_s:g}"
            case e.LookAtMemory():
                return "look at the memory"
            case e.SendToReplica(_, _, order):
                if isinstance(order, m.AnotherForm):
                    return f"{self._of(instruction)} <- wants {order.form}: {order.reason}"
                where = " of a quorum" if order.in_quorum else ""
                return f"{self._of(instruction)} <- leave now{where}: {order.reason.value}"
            case e.AskWorker(key):
                return f"ask {self._worker(key)} for a report"
            case e.TakeStacks():
                return f"take stacks of {self._of(instruction)}"
            case e.CheckHealth():
                return f"check health for {self._of(instruction)}"
            case e.SendEvidence(evidence):
                return f"send {self._evidence(evidence)}"
            case e.ShowNotice(kind, replica_ids, text, log):
                who = f" {','.join(replica_ids)}" if replica_ids else ""
                more = f" [log {log.replica_id}.{log.group_rank} {log.restarts}]" if log else ""
                return f"show {kind}{who}: {text}{more}"
            case e.EndAgent(exit_code, reason, kind, again):
                form = f", again as {again.value}" if again is not None else ""
                return f"end {exit_code}{_of_kind(kind)}: {reason}{form}"

    def _sent(self, message: m.FromAgent) -> str:
        match message:
            case m.ReplicaStarted(_, _, restarts, left, mends):
                what = "mends" if mends else "started"
                return f"{what} {self._of(message)}: {restarts}, {left} left"
            case m.ReplicaLost(_, _, cause, killed, start, kind, raised, follows):
                at_start = f", at its start: {start.exit_code} {start.words}" if start else ""
                by_us = ", killed" if killed else ""
                later = f", raised at {raised.step}: {raised.words}" if raised else ""
                later += f", follows {self._short(follows)}" if follows else ""
                return f"lost {self._of(message)}{_of_kind(kind)}: {cause}{by_us}{at_start}{later}"
            case m.ReplicaFinished(_, _, idle, unjoined, early):
                how = ", has never trained" * idle + ", has not joined" * unjoined
                how += "" if early is None else f", has left early at {early}"
                return f"finished {self._of(message)}{how}"
            case m.WorkerMessage(key, m.Leaving(reason, step)):
                return f"worker {self._of(key)}.{key.group_rank} leaves {reason.value} at {step}"
            case m.ReplicaGivenUp(_, _, exit_code, reason, kind, elsewhere, has_trained):
                where = " here" * elsewhere + ", has trained," * has_trained
                return f"given up {self._of(message)}{where} {exit_code}{_of_kind(kind)}: {reason}"
            case m.Heartbeat(progress):
                lines = [f"{self._of(x)} {_progress(x.progress)}" for x in progress]
                return f"heartbeat {', '.join(lines)}"
            case m.AgentLeaving(reason, running):
                return f"leaving: {reason}, {self._running(running)}"
            case m.JobFailed(exit_code, reason, kind):
                return f"job failed {exit_code}{_of_kind(kind)}: {reason}"
        assert isinstance(message, m.Goodbye), message
        return "goodbye"

    def _running(self, running: tuple[m.RunningReplica, ...]) -> str:
        names = [f"{self._of(x)}{' that has left' * x.has_left}" for x in running]
        return f"running {', '.join(names) or '-'}"

    def _evidence(self, evidence: m.FailureEvidence) -> str:
        workers = []
        for x in evidence.workers:
            more = [f"pid {x.pid}", f"status {x.status}", f"age {x.age_s:g}"]
            more += [f"{name} {text!r}" for name, text in _texts(x) if text]
            workers.append(f"{x.group_rank} ({x.kind}) {x.cause} [{', '.join(more)}]")
        at = f" at {evidence.step}" if evidence.has_step else ""
        then = f" in {evidence.restart_in_s:g}" if evidence.restart_in_s else ""
        number = f", incident {evidence.incident}" if evidence.incident else ""
        then += f", {evidence.steps_again} again" if evidence.steps_again else ""
        then += f", all stood for {evidence.stood_s:g}" if evidence.stood_s else ""
        head = f"evidence {self._of(evidence)} {evidence.restarts}{at}: {evidence.verdict}{then}"
        return f"{head}{number}: {'; '.join(workers)}: {evidence.words}"

    # ------------------------------------------------------------ facts

    def show_facts(self) -> None:
        """What a Hello and the final report would say."""
        assert self.core is not None
        self._out += self._facts(self.core)

    def _facts(self, core: Supervisor) -> Iterator[str]:
        due = core.next_deadline()
        yield self._running(core.slots.running())
        yield from (
            f"dead {self._of(x)}: {x.cause}{', killed' * x.killed}" for x in core.slots.dead
        )
        if core.slots.finished():
            yield f"finished {','.join(core.slots.finished())}"
        yield from (self._sent(x) for x in core.absent())
        yield from (self._sent(x) for x in core.apart())
        for x in core.evidence.again(self.now):
            number = f", incident {x.incident}" if x.incident else ""
            yield f"unconfirmed {self._of(x)}, age {x.workers[0].age_s:g}{number}"
        yield from (_summary(x) for x in core.slots.summary())
        if core.evidence.last_number:
            yield f"last incident {core.evidence.last_number}"
        if core.standbys.used:
            yield f"{core.standbys.used} standbys used"
        if core.ran_apart:
            yield "ran apart"
        if core.lease is not None:
            yield f"lease until {core.lease.until_s:g}"
        if core.gives_up_at is not None:
            yield f"gives up at {core.gives_up_at:g}"
        if core.is_ending:
            yield "is ending"
        yield "no timer" if due is None else f"timer at {due:g}"


# ---------------------------------------------------------------- events

LETTERS = "abcdefghijklmnopqrstuvwxyz"
INCARNATION = r"(\d+[a-z]+)"
WORKER = r"(\d+[a-z]+(?:\.\d+)?)"
NUMBER = r"(-?[\d.e]+)"
KEPT = r"(?: keeping (.*))?"
ENDS = rf"{NUMBER}{KEPT}(?: having recorded (.*))?(?: for want of memory: (.*))?"

Make = Callable[..., "e.Event | None"]
UNLIKE = ("odd", "mates")


def _exit(
    r: Replay, name: str, status: str, kept: str | None, recorded: str | None, memory: str | None
) -> e.WorkerExited:
    key = r.key(name)
    report = _report(recorded) if recorded else None
    pid, code = FIRST_PID + key.group_rank, int(status)
    return e.WorkerExited(
        key.incarnation, key.group_rank, pid, code, memory=memory or "", recorded=report,
        kept=_kept(kept) if kept else None,
    )  # fmt: skip


def _kept(text: str) -> e.Kept:
    """The step of its newest snapshot in memory, or why there is none."""
    if text.isdecimal():
        return e.Kept(Generation(int(text), 0), int(text), int(text))
    fall = Fall[text.removeprefix("what has written ")]
    return e.Kept(fall, -1, written=None if text == fall.name else fall)


def _board(r: Replay, name: str, text: str) -> e.Event:
    """``number 1; published 1,1; done 5,5; joined 1,0; over 0,0; falls 0,0``, or parts of it.

    ``boundary 4; waits 1``: a step from which all can go on, once a node has come. ``steps 7,7; in
    5 allreduce,6 barrier,-1``: the steps taken, and the calls that each waits in; ``?``: unknown.
    ``lost 0,1``: steps that were not committed.
    """
    given = dict(part.split(maxsplit=1) for part in text.split("; "))
    said = given.pop("in", None)
    known = {x: [int(y) for y in words.split(",")] for x, words in given.items()}
    none = [0] * len(known["joined"])
    words = [known.get(x, none) for x in ("published", "done", "over")]
    done = [{0: number} for number in words[1]]
    board = Board(known["number"][0], words[0], done, [bool(x) for x in words[2]])
    falls = tuple(known.get("falls", none))
    boundary = known["boundary"][0] if "boundary" in known else None
    joined, broken = tuple(known["joined"]), tuple(known.get("broken", ()))
    steps = tuple(known.get("steps", none))
    calls = [_call(one) for one in said.split(",")] if said else [None] * len(none)
    more = "waits" in known, "", steps, tuple(calls)
    lost = tuple(known.get("lost", none))
    return e.BoardSeen(r.incarnation(name), board, joined, falls, boundary, broken, *more, lost)


def _unlike(r: Replay, name: str, text: str) -> e.Event:
    """``step 9; agreed 4; odd 1; mates 0,1,2``; none that is known to be ``odd``: 2 mates."""
    given = dict(part.split(maxsplit=1) for part in text.split("; "))
    step, agreed = int(given["step"]), int(given.get("agreed", NEVER))
    odd, mates = (tuple(map(int, given[x].split(","))) if x in given else () for x in UNLIKE)
    return e.WorkersUnlike(r.incarnation(name), Unlike(step, agreed, odd, mates))


def _call(text: str) -> Waits | None:
    number, _, kind = text.partition(" ")
    return None if number == "?" else Waits(0, int(number), kind, 0, 0.0)


def _dying(r: Replay, name: str, status: str, *more: str | None) -> e.Event:
    return e.WorkerDying(_exit(r, name, status, *more))


def _not_started(r: Replay, name: str, reason: str) -> e.Event:
    key = r.key(name)
    return e.WorkerExited(key.incarnation, key.group_rank, 0, 1, reason)


def _raised(r: Replay, name: str, step: str | None, heals: str | None, text: str) -> e.Event:
    at = int(step) if step else None
    return e.WorkerSent(r.key(name), _report(text, at, bool(heals)))


def _report(text: str, step: int | None = None, heals: bool = False) -> m.FailureReport:
    error_type, _, message = text.partition(": ")
    return m.FailureReport(error_type, message, TRACE, step, heals)


def _sent(r: Replay, name: str, text: str) -> e.Event:
    kind, *words = text.split()
    messages: dict[str, Callable[[], m.FromWorker]] = {
        "report": lambda: m.Report(StateId(0, "x"), Endpoint("h", "h:1")),
        "inforce": lambda: m.InForce(NO_ATTEMPT, int(words[0])),
        "healed": lambda: m.Healed(NO_ATTEMPT, int(words[0]), ("1",), 10, 0.1),
        "leaving": lambda: m.Leaving(m.LeaveReason(words[0]), *map(int, words[1:])),
        "progress": lambda: _progressed(text),
    }
    return e.WorkerSent(r.key(name), messages[kind]())


def _progressed(text: str) -> m.Progress:
    match = re.fullmatch(rf"progress (\d+)((?: [a-z]+)*?)(?: for {NUMBER})?", text)
    assert match, text
    step, activity, since_s = match.groups()
    phase = Activity(activity.strip() or "step")
    steps = int(step) if phase is Activity.STEP else 0
    return m.Progress(int(step), int(step), phase, since_s=float(since_s or 0), steps=steps)


def _stacks(r: Replay, name: str, text: str) -> e.Event:
    pairs = [part.partition(" ") for part in text.split("; ") if part]
    return e.StacksTaken(r.incarnation(name), tuple((int(x), words) for x, _, words in pairs))


def _drain(_: Replay, code: str, by: str | None, is_notice: str | None, reason: str) -> e.Event:
    number = int(signal.Signals[by]) if by else e.SIGTERM
    return m.DrainAsked(reason, int(code), number, bool(is_notice))


def _answers(r: Replay, asked_at: str | None, at: str | None, epoch: str | None) -> e.Event:
    asked = r.now if asked_at is None else float(asked_at)
    return e.LighthouseSent(asked, at or "", int(epoch or 0))


def _kill(r: Replay, name: str, ranks: str) -> e.Event:
    replica = r.key(name)
    return m.KillWorkers(
        replica.replica_id, replica.incarnation, tuple(int(x) for x in ranks.split(","))
    )


def _held(text: str) -> tuple[tuple[str, int, int], ...]:
    pairs = (one.split(" of ") for one in text.split(", ") if text != "nothing")
    states = ((whose.removeprefix("the disk"), *step.split("@")) for step, whose in pairs)
    return tuple((whose, int(step[0]), int(step[-1])) for whose, *step in states)


EVENTS: dict[str, Make] = {
    r"agent(.*)": Replay.begin,
    r"\+([\d.e]+)": Replay.pass_time,
    r"facts": Replay.show_facts,
    r"ready": lambda r: e.SpawnerReady(),
    r"warm": lambda r: e.SpawnerWarmed(),
    r"assign -": lambda r: m.AssignSlots(()),
    r"assign ([\d,]+)": lambda r, names: m.AssignSlots(tuple(names.split(","))),
    rf"{WORKER} exits {ENDS}": _exit,
    rf"{WORKER} dies {ENDS}": _dying,
    rf"{WORKER} cannot start: (.*)": _not_started,
    rf"{WORKER} raises(?: at (\d+))?( healing)?: (.*)": _raised,
    rf"{WORKER} has no manager( and trains)?": lambda r, name, trains: e.WorkerSent(
        r.key(name), m.NoManager(bool(trains))
    ),
    r"another world is made( for good)?": lambda r, fixed: e.OtherWorldMade(not fixed),
    rf"{WORKER} wants (\w+): (.*)": lambda r, name, *what: e.WorkerSent(
        r.key(name), m.AnotherForm(*what)
    ),
    r"memory holds (.*)": lambda _, held: e.MemorySeen(_held(held)),
    rf"{WORKER} beats": lambda r, name: e.WorkerSent(r.key(name), m.Beat()),
    rf"{WORKER} pauses for {NUMBER}: (.*)": lambda r, name, limit_s, pause: e.WorkerSent(
        r.key(name), m.Beat(pause, float(limit_s))
    ),
    rf"{WORKER} sets timer (\S+) for {NUMBER}, signal {NUMBER}": lambda r, name, scope, s, n: (
        e.ScriptTimerSet(r.key(name), FIRST_PID + r.key(name).group_rank, scope, float(s), int(n))
    ),
    rf"{WORKER} releases timer (\S+)": lambda r, name, scope: e.ScriptTimerReleased(
        r.key(name), FIRST_PID + r.key(name).group_rank, scope
    ),
    rf"{WORKER} disconnects": lambda r, name: m.WorkerDisconnected(r.key(name)),
    rf"{WORKER} used {NUMBER}": lambda r, name, cpu_s: m.WorkerUsed(
        r.key(name), FIRST_PID + r.key(name).group_rank, float(cpu_s)
    ),
    rf"{INCARNATION} board: (.*)": _board,
    rf"{INCARNATION} unlike: (.*)": _unlike,
    r"the script makes a manager": lambda r: e.ManagerFound(),
    rf"{INCARNATION} stacks:(?: (.*))?": lambda r, name, text: _stacks(r, name, text or ""),
    rf"{WORKER}: (.*)": _sent,
    rf"{INCARNATION} is well": lambda r, name: e.HealthChecked(r.incarnation(name), ""),
    rf"{INCARNATION} is unwell: (.*)": lambda r, name, why: e.HealthChecked(
        r.incarnation(name), why
    ),
    rf"{INCARNATION} is given up: (.*)": lambda r, name, why: m.RestartReplica(
        r.key(name).replica_id, r.incarnation(name), why
    ),
    r"people stop (\d+[a-z]*)( to restart)?( at a boundary)?": lambda r, name, again, there: (
        m.StopReplica(r.key(name).replica_id, r.incarnation(name), bool(again), bool(there))
    ),
    rf"people kill {INCARNATION}\.([\d,]+)": _kill,
    r"signal (\w+)": lambda r, name: e.SignalReceived(int(signal.Signals[name])),
    r"drain (\d+)(?: by (\w+))?( as a notice)?: (.*)": _drain,
    r"stop": lambda r: e.StopAsked(),
    r"job ends (\d+)(?: (script|all have left))?: (.*)": lambda r, code, kind, reason: m.EndJob(
        int(code), reason, kind or ""
    ),
    r"spawner lost (\d+): (.*)": lambda r, code, reason: e.SpawnerLost(reason, int(code)),
    r"(standby-\d+) lacks room": lambda r, name: e.StandbyExited(name, 0, lacks_room=True),
    rf"(standby-\d+) exits {NUMBER}": lambda r, name, status: e.StandbyExited(name, int(status)),
    r"record (\d+) of (\S+)( open)?": lambda r, number, names, is_open: m.IncidentRecord(
        int(number), tuple(r.incarnation(name) for name in names.split(",")), bool(is_open), ""
    ),
    rf"lighthouse answers(?: of {NUMBER})?(?: at (\S+) in epoch (\d+))?": _answers,
    r"lighthouse sends": lambda r: e.LighthouseSent(),
    r"lighthouse gone: (.*)": lambda r, reason: e.LighthouseGone(reason),
    r"lighthouse moved: (.*)": lambda r, reason: e.LighthouseGone(reason, is_moved=True),
}


# ---------------------------------------------------------------- words


def _setting(word: str) -> tuple[str, Any]:
    name, _, value = word.partition("=")
    if name == "handled":
        return name, frozenset(int(signal.Signals[x]) for x in value.split(","))
    if name == "preempt":
        return name, int(signal.Signals[value])
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            pass
    return name, {"yes": True, "no": False}.get(value, value)


def _by(standbys: str) -> str:
    return f" by {standbys}" if standbys else ""


def _of_kind(kind: str) -> str:
    return f" ({kind})" if kind else ""


def _outcome(slot: SlotSummary) -> str:
    return f", {slot.outcome.value}" if slot.outcome is not None else ""


def _progress(progress: m.Progress) -> str:
    since = f" for {progress.since_s:g}" if progress.since_s else ""
    return f"{progress.phase.value}{since}"


def _texts(worker: m.FailedWorker) -> Iterator[tuple[str, str]]:
    yield "memory", worker.memory
    yield "stacks", worker.stacks


def _summary(slot: SlotSummary) -> str:
    parts = [f"{slot.steps} steps", f"{slot.restarts} restarts", f"lost {slot.lost_s:g} s"]
    parts += [f"status {slot.status}"] if slot.status is not None else []
    parts += [f"{len(slot.failures)} failures"] if slot.failures else []
    parts += [slot.killed] if slot.killed else []
    return f"slot {slot.replica_id} {slot.phase.value}{_outcome(slot)}: {', '.join(parts)}"


if __name__ == "__main__":
    main(sys.argv[1:], Replay)
