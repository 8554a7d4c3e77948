"""A separate Slurm: munge, a controller on the hub, and a slurmd on each node.

All its state is in one directory. Jobs are submitted on the hub. Special settings:

- ``proctrack/linuxproc``: a container has no cgroup freezer. It leaves processes that a cluster
  with
  cgroups would kill, so the epilog kills and records them. A job that ends in order leaves none.
- Jobs and steps share cores, because there are fewer cores than nodes.

Not here: the machines (machines.py), jobs (job.py).
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from functools import lru_cache
from pathlib import Path

from tests.chaos.network import HUB_ADDRESS
from tests.engines.machines import UP_S, Machine, Machines
from tests.jobs.process import LOOK_S

PROGRAMS = {
    "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "munged": "munge", "ip": "iproute2",
    "tc": "iproute2", "nsenter": "util-linux", "setpriv": "util-linux",
}  # fmt: skip
ASK_S = 60.0
CPUS = 4
CONF = """
ClusterName=ftrun
SlurmctldHost=hub({hub})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
Epilog={dir}/epilog
ReturnToService=2
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
SlurmdSpoolDir={dir}/spool.%n
StateSaveLocation={dir}/state
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.%n.log
SlurmdTimeout=10
KillWait=30
InactiveLimit=0
MinJobAge=300
WaitTime=0
MessageTimeout=10
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
UnkillableStepTimeout=60
JobRequeue=1
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""
EPILOG = """#!/bin/bash
for entry in /proc/[0-9]*; do
  pid=${{entry#/proc/}}
  [ "$pid" = $$ ] && continue
  tr '\\0' '\\n' < $entry/environ 2>/dev/null | grep -qx "SLURM_JOB_ID=$SLURM_JOB_ID" || continue
  line=$(tr '\\0' ' ' < $entry/cmdline 2>/dev/null)
  case "$line" in ""|"srun "*|*{dir}/epilog*|*slurmstepd*) continue;; esac
  echo "$SLURMD_NODENAME $pid $line" >> {dir}/left.$SLURM_JOB_ID
  kill -9 $pid
done
exit 0
"""


@lru_cache(maxsize=1)
def why_no_slurm() -> str:
    """Why a Slurm is not available here; empty if it is."""
    if os.geteuid() != 0:
        return "only root can make machines of namespaces"
    lacking = sorted({package for name, package in PROGRAMS.items() if shutil.which(name) is None})
    if lacking:
        return f"not installed: {' '.join(lacking)}"
    try:
        subprocess.run(
            ["unshare", "--uts", "--mount", "--pid", "--net", "--fork", "--mount-proc", "true"],
            capture_output=True, timeout=ASK_S, check=True,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as error:
        return f"namespaces cannot be made here: {error}"
    return ""


class Slurm:
    """A cluster of ``nodes`` nodes; all of it is removed at the end of the ``with``."""

    def __init__(self, directory: Path, nodes: int) -> None:
        self.directory = directory
        self.count = nodes
        for name in ("munge", "state", *(f"spool.n{index}" for index in range(nodes))):
            (directory / name).mkdir(mode=0o700)
        (directory / "munge").chmod(0o711)
        (directory / "munge" / "key").write_bytes(secrets.token_bytes(64))
        (directory / "munge" / "key").chmod(0o400)
        self.machines = Machines(directory, nodes)
        try:
            self._write_files()
            self.hub: Machine = self.machines.start_hub(self._head())
            for index in range(nodes):
                self.power_on(index)
            self.await_nodes(nodes)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Slurm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def command(self, *words: str) -> list[str]:
        """The command line that runs a command on the hub."""
        conf = f"SLURM_CONF={self.directory}/slurm.conf"
        return [*self.hub.inside(), "env", conf, *words]

    def ask(self, *words: str) -> str:
        """The output of a short command on the hub, which must succeed."""
        done = subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=ASK_S, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def power_on(self, index: int) -> None:
        """Start a node, for the first time or again."""
        conf = self.directory / "slurm.conf"
        self.machines.start(index, f"slurmd -D -f {conf} -N n{index} & wait")

    def power_off(self, index: int) -> None:
        """Cut the node's power."""
        self.machines.power_off(index)

    def await_nodes(self, count: int) -> None:
        """Wait until ``count`` nodes take jobs."""
        end = time.monotonic() + UP_S
        found = ""
        while time.monotonic() < end:
            done = subprocess.run(
                self.command("sinfo", "-h", "-N", "-o", "%N %t"),
                capture_output=True, text=True, timeout=ASK_S, check=False,
            )  # fmt: skip
            found = done.stdout
            if sum(line.endswith((" idle", " mix")) for line in found.splitlines()) >= count:
                return
            time.sleep(10 * LOOK_S)
        raise AssertionError(f"not {count} nodes after {UP_S:g} s:\n{found}{self.logs()}")

    def logs(self) -> str:
        """The ends of all logs, for a failure's text."""
        paths = sorted(self.directory.glob("*.log"))
        return "\n".join(f"{path.name}:\n{path.read_text()[-1500:]}" for path in paths)

    def close(self) -> None:
        """End it, and all that runs on it."""
        self.machines.close()

    def _head(self) -> str:
        d = self.directory
        munge = f"munged --force --num-threads=2 --key-file={d}/munge/key"
        for name in ("socket", "pid-file", "log-file", "seed-file"):
            munge += f" --{name}={d}/munge/{name.removesuffix('-file')}"
        return f"{munge} && slurmctld -D -c -f {d}/slurm.conf & wait"

    def _write_files(self) -> None:
        rows = [
            f"NodeName=n{index} NodeHostname=n{index} NodeAddr={address} CPUs={CPUS} "
            "RealMemory=4000 State=UNKNOWN"
            for index, address in enumerate(self.machines.addresses)
        ]
        fields = {"dir": self.directory, "hub": HUB_ADDRESS, "nodes": "\n".join(rows)}
        (self.directory / "slurm.conf").write_text(CONF.format(**fields))
        epilog = self.directory / "epilog"
        epilog.write_text(EPILOG.format(dir=self.directory))
        epilog.chmod(0o755)
