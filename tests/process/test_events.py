"""``events.jsonl`` of a job with a kill: each event, and each field, is in docs/EVENTS.md."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from ftrun.core.lighthouse.status import AccountStatus
from tests.jobs import Job

pytestmark = pytest.mark.timeout(300)
DOCS = Path(__file__).parents[2] / "docs" / "EVENTS.md"
SCRIPT = """
import ftrun, torch, time
from pathlib import Path
model = torch.nn.Linear(4, 1)
manager = ftrun.manager()
ddp = ftrun.DistributedDataParallel(manager, model)
inner = torch.optim.SGD(model.parameters(), 0.1)
manager.register_state_dict_fn("model", model.load_state_dict, model.state_dict)
optimizer = ftrun.Optimizer(manager, inner)
while not Path("over").exists():
    optimizer.zero_grad()
    ddp(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    print("step", manager.current_step(), flush=True)
    time.sleep(0.05)
"""


def documented() -> dict[str, set[str]]:
    """The fields of each event, as docs/EVENTS.md has them."""
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    found = {kind: set(re.findall(r"`(\w+)`", fields)) for kind, fields in rows[1:]}
    found["account"] = found["account"] - {"account"} | set(AccountStatus.__annotations__)
    return found


def test_a_job_s_events(tmp_path: Path) -> None:
    with Job(tmp_path, SCRIPT, "--replicas", "2", "--device", "cpu") as job:
        job.expect(r"^\[[01]\.0\] step 5$", 2)
        os.kill(job.worker(1), signal.SIGKILL)
        job.expect(r"Replica 1 healed")
        (tmp_path / "over").touch()
        assert job.end() == 0
    (path,) = tmp_path.glob("logs/*/events.jsonl")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    common = {"schema", "time", "event"}
    fields = documented()
    for event in events:
        assert event.keys() - common == event.keys() & fields[event["event"]] - common, event
        missing = fields[event["event"]] - event.keys() - {"bands"}
        assert not missing, (event, missing)
    assert {event["event"] for event in events} == fields.keys()
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    ended = [event for event in events if event["event"] == "ended"]
    assert [(event["exit_code"], event["reason"]) for event in ended] == [
        (0, "all replicas have finished")
    ]
    over = [e for e in events if e["event"] == "incident" and not e["is_open"]]
    assert [(e["replica"], e["kind"]) for e in over] == [("1", "signal")]
    assert over[0]["back_after_s"] > 0
    last = [event for event in events if event["event"] == "account"][-1]
    assert last["total_s"] == pytest.approx(2 * last["wall_s"], abs=1e-5)
    assert sum(last["seconds"].values()) == pytest.approx(last["total_s"], abs=1e-5)
    in_bands = sum(sum(row) for row in last["bands"]["seconds"].values())
    assert in_bands == pytest.approx(last["total_s"], rel=1e-3)
