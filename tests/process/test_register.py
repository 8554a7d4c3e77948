"""Two lighthouses with one state, and a job: one leads, whatever happens to it or to the state."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ftrun.base import clock
from ftrun.lighthouse.register.kubernetes import MOUNT
from ftrun.lighthouse.settings import SILENCE_S
from ftrun.protocol.rpc import Connected, LighthouseConnection
from ftrun.tools.certs import write_certificates
from tests.jobs import HOUSE, TOKEN, Job, Lighthouse, free_port
from tests.jobs.etcd import needs_etcd, running_etcd, running_etcds
from tests.jobs.kubernetes import NAMESPACE, running_api
from tests.process.test_operators import CPU, STEPS, steps

AWAY_S = 4 * SILENCE_S
"""So long no lighthouse writes; each is replaced after ``SILENCE_S`` if its store answers."""
IN_POD = (
    "unshare", "--mount", "sh", "-c",
    'mount -t tmpfs run /run && mkdir -p "$1" && mount --bind "$0" "$1" && shift && exec "$@"',
)  # fmt: skip
"""Runs a command where a directory is that of a pod's service account."""


@contextmanager
def trained(
    tmp_path: Path, state: str | None = None, **more: Any
) -> Iterator[tuple[Lighthouse, Lighthouse, Job]]:
    """The lighthouse that leads, the one that stands by, and a job of three replicas."""
    binds = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    more["state"] = state
    any_http = ("--http", "127.0.0.1:0")
    found_by = ("--lighthouse", ",".join(binds), "--token-file", str(tmp_path / TOKEN))
    with (
        Lighthouse(tmp_path, *any_http, bind=binds[0], **more) as first,
        Lighthouse(tmp_path, *any_http, bind=binds[1], stands_by=True, **more) as second,
        Job(tmp_path, STEPS, "--replicas", "3", *found_by, *CPU) as job,
    ):
        job.expect(r"^\[[012]\.0\] step 5$", 3)
        yield first, second, job
        (tmp_path / "over").touch()
        assert job.end() == 0
        assert job.left() == []


def kill_a_worker(job: Job, replica: int, joins: int) -> tuple[float, float]:
    """Kill it; returns the times until the others have a quorum, and until it has joined."""
    before = len(re.findall(r"Replicas . and . train in quorum", job.output))
    began = clock.now()
    os.kill(job.worker(replica), signal.SIGKILL)
    job.expect(r"Replicas . and . train in quorum", before + 1)
    formed = clock.now()
    job.expect(rf"Replica {replica} healed", joins)
    return formed - began, clock.now() - began


def assert_loses_no_step(output: str, replica: int = 0) -> None:
    """But the one that it heals over: the dead one had committed it, and sent its bytes no more."""
    found = steps(output, replica)
    lost = {*range(found[0], found[-1])} - {*found}
    assert len(lost) <= output.count(f"Replica {replica} healed"), f"lost {sorted(lost)}"


def goes_on(job: Job, replica: int = 0, count: int = 20) -> None:
    """Wait until the replica has committed more steps."""
    seen = len(steps(job.output, replica))
    job.until(lambda: len(steps(job.output, replica)) >= seen + count, "trains on")


def epochs(job: Job) -> list[int]:
    return [int(x) for x in re.findall(r"in quorum (\d+)\.", job.output)]


def test_a_pod_that_is_killed_is_replaced_by_the_one_that_stands_by(tmp_path: Path) -> None:
    """With a directory, or etcd: ``test_the_state_is_away_and_then_its_lighthouse_is_killed``."""
    with running_api(tmp_path / "api") as api:
        within = (*IN_POD, str(api.mount), str(MOUNT))
        if subprocess.run([*within, "true"], capture_output=True, check=False).returncode:
            pytest.skip("needs root, to mount a service account's token")
        more = {"within": within, "environment": api.environment}
        with trained(tmp_path, f"k8s://{NAMESPACE}/job", **more) as (first, second, job):
            kill_the_leader(first, second, job)
    assert_another_has_led(job)


def kill_the_leader(first: Lighthouse, second: Lighthouse, job: Job, joins: int = 1) -> None:
    """Replica 1 is to join for the ``joins``th time."""
    os.kill(first.pid, signal.SIGKILL)
    formed, _ = kill_a_worker(job, 1, joins)
    second.expect("lighthouse ready")
    print(f"a quorum without the worker {formed:.2f} s after both deaths")
    kill_a_worker(job, 2, 1)


def assert_another_has_led(job: Job) -> None:
    assert_loses_no_step(job.output)
    assert epochs(job) == sorted(epochs(job))
    assert len(set(epochs(job))) > 1


def test_a_lighthouse_that_was_stopped_for_long_has_no_say_when_it_wakes(tmp_path: Path) -> None:
    """Its stale write is refused, and it gives out no Welcome and no ack."""
    with trained(tmp_path) as (first, second, job):
        os.kill(first.pid, signal.SIGSTOP)
        stopped = clock.now()
        formed, _ = kill_a_worker(job, 1, 1)
        print(f"a quorum without the worker {formed:.2f} s after the stop")
        second.expect("lighthouse ready")
        asked = asyncio.run(wake_and_ask(first, stopped + 3 * SILENCE_S, tmp_path))
        assert asked == []
        first.expect(r"leads no more: the lighthouse is .* at " + second.address)
        first.expect("This one stands by")
        kill_a_worker(job, 2, 1)
        os.kill(second.pid, signal.SIGKILL)
        kill_a_worker(job, 1, 2)
        first.expect("lighthouse ready", 2)
    assert_loses_no_step(job.output)
    assert epochs(job) == sorted(epochs(job))


async def wake_and_ask(first: Lighthouse, at: float, tmp_path: Path) -> list[Any]:
    """Ask the stopped lighthouse for a stream, wake it, and see whether it accepts before it knows.

    Returns what came until it was deposed.
    """
    events: list[Any] = []
    token = (tmp_path / TOKEN).read_text().strip()
    connection = LighthouseConnection([first.address], token, events.append)
    task = asyncio.ensure_future(connection.run())
    await asyncio.sleep(max(0.0, at - clock.now()))
    os.kill(first.pid, signal.SIGCONT)
    await asyncio.get_running_loop().run_in_executor(None, first.expect, "leads no more")
    connection.close()
    await task
    return [event for event in events if isinstance(event, Connected)]


@needs_etcd
def test_etcd_loses_its_leader_while_membership_changes(tmp_path: Path) -> None:
    """Three members with TLS. The leader is killed, and then the next one is stopped."""
    certs = tmp_path / "certs"
    write_certificates(certs, ("127.0.0.1",))
    tls = f"cacert={certs}/ca.pem&cert={certs}/agent.pem&key={certs}/agent.key"
    with running_etcds(tmp_path / "etcd", 3, certs) as members:
        state = f"etcd://{','.join(member.address for member in members)}/job?{tls}"
        with trained(tmp_path, state) as (_, _, job):
            (leader,) = [member for member in members if member.leads]
            leader.kill()
            killed = kill_a_worker(job, 1, 1)
            leader.restart()
            (leader,) = [member for member in members if member.leads]
            leader.stop()
            stopped = kill_a_worker(job, 2, 1)
            leader.go_on()
            for how, (formed, joined) in (("killed", killed), ("stopped", stopped)):
                print(f"etcd's leader {how}: quorum {formed:.2f} s, joined {joined:.2f} s")
    assert_loses_no_step(job.output)
    assert epochs(job) == sorted(epochs(job))


@pytest.mark.parametrize("kind", ["directory", pytest.param("etcd", marks=needs_etcd)])
def test_the_state_is_away_and_then_its_lighthouse_is_killed(tmp_path: Path, kind: str) -> None:
    """Training continues meanwhile; membership does when it is back, and under the next leader."""
    house, away = tmp_path / HOUSE, tmp_path / "away"
    with ExitStack() as stack:
        etcd = stack.enter_context(running_etcd(tmp_path / "etcd")) if kind == "etcd" else None
        state = f"etcd://{etcd.address}/job" if etcd is not None else None
        first, second, job = stack.enter_context(trained(tmp_path, state))
        if etcd is not None:
            etcd.kill()
        else:
            house.rename(away)
        gone = clock.now()
        first.expect("store of the state does not answer .* decides nothing until it answers")
        second.expect("store of the state does not answer")
        while clock.now() < gone + AWAY_S:
            goes_on(job)
        assert "isolated" not in job.output
        if etcd is not None:
            etcd.restart()
        else:
            away.rename(house)
        first.expect(r"store of the state answers again, after \d+")
        formed, joined = kill_a_worker(job, 1, 1)
        print(f"{kind}: after {AWAY_S:g} s quorum {formed:.2f} s, joined {joined:.2f} s")
        assert first.output.count("lighthouse ready") + second.output.count("lighthouse ready") == 1
        assert not re.search(r"Replicas? .* lost", job.output)
        kill_the_leader(first, second, job, joins=2)
    assert_another_has_led(job)
