"""``ftrun chaos --manifest`` and a real job: each fault is carried out, and the result is right."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

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


NODES = """
schema = "ftrun.chaos/1"
[proxy]
listen = "127.0.0.1:{port}"
to = "{lighthouse}"
[[fault]]
at_step = 20
do = "slow"
lasts = "1s"
delay = "50ms"
[[fault]]
at_step = 100
do = "node"
replica = "2"
[[fault]]
at_step = 150
do = "lighthouse"
"""


@pytest.mark.slow
def test_a_slow_network_and_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a" / "state"))
    campaign, result, codes = tmp_path / "c.toml", tmp_path / "result.json", list[int]()
    with Lighthouse(tmp_path) as house:
        port = free_port()
        campaign.write_text(NODES.format(port=port, lighthouse=house.address))
        settings = ChaosSettings(1.0, "job", result=result)
        lines: list[str] = []
        run = threading.Thread(
            target=lambda: codes.append(run_campaign(settings, campaign, lines.append))
        )
        run.start()
        options = ("--replicas", "3", "--nodes", "2", "--lighthouse", f"127.0.0.1:{port}",
                   "--token-file", str(tmp_path / "token"))  # fmt: skip
        with Job(tmp_path / "a", SCRIPT, *options) as one:
            one.expect("ftrun")
            with Job(tmp_path / "b", SCRIPT, *options) as two:
                run.join(200)
                shown = "\n".join([*lines, one.output, two.output])
                assert not run.is_alive(), shown
                assert two.end() == -9, shown
    slow, node, lighthouse = json.loads(result.read_text())["faults"]
    assert not slow["why_not"] and slow["next_step_s"] is not None, shown
    assert not node["why_not"] and node["next_step_s"] is not None, shown
    assert "no agent here has a lighthouse" in lighthouse["why_not"] and codes == [1], shown
