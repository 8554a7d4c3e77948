"""Memory, disks and GPUs while a job runs: each crossing is told once, and a GPU is waited for."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.agent import resources
from ftrun.agent.nvml import GpuTable, NotReadable
from ftrun.agent.resources import ResourceWatch, disk, memory
from ftrun.agent.worker_facts import WorkerProcess
from ftrun.core.agent.events import ShowNotice
from ftrun.core.agent.node_resources import GIB, Gpu, NodeResources, Resource
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import WorkerFacts

CARD = Gpu(0, "Card 9000", "GPU-00", 80 * GIB, 1 << 20, ecc_errors=0)


class Table:
    """An invented table of devices; each GPU has a list of its states, of which the last stays."""

    def __init__(self, *states: list[Gpu]) -> None:
        self.states = list(states)
        self.new_xids: list[tuple[int, int]] = []

    def count(self) -> int:
        return len(self.states)

    def gpu(self, index: int) -> Gpu:
        states = self.states[index]
        if not states:
            raise NotReadable("GPU is lost")
        return states.pop(0) if len(states) > 1 else states[0]

    def xids(self) -> list[tuple[int, int]]:
        found, self.new_xids = self.new_xids, []
        return found

    def close(self) -> None:
        pass


def told(free_gib: list[float], total_gib: float = 100.0) -> list[str]:
    """The words for a resource that has so much free at each look."""
    known = NodeResources()
    found = []
    for free in free_gib:
        row = Resource("memory", int(free * GIB), int(total_gib * GIB), "Do something.")
        found += [notice.text for notice in known.look([row])]
    return found


def test_each_crossing_is_told_once_and_a_value_at_the_limit_does_not_flutter() -> None:
    assert told([50, 4.9, 5.1, 4.9, 7.4, 4.0]) == [
        "Low memory: 4.90 of 100.0 GiB are free. Do something."
    ]
    assert told([50, 4.9, 7.6, 4.9]) == [
        "Low memory: 4.90 of 100.0 GiB are free. Do something.",
        "Enough memory again: 7.60 of 100.0 GiB are free.",
        "Low memory: 4.90 of 100.0 GiB are free. Do something.",
    ]


@pytest.mark.parametrize(
    ("free_gib", "total_gib", "is_low"),
    [
        (0.9, 10.0, True),  # 1 GiB counts
        (1.1, 10.0, False),
        (0.9, 2.0, False),  # a quarter is free
        (0.4, 2.0, True),
    ],
)
def test_what_is_low(free_gib: float, total_gib: float, is_low: bool) -> None:
    assert bool(told([free_gib], total_gib)) == is_low


def test_errors_of_gpus_are_told_when_more_come() -> None:
    known = NodeResources()
    assert known.gpu_errors([replace(CARD, ecc_errors=5)], []) == []
    assert known.gpu_errors([replace(CARD, ecc_errors=5)], []) == []
    (notice,) = known.gpu_errors([replace(CARD, ecc_errors=7)], [])
    assert "has 2 more memory errors (ECC)" in notice.text
    (notice,) = known.gpu_errors([replace(CARD, ecc_errors=None)], [(0, 79)])
    assert "Xid 79" in notice.text


def watch(table: GpuTable | str, shown: list[ShowNotice], directory: Path) -> ResourceWatch:
    return ResourceWatch(shown.append, directory, has_gpus=True, open_table=lambda: table)


def test_a_restart_waits_until_the_dead_workers_memory_is_free(tmp_path: Path) -> None:
    full = replace(CARD, used_bytes=60 * GIB)
    table = Table([CARD, full, full, CARD])
    shown: list[ShowNotice] = []

    async def play() -> None:
        looking = watch(table, shown, tmp_path)
        await looking.before_start("3", ["0"])
        await looking.before_start("3", ["0"])
        await looking.close()

    asyncio.run(asyncio.wait_for(play(), 60))
    assert table.states == [[CARD]]  # both full states were seen, and the free one
    assert shown == []


def test_a_gpu_that_stays_full_is_told_and_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "GPU_WAIT_S", 0.3)
    monkeypatch.setattr(resources, "GPU_LOOK_S", 0.01)
    monkeypatch.setattr(resources, "SAY_AFTER_S", 0.1)
    shown: list[ShowNotice] = []

    async def play() -> None:
        full = replace(CARD, used_bytes=60 * GIB, pids=(812,))
        looking = watch(Table([CARD, full]), shown, tmp_path)
        await looking.before_start("3", ["0"])
        await looking.before_start("3", ["0"])
        await looking.close()

    asyncio.run(asyncio.wait_for(play(), 60))
    waits, starts = [notice.text for notice in shown]
    assert waits.startswith("Replica 3 waits until its dead worker's memory on GPU 0 is free")
    assert "61440 MiB in use" in starts
    assert "by pid 812: the next worker starts there nevertheless" in starts


@pytest.mark.parametrize("table", ["nvidia-ml-py is not installed", Table(), Table([])])
def test_without_a_readable_gpu_nothing_is_waited_for(
    table: GpuTable | str, tmp_path: Path
) -> None:
    shown: list[ShowNotice] = []

    async def play() -> None:
        looking = watch(table, shown, tmp_path)
        await looking.before_start("3", ["0"])
        await looking.look()
        await looking.close()

    asyncio.run(asyncio.wait_for(play(), 60))
    assert [notice for notice in shown if notice.kind == "gpu"] == []


def test_a_device_is_named_by_its_index_or_a_uuid() -> None:
    assert CARD.is_called("0")
    assert CARD.is_called("GPU-0")
    assert not CARD.is_called("1")
    assert not CARD.is_called("GPU-1")


def test_this_machines_own_memory_and_disk_can_be_read(tmp_path: Path) -> None:
    for (row,) in (memory(), disk(tmp_path)):
        assert 0 < row.free_bytes <= row.total_bytes


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: many kB\n")
    assert memory(tmp_path / "meminfo") == []
    assert memory(tmp_path / "missing") == []
    assert disk(tmp_path / "missing") == []


def test_workers_are_measured_shortly_after_a_start_and_then_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "MEASURE_EVERY_S", 600.0)
    monkeypatch.setattr(resources, "MEASURE_AFTER_S", 0.01)
    key = WorkerKey("0", "a", 0)
    running: list[WorkerProcess] = []

    async def main() -> list[WorkerFacts]:
        found: asyncio.Queue[tuple[WorkerFacts, ...]] = asyncio.Queue()
        looks = ResourceWatch(
            lambda notice: None,
            tmp_path,
            has_gpus=True,
            open_table=lambda: Table([replace(CARD, busy_share=0.5)]),
        )
        looks.start(lambda: running, found.put_nowait)
        looks.worker_started()  # it has ended before it is measured
        await asyncio.sleep(0.1)
        assert found.empty()
        running.append(WorkerProcess(key, os.getpid(), "0"))
        looks.worker_started()
        (first,) = await asyncio.wait_for(found.get(), 60.0)
        monkeypatch.setattr(resources, "MEASURE_EVERY_S", 0.05)
        looks.worker_started()
        again = [(await asyncio.wait_for(found.get(), 60.0))[0] for _ in range(3)]
        await looks.close()
        return [first, *again]

    facts = asyncio.run(main())
    assert {one.pid for one in facts} == {os.getpid()}
    assert {(one.device, one.gpu_share) for one in facts} == {("cuda:0", 0.5)}
    assert all(one.rss_bytes for one in facts)
