"""A job under chaos: agents, workers and, for several agents, a separate lighthouse.

Not here: how processes are started, found and ended (tests/jobs), faults (faults.py).
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from ftrun.base import linux
from tests import jobs
from tests.chaos.journal import last_step
from tests.chaos.processes import SOCKET_TIMEOUT, Family
from tests.jobs import Late, Lighthouse, wait

SCRIPT = Path(__file__).parent / "train.py"
START_S = 180.0
RECOVER_S = 150.0
END_S = 150.0
GONE_S = 5.0 * SOCKET_TIMEOUT
STEPS_TO_END = 30
HEARTBEAT_TIMEOUT_S = 3.0
ISOLATION_LIMIT_S = 8.0


class Job:
    """One run's processes, its directory, and its observations and actions with times.

    ``replicas``: the number of slots. ``lost_agents``: agents that a fault has killed for good.
    """

    def __init__(self, directory: Path, replicas: int, **environment: str) -> None:
        self.directory = directory
        self.replicas = replicas
        self.out = directory / "out"
        self.out.mkdir(parents=True)
        self.began = time.monotonic()
        self.story: list[str] = []
        self.agents: list[jobs.Job] = []
        self.lost_agents: set[int] = set()
        self.service: Lighthouse | None = None
        self.family = Family()
        self.bystander = _stranger()
        self._environment = {"CHAOS_OUT": str(self.out), "OMP_NUM_THREADS": "1", **environment}
        self._services: list[Lighthouse] = []
        self._service_way: tuple[str, tuple[str, ...], tuple[str, ...]] = ("", (), ())

    # ------------------------------------------------------------ starting

    def start_agent(self, *options: str, wrap: tuple[str, ...] = (), script: str = "") -> None:
        """Start ``ftrun run`` with the options."""
        number = len(self.agents)
        agent = jobs.Job(
            self.directory,
            Path(script or SCRIPT),
            *("--replicas", str(self.replicas), "--max-restarts", "20", "--job-id", "chaos"),
            *("--heartbeat-timeout", str(HEARTBEAT_TIMEOUT_S)),
            *("--isolation-limit", str(ISOLATION_LIMIT_S), *options),
            within=wrap,
            environment=self._environment,
            family=self.family,
            session=True,
            fresh=True,
            logs=f"logs{number}",
        )
        self.agents.append(agent)
        self.tell(f"agent {number} started (pid {agent.pid})")

    def start_service(self, bind: str = "", wrap: tuple[str, ...] = ()) -> str:
        """Start a separate lighthouse; returns its address, which a restart keeps."""
        bind = bind or f"127.0.0.1:{jobs.free_port()}"
        plain = () if bind.startswith("127.") else ("--insecure-plaintext",)
        self._service_way = (bind, ("--http", f"127.0.0.1:{jobs.free_port()}", *plain), wrap)
        return self._serve()

    @property
    def service_dir(self) -> Path:
        """The state directory of the separate lighthouse."""
        return self.directory / jobs.HOUSE

    def restart_service(self) -> None:
        """Start the lighthouse again, at the same address."""
        self.tell(f"the lighthouse is back at {self._serve()}")

    def agent_options(self, address: str, nodes: int) -> tuple[str, ...]:
        """Options for agents of a separate lighthouse."""
        return (*jobs.found_at(self.directory, address), "--nodes", str(nodes))

    def _serve(self) -> str:
        bind, options, wrap = self._service_way
        self.service = Lighthouse(
            self.directory,
            *options,
            bind=bind,
            within=wrap,
            environment=self._environment,
            family=self.family,
            session=True,
            fresh=True,
        )
        self._services.append(self.service)
        return self.service.address

    # ------------------------------------------------------------ what can be seen

    def tell(self, text: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{time.monotonic() - self.began:7.3f}  {text}")

    def text(self) -> str:
        """The output of all agents until now."""
        return "\n".join(agent.output for agent in self.agents)

    def workers(self) -> dict[str, int]:
        """By replica, the newest living process that has committed a step."""
        return {replica: pid for replica, (pid, _) in self._newest().items()}

    def step(self) -> int:
        """The highest committed step of any worker."""
        return max((last_step(path) for path in self.out.glob("journal.*.*")), default=-1)

    def floor(self) -> int:
        """The step that the newest process of every replica has committed; -1 while one has
        none."""
        return self._floor(self._newest())

    def _floor(self, newest: dict[str, tuple[int, int]]) -> int:
        if len(newest) < self.replicas:
            return -1
        return min(step for _, step in newest.values())

    def agent_of(self, pid: int) -> int:
        """The agent that is the worker's ancestor: an index into ``agents``."""
        pids = [agent.pid for agent in self.agents]
        while pid > 1:
            if pid in pids:
                return pids.index(pid)
            row = linux.process_row(pid)
            pid = row.ppid if row is not None else 0
        return -1

    def _newest(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for path in sorted(self.out.glob("journal.*.*"), key=lambda p: p.stat().st_ctime_ns):
            _, replica, pid = path.name.split(".")
            step = last_step(path)
            if step >= 0 and linux.command_line(int(pid)).startswith("ftrun worker"):
                found[replica] = int(pid), step
        return found

    # ------------------------------------------------------------ waiting and ending

    def await_members(self, timeout_s: float = START_S) -> None:
        """Wait until every replica commits."""
        wait(lambda: self.floor() >= 0, "every replica in a committed step", timeout_s, self._watch)
        self.tell(f"all {self.replicas} replicas commit; step {self.step()}")

    def await_recovery(self, goal: int, gone: set[int], timeout_s: float = RECOVER_S) -> float:
        """Wait until every replica has committed beyond ``goal`` and ``gone`` are replaced."""

        def recovered() -> bool:
            newest = self._newest()  # once: a process that ends between two checks is in neither
            return self._floor(newest) > goal and not gone & {pid for pid, _ in newest.values()}

        took = wait(recovered, f"all replicas beyond step {goal}", timeout_s, self._watch)
        self.tell(f"all replicas are beyond step {goal}")
        return took

    def pause(self, seconds: float) -> None:
        """Wait while faults take effect."""
        until = time.monotonic() + seconds
        wait(lambda: time.monotonic() >= until, "the time to pass", seconds + 5, self._watch)

    def end_at_a_step(self) -> list[int]:
        """End all workers at one step; returns the agents' exit codes."""
        jobs.write_at_once(self.out / "stop", f"{self.step() + STEPS_TO_END}\n")
        self.tell("told to end")
        return self.await_end()

    def stop(self) -> list[int]:
        """Send SIGTERM to the agents; returns their exit codes."""
        for agent in self.agents:
            agent.signal(signal.SIGTERM)
        self.tell("SIGTERM to the agents")
        return self.await_end()

    def await_end(self) -> list[int]:
        """Wait until the agents have ended; returns their exit codes."""
        ended = lambda: all(agent.process.poll() is not None for agent in self.agents)  # noqa: E731
        wait(ended, "the agents' end", END_S, self._watch)
        codes = [agent.end() for agent in self.agents]
        self.tell(f"ended with {codes}")
        return codes

    def await_nothing(self, timeout_s: float = GONE_S) -> float:
        """P1: wait until no process of the job is left, except a separate lighthouse."""
        own = self.service.pid if self.service is not None else 0
        left = lambda: [row.pid for row in self.family.rows() if row.pid != own]  # noqa: E731
        try:
            return wait(lambda: not left(), "nothing to be left", timeout_s)
        except Late as error:
            words = [(pid, linux.command_line(pid)) for pid in left()]
            raise Late(f"P1: left are {words}") from error

    def close(self) -> None:
        """End all living processes."""
        for process in [*self.agents, *self._services]:
            process.close()
        self.bystander.kill()
        self.bystander.wait(10)

    def remove(self) -> None:
        """Remove the directory, which is of no further use."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _watch(self) -> None:
        self.family.look_for_zombies()


def _stranger() -> subprocess.Popen[bytes]:
    """Start a process that looks like a worker in ``ps`` but is none; it ends with the test bed
    (P3)."""
    command_ = ["ftrun worker 0.0", "-c", "import sys; sys.stdin.read()"]
    return subprocess.Popen(
        command_, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
