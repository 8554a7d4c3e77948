"""A job for tests of the account: a lighthouse, an agent for each replica, scripted workers."""

from __future__ import annotations

import json
from typing import Any

from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.books.records import AccountRecord, SaveAccount
from ftrun.core.failure_kinds import HEAL
from ftrun.core.ids import NO_ATTEMPT, StateId, WorkerKey
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentDetached,
    AgentSent,
    Instruction,
    Journal,
    JournalState,
    LighthouseSettings,
    SendToAgent,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.status import MembershipStatus, ReplicaStatus
from ftrun.core.quorum import Endpoint

SETTINGS = LighthouseSettings(assign_gather_s=0.0, join_gather_s=0.0)


class BookedJob:
    """``incarnations`` by slot; ``now`` is the lighthouse's clock."""

    def __init__(
        self, replicas: int = 2, workers: int = 1, age_s: float = 0.0, action: str = HEAL
    ) -> None:
        self.now = 0.0
        self.workers, self.age_s = workers, age_s
        self.spec = m.JobSpec(
            "job", replicas, workers, 1, 5.0, 3600.0, 20.0, nodes=replicas, on_corruption=action
        )
        self.journal = JournalState()
        self.saved: SaveAccount | None = None
        self.sent: list[Any] = []
        self.incarnations = {str(index): f"i{index}" for index in range(replicas)}
        self.core = Lighthouse(SETTINGS, self.journal, self.now)
        self.feed(TimerFired())
        for name in self.incarnations:
            self.attach(name)

    def feed(self, event: Any) -> None:
        for instruction in self.core.handle(event, self.now):
            self._note(instruction)
        self.core.check()

    def _note(self, instruction: Instruction) -> None:
        if isinstance(instruction, Journal):
            self.journal = instruction.record
        elif isinstance(instruction, SaveAccount):
            self.saved = instruction
        elif isinstance(instruction, SendToAgent):
            self.sent.append(instruction.message)

    def wait(self, seconds: float) -> None:
        """Let time pass; the timer fires when it is due."""
        end = self.now + seconds
        while (due := self.core.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.feed(TimerFired())
        self.now = end

    def attach(self, name: str, *running: m.RunningReplica) -> None:
        hello = m.Hello(
            f"n{name}", self.spec, 1, f"host-{name}", f"n{name}:1", running, age_s=self.age_s
        )
        self.feed(AgentAttached(f"n{name}", hello))

    def detach(self, name: str) -> None:
        self.feed(AgentDetached(f"n{name}"))

    def send(self, name: str, *messages: m.FromAgent) -> None:
        self.feed(AgentSent(f"n{name}", messages))

    def say(self, name: str, message: m.FromWorker) -> None:
        """Every worker of the replica sends this."""
        keys = [WorkerKey(name, self.incarnations[name], rank) for rank in range(self.workers)]
        self.send(name, *(m.WorkerMessage(key, message) for key in keys))

    def start(self, name: str, incarnation: str = "") -> None:
        self.incarnations[name] = incarnation or self.incarnations[name]
        self.send(name, m.ReplicaStarted(name, self.incarnations[name], 0, 3))

    def report(self, name: str, step: int = 0, *, repairable: bool = True) -> None:
        quorum, state = self.core.state.quorum, self.core.state
        in_force = quorum if quorum is not None and name in state.live else None
        gave_up = state.interrupt if in_force is not None else NO_ATTEMPT
        endpoint = Endpoint("h", "h:1")
        held = StateId(step, f"s{step}")
        self.say(name, m.Report(held, endpoint, gave_up, in_force, repairable=repairable))

    def build(self, *names: str) -> None:
        assert self.core.state.quorum is not None
        for name in names:
            self.say(name, m.Built(self.core.state.quorum.attempt))

    def progress(
        self,
        name: str,
        step: int,
        activity: Activity = Activity.STEP,
        since_s: float = 0.0,
        **more: Any,
    ) -> None:
        word = m.Progress(step, step, activity, (("loss", 0.5),), since_s, **more)
        line = m.ReplicaProgress(name, self.incarnations[name], word)
        self.send(name, m.Heartbeat((line,)))

    def form(self) -> None:
        """All replicas start, and train at step 0."""
        for name in self.incarnations:
            self.start(name)
        for name in self.incarnations:
            self.report(name)
        self.build(*self.incarnations)

    def lose(self, name: str, kind: str = "signal") -> None:
        incarnation = self.incarnations[name]
        self.send(name, m.ReplicaLost(name, incarnation, "killed by SIGKILL", kind=kind))

    def restart_lighthouse(self, gap_s: float, *, loses_account: bool = False) -> None:
        """kill -9; a new one begins after ``gap_s`` with what is on disk, as a file has it."""
        saved_at, record = self.now, None
        if self.saved is not None and not loses_account:
            document = json.loads(json.dumps(self.saved.document))
            record = AccountRecord(document, gap_s)
        self.now = saved_at + gap_s
        self.core = Lighthouse(SETTINGS, self.journal, self.now, record)
        self.feed(TimerFired())

    def status(self) -> MembershipStatus:
        return self.core.snapshot(self.now)

    def replica(self, name: str) -> ReplicaStatus:
        return self.status()["replicas"][int(name)]

    def seconds(self, name: str) -> dict[str, float]:
        """The slot's time by use so far; the sums of all slots are checked."""
        status = self.status()
        account = status["account"]
        wall = account["wall_s"] * len(self.incarnations)
        assert abs(account["total_s"] - wall) < 1e-9
        for use, total in account["seconds"].items():
            parts = sum(replica["seconds"].get(use, 0.0) for replica in status["replicas"])
            assert abs(parts - total) < 1e-6
            assert abs(sum(account["bands"]["seconds"][use]) - total) < 1e-6
        return status["replicas"][int(name)]["seconds"]
