"""An agent as the pod of a TrainJob, whose lighthouse comes back at another address.

What a controller and a cluster's name service do is done by variables and a hosts file; so it needs
root, for a mount of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.jobs import TOKEN, Job, Lighthouse, free_port
from tests.process.test_operators import CPU, STEPS

NAME = "ftrun-lighthouse.test"
WITH_HOSTS = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"')
SCRIPT = f"import os\nprint('variables', sorted(x for x in os.environ if 'TOKEN' in x))\n{STEPS}"


def may_mount(hosts: Path) -> bool:
    hosts.touch()
    done = subprocess.run([*WITH_HOSTS, str(hosts), "true"], capture_output=True, check=False)
    return done.returncode == 0


def test_a_pod_heeds_what_is_injected_and_finds_a_lighthouse_that_has_moved(tmp_path: Path) -> None:
    hosts, port = tmp_path / "hosts", free_port()
    if not may_mount(hosts):
        pytest.skip("needs root, to mount a hosts file")

    def moves_to(host: str, *more: str) -> Lighthouse:
        hosts.write_text(f"127.0.0.1 localhost\n{host} {NAME}\n")
        return Lighthouse(tmp_path, "--http", "127.0.0.1:0", *more, bind=f"{host}:{port}")

    with moves_to("127.0.0.2") as first, Job(
        tmp_path, SCRIPT, *CPU, environment=pod(tmp_path, port), fresh=True,
        within=(*WITH_HOSTS, str(hosts)),
    ) as job:  # fmt: skip
        job.expect("Kubeflow Trainer has started this pod as node 0, so: --workers-per-replica 1")
        job.expect(r"^\[[01]\.0\] variables \[\]$", 2)
        job.expect(r"^\[[01]\.0\] step 5$", 2)
        assert "is not an option" not in job.output
        first.kill()
        with moves_to("127.0.0.3", "--once") as second:
            os.kill(job.worker(0), signal.SIGKILL)
            job.expect("Replica 0 healed")
            (tmp_path / "over").touch()
            assert job.end() == 0
            assert second.end() == 0
            assert "the job has ended, and all its nodes have left" in second.output
    assert job.left() == []


def pod(directory: Path, port: int) -> dict[str, str]:
    """The variables of the only pod of a TrainJob, and of Services whose names are ours."""
    return {
        "PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "mine-node-0-0.mine", "PET_MASTER_PORT": "29400",
        "JOB_COMPLETION_INDEX": "0",
        "FTRUN_LIGHTHOUSE": f"{NAME}:{port}", "FTRUN_REPLICAS": "2",
        "FTRUN_TOKEN": (directory / TOKEN).read_text(),
        "FTRUN_PORT": "tcp://10.0.0.1:29510", "FTRUN_SERVICE_HOST": "10.0.0.1",
    }  # fmt: skip
