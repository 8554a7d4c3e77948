"""torchft's own lighthouse and manager beside ours: the same calls have the same answers.

Real time: the lives are random, but all that happens is far from the moments of a timeout.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

real = pytest.importorskip("torchft._torchft")

from ftrun.torchft import coordination as ours  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

JOIN_MS, HEARTBEAT_MS = 600, 2000
BEAT_S = 0.25
PHASE_S = 4.0
PHASES = 6
SOON = timedelta(seconds=30)
FIELDS = [
    "quorum_id", "replica_rank", "replica_world_size", "recover_src_replica_rank",
    "recover_dst_replica_ranks", "store_address", "max_step", "max_replica_rank",
    "max_world_size", "heal", "replica_ids", "reconfigure_handles",
]  # fmt: skip


class Side:
    """One of the two lighthouses, with torchft's client for each replica."""

    def __init__(self, module: Any, min_replicas: int) -> None:
        self.server = module.LighthouseServer(
            "[::]:0", min_replicas, join_timeout_ms=JOIN_MS, heartbeat_timeout_ms=HEARTBEAT_MS
        )
        self._clients: dict[str, Any] = {}

    def client(self, name: str) -> Any:
        if name not in self._clients:
            self._clients[name] = real.LighthouseClient(self.server.address(), SOON)
        return self._clients[name]

    def join(self, name: str, facts: dict[str, Any]) -> Any:
        """Quorum id and members, or "timeout"."""
        try:
            timeout = timedelta(seconds=PHASE_S - 0.8)
            found = self.client(name).quorum(name, timeout, **facts)
        except TimeoutError:
            return "timeout"
        members = [(x.replica_id, x.step, x.data, x.shrink_only) for x in found.participants]
        return found.quorum_id, members


@pytest.mark.parametrize("seed", range(6))
def test_a_random_life_has_the_same_quorums(seed: int) -> None:
    """Replicas come, beat without joining, join, shrink, and die; in phases.

    Only members of the last quorum shrink it: if only newcomers do, torchft forms a quorum of
    nobody at each tick, and every joiner after it is a quorum of its own. Ours waits.
    """
    chance = random.Random(seed)
    min_replicas = chance.choice([1, 2, 2, 3])
    sides = [Side(real, min_replicas), Side(ours, min_replicas)]
    alive, number, outcomes = set[str](), 0, []
    stop, beating = threading.Event(), set[str]()
    last: set[str] = set()

    def beat() -> None:
        while not stop.wait(BEAT_S):
            for name in sorted(beating):
                for side in sides:
                    side.client(name).heartbeat(name)

    beats = threading.Thread(target=beat)
    beats.start()
    try:
        with ThreadPoolExecutor(32) as pool:
            for _ in range(PHASES):
                for _ in range(chance.choice([0, 1, 2]) if alive else 3):
                    alive.add(f"r{chance.randrange(100):02}-{number}")
                    number += 1
                for name in sorted(alive):
                    if chance.random() < 0.15 and len(alive) > 1:
                        alive.discard(name)
                for side in sides:
                    for name in sorted(alive):
                        side.client(name)
                beating.clear()
                beating.update(alive)
                time.sleep(HEARTBEAT_MS / 1000 + 2 * BEAT_S)  # the dead are silent by now
                joining = [name for name in sorted(alive) if chance.random() < 0.8]
                shrinks = chance.random() < 0.3
                calls = []
                for name in joining:
                    facts = {
                        "step": chance.randrange(3),
                        "shrink_only": shrinks and name in last and chance.random() < 0.5,
                        "data": {"name": name} if chance.random() < 0.5 else None,
                    }
                    both = [pool.submit(side.join, name, facts) for side in sides]
                    calls.append((name, both))
                    time.sleep(0.05)
                for name, both in calls:
                    of_real, of_ours = (future.result(60.0) for future in both)
                    outcomes.append(of_real)
                    assert of_ours == of_real, (seed, name, joining, sorted(alive))
                    if of_real == "timeout":
                        # torchft keeps a caller that has given up; so it is dead from here on.
                        alive.discard(name)
                    else:
                        last = {member[0] for member in of_real[1]}
    finally:
        stop.set()
        beats.join()
        for side in sides:
            side.server.shutdown()
    assert any(found != "timeout" for found in outcomes)


def test_a_replica_waits_since_its_newest_call() -> None:
    """Also when that call is given up: second_call.txt in tests/transcripts/torchft.

    One that lives does not join. The first call alone would be waited for until second 4.
    """
    for module in (real, ours):
        server = module.LighthouseServer(
            "[::]:0", 1, join_timeout_ms=4000, heartbeat_timeout_ms=60_000
        )
        clients = [real.LighthouseClient(server.address(), SOON) for _ in range(3)]
        clients[0].heartbeat("absent")
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(clients[0].quorum, "twice", SOON)
            time.sleep(2.0)  # the time between the calls is what is measured
            newest = time.monotonic()
            with pytest.raises(TimeoutError):
                clients[1].quorum("twice", timedelta(seconds=0.5))
            other = pool.submit(clients[2].quorum, "other", SOON)
            names = [member.replica_id for member in first.result(60.0).participants]
            assert time.monotonic() - newest >= 3.9, module
            assert names == ["other", "twice"]
            assert other.result(60.0).quorum_id == 1
        server.shutdown()


@pytest.mark.parametrize("seed", range(8))
def test_managers_make_the_same_of_a_quorum(seed: int) -> None:
    """All four pairs of manager and client: the same fields, for each rank of each group."""
    chance = random.Random(seed)
    groups, ranks = chance.choice([1, 2, 3, 4]), chance.choice([1, 2])
    steps = [chance.choice([0, 0, 1, 2]) if seed % 2 else 0 for _ in range(groups)]
    init_sync, failures = chance.random() < 0.7, chance.choice([0, 0, 1])
    found = []
    for lighthouse_of, manager_of, client_of in (
        (real, real, real),
        (ours, real, real),
        (real, ours, real),
        (ours, ours, real),
        (real, real, ours),
        (ours, ours, ours),
    ):
        lighthouse = lighthouse_of.LighthouseServer("[::]:0", groups, join_timeout_ms=60_000)
        managers = [
            manager_of.ManagerServer(
                f"g{group}", lighthouse.address(), "localhost", "[::]:0", f"store{group}", ranks,
                timedelta(milliseconds=100), SOON, 0,
            )
            for group in range(groups)
        ]  # fmt: skip

        def ask(
            group: int, rank: int, client_of: Any = client_of, managers: Any = managers
        ) -> tuple[Any, ...]:
            client = client_of.ManagerClient(managers[group].address(), SOON)
            result = client._quorum(
                rank, steps[group], f"meta{group}.{rank}", False, init_sync, failures, SOON,
                f"h{group}.{rank}",
            )  # fmt: skip
            source = result.recover_src_manager_address
            metadata = ""
            if source:
                metadata = client_of.ManagerClient(source, SOON)._checkpoint_metadata(rank, SOON)
            with pytest.raises(RuntimeError):
                client._checkpoint_metadata(ranks, SOON)
            vote = client.should_commit(rank, steps[group], rank == 0 or group == 0, SOON)
            return *(getattr(result, name) for name in FIELDS), metadata, vote

        try:
            places = [(group, rank) for group in range(groups) for rank in range(ranks)]
            with ThreadPoolExecutor(len(places)) as pool:
                found.append(list(pool.map(lambda place: ask(*place), places)))
        finally:
            for manager in managers:
                manager.shutdown()
            lighthouse.shutdown()
    assert all(other == found[0] for other in found), found


def test_a_call_without_an_answer_is_the_same_error() -> None:
    for lighthouse_of in (real, ours):
        lighthouse = lighthouse_of.LighthouseServer("[::]:0", 2)
        for client_of in (real, ours):
            client = client_of.LighthouseClient(lighthouse.address(), SOON)
            with pytest.raises(TimeoutError, match=r"status: Cancelled, message.*Timeout expired"):
                client.quorum("a", timedelta(seconds=0.3))
        lighthouse.shutdown()
    for client_of in (real, ours):
        with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:1"):
            client_of.LighthouseClient("http://127.0.0.1:1", timedelta(seconds=0.3))
        with pytest.raises(RuntimeError):
            client_of.ManagerClient("http://127.0.0.1:1", timedelta(seconds=0.3))
    for manager_of in (real, ours):
        with pytest.raises(RuntimeError):
            manager_of.ManagerServer(
                "a", "http://127.0.0.1:1", "localhost", "[::]:0", "s:1", 1,
                timedelta(seconds=1), timedelta(seconds=0.3), 0,
            )  # fmt: skip
