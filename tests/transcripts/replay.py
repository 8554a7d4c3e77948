"""Replays a transcript: the events of a lighthouse, line by line, and its exact instructions.

A line at the margin is an event; the indented lines below it are the instructions that follow, and
``= phase`` where the phase changes. ``#`` begins a comment. ``0a`` is replica 0, incarnation ``a``;
``0a.1`` its worker 1; ``1.2#1`` attempt 1 of quorum 1.2; ``@7`` a step; ``5/x`` a state id.

    job replicas=3 min=1 …            the job's spec (first line; later lines change it)
    set promise_timeout_s=1 …         the lighthouse's settings (before ``start``); drains are not
                                      gathered unless drain_gather_s is set
    start                             a lighthouse with an empty journal
    restart [lost]                    kill -9 and a new one with the last journal, or without
    +0.25                             time passes; the timer fires when it is due
    stopped 9                         the lighthouse is stopped for 9 s, and its timer is late
    drain 0,1                         these replicas are to leave (as one that moves does)
    A attached [capacity=8 running=0a,1a dead=2a finished=3 kept=2 job=other]
    A detached | A says goodbye | A says heartbeat [0a@5] | A says started 0a [restarts=1]
    A says mends 0a (a worker of it is being replaced; it has "started" when that is over)
    A says lost 0a: cause | A says killed 0a: cause | A says failed 0a code: words (at its start)
    A says raised 0a@7: words (at step 7)
    A says finished 0a [idle] [unjoined] [early=7] | A says leaves
    A says silent [host-1] (these hosts acknowledge nothing to it)
    A says gives up 3: reason (the job) | A says gives-up 0a [elsewhere] [trained] 3: reason
    0a 1a: report 5/x [interrupted=1.1#1 in=1.1#1 pending=1.2#1 promised=7 confirmed healing torn
                       reduced=1.1#1@5 voted=1.1#1@5 local_step_index=2 cannot_repair needs=2
                       under=1.1#1@5 handed=1 done=2 (as reduced, if that is given)
                       refused=why tries=2]
    0a: built 1.1#1 | buildfailed 1.1#1: reason | promised 1.2#1@7 | refused 1.2#1@7 current=8
    0a: inforce 1.1#1@0 | errored 1.1#1@5: reason | healed 1.1#1@5 from 0,2 | progress 5
    0a: leaving finished | leaving early 21 | present [part=0,1] [together]
    asks drain 0 | asks restart 0 | asks kill 0.1 | asks stack 0 | asks drain node=host-A (people)
    asks restart 0 id=x                  with this request_id
    A answers 1 0a: stacks of a worker

``python -m tests.transcripts.replay FILE…`` writes the lighthouse's present instructions into the
files: read the difference before you commit it. Not here: any expectation of its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.books.records import SaveAccount, SaveIncident
from ftrun.core.ids import NO_ATTEMPT, Attempt, StateId, Tag, WorkerKey, pack_quorum_id
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentDetached,
    AgentSent,
    CloseAgent,
    Event,
    Instruction,
    Journal,
    JournalState,
    LighthouseSettings,
    OperationChanged,
    OperatorAsked,
    Request,
    SendToAgent,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.quorum import Endpoint, Quorum

TIMERS_MAX = 200


class Replay:
    """One transcript's lighthouse and the names of the lines so far."""

    def __init__(self, kind: type[Lighthouse] = Lighthouse) -> None:
        self.now = 0.0
        self._kind = kind
        self.spec = m.JobSpec("job", 3, 1, 1, 60.0, 1000.0, 60.0)
        self.settings = LighthouseSettings(drain_gather_s=0.0)
        self.journal = JournalState()
        self.lighthouse: Lighthouse | None = None
        self.agents: dict[str, str] = {}  # incarnation → agent
        self.quorums: dict[str, Quorum] = {}
        self.asked = 0
        self._phase = ""
        self._out: list[str] = []

    # ------------------------------------------------------------ one line

    def line(self, text: str) -> list[str]:
        """Play one event line; returns the lines of its instructions."""
        self._out = []
        words = text.split()
        commands: dict[str, Callable[[list[str]], None]] = {
            "job": self._job,
            "set": self._set,
            "start": lambda _: self._start(JournalState()),
            "restart": lambda w: self._start(JournalState() if w else self.journal),
            "stopped": lambda w: self._stand_still(float(w[0])),
            "asks": self._asks,
            "drain": lambda w: self._drain(_listed(w[0])),
        }
        if words[0] in commands:
            commands[words[0]](words[1:])
        elif words[0].startswith("+"):
            self._pass(float(words[0]))
        elif words[1] in ("attached", "detached", "says", "answers"):
            self._agent(words[0], words[1:], text)
        else:
            names, _, word = text.partition(": ")
            for name in names.split():
                self._worker(name, word)
        return self._out

    def _job(self, words: list[str]) -> None:
        names = {"replicas": "replicas", "workers": "workers_per_replica", "min": "min_replicas"}
        names |= {"join": "join_timeout_s", "heartbeat": "heartbeat_timeout_s", "id": "job_id"}
        names |= {"isolation": "isolation_limit_s", "nodes": "nodes", "rebalance": "rebalance"}
        names |= {"hang": "hang_timeout_s", "fewer": "accepts_fewer", "waits": "waits_for_mends"}
        values: dict[str, Any] = {}
        for key, value in _options(words).items():
            is_float = names[key].endswith("_s")
            if key in ("rebalance", "fewer", "waits"):
                value = str(int(value == "yes"))
            values[names[key]] = value if key == "id" else float(value) if is_float else int(value)
        self.spec = replace(self.spec, **values)

    def _set(self, words: list[str]) -> None:
        values: dict[str, Any] = {
            key: float(value) if key.endswith("_s") else int(value)
            for key, value in _options(words).items()
        }
        self.settings = replace(self.settings, **values)

    def _start(self, journal: JournalState) -> None:
        self.lighthouse = self._kind(self.settings, journal, self.now)
        self._phase = ""
        self._feed(TimerFired())

    def _pass(self, seconds: float) -> None:
        """Let time pass, and the timer fire exactly when the lighthouse wants it."""
        assert self.lighthouse is not None
        end = self.now + seconds
        for _ in range(TIMERS_MAX):
            due = self.lighthouse.next_deadline()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self._feed(TimerFired())
        else:
            raise AssertionError(f"the timer fires for ever at {self.now}")
        self.now = end

    def _stand_still(self, seconds: float) -> None:
        self.now += seconds
        self._feed(TimerFired())

    def _asks(self, words: list[str]) -> None:
        options, targets = _options(words[1:]), [x for x in words[1:] if "=" not in x]
        replica, dot, rank = (targets[0] if targets else "").partition(".")
        request = Request(
            words[0],
            replica,
            int(rank) if dot else None,
            options.get("node", ""),
            options.get("id", ""),
        )
        self.asked += 1
        self._feed(OperatorAsked(self.asked, request))

    def _drain(self, replica_ids: list[str]) -> None:
        assert self.lighthouse is not None
        self.lighthouse.membership.leaving.drain(replica_ids)
        self._feed(TimerFired())

    # ------------------------------------------------------------ agents and workers

    def _agent(self, agent_id: str, words: list[str], text: str) -> None:
        if words[0] == "detached":
            self._feed(AgentDetached(agent_id))
        elif words[0] == "answers":
            key = WorkerKey(*_replica(words[2].rstrip(":")), 0)
            taken = m.WorkerStacks(int(words[1]), key, text.partition(": ")[2])
            self._feed(AgentSent(agent_id, (taken,)))
        elif words[0] == "attached":
            self._feed(AgentAttached(agent_id, self._hello(agent_id, _options(words[1:]))))
        else:
            self._feed(AgentSent(agent_id, (self._said(agent_id, words[1:], text),)))

    def _hello(self, agent_id: str, options: dict[str, str]) -> m.Hello:
        running = [_replica(name) for name in _listed(options.get("running"))]
        for name in _listed(options.get("running")):
            self.agents[name] = agent_id
        dead = [_replica(name) for name in _listed(options.get("dead"))]
        return m.Hello(
            agent_id=agent_id,
            spec=replace(self.spec, job_id=options.get("job", self.spec.job_id)),
            capacity=int(options.get("capacity", 8)),
            host=f"host-{agent_id}",
            store=f"{agent_id}:1",
            running=tuple(m.RunningReplica(*pair) for pair in running),
            dead=tuple(m.Loss(*pair, "seen by its agent") for pair in dead),
            finished=tuple(_listed(options.get("finished"))),
            epoch=int(options.get("epoch", 0)),
            age_s=float(options.get("age", 0)),
            kept=tuple(map(m.KeptSlot, _listed(options.get("kept")))),
        )

    def _said(self, agent_id: str, words: list[str], text: str) -> m.FromAgent:
        kind, rest = words[0], words[1:]
        detail = text.partition(": ")[2]
        if kind in ("started", "mends"):
            self.agents[rest[0]] = agent_id
            restarts = int(_options(rest[1:]).get("restarts", 0))
            return m.ReplicaStarted(*_replica(rest[0]), restarts, mends=kind == "mends")
        if kind in ("lost", "killed"):
            return m.ReplicaLost(*_replica(rest[0].rstrip(":")), detail, kind == "killed")
        if kind == "raised":
            name, _, step = rest[0].rstrip(":").partition("@")
            raised = m.Raised(detail.replace(" ", "-"), int(step), 1, detail)
            return m.ReplicaLost(*_replica(name), detail, kind="exception", raised=raised)
        if kind == "failed":
            failure = m.StartFailure(detail, int(rest[1].rstrip(":")), detail)
            return m.ReplicaLost(*_replica(rest[0]), detail, False, failure)
        if kind == "finished":
            early = _options(rest[1:]).get("early")
            at = None if early is None else int(early)
            return m.ReplicaFinished(*_replica(rest[0]), "idle" in rest, "unjoined" in rest, at)
        if kind == "leaves":
            running = tuple(m.RunningReplica(*_replica(word)) for word in rest)
            return m.AgentLeaving("SIGTERM", running)
        if kind == "gives":
            return m.JobFailed(int(rest[1].rstrip(":")), detail)
        if kind == "gives-up":
            how = text.partition(":")[0].split()
            flags = "elsewhere" in how, "trained" in how
            return m.ReplicaGivenUp(*_replica(rest[0]), int(how[-1]), detail, "", *flags)
        if kind == "silent":
            return m.PeersSilent(tuple(rest))
        if kind == "heartbeat":
            return m.Heartbeat(tuple(_progress(word) for word in rest))
        assert kind == "goodbye", text
        return m.Goodbye()

    def _worker(self, name: str, word: str) -> None:
        replica, _, rank = name.partition(".")
        key = WorkerKey(*_replica(replica), int(rank or 0))
        message = m.WorkerMessage(key, self._word(key, word))
        self._feed(AgentSent(self.agents[replica], (message,)))

    def _word(self, key: WorkerKey, text: str) -> m.FromWorker:
        head, _, detail = text.partition(": ")
        kind, *words = head.split()
        if kind == "report":
            return self._report(key, words)
        if kind == "progress":
            timed = re.fullmatch(r"(\d+) steps of (\S+) s", detail)
            steps, step_s = (int(timed[1]), float(timed[2])) if timed else (0, 0.0)
            waits = re.fullmatch(r"since (\S+) s, (.*)", detail)
            since_s, position = (float(waits[1]), waits[2]) if waits else (0.0, "")
            return m.Progress(
                int(words[0]),
                int(words[0]),
                Activity(" ".join(words[1:]) or "step"),
                steps=steps,
                usual_s=step_s,
                longest_s=step_s,
                since_s=since_s,
                position=position,
            )
        if kind == "leaving":
            return m.Leaving(m.LeaveReason(words[0]), *map(int, words[1:]))
        if kind == "present":
            together = "together" in words
            named = [x.removeprefix("part=") for x in words if x.startswith("part=")]
            part = tuple(named[0].split(",")) if named else ()
            at = Endpoint("10.0.0.1", f"{key.replica_id}{key.incarnation}:1")
            return m.Present(at, part, together)
        attempt, step = _tagged(words[0])
        if kind == "built":
            return m.Built(attempt)
        if kind == "buildfailed":
            return m.BuildFailed(attempt, detail, _options(words[1:]).get("unreached", ""))
        if kind == "promised":
            return m.Promised(attempt, step)
        if kind == "refused":
            current = int(_options(words[1:])["current"])
            return m.Refused(attempt, step, current, "later" in words)
        if kind == "inforce":
            return m.InForce(attempt, step)
        if kind == "errored":
            return m.Errored(attempt, step, detail, own="own" in words)
        assert kind == "healed", text
        return m.Healed(attempt, step, tuple(_listed(words[2])), 12_300_000, 0.0421)

    def _report(self, key: WorkerKey, words: list[str]) -> m.Report:
        options = _options(words[1:])
        promise = options.get("promised")
        under = options.get("under", options.get("reduced"))
        return m.Report(
            state=_state(words[0]),
            endpoint=Endpoint(f"host-{key.replica_id}", f"heal-{key.replica_id}:1"),
            interrupted=_attempt(options["interrupted"])
            if "interrupted" in options
            else NO_ATTEMPT,
            in_force=self.quorums[options["in"]] if "in" in options else None,
            pending=m.PendingQuorum(
                self.quorums[options["pending"]],
                m.SwitchPromise(int(promise), "confirmed" in options) if promise else None,
            )
            if "pending" in options
            else None,
            reduced=Tag(*_tagged(options["reduced"])) if "reduced" in options else None,
            under=Tag(*_tagged(under)) if under else None,
            handed=int(options.get("handed", "reduced" in options)),
            done=int(options.get("done", "reduced" in options)),
            voted=Tag(*_tagged(options["voted"])) if "voted" in options else None,
            healing="healing" in options,
            torn="torn" in options,
            local_step_index=int(options.get("local_step_index", 1)),
            repairable="cannot_repair" not in options,
            freezes_membership="freezes" in options,
            too_few="toofew" in options,
            contributors_min=int(options.get("needs", 0)),
            refused=options.get("refused", ""),
            refused_tries=int(options.get("tries", 0)),
        )

    # ------------------------------------------------------------ what follows

    def _feed(self, event: Event) -> None:
        assert self.lighthouse is not None, "start comes first"
        for instruction in self.lighthouse.handle(event, self.now):
            if not isinstance(instruction, SaveIncident | SaveAccount):  # tests/unit has those
                self._out.append(self._shown(instruction))
        self.lighthouse.check()
        phase = self.lighthouse.state.phase.value
        if phase != self._phase:
            self._out.append(f"= {phase}")
            self._phase = phase

    def _shown(self, instruction: Instruction) -> str:
        if isinstance(instruction, Journal):
            self.journal = instruction.record
            return f"journal {_record(instruction.record)}"
        if isinstance(instruction, CloseAgent):
            return f"close {instruction.agent_id}: {instruction.reason}"
        if isinstance(instruction, OperationChanged):
            assert self.lighthouse is not None
            operation = self.lighthouse.operation(instruction.number)
            assert operation is not None
            state = "failed" if operation.has_failed else "done" if operation.has_ended else "now"
            return f"operation {operation.number} {state}: {operation.text}"
        assert isinstance(instruction, SendToAgent)
        message = instruction.message
        to = f"{instruction.agent_id} <-"
        if not isinstance(message, m.ToWorkers):
            return f"{to} {_to_agent(message)}"
        targets = " ".join(f"{t.replica_id}{t.incarnation}" for t in message.targets)
        return f"{to} {targets}: {self._to_worker(message.message)}"

    def _to_worker(self, message: m.ToWorker) -> str:
        kind = type(message).__name__
        if isinstance(message, m.Roster):
            names = " ".join(f"{x.replica_id}{x.incarnation}" for x in message.entries)
            begun = " that trains" if message.has_begun else ""
            finished = f", finished {','.join(message.finished)}" if message.finished else ""
            return f"{kind}{begun} [{names}]{finished}"
        if isinstance(message, m.Interrupt):
            return f"{kind} {message.attempt}"
        if isinstance(message, m.NewQuorum | m.Prepare):
            self.quorums[str(message.quorum.attempt)] = message.quorum
            refused = getattr(message, "refused", "")
            pauses = ", pauses" * getattr(message, "pauses", False)
            why = f", {refused}" if refused else ""
            return f"{kind} {_quorum(message.quorum)}{why}{pauses}"
        if isinstance(message, m.ProposeSwitch | m.Switch):
            return f"{kind} {message.attempt}@{message.step}"
        return f"{kind} {message.attempt}" if isinstance(message, m.Cancel) else kind


def _to_agent(message: m.ToAgent) -> str:
    kind = type(message).__name__
    if isinstance(message, m.Welcome):
        return f"{kind} epoch={message.epoch}"
    if isinstance(message, m.AssignSlots):
        return f"{kind} {','.join(message.replica_ids) or '-'}"
    if isinstance(message, m.RestartReplica):
        return f"{kind} {message.replica_id}{message.incarnation}: {message.reason}"
    if isinstance(message, m.Notice):
        return f"{message.kind}: {message.text}"
    if isinstance(message, m.StopReplica):
        then = "restart" if message.restart else "stay away"
        where = ", at a boundary" if message.at_boundary else ""
        return f"{kind} {message.replica_id}{message.incarnation or '-'}: {then}{where}"
    if isinstance(message, m.KillWorkers):
        ranks = ",".join(map(str, message.group_ranks))
        return f"{kind} {message.replica_id}{message.incarnation}: {ranks}"
    if isinstance(message, m.AskStacks):
        keys = " ".join(f"{x.replica_id}{x.incarnation}.{x.group_rank}" for x in message.keys)
        return f"{kind} {message.request}: {keys}"
    if isinstance(message, m.EndJob):
        return f"{kind} {message.exit_code}: {message.reason}"
    return f"{kind}: {message.reason}" if isinstance(message, m.Rejected) else kind


def _record(record: JournalState) -> str:
    parts = [f"epoch={record.epoch}"]
    if record.spec is not None:
        parts.append(f"job={record.spec.job_id}")
    if record.finished:
        parts.append(f"finished={','.join(record.finished)}")
    if record.withdrawn:
        parts.append(f"withdrawn={','.join(record.withdrawn)}")
    absent = [f"{x.replica_id}@{x.step}:{x.how.replace(' ', '-')}" for x in record.absent]
    if absent:
        parts.append(f"absent={','.join(absent)}")
    asked = [str(x.number) for x in record.operations if not x.has_ended]
    if asked:
        parts.append(f"asked={','.join(asked)}")
    if record.outcome is not None:
        parts.append(f"ended={record.outcome.exit_code}")
    if record.unaccounted:
        unaccounted = ",".join(f"{x.replica_id}{x.incarnation}" for x in record.unaccounted)
        parts.append(f"unaccounted={unaccounted}")
    if record.switch_step is not None:
        parts.append(f"switch@{record.switch_step}")
    if record.quorum is not None:
        parts.append(_quorum(record.quorum))
    return " ".join(parts)


def _quorum(quorum: Quorum) -> str:
    members = " ".join(f"{x.replica_id}{x.incarnation}" for x in quorum.members)
    text = f"{quorum.attempt} [{members}]"
    if quorum.state is not None:
        text += f" from {quorum.state.step}/{quorum.state.lineage}"
    elif quorum.step is not None:
        text += f" from step {quorum.step}"
    if quorum.newcomers:
        text += f" {','.join(quorum.donors)} -> {','.join(quorum.newcomers)}"
    if quorum.recomputes:
        text += f" recomputes {','.join(quorum.recomputes)}"
    if quorum.stands_as is not None:
        text += f" standing {','.join(map(str, quorum.standing))} as {quorum.stands_as}"
    return text


def _options(words: list[str]) -> dict[str, str]:
    return {word.partition("=")[0]: word.partition("=")[2] for word in words}


def _listed(text: str | None) -> list[str]:
    return text.split(",") if text else []


def _replica(name: str) -> tuple[str, str]:
    return name.rstrip("abcdefghijklmnopqrstuvwxyz"), name.lstrip("0123456789")


def _attempt(text: str) -> Attempt:
    quorum_id, _, number = text.partition("#")
    epoch, _, seq = quorum_id.partition(".")
    return Attempt(pack_quorum_id(int(epoch), int(seq)), int(number))


def _tagged(text: str) -> tuple[Attempt, int]:
    attempt, _, step = text.partition("@")
    return _attempt(attempt), int(step or 0)


def _state(text: str) -> StateId:
    step, _, lineage = text.partition("/")
    return StateId(int(step), lineage)


def _progress(text: str) -> m.ReplicaProgress:
    name, _, step = text.partition("@")
    progress = m.Progress(int(step), int(step), Activity.STEP, (("loss", 0.5),))
    return m.ReplicaProgress(*_replica(name), progress)


# ---------------------------------------------------------------- files


class Player(Protocol):
    """The core that a transcript is about."""

    def line(self, text: str) -> list[str]:
        """Play one event line; returns the lines of its instructions."""


def play(text: str, kind: Callable[[], Player] = Replay) -> str:
    """The transcript as its core plays it now."""
    replay = kind()
    lines: list[str] = []
    for line in _events(text):
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"    {out}" for out in replay.line(line)]
    return "\n".join(lines) + "\n"


def _events(text: str) -> Iterator[str]:
    return (line.rstrip() for line in text.splitlines() if not line.startswith(" "))


def main(paths: list[str], kind: Callable[[], Player] = Replay) -> None:
    """Rewrite each file."""
    for path in map(Path, paths):
        path.write_text(play(path.read_text(encoding="utf-8"), kind), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
