"""The picture for people and machines: plain JSON, complete, in words of the house."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.ids import WorkerKey
from ftrun.core.lighthouse.events import AgentSent
from tests.transcripts.replay import Replay

LINES = """\
job replicas=5 min=2 nodes=2
start
A attached capacity=3
B attached capacity=2
+0.2
A says started 0a restarts=2
A says started 1a
A says started 2a
B says started 3a
B says started 4a
0a 1a 2a 3a 4a: report 0/shared
0a 1a 2a 3a 4a: built 1.1#1
A says heartbeat 0a@4
0a: progress 5 step: 5 steps of 0.2 s
""".splitlines()


def shown(*more: str) -> dict[str, Any]:
    """The snapshot after these lines, by way of JSON."""
    replay = Replay()
    for line in (*LINES, *more):
        replay.line(line)
    assert replay.lighthouse is not None
    picture: dict[str, Any] = json.loads(json.dumps(replay.lighthouse.snapshot(replay.now + 1.0)))
    return picture


def phases(picture: dict[str, Any]) -> dict[str, str]:
    return {replica["replica_id"]: replica["phase"] for replica in picture["replicas"]}


def test_a_steady_job() -> None:
    picture = shown()
    assert picture["phase"] == "steady"
    assert picture["step"] == 5
    assert picture["restarts"] == 2
    assert picture["quorum"]["name"] == "1.1"
    assert picture["quorum"]["members"] == ["0", "1", "2", "3", "4"]
    assert set(phases(picture).values()) == {"member"}
    assert picture["replicas"][0] == {
        "replica_id": "0",
        "phase": "member",
        "use": "training",
        "use_s": 1.0,
        "seconds": {"training": 1.0, "absent": 0.2},
        "host": "host-A",
        "step_s": None,
        "own_s": None,
        "heal": None,
        "restarts_left": None,
        "is_hung": False,
        "workers": [],
        "incarnation": "a",
        "agent_id": "A",
        "restarts": 2,
        "restart_in_s": None,
        "step": 5,
        "batches": 5,
        "worker_phase": "step",
        "pause": None,
        "pause_s": None,
        "scalars": {},
        "last_event": None,
    }
    assert [agent["slots"] for agent in picture["agents"]] == [["0", "1", "2"], ["3", "4"]]
    (formed,) = picture["history"]
    assert formed["kind"] == "form"
    assert formed["duration_s"] == 0.0
    assert picture["outcome"] is None


def heard(*lines: str, heartbeat: m.Heartbeat, agent: str = "A") -> dict[str, Any]:
    """The snapshot after these lines and this heartbeat, by way of JSON, a second later."""
    replay = Replay()
    for line in (*LINES, *lines):
        replay.line(line)
    assert replay.lighthouse is not None
    replay.lighthouse.handle(AgentSent(agent, (heartbeat,)), replay.now)
    picture = replay.lighthouse.snapshot(replay.now + 1.0)
    found: dict[str, Any] = json.loads(json.dumps(picture, allow_nan=False))
    return found


def told(*lines: str, heartbeat: m.Heartbeat, agent: str = "A") -> list[dict[str, Any]]:
    """The replicas of that snapshot."""
    found: list[dict[str, Any]] = heard(*lines, heartbeat=heartbeat, agent=agent)["replicas"]
    return found


def test_a_workers_facts_are_those_that_its_own_agent_measured_last() -> None:
    facts = m.WorkerFacts(WorkerKey("0", "a", 0), 812, "cuda:3", 0.5, 1 << 30, 7, 80, 0.25, 2.0)
    others = replace(facts, key=WorkerKey("1", "a", 0), cpu_share=math.nan, gpu_share=math.inf)
    unknown = [WorkerKey("0", "z", 0), WorkerKey("0", "a", 1), WorkerKey("9", "a", 0)]
    strange = [replace(facts, key=key) for key in unknown]
    first, second, third, *_ = told(heartbeat=m.Heartbeat(workers=(facts, others, *strange)))
    assert first["workers"] == [
        {
            "group_rank": 0,
            "pid": 812,
            "node": "",
            "device": "cuda:3",
            "cpu_share": 0.5,
            "rss_bytes": 1 << 30,
            "gpu_memory_bytes": 7,
            "gpu_memory_total_bytes": 80,
            "gpu_share": 0.25,
            "age_s": 3.0,
        }
    ]
    assert second["workers"][0]["cpu_share"] is second["workers"][0]["gpu_share"] is None
    assert third["workers"] == []
    assert told(heartbeat=m.Heartbeat(workers=(facts,)), agent="B")[0]["workers"] == []


def test_a_heal_is_shown_while_it_heals() -> None:
    healing = m.Progress(6, 5, Activity.HEALING, heal=m.HealProgress(3, 12))
    heartbeat = m.Heartbeat((m.ReplicaProgress("0", "a", healing),))
    assert told(heartbeat=heartbeat)[0]["heal"] == {"done_bytes": 3, "total_bytes": 12}
    trains = replace(healing, phase=Activity.STEP, step_s=0.5, own_s=0.25)
    first = told(heartbeat=m.Heartbeat((m.ReplicaProgress("0", "a", trains),)))[0]
    assert (first["heal"], first["step_s"], first["own_s"]) == (None, 0.5, 0.25)


def test_what_a_loss_would_cost_is_that_of_the_group_that_would_lose_most() -> None:
    def apart(step: int, worker: float, node: float, job: float) -> m.Progress:
        return replace(
            m.Progress(step, 0, Activity.APART),
            worker_lost=m.Resumption(step, worker),
            node_lost=m.Resumption(step - 3, node),
            job_lost=m.Resumption(step + 1, job),
        )

    groups = {"0": apart(40, 0.25, 6.0, 9.0), "1": apart(44, 0.5, 5.0, 60.0)}
    untold = {"2": m.Progress(90, 0, Activity.APART)}
    rows = [m.ReplicaProgress(name, "a", x) for name, x in (groups | untold).items()]
    assert heard(heartbeat=m.Heartbeat(tuple(rows)))["recovery"] == {
        "worker": {"from_step": 44, "steps": 0, "seconds": 0.5},
        "node": {"from_step": 37, "steps": 3, "seconds": 6.0},
        "job": {"from_step": 45, "steps": 0, "seconds": 60.0},
    }
    assert heard(heartbeat=m.Heartbeat(tuple(rows[2:])))["recovery"] is None
    managed = replace(apart(40, 0.0, 2.0, 3.0), phase=Activity.STEP)  # one of several replicas
    row = m.ReplicaProgress("0", "a", managed)
    found = heard(heartbeat=m.Heartbeat((row,)))["recovery"]
    assert found is not None and found["worker"]["steps"] == 0 and found["node"]["steps"] == 3


def test_a_group_that_trains_without_a_quorum_is_not_starting() -> None:
    def of(phase: Activity) -> str:
        lines = "A says lost 0a: killed", "A says started 0b restarts=1"
        row = m.ReplicaProgress("0", "b", m.Progress(40, 0, phase))
        return str(heard(*lines, heartbeat=m.Heartbeat((row,)))["replicas"][0]["phase"])

    assert [of(Activity.APART), of(Activity.STARTING)] == ["apart", "starting"]


def test_every_replica_says_where_it_is() -> None:
    picture = shown(
        "A says lost 0a: killed",
        "1a 2a 3a 4a: report 6/x interrupted=1.1#1",
        "1a 2a 3a 4a: built 1.2#1",
        "A says started 0b restarts=3",
        "0b: report 0/fresh",
        "B says lost 3a: killed",
        "drain 4",
        "1a: leaving finished",
        "B says started 3b restarts=1",
    )
    assert phases(picture) == {
        "0": "joining",
        "1": "finished",
        "2": "member",
        "3": "starting",
        "4": "draining",
    }
    assert picture["phase"] == "rejoin"
    assert picture["waiting_for"] == ["1", "2", "4"]
    assert picture["waiting"] == {
        "for": "the lighthouse waits for replicas 1, 2 and 4 to report its state",
        "whom": ["1", "2", "4"],
        "since_s": 1.0,
        "at_most_s": 4.0,
    }
    assert picture["history"][-1]["under_way"]
    assert picture["history"][-1]["reason"] == "replica 3: killed"


def test_a_job_that_has_ended_says_how() -> None:
    picture = shown("A says lost 0a: killed", "A says gives up 72: it crashes in a loop")
    assert picture["outcome"] == {"exit_code": 72, "reason": "it crashes in a loop"}
    assert picture["quorum"] is None
    assert phases(picture)["0"] == "absent"


def test_before_any_agent_has_come() -> None:
    replay = Replay()
    replay.line("start")
    assert replay.lighthouse is not None
    picture = replay.lighthouse.snapshot(0.0)
    assert (picture["phase"], picture["replicas"], picture["agents"]) == ("takeover", [], [])


def test_a_replica_that_was_given_up_is_shown_as_that_until_it_is_asked_for() -> None:
    lines = ("A says lost 1a: died: SIGSEGV", "A says gives-up 1a trained 139: no restart is left")
    assert phases(shown(*lines))["1"] == "given up"
    assert phases(shown(*lines, "asks restart 1"))["1"] == "absent"
