"""``ftrun chaos --manifest`` and a real job: each fault is carried out, and the result is right."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from ftrun.tools.chaos.campaign import run_campaign
from ftrun.tools.chaos.session import ChaosSettings
from tests.jobs import Job, Lighthouse, free_port

CAMPAIGN = Path(__file__).parents[1] / "chaos" / "campaign.toml"
SCRIPT = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
for step in range(640):
    optimizer.zero_grad()
    model(torch.arange(4) / 4 + step % 8).sum().backward()
    optimizer.step()
    time.sleep(0.02)
print("end", sum(model.module.weight.tolist()[0]), flush=True)
dist.destroy_process_group()
"""


def test_a_campaign_is_carried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    traps = tmp_path / "traps"
    traps.mkdir()
    environment = {"FTRUN_CHAOS_DIR": str(traps)}
    lines: list[str] = []
    options = ("--replicas", "3", "--job-id", "tried")
    with Job(tmp_path, SCRIPT, *options, environment=environment) as job:
        job.expect("in quorum")
        settings = ChaosSettings(1.0, "tried", result=tmp_path / "result.json")
        code = run_campaign(settings, CAMPAIGN, lines.append)
        assert job.end() == 0
        result = json.loads((tmp_path / "result.json").read_text())
        shown = "\n".join([*lines, json.dumps(result, indent=1), job.output])
        assert code == 0, shown
        assert [fault["kind"] for fault in result["faults"]] == [
            "kill", "stop", "corrupt", "lighthouse",
        ], shown  # fmt: skip
        for fault in result["faults"]:
            assert fault["step"] >= fault["at_step"] and fault["next_step_s"] is not None, shown
            assert fault["steps_lost"] == 0 and not fault["why_not"], shown
        back = {fault["kind"]: fault["back_s"] for fault in result["faults"]}
        assert back["kill"] and back["corrupt"] and back["stop"] is None, shown
        assert result["end"]["exit_code"] == 0 and result["end"]["equal"] is True, shown
        # Under load the corruption itself can take hundreds of steps.
        assert re.search(r"replica 1 is corrupted since a step after [3-5]00 and up to", job.output)


KILL = """
schema = "ftrun.chaos/1"
[end]
pattern = 'end (\\S+)'
[[fault]]
at_step = 40
do = "kill"
replica = 0
worker = 1
"""


@pytest.mark.parametrize("options", [("-w", "2"), ("--replicas", "2", "-w", "2")])
def test_a_worker_that_is_replaced_in_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """No replica leaves, and one group has no quorum."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    campaign, lines = tmp_path / "c.toml", list[str]()
    campaign.write_text(KILL)
    script = SCRIPT.replace("range(640)", "range(400)")
    with Job(tmp_path, script, *options, "--job-id", "tried") as job:
        job.expect("Memory snapshots are kept")
        settings = ChaosSettings(1.0, "tried", result=tmp_path / "result.json")
        code = run_campaign(settings, campaign, lines.append)
        assert job.end() == 0
    (fault,) = faults_of(tmp_path)
    shown = "\n".join([*lines, json.dumps(fault, indent=1), job.output])
    assert code == 0 and (fault["replica"], fault["worker"]) == ("0", 1), shown
    assert fault["steps_lost"] == 0 and not fault["why_not"], shown
    assert 0 < fault["back_s"] < fault["next_step_s"], shown
    assert "worker 0.1 " in job.output and "Its replacement repeated" in job.output, shown


SHARDED = """
import time, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(4, 2, bias=False)
fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s")))
optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
for step in range(400):
    optimizer.zero_grad()
    model(torch.arange(4) / 4 + step % 8).sum().backward()
    optimizer.step()
    time.sleep(0.02)
print("end", sum(model.weight.full_tensor().view(-1).tolist()), flush=True)
"""


def test_a_campaign_in_one_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (traps := tmp_path / "traps").mkdir()
    lines, environment = list[str](), {"FTRUN_CHAOS_DIR": str(traps)}
    options = ("-w", "4", "--device", "cpu", "--job-id", "tried")
    with Job(tmp_path, SHARDED, *options, environment=environment) as job:
        job.expect("Memory snapshots are kept")
        settings = ChaosSettings(1.0, "tried", result=tmp_path / "result.json")
        code = run_campaign(settings, CAMPAIGN.with_name("group.toml"), lines.append)
        assert job.end() == 0, job.output
    faults = {fault["kind"]: fault for fault in faults_of(tmp_path)}
    shown = "\n".join([*lines, json.dumps(faults, indent=1), job.output])
    assert code == 0 and [*faults] == ["kill", "stop", "corrupt"], shown
    assert not any(fault["why_not"] for fault in faults.values()), shown
    assert all(fault["next_step_s"] is not None for fault in faults.values()), shown
    assert faults["kill"]["steps_lost"] == faults["stop"]["steps_lost"] == 0, shown
    assert faults["corrupt"]["steps_lost"] > 0 and faults["corrupt"]["back_s"], shown
    its = r"worker 0\.3 \(pid \d+\) is corrupted, or worker 1, since a step after \d+ and up to"
    assert re.search(its, job.output), shown


def run(
    tmp_path: Path, campaign: Path, job_id: str, lines: list[str]
) -> tuple[threading.Thread, list[int]]:
    """A campaign in a thread of its own, because the job waits for its proxy."""
    codes = list[int]()
    settings = ChaosSettings(1.0, job_id, result=tmp_path / "result.json")
    thread = threading.Thread(
        target=lambda: codes.append(run_campaign(settings, campaign, lines.append))
    )
    thread.start()
    return thread, codes


def faults_of(tmp_path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((tmp_path / "result.json").read_text())["faults"]
    return found


def test_a_corruption_that_is_to_be_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (traps := tmp_path / "traps").mkdir()
    lines: list[str] = []
    options = ("--replicas", "3", "--job-id", "tried", "--on-corruption", "report")
    environment = {"FTRUN_CHAOS_DIR": str(traps)}
    script = SCRIPT.replace("range(640)", "range(340)")
    with Job(tmp_path, script, *options, environment=environment) as job:
        job.expect("in quorum")
        settings = ChaosSettings(1.0, "tried", result=tmp_path / "result.json")
        code = run_campaign(settings, CAMPAIGN.with_name("report.toml"), lines.append)
        assert job.end() == 78
        (fault,) = faults_of(tmp_path)
        shown = "\n".join([*lines, json.dumps(fault, indent=1), job.output])
        assert code == 1, "they do not end alike"
        assert not fault["why_not"] and fault["back_s"] is None, shown
        assert None not in (fault["found_s"], fault["next_step_s"]), shown
        assert not fault["steps_lost"] and "Restart" not in job.output, shown
        assert re.search(r"Replica 1 is corrupted since .*Training continues", job.output), shown
        assert "all have reached the end, but replica 1 is corrupted" in job.output, shown


def test_a_slow_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    campaign, lines, port = tmp_path / "c.toml", list[str](), free_port()
    with Lighthouse(tmp_path) as house:
        text = CAMPAIGN.with_name("slow.toml").read_text()
        text = text.replace("127.0.0.1:29510", house.address).replace("29600", str(port))
        campaign.write_text(text)
        thread, codes = run(tmp_path, campaign, "job", lines)
        options = ("--replicas", "2", "--lighthouse", f"127.0.0.1:{port}",
                   "--token-file", str(tmp_path / "token"))  # fmt: skip
        with Job(tmp_path, SCRIPT.replace("range(640)", "range(200)"), *options) as job:
            assert job.end() == 0, job.output
            thread.join(60)
            shown = "\n".join([*lines, job.output])
    (fault,) = faults_of(tmp_path)
    assert codes == [0], shown
    assert not fault["why_not"] and fault["next_step_s"] is not None, shown
    assert fault["steps_lost"] == 0 and "Restart" not in job.output, shown


@pytest.mark.parametrize("asks", ["another", "itself"])
def test_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: str) -> None:
    """The node with replica 2 is lost. ``asks``: whose file the campaign finds the job by."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    lines, script = list[str](), SCRIPT.replace("range(640)", "range(10**6)")
    with Lighthouse(tmp_path) as house:
        options = ("--replicas", "3", "--nodes", "2", "--lighthouse", house.address,
                   "--token-file", str(tmp_path / "token"))  # fmt: skip
        with (
            Job(tmp_path / "a", script, *options) as one,
            Job(tmp_path / "b", script, *options) as two,
        ):
            one.expect("in quorum")
            # Who comes first gets two replicas.
            lost, other = (one, two) if one.family.titled("ftrun worker 2.") else (two, one)
            asked = lost if asks == "itself" else other
            monkeypatch.setenv("XDG_STATE_HOME", str(asked.directory / "state"))
            thread, codes = run(tmp_path, CAMPAIGN.with_name("node.toml"), "job", lines)
            thread.join(200)
            shown = "\n".join([*lines, one.output, two.output])
            assert not thread.is_alive() and lost.end() == -9, shown
            assert other.process.poll() is None, shown
    (fault,) = faults_of(tmp_path)
    assert codes == [0] and not fault["why_not"], shown
    assert None not in (fault["found_s"], fault["next_step_s"], fault["back_s"]), shown
