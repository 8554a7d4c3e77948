#!/usr/bin/env python
"""Measures ``ftrun status`` on a terminal, and what a thousand replicas cost the lighthouse.

    scripts/screen_cost.py [--seconds 30] [--only screen|lighthouse]

A real lighthouse's web server serves the tests' documents to a real ``ftrun status`` on a terminal
of its own (a pty that answers as a terminal does). Start: from exec to the first picture. CPU: of
one core, over ``--seconds``, with ten replicas and with a thousand. Keys: until what they write.

The lighthouse: its real core, with 125 scripted nodes of eight replicas. What it takes of a core to
make a status, a scrape of its metrics and an event, to take what the agents measure, and while a
page in a headless Chromium watches (if there is one); ``ftrun status --json`` as a whole command.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ftrun.agent.resources import MEASURE_EVERY_S
from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.ids import StateId, WorkerKey
from ftrun.core.lighthouse.machine import (
    AgentAttached,
    AgentSent,
    JournalState,
    Lighthouse,
    LighthouseSettings,
    SendToAgent,
    TimerFired,
)
from ftrun.core.lighthouse.status import SCHEMA, Status
from ftrun.core.quorum import Endpoint
from ftrun.lighthouse.event_file import EVENTS_FILE, EventFile
from ftrun.lighthouse.metrics import render_metrics
from ftrun.lighthouse.occurrences import Totals
from ftrun.protocol.auth import bearer, new_token
from ftrun.protocol.codec import decode, encode
from tests.unit.tools.status.documents import healthy, thousand
from tests.unit.tools.status.served_status import served
from tests.web.browser import CHROMIUM, Browser

ROOT = Path(__file__).resolve().parents[1]
SHOWN = b"llama-1b-pretrain"
STARTS = 7
EVENTS = 200
KEYS = 40
NODES, REPLICAS = 125, 8
SETTINGS = LighthouseSettings(assign_gather_s=0.0, join_gather_s=0.0)
DEADLINE_S = 30.0
ANSWERS = ((b"\x1b]11;?", b"\x1b]11;rgb:1111/1414/1a1a\x1b\\"), (b"\x1b[c", b"\x1b[?62;22c"))


class Terminal:
    """A pty with ``ftrun status`` in it."""

    def __init__(self, words: list[str], environ: dict[str, str], size: tuple[int, int]) -> None:
        self.began_at = time.monotonic()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, [sys.executable, "-m", "ftrun", *words], environ)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.seen = b""

    def read(self, seconds: float) -> bytes:
        """What it writes within so long, until it is quiet for the first time."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return b""
        with contextlib.suppress(OSError):
            data = os.read(self.fd, 1 << 20)
            for question, answer in ANSWERS:
                if question in data:
                    os.write(self.fd, answer)
            self.seen = (self.seen + data)[-(1 << 22) :]
            return data
        return b""

    def wait(self, text: bytes) -> float:
        """Seconds since the start until the text was there."""
        while text not in self.seen:
            if time.monotonic() - self.began_at > DEADLINE_S:
                raise SystemExit(f"{text!r} did not come within {DEADLINE_S:g} s")
            self.read(0.5)
        return time.monotonic() - self.began_at

    def watch(self, seconds: float) -> int:
        """Read for so long; returns the bytes."""
        end, count = time.monotonic() + seconds, 0
        while (left := end - time.monotonic()) > 0:
            count += len(self.read(left))
        return count

    def press(self, key: bytes) -> float:
        """Seconds until the key has changed something."""
        self.watch(0.05)
        began_at = time.monotonic()
        os.write(self.fd, key)
        while time.monotonic() - began_at < DEADLINE_S:
            if self.read(0.5):
                return time.monotonic() - began_at
        raise SystemExit(f"the key {key!r} changed nothing")

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


@contextlib.contextmanager
def job(make: str, directory: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The words and the environment of a command that watches it."""
    documents: list[Status] = [(thousand if make == "thousand" else healthy)(n) for n in range(8)]
    token = new_token()
    token_file = directory / "token"
    token_file.write_text(token)
    token_file.chmod(0o600)
    with served(lambda: documents[int(time.monotonic()) % len(documents)], token) as address:
        words = ["status", "--lighthouse", address, "--token-file", str(token_file)]
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "XDG_STATE_HOME": str(directory),
        }
        yield words, environ


def measure(make: str, seconds: float, directory: Path) -> None:
    """Start, CPU and keys with one of the documents."""
    with job(make, directory) as (words, environ):
        starts = []
        for _ in range(STARTS):
            terminal = Terminal(words, environ, (120, 36))
            starts.append(terminal.wait(SHOWN))
            terminal.close()
        print(f"{make}: first picture after {statistics.median(starts):.2f} s "
              f"(of {STARTS}: {min(starts):.2f} to {max(starts):.2f})")  # fmt: skip
        terminal = Terminal(words, environ, (120, 36))
        terminal.wait(SHOWN)
        terminal.watch(3.0)
        process = psutil.Process(terminal.pid)
        before = process.cpu_times()
        written = terminal.watch(seconds)
        after = process.cpu_times()
        used = after.user + after.system - before.user - before.system
        print(f"{make}: {used / seconds * 100:.2f} % of a core over {seconds:g} s, "
              f"{process.memory_info().rss / 1e6:.0f} MB, {written / seconds / 1000:.1f} kB/s "
              "to the terminal")  # fmt: skip
        keys = [terminal.press(b"k" if n % 2 else b"j") for n in range(KEYS)]
        keys += [terminal.press(b"f") for _ in range(6)]
        print(f"{make}: keys answer after {statistics.median(keys) * 1000:.0f} ms, "
              f"at most {max(keys) * 1000:.0f} ms")  # fmt: skip
        terminal.close()


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
        """What an agent sends every few seconds: progress, and what it has measured."""
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
    began = time.process_time()
    for agent_id, data in batches:
        job.core.handle(AgentSent(agent_id, (decode(data),)), 9.0)
    took_s = time.process_time() - began
    print(f"lighthouse: heartbeats with progress and facts of {NODES * REPLICAS} workers take "
          f"{took_s * 1000:.0f} ms, {took_s / MEASURE_EVERY_S * 100:.2f} % of a core")  # fmt: skip
    made = []
    for _ in range(STARTS):
        began = time.process_time()
        data = json.dumps(job.status()).encode()
        made.append(time.process_time() - began)
    replica = job.status()["replicas"][500]
    assert replica["workers"][0]["pid"] == 812 and replica["own_s"] == 0.2
    print(f"lighthouse: a status takes {statistics.median(made) * 1000:.0f} ms, "
          f"{len(data) / 1e6:.2f} MB")  # fmt: skip
    measure_metrics(job, directory)
    token = new_token()
    with served(job.status, token) as address:
        measure_command(address, token, directory)
        if CHROMIUM is None:
            print("page: there is no Chromium here")
        else:
            asyncio.run(measure_page(address, token, seconds, directory))


def measure_metrics(job: LargeJob, directory: Path) -> None:
    """What one scrape takes, and what one event takes, of a thousand replicas."""
    status, scrapes = job.status(), []
    for _ in range(STARTS):
        began = time.process_time()
        text = render_metrics(status, Totals())
        scrapes.append(time.process_time() - began)
    file = EventFile([directory])
    facts = {"kind": "formed", "replicas": [str(n) for n in range(NODES * REPLICAS)], "text": "x"}
    began = time.process_time()
    for _ in range(EVENTS):
        file.write("notice", facts)
    event_s = (time.process_time() - began) / EVENTS
    print(f"metrics: a scrape takes {statistics.median(scrapes) * 1000:.0f} ms besides the status, "
          f"{len(text) / 1e6:.2f} MB; an event that names all replicas {event_s * 1000:.2f} ms, "
          f"{(directory / EVENTS_FILE).stat().st_size / EVENTS / 1e3:.1f} kB")  # fmt: skip


def measure_command(address: str, token: str, directory: Path) -> None:
    """``ftrun status --json``, from its start to its end."""
    token_file = directory / "token"
    token_file.write_text(token)
    token_file.chmod(0o600)
    words = ["status", "--json", "--lighthouse", address, "--token-file", str(token_file)]
    times = []
    for _ in range(STARTS):
        began = time.monotonic()
        found = subprocess.run(
            [sys.executable, "-m", "ftrun", *words],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            check=True,
        )
        times.append(time.monotonic() - began)
        assert len(json.loads(found.stdout)["replicas"]) == NODES * REPLICAS
    print(f"ftrun status --json: {statistics.median(times):.2f} s "
          f"(of {STARTS}: {min(times):.2f} to {max(times):.2f})")  # fmt: skip


async def measure_page(address: str, token: str, seconds: float, directory: Path) -> None:
    """The page's memory and processor, and this process's, whose only work is to serve it."""
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
            for make in ("healthy", "thousand"):
                measure(make, options.seconds, Path(directory))
        if options.only != "screen":
            measure_lighthouse(options.seconds, Path(directory))


if __name__ == "__main__":
    main()
