"""All replicas begin again together: from the newest state that somebody has left, whoever dies
while it leaves its own. Random schedules of a whole supervisor; what is left is modelled as the
launcher's memory has it: a state is there as a whole, or not at all."""

from __future__ import annotations

import random

import pytest

from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.agent import events as e
from ftrun.core.agent import together
from ftrun.core.agent.restarts import RestartRules
from ftrun.core.agent.settings import SupervisorSettings
from ftrun.core.agent.supervisor import Supervisor
from ftrun.core.agent.together import GATHER_S, GATHERS_MAX, Together
from ftrun.core.ids import Attempt, WorkerKey

SEEDS = 300
LIMIT_S = GATHER_S * GATHERS_MAX + 1


class Play:
    """One job, from the first worker that asks to the decision."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        replicas = self.random.randint(2, 5)
        self.agent = Supervisor(
            SupervisorSettings(
                "a", 1, RestartRules(10), 10.0, 60.0, 30.0, replicas=replicas, leaves_state=True
            ),
            0.0,
        )
        self.left: dict[str, tuple[int, int]] = {}  # a whole state and its place, by replica
        self.running: dict[str, str] = {}  # incarnations
        self.trains: set[str] = set()
        self.looks: list[dict[str, tuple[int, int]]] = []
        self.shared: list[e.ShareMemory] = []
        self.killed: set[str] = set()
        self.is_one_world = False
        self.feed(e.SpawnerReady())
        self.feed(m.AssignSlots(tuple(map(str, range(replicas)))))
        self.step = self.random.randint(1, 40)
        for who in list(self.running):
            key = WorkerKey(who, self.running[who], 0)
            self.feed(e.WorkerSent(key, m.InForce(Attempt(1, 1), 1)))
            self.feed(e.WorkerSent(key, m.Progress(self.step, self.step, Activity.STEP, steps=1)))
            self.trains.add(who)
        self.dies(str(replicas - 1))

    def feed(self, event: e.Event) -> None:
        for instruction in self.agent.handle(event, self.now):
            match instruction:
                case e.StartReplica(replica_id, incarnation):
                    self.running[replica_id] = incarnation
                case e.LookAtMemory():
                    self.looks.append(dict(self.left))
                case e.ShareMemory():
                    self.shared.append(instruction)
                case e.SignalReplica(replica_id, _, 9):
                    self.killed.add(replica_id)
                case e.ShowNotice("again"):
                    self.is_one_world = True
                case _:
                    pass
        self.agent.check()

    def dies(self, who: str) -> None:
        self.trains.discard(who)
        self.feed(e.WorkerExited(self.running.pop(who), 0, 7, -9))

    def asks(self, who: str) -> None:
        """It has left its state before, unless it could not."""
        if who in self.trains and self.random.random() < 0.8:
            step = self.step + self.random.randint(0, 1)
            self.left[who] = step, step - self.random.randint(0, 1)
        self.feed(e.WorkerSent(WorkerKey(who, self.running[who], 0), _asks()))

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.feed(e.TimerFired())

    @property
    def is_over(self) -> bool:
        return bool(self.shared) or self.is_one_world

    def run(self) -> None:
        """Asserts that no one is waited for for ever, or killed while it leaves its state."""
        asked_at = -1.0
        left_to_ask = sorted(self.trains)
        while not self.is_over:
            if self.looks:
                held = tuple((x, *y) for x, y in sorted(self.looks.pop().items()))
                self.looks.clear()
                self.feed(e.MemorySeen(held))
                continue
            choice = self.random.random()
            if left_to_ask and choice < 0.5:
                who = left_to_ask.pop(self.random.randrange(len(left_to_ask)))
                if who not in self.running or self.agent.slots.get(who) is None:
                    continue
                if self.random.random() < 0.2:
                    self.dies(who)  # in the middle of it: nothing is there
                else:
                    asked_at = self.now if asked_at < 0 else asked_at
                    self.asks(who)
            elif choice < 0.6 and asked_at < 0 and (new := self.running.keys() - self.trains):
                asked_at = self.now
                self.asks(min(new))
            else:
                self.passes(self.random.uniform(0.0, 2.0))
            assert asked_at < 0 or self.now - asked_at <= LIMIT_S, "it waits for ever"
            if asked_at < 0 and not left_to_ask:
                return  # all have died before one asked
        is_late = self.now - asked_at >= GATHER_S
        assert is_late or not self.trains & {*left_to_ask}, "one was not waited for"


def _asks() -> m.AnotherForm:
    return m.AnotherForm("together", "train.py:3: no")


def play(seed: int) -> None:
    game = Play(seed)
    game.run()
    if not game.is_over:
        return
    if game.is_one_world:
        assert not game.left, "a state was left, and nobody begins from it"
        return
    [share] = game.shared
    assert share.step == max(step for step, _ in game.left.values()), "a newer state was left"
    step, place = game.left[share.replica_id]
    assert step == share.step, "it was not its own"
    places = [place for step, place in game.left.values() if step == share.step]
    assert place == min(places), "others have not made the calls before that place"
    assert game.trains <= game.killed, "one goes on alone"


@pytest.mark.parametrize("first", range(0, SEEDS, 100))
def test_all_begin_from_the_newest_state_that_is_left(first: int) -> None:
    for seed in range(first, first + 100):
        play(seed)


@pytest.mark.parametrize("bug", ["waits for the dead", "an older one", "a later place", "at once"])
def test_planted_bugs_are_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    if bug == "an older one":
        monkeypatch.setattr(together, "max", min, raising=False)
    elif bug == "a later place":
        monkeypatch.setattr(together, "max", lambda found, key: max(found), raising=False)
    elif bug == "at once":
        monkeypatch.setattr(Together, "_those_that_leave", lambda self: iter(()))
    else:
        every = [WorkerKey("0", "gone", 0)]
        monkeypatch.setattr(Together, "_those_that_leave", lambda self: iter(every))
        monkeypatch.setattr(together, "GATHERS_MAX", 10**6)
    with pytest.raises(AssertionError):
        for seed in range(SEEDS):
            play(seed)
