"""Three processes contend for one register and are stopped at random: one at a time leads.

``CHAOS_S=25 scripts/test tests/process/test_register_chaos.py -s`` runs longer and prints counts.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.jobs.etcd import needs_etcd, running_etcd
from tests.jobs.kubernetes import NAMESPACE, running_api

SILENCE_S = 1.0
CHAOS_S = float(os.environ.get("CHAOS_S", "3"))
PROCESSES = 3
START_S = END_S = 60.0


class Write(NamedTuple):
    version: int
    epoch: int
    holder: str
    record: int


class Notes(NamedTuple):
    """``acts``: time and epoch of all that was answered or sent."""

    writes: list[Write]
    acts: list[tuple[float, int]]
    refused: int
    deposed: int
    unanswered: frozenset[int] = frozenset()
    """Records of writes that may have been accepted: their answers were lost."""


@pytest.mark.parametrize(
    "kind", ["directory", pytest.param("etcd", marks=needs_etcd), "kubernetes"]
)
def test_one_leads_at_a_time_whoever_is_stopped(tmp_path: Path, kind: str) -> None:
    with ExitStack() as stack:
        state = tmp_path / "register"
        state.mkdir()
        where, environment = str(state), {}
        if kind == "etcd":
            where = f"etcd://{stack.enter_context(running_etcd(tmp_path / 'etcd')).address}/chaos"
        elif kind == "kubernetes":
            api = stack.enter_context(running_api(tmp_path / "api"))
            where = f"k8s://{NAMESPACE}/chaos"
            environment = {**api.environment, "MOUNT": str(api.mount)}
        logs = [tmp_path / f"{name}.log" for name in range(PROCESSES)]
        processes = [start(where, log, environment) for log in logs]
        stack.callback(end, processes)
        wait_for_writes(logs)
        stops = stop_at_random(processes, logs, random.Random(7))
        end(processes)
    notes = read(logs)
    leaders = {write.holder: write.epoch for write in notes.writes}
    print(
        f"{kind}: {len(notes.writes)} writes, {len(notes.acts)} answers, epochs up to "
        f"{notes.writes[-1].epoch} by {len(leaders)} holders, {stops} SIGSTOPs, "
        f"{notes.refused} writes refused, {notes.deposed} deposed"
    )
    assert list(violations(notes)) == []
    assert len(leaders) > 1
    assert notes.acts


def start(where: str, log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    words = ["-m", "tests.process.register_contender", where, str(SILENCE_S), str(log)]
    return subprocess.Popen([sys.executable, *words], env={**os.environ, **environment})


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
    for process in processes:
        assert process.wait(END_S) in (0, -signal.SIGTERM)


def wait_for_writes(logs: list[Path]) -> None:
    deadline = time.monotonic() + START_S
    while not all(log.exists() for log in logs) or not read(logs).acts:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def stop_at_random(
    processes: list[subprocess.Popen[bytes]], logs: list[Path], chance: random.Random
) -> int:
    """Stop the holder, then anybody. The time passes by itself: it is the length of the trial."""
    holder = read(logs).writes[-1].holder
    (first,) = [x for x in processes if f"pid_{x.pid}_" in holder]
    stop(first, 3 * SILENCE_S)
    stops, until = 1, time.monotonic() + CHAOS_S
    while time.monotonic() < until:
        stop(chance.choice(processes), chance.uniform(0.2, 2.5) * SILENCE_S)
        stops += 1
        time.sleep(chance.uniform(0.0, 0.5) * SILENCE_S)
    return stops


def stop(process: subprocess.Popen[bytes], duration_s: float) -> None:
    process.send_signal(signal.SIGSTOP)
    time.sleep(duration_s)
    process.send_signal(signal.SIGCONT)


def read(logs: list[Path]) -> Notes:
    lines = [line.split() for log in logs for line in log.read_text().splitlines()]
    writes = [Write(int(x[1]), int(x[2]), x[3], int(x[4])) for x in lines if x[0] == "write"]
    acts = [(float(x[1]), int(x[2])) for x in lines if x[0] in ("ack", "sent")]
    refused, deposed = (sum(x[0] == word for x in lines) for word in ("refused", "deposed"))
    unanswered = frozenset(count for log in logs for count in _unanswered(log))
    return Notes(sorted(writes), sorted(acts), refused, deposed, unanswered)


def _unanswered(log: Path) -> Iterator[int]:
    """The records of one process's writes that were neither accepted nor refused."""
    lines = [line.split() for line in log.read_text().splitlines()]
    asked = Counter(int(x[1]) for x in lines if x[0] == "asked")
    asked.subtract(int(x[-1]) for x in lines if x[0] in ("write", "refused"))
    yield from (+asked)


def violations(notes: Notes) -> Iterator[object]:
    """What must not be: R1 (of all that was answered), R2 and R3."""
    count = 0
    for former, later in zip(notes.writes, notes.writes[1:], strict=False):
        rises = later.epoch > former.epoch
        if later.version == former.version or rises != (later.holder != former.holder):
            yield former, later
    for write in notes.writes:
        if write.record >= 0:
            between = range(count + 1, write.record)
            if write.record <= count or not notes.unanswered.issuperset(between):
                yield "not one lineage", write, count
            count = write.record
    for (_, former_epoch), (at, epoch) in zip(notes.acts, notes.acts[1:], strict=False):
        if epoch < former_epoch:
            yield f"epoch {epoch} acts at {at} after {former_epoch}"


def test_the_check_finds_two_leaders_and_two_lineages() -> None:
    good = [Write(1, 1, "a", -1), Write(2, 1, "a", 1), Write(3, 2, "b", -1), Write(4, 2, "b", 2)]
    assert list(violations(Notes(good, [(0.1, 1), (0.2, 2)], 0, 0))) == []
    for bad in (
        [*good, Write(5, 1, "a", -1)],
        [*good, Write(4, 2, "b", -1)],
        [*good, Write(5, 2, "a", -1)],
        [*good, Write(5, 2, "b", 2)],
    ):
        assert list(violations(Notes(bad, [], 0, 0)))
    assert list(violations(Notes(good, [(0.1, 2), (0.2, 1)], 0, 0)))
    gap = [*good, Write(5, 2, "b", 4)]
    assert list(violations(Notes(gap, [], 0, 0)))
    assert not list(violations(Notes(gap, [], 0, 0, frozenset({3}))))


def test_a_write_without_an_answer_may_have_been_accepted(tmp_path: Path) -> None:
    """Seen: that of a process that ended meanwhile was taken for a break of the lineage."""
    log = tmp_path / "log"
    log.write_text("asked 1\nwrite 2 1 a 1\nasked 2\nrefused 2\nasked 3\n")
    notes = read([log])
    assert (notes.unanswered, notes.refused) == ({3}, 1)
