"""A job whose agent and lighthouse verify each other by certificates, all real processes."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.tools.certs import write_certificates
from tests.jobs import Job, Lighthouse, ask
from tests.unit.checkpoint.asking import WAIT_S, Caller

WAITS = """
import os, signal
print("slot", os.environ["REPLICA_GROUP_ID"], flush=True)
signal.pause()
"""

TRAINS = """
import os, time, torch, ftrun
from ftrun import DistributedDataParallel, Optimizer
model = torch.nn.Linear(4, 4)
inner = torch.optim.SGD(model.parameters(), lr=0.01)
manager = ftrun.manager(model.load_state_dict, model.state_dict)
where = manager.session.healing.endpoint
serves = f"serves {where.heal} {where.heal_certificate or 'in plaintext'}"
print("slot", os.environ["REPLICA_GROUP_ID"], serves, flush=True)
optimizer, network = Optimizer(manager, inner), DistributedDataParallel(manager, model)
while True:
    optimizer.zero_grad()
    network(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    time.sleep(0.05)
"""


@pytest.fixture
def lighthouse(tmp_path: Path) -> Iterator[str]:
    """``ftrun lighthouse`` with mTLS on any port; its address for agents."""
    certs = tmp_path / "certs"
    write_certificates(certs, ("127.0.0.1",))
    options = (
        "--tls-cert", str(certs / "lighthouse.pem"), "--tls-key", str(certs / "lighthouse.key"),
        "--tls-ca", str(certs / "ca.pem"),
    )  # fmt: skip
    with Lighthouse(tmp_path, *options) as house:
        (tmp_path / "http").write_text(house.http)
        yield house.address


def options(tmp_path: Path, lighthouse: str, who: str = "agent") -> tuple[str, ...]:
    certs = tmp_path / "certs"
    return (
        "--lighthouse", lighthouse, "--token-file", str(tmp_path / "token"),
        "--tls-cert", str(certs / f"{who}.pem"), "--tls-key", str(certs / f"{who}.key"),
        "--tls-ca", str(certs / "ca.pem"),
    )  # fmt: skip


@pytest.mark.slow
def test_a_job_runs_and_its_status_is_asked_by_certificate(tmp_path: Path, lighthouse: str) -> None:
    (tmp_path / "a").mkdir()
    with Job(tmp_path / "a", WAITS, *options(tmp_path, lighthouse)) as job:
        job.expect(r"slot (\d)")
        http = (tmp_path / "http").read_text()
        told = ask(tmp_path, "status", *options(tmp_path, http))
        assert told.returncode == 0, told.stderr
        assert "job" in told.stdout
        job.signal(signal.SIGTERM)
        assert job.end() == 75


@pytest.mark.slow
def test_nothing_is_started_if_the_lighthouse_is_not_ours(tmp_path: Path, lighthouse: str) -> None:
    write_certificates(tmp_path / "other" / "certs", ("127.0.0.1",))
    with Job(tmp_path, WAITS, *options(tmp_path / "other", lighthouse)) as job:
        assert job.end() == 2
        assert "was not signed by --tls-ca" in job.output
        assert not (tmp_path / "logs").exists()


@pytest.mark.slow
def test_a_killed_worker_heals_over_tls(tmp_path: Path, lighthouse: str) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    own = (*options(tmp_path, lighthouse), "--replicas", "2", "--nodes", "2")
    with Job(tmp_path / "a", TRAINS, *own) as one, Job(tmp_path / "b", TRAINS, *own) as two:
        serves = r"slot (\d) serves (\S+) ([0-9a-f]{64})$"
        for job in (one, two):
            job.expect(serves)
            job.expect(r"Replicas 0 and 1 train in quorum")
        [(slot, address, certificate)] = re.findall(serves, two.output, re.MULTILINE)
        _serves_tls_only(address, certificate, (tmp_path / "token").read_text().strip())
        os.kill(two.worker(int(slot)), signal.SIGKILL)
        two.expect(rf"Replica {slot} healed from replica {1 - int(slot)}")
        two.expect(serves, 2)
        [_, (_, _, another)] = re.findall(serves, two.output, re.MULTILINE)
        assert another != certificate
        for job in (one, two):
            assert "plaintext" not in job.output
            job.signal(signal.SIGTERM)
            assert job.end() == 75


def _serves_tls_only(address: str, certificate: str, token: str) -> None:
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), WAIT_S) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"HTTP" not in sock.makefile("rb").read()
    for shown, status in ((token, 404), ("0" * 64, 401)):
        with Caller(address, shown, certificate) as caller:
            assert caller.ask("/").status == status
