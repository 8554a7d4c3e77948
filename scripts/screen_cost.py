#!/usr/bin/env python
"""Measures ``ftrun status`` on a terminal, and what a thousand replicas cost the lighthouse.

    scripts/screen_cost.py [--seconds 30] [--only screen|lighthouse]

A real lighthouse's web server serves the tests' documents to a real ``ftrun status`` in tmux.
Start: from exec to the first picture. CPU: of one core, over ``--seconds``, with ten replicas, and
with a thousand: folded, and in a row each.

The lighthouse: its real core, with 125 scripted nodes of eight replicas. What it takes of a core to
make a status, a scrape of its metrics and an event, to take what the agents measure, and while a
page in a headless Chromium watches (if there is one); ``ftrun status --json`` as a whole command.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ftrun.agent.resources import MEASURE_EVERY_S
from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.ids import StateId, WorkerKey
from ftrun.core.lighthouse.events import (
    AgentAttached,
    AgentSent,
    JournalState,
    LighthouseSettings,
    SendToAgent,
    TimerFired,
)
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.status import SCHEMA, Status
from ftrun.core.quorum import Endpoint
from ftrun.lighthouse.event_file import EVENTS_FILE, EventFile
from ftrun.lighthouse.metrics import render_metrics
from ftrun.lighthouse.occurrences import Totals
from ftrun.protocol.auth import bearer, new_token
from ftrun.protocol.codec import decode, encode
from tests.process.tmux_window import Tmux
from tests.unit.tools.status.documents import healthy, thousand
from tests.unit.tools.status.served_status import served
from tests.web.browser import CHROMIUM, Browser

ROOT = Path(__file__).resolve().parents[1]
SHOWN = "llama-1b-pretrain"
STARTS = 7
EVENTS = 200
NODES, REPLICAS = 125, 8
SETTINGS = LighthouseSettings(assign_gather_s=0.0, join_gather_s=0.0)
DEADLINE_S = 30.0
SETTLE_S = 3.0
DOCUMENTS = {
    "healthy": (healthy, ""),
    "a thousand, folded": (thousand, ""),
    "a thousand rows": (thousand, "ff"),
}


def measure(name: str, seconds: float, directory: Path) -> None:
    """Start, CPU and memory with one of the documents."""
    make, keys = DOCUMENTS[name]
    documents: list[Status] = [make(poll) for poll in range(8)]
    token_file, token = token_in(directory)
    with served(lambda: documents[int(time.monotonic()) % len(documents)], token) as address:
        words = ["status", "--lighthouse", address, "--token-file", str(token_file)]
        starts = []
        for start in range(STARTS):
            place = directory / f"{name} {start}"
            place.mkdir()
            began = time.monotonic()
            terminal = Tmux(place, sys.executable, "-m", "ftrun", *words, size=(120, 36))
            while SHOWN not in terminal.text():
                if time.monotonic() - began > DEADLINE_S:
                    raise SystemExit(f"no picture came within {DEADLINE_S:g} s")
            starts.append(time.monotonic() - began)
            if start + 1 < STARTS:
                terminal.close()
        terminal.press(*keys)
        shell = psutil.Process(int(terminal.call("display-message", "-p", "#{pane_pid}")))
        (process,) = shell.children()
        time.sleep(SETTLE_S)
        before = process.cpu_times()
        time.sleep(seconds)
        after = process.cpu_times()
        share = (after.user + after.system - before.user - before.system) / seconds
        print(f"{name}: first picture after {spread(starts)}, then {share * 100:.2f} % of a core "
              f"over {seconds:g} s, {process.memory_info().rss / 1e6:.0f} MB")  # fmt: skip
        terminal.close()


def token_in(directory: Path) -> tuple[Path, str]:
    """A new token, and its file."""
    path, token = directory / "token", new_token()
    path.touch(0o600)
    path.write_text(token)
    return path, token


def spread(times_s: list[float]) -> str:
    """The median of some times, and their spread."""
    middle = statistics.median(times_s)
    return f"{middle:.2f} s (of {len(times_s)}: {min(times_s):.2f} to {max(times_s):.2f})"


def busy_s(do: Callable[[], object], times: int = STARTS) -> float:
    """The median CPU time of this process for one call."""
    found = []
    for _ in range(times):
        began = time.process_time()
        do()
        found.append(time.process_time() - began)
    return statistics.median(found)


# ---------------------------------------------------------------- the lighthouse


class LargeJob:
    """A lighthouse's core and the agents of ``NODES`` nodes, which train."""

    def __init__(self) -> None:
        self.core = Lighthouse(SETTINGS, JournalState(), 0.0)
        self.core.handle(TimerFired(), 0.0)
        spec = m.JobSpec(
            "job", NODES * REPLICAS, 1, NODES * REPLICAS, 5.0, 3600.0, 60.0, nodes=NODES
        )
        hellos = [
            m.Hello(f"n{node}", spec, REPLICAS, f"gpu-{node}", "h:1") for node in range(NODES)
        ]
        self.slots: dict[str, list[str]] = {}
        for hello in hellos:
            for instruction in self.core.handle(AgentAttached(hello.agent_id, hello), 0.0):
                found = instruction.message if isinstance(instruction, SendToAgent) else None
                if isinstance(found, m.AssignSlots) and isinstance(instruction, SendToAgent):
                    self.slots[instruction.agent_id] = list(found.replica_ids)
        endpoint = Endpoint("h", "h:1")
        for agent_id, slots in self.slots.items():
            started = [m.ReplicaStarted(slot, f"i{slot}", 0, 10) for slot in slots]
            self.core.handle(AgentSent(agent_id, tuple(started)), 1.0)
        self._from_workers(lambda slot: m.Report(StateId(0, "s"), endpoint))
        quorum = self.core.state.quorum
        assert quorum is not None and len(quorum.members) == NODES * REPLICAS
        self._from_workers(lambda slot: m.Built(quorum.attempt))

    def _from_workers(self, make: Callable[[str], m.FromWorker]) -> None:
        for agent_id, slots in self.slots.items():
            words = [m.WorkerMessage(WorkerKey(x, f"i{x}", 0), make(x)) for x in slots]
            self.core.handle(AgentSent(agent_id, tuple(words)), 1.0)

    def heartbeat(self, agent_id: str, step: int) -> m.Heartbeat:
        """An agent's regular message: progress, and its measurements."""
        progress, facts = [], []
        for slot in self.slots[agent_id]:
            word = m.Progress(step, step, Activity.STEP, (("loss", 0.5),), step_s=0.3, own_s=0.2)
            progress.append(m.ReplicaProgress(slot, f"i{slot}", word))
            key = WorkerKey(slot, f"i{slot}", 0)
            facts.append(
                m.WorkerFacts(key, 812, "cuda:3", 1.0, 1 << 32, 1 << 35, 1 << 36, 0.9, 0.1)
            )
        return m.Heartbeat(tuple(progress), workers=tuple(facts))

    def status(self) -> Status:
        """As the lighthouse serves it."""
        return {  # type: ignore[typeddict-item]
            "schema": SCHEMA,
            **self.core.snapshot(10.0),
            "lighthouse": healthy(0)["lighthouse"],
            "events": [],
            "messages_received": {},
        }


def measure_lighthouse(seconds: float, directory: Path) -> None:
    """A thousand replicas: the core's part, the command, the page."""
    job = LargeJob()
    batches = [(x, encode(job.heartbeat(x, 7))) for x in job.slots]

    def take() -> None:
        for agent_id, data in batches:
            job.core.handle(AgentSent(agent_id, (decode(data),)), 9.0)

    took_s = busy_s(take, 1)
    print(f"lighthouse: heartbeats with progress and facts of {NODES * REPLICAS} workers take "
          f"{took_s * 1000:.0f} ms, {took_s / MEASURE_EVERY_S * 100:.2f} % of a core")  # fmt: skip
    data = json.dumps(job.status()).encode()
    replica = job.status()["replicas"][500]
    assert replica["workers"][0]["pid"] == 812 and replica["own_s"] == 0.2
    made_s = busy_s(lambda: json.dumps(job.status()).encode())
    print(f"lighthouse: a status takes {made_s * 1000:.0f} ms, {len(data) / 1e6:.2f} MB")
    measure_metrics(job, directory)
    token_file, token = token_in(directory)
    with served(job.status, token) as address:
        measure_command(address, token_file)
        if CHROMIUM is None:
            print("page: there is no Chromium here")
        else:
            asyncio.run(measure_page(address, token, seconds, directory))


def measure_metrics(job: LargeJob, directory: Path) -> None:
    """The cost of one scrape, and of one event, with a thousand replicas."""
    status, file = job.status(), EventFile([directory])
    facts = {"kind": "formed", "replicas": [str(n) for n in range(NODES * REPLICAS)], "text": "x"}
    scrape_s = busy_s(lambda: render_metrics(status, Totals()))
    event_s = busy_s(lambda: file.write("notice", facts), EVENTS)
    print(f"metrics: a scrape takes {scrape_s * 1000:.0f} ms besides the status, "
          f"{len(render_metrics(status, Totals())) / 1e6:.2f} MB; an event that names all replicas "
          f"{event_s * 1000:.2f} ms, "
          f"{(directory / EVENTS_FILE).stat().st_size / EVENTS / 1e3:.1f} kB")  # fmt: skip


def measure_command(address: str, token_file: Path) -> None:
    """``ftrun status --json``, from its start to its end."""
    words = ["status", "--json", "--lighthouse", address, "--token-file", str(token_file)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    times = []
    for _ in range(STARTS):
        began = time.monotonic()
        command = [sys.executable, "-m", "ftrun", *words]
        found = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True)
        times.append(time.monotonic() - began)
        assert len(json.loads(found.stdout)["replicas"]) == NODES * REPLICAS
    print(f"ftrun status --json: {spread(times)}")


async def measure_page(address: str, token: str, seconds: float, directory: Path) -> None:
    """The CPU time and memory of the page, and of this process, which only serves it."""
    async with Browser(directory) as browser:
        headers = {"Authorization": bearer(token)}
        async with browser.client.post(f"http://{address}/links", headers=headers) as response:
            code = (await response.json())["code"]
        await browser.open(f"http://{address}/#code={code}")
        await browser.until("document.querySelectorAll('#rows tr').length > 50")
        before, process = await browser.metrics(), time.process_time()
        began = time.monotonic()
        await asyncio.sleep(seconds)
        serving = (time.process_time() - process) / (time.monotonic() - began)
        await browser.do("HeapProfiler.collectGarbage")
        after = await browser.metrics()
    busy, wall = (after[name] - before[name] for name in ("TaskDuration", "Timestamp"))
    print(f"page: {after['JSHeapUsedSize'] / 1e6:.1f} MB, {busy / wall * 100:.1f} % of a core "
          f"over {seconds:g} s")  # fmt: skip
    print(f"lighthouse: {serving * 100:.1f} % of a core while a page watches")


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--only", choices=("screen", "lighthouse"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if options.only != "lighthouse":
            for name in DOCUMENTS:
                measure(name, options.seconds, Path(directory))
        if options.only != "screen":
            measure_lighthouse(options.seconds, Path(directory))


if __name__ == "__main__":
    main()
