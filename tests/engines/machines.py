"""Machines for an engine: a hub and nodes, each with a network, a host name, mounts and pids.

All machines see the same files, as on a cluster with a shared file system, except /etc/hosts and
/dev/shm. Each has an /etc/hosts that maps its own name to a loopback address, like Debian's. A
machine is one process, the first of its pid namespace: when it ends the kernel kills the others,
and its peers receive no packet, as in a power failure.

Not here: the network between them (tests/chaos/network.py), what runs on them (slurm.py).
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from pathlib import Path

from ftrun.base import linux
from tests.chaos.network import HUB_ADDRESS, NODE_ADDRESS, Network
from tests.jobs.forks import INSIDE
from tests.jobs.process import LOOK_S

UP_S = 60.0
NUMBERS = itertools.count()
"""Numbers of the networks of this process."""
DIES_WITH_THE_TESTS = INSIDE[:3]
INIT = """
set -e
hostname {name}; mount --bind {hosts} /etc/hosts; mount -t tmpfs tmpfs /dev/shm; touch {up}
set +e
{daemons}
while :; do sleep 1000 & wait; done
"""


class Machine:
    """One machine, which runs ``daemons`` (a shell command line) from its start."""

    def __init__(self, name: str, namespace: str, directory: Path, daemons: str = ":") -> None:
        self.name = name
        self._up = directory / f"{name}.up"
        self._up.unlink(missing_ok=True)
        hosts = directory / f"{name}.hosts"
        hosts.write_text(f"127.0.1.1 {name}\n{(directory / 'hosts').read_text()}")
        init = INIT.format(name=name, hosts=hosts, up=self._up, daemons=daemons)
        apart = ("--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child=KILL")
        with open(directory / f"{name}.log", "ab") as log:
            self._outer = subprocess.Popen(
                [*DIES_WITH_THE_TESTS, *_net(namespace), "unshare", *apart, "bash", "-c", init],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            self.pid = self._first_process(time.monotonic() + UP_S)
        except BaseException:
            self.power_off()
            raise

    def inside(self, directory: Path | None = None) -> tuple[str, ...]:
        """The prefix of a command that runs on this machine, by default in our directory."""
        spaces = ("--net", "--uts", "--mount", "--pid")
        return (*INSIDE, f"--target={self.pid}", f"--wd={directory or os.getcwd()}", *spaces)

    def processes(self) -> dict[int, str]:
        """The machine's processes except the first: the command line of each, by its pid here."""
        found = {}
        own = _pid_namespace(self.pid)
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and own and _pid_namespace(int(entry.name)) == own:
                line = linux.command_line(int(entry.name))
                if line and int(entry.name) != self.pid:
                    found[int(entry.name)] = line
        return found

    def pid_of(self, inner: int) -> int:
        """The pid here of a process, by its pid on the machine."""
        for pid in self.processes():
            status = Path(f"/proc/{pid}/status").read_text()
            if status.partition("NSpid:")[2].partition("\n")[0].split()[-1:] == [str(inner)]:
                return pid
        raise AssertionError(f"{self.name} has no process {inner}")

    def power_off(self) -> None:
        """End it and all its processes at once."""
        self._outer.kill()
        self._outer.wait(UP_S)

    def _first_process(self, end: float) -> int:
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        while time.monotonic() < end and self._outer.poll() is None:
            if self._up.exists():
                (pid,) = children.read_text().split()
                return int(pid)
            time.sleep(LOOK_S)
        raise AssertionError(f"machine {self.name} has not come up within {UP_S:g} s")


class Machines:
    """A hub and ``count`` nodes ``n0``, ``n1``, … on one network; ``hosts`` names them all."""

    def __init__(self, directory: Path, count: int) -> None:
        self._directory = directory
        self._network = Network(f"{os.getpid()}.{next(NUMBERS)}", count)
        self.addresses = [NODE_ADDRESS.format(index + 10) for index in range(count)]
        self.hub: Machine | None = None
        self.nodes: dict[int, Machine] = {}
        names = [f"{address} n{index}" for index, address in enumerate(self.addresses)]
        lines = ["127.0.0.1 localhost", f"{HUB_ADDRESS} hub", *names]
        (directory / "hosts").write_text("\n".join(lines) + "\n")

    def start_hub(self, daemons: str) -> Machine:
        """Start the hub, which is the host of people and of the engine's head."""
        self.hub = Machine("hub", self._network.hub, self._directory, daemons)
        return self.hub

    def start(self, index: int, daemons: str) -> None:
        """Start a node, for the first time or again."""
        self._network.mend(index)
        namespace = self._network.nodes[index]
        self.nodes[index] = Machine(f"n{index}", namespace, self._directory, daemons)

    def names(self) -> list[str]:
        """The names of the network namespaces."""
        return [self._network.hub, *self._network.nodes]

    def cut(self, index: int) -> None:
        """Unplug the node's cable: no packet arrives, and no machine is notified."""
        self._network.cut(index, outward=True, inward=True)

    def mend(self, index: int) -> None:
        """Plug the cable in again."""
        self._network.mend(index)

    def power_off(self, index: int) -> None:
        """Cut the node's power: its peers are not notified."""
        self.cut(index)
        self.nodes.pop(index).power_off()

    def ip(self, index: int, *words: str) -> None:
        """Change a node's network, as ``ip`` does."""
        command = ["ip", "-n", self._network.nodes[index], *words]
        subprocess.run(command, timeout=UP_S, check=True)

    def close(self) -> None:
        """End all machines and take the network away."""
        for machine in (*self.nodes.values(), *([self.hub] if self.hub else [])):
            machine.power_off()
        self._network.close()


def _net(namespace: str) -> tuple[str, ...]:
    """Run in the network namespace. ``ip netns exec`` would mount a /sys without the cgroups that
    slurmd needs."""
    return ("nsenter", f"--net=/run/netns/{namespace}")


def _pid_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:  # it has ended meanwhile
        return ""
