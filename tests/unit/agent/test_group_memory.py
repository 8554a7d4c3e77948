from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest

from ftrun.agent import group_memory
from ftrun.agent.group_memory import MemorySnapshots
from ftrun.base import clock
from ftrun.base.free_memory import free_bytes
from ftrun.core.activity import Activity
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import Progress, Resumption
from ftrun.core.replay.falls import Fall
from ftrun.core.replay.settling import Generation
from ftrun.snapshots.board import Word
from ftrun.snapshots.group_memory import LEFT, GroupMemory
from tests.unit.run_settings import resolved
from tests.unit.snapshots.written import tree_of, write_tree

ON: dict[str, Any] = {"workers_per_replica": 2, "memory_snapshots": "auto"}
TWO: dict[str, Any] = {"replicas": 2, "inject": "explicit"}
DEADLINE_S = 60.0


def play(
    here: Path,
    *,
    frees: int = 1 << 30,
    falls: int = 0,
    gap: bool = False,
    fills: bool = False,
    **given: Any,
) -> tuple[list[str], GroupMemory | None]:
    """What people are told of one group, whose workers both have a generation, or do not fit.

    ``gap``: the log of one lacks a call; ``fills``: because there was no room for it.
    """

    async def run() -> None:
        known = MemorySnapshots(resolved(**ON, **given), here, told.append)
        known.make("0", "a")
        place = known.starts("a", 0)
        if place:
            seen = GroupMemory.open(place)
            opened.append(seen)
            assert seen.board.read(0, Word.STARTS) == 1
            assert known.kept("a", 0) is None  # nobody has made a process group
            area = seen.area(0)
            area.lay_out(4096, 4096)
            area.open_log(3, 7)
            area.write(3, b"", [], 5, {9: 7}, {9: 7})
            seen.board.set(0, Word.NEWEST, 12)
            seen.board.set(1, Word.NEWEST, 12)
            for rank in range(2):
                seen.board.add_group(rank, 9)
                seen.board.writer(seen.board.places(9, [rank])[0])(7)
                seen.board.set(rank, Word.REACHED, 15)
            if gap or fills:
                other = seen.area(1)
                other.lay_out(4096, 4096)
                other.open_log(3, 7)
                other.write(3, b"", [], 5, {9: 7}, {9: 7})
                seen.board.writer(seen.board.places(9, [1])[0])(9)
            kept = known.kept("a", 0)
            assert kept is not None
            assert (kept.place, kept.step, kept.reached) == (
                Generation(3, 5, {9: 7}, {9: 7}),
                12,
                15,
            )
            seen.board.set(1, Word.FALL, falls)
            kept = known.kept("a", 1)
            assert kept is not None
            none = Fall.LOG_FULL if gap or fills else Fall.NO_GENERATION
            assert kept.place == (Fall(falls) if falls else none)
            assert kept.written == (Fall(falls) if falls else None)
            known.decree("a", 1, 0)
            assert seen.board.decree == 1
            seen.board.set(1, Word.FULL, 16 * fills)
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        while asyncio.get_running_loop().time() < deadline:
            seen_gap = not gap or known._at_risk["a"].has_gap
            if len(told) > fills and seen_gap:
                break
            await asyncio.sleep(0.01)
        known.free("a")
        await known.end()
        assert known.starts("a", 0) == "" and known.kept("a", 0) is None
        assert known.seen("a") is None
        known.decree("a", 2, 0)  # it has ended meanwhile

    told: list[str] = []
    opened: list[GroupMemory] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_memory, "free_bytes", lambda **_: frees)
        asyncio.run(run())
    return told, opened[0] if opened else None


def test_it_is_told_once_when_all_have_a_generation(tmp_path: Path) -> None:
    told, _ = play(tmp_path)
    assert len(told) == 1
    assert told[0].startswith("Memory snapshots are kept on this node (")
    assert told[0].endswith("at most 268 MB). A lost worker costs no step.")


def test_replicas_share_it_and_results_have_a_third_of_it_besides(tmp_path: Path) -> None:
    """So a worker's state has 4/3 of the room that it would have if results had as much."""
    told, opened = play(tmp_path, frees=3 << 30, **TWO)
    assert told[0].endswith("at most 403 MB). A lost worker costs no step.")
    assert opened is not None and opened.has_results
    area, results = opened.area(0), opened.results(0)
    assert 3 * results.nbytes <= area.nbytes < 3 * results.nbytes + 3
    assert opened.worker_bytes == area.nbytes + results.nbytes
    assert 0 <= (3 << 30) * group_memory.SHARE - 4 * opened.worker_bytes < 1 << 16


def test_on_gpus_a_line_says_that_it_is_untried(tmp_path: Path) -> None:
    told, _ = play(tmp_path, gpus=2)
    assert told[0].endswith(f"A lost worker costs no step.{group_memory.UNTRIED}")


def test_too_little_memory_is_a_reason_and_no_crash(tmp_path: Path) -> None:
    told, opened = play(tmp_path, frees=100 << 20)
    assert told == ["No memory snapshots: 105 MB of memory are free. A death restarts all workers."]
    assert opened is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"lighthouse": "h:1"}, "a group that a lighthouse places is on one node only so far"),
        ({"gpus": 2}, "on GPUs it is untried so far, and only if you ask for it"),
        ({"gpus": 2, "device": "cpu"}, None),
        ({"memory_snapshots": "off"}, ""),
        ({"nproc_per_node": 2, "workers_per_replica": None}, ""),
        ({"inject": "explicit"}, ""),
        ({"replicas": 2}, None),
        (
            {"replicas": 2, "snapshot": "d"},
            "several replica groups have them only without --snapshot and on one node so far",
        ),
        ({"replicas": 2, "memory_snapshots": "off"}, ""),
        ({"replicas": 2, "inject": "explicit"}, ""),
        ({"workers_per_replica": 1}, ""),
    ],
)
def test_a_group_without_them_is_told_why_unless_nobody_expects_them(
    tmp_path: Path, given: dict[str, Any], why: str | None
) -> None:
    """``why``: None: it has them."""

    async def run() -> None:
        known = MemorySnapshots(
            resolved(**{"workers_per_replica": 2, **given}), tmp_path, told.append
        )
        for incarnation in ("a", "b"):
            known.make("0", incarnation)
            assert bool(known.starts(incarnation, 0)) == (why is None or known.is_left_only)
            known.ended_well(incarnation, 0)
            known.free(incarnation)
        await known.end()

    told: list[str] = []
    asyncio.run(run())
    who = "its replica" if "replicas" in given else "all workers"
    assert told == ([f"No memory snapshots: {why}. A death restarts {who}."] if why else [])


def test_what_the_loss_of_replicas_with_snapshots_on_a_disk_would_cost_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        settings = resolved(replicas=2, snapshot=str(tmp_path))
        known = MemorySnapshots(settings, tmp_path, lambda text: None)
        for at, step, phase, scalars, job in (
            (0.0, 0, Activity.STARTING, {}, None),
            (10.0, 4, Activity.STEP, {}, (4, 0.0)),  # it has resumed there
            (11.0, 6, Activity.STEP, {"loss": 1.0}, (4, 1.0)),
            (12.0, 8, Activity.STEP, {"snapshot_step": 7.0}, (7, 0.0)),
            (14.0, 9, Activity.STEP, {"snapshot_step": 5.0}, (7, 2.0)),  # led before
            (15.0, 9, Activity.HEALING, {}, None),
        ):
            monkeypatch.setattr(clock, "now", partial(float, at))
            told = Progress(step, 0, phase, tuple(scalars.items()))
            found = known.with_losses("a", told)
            if job is None:
                assert found == told
                continue
            assert found.worker_lost == Resumption(step, 0.0)
            assert found.node_lost == found.job_lost == Resumption(*job)
        await known.end()
        for other in ({"replicas": 2}, {"workers_per_replica": 2, "snapshot": str(tmp_path)}):
            known = MemorySnapshots(resolved(**other), tmp_path, lambda text: None)
            told = Progress(9, 0, Activity.STEP)
            assert known.with_losses("a", told) == told
            await known.end()

    asyncio.run(run())


def test_what_the_loss_of_one_of_several_replicas_would_cost_is_known(tmp_path: Path) -> None:
    async def run() -> None:
        settings = resolved(replicas=2, workers_per_replica=2, memory_snapshots="auto")
        known = MemorySnapshots(settings, tmp_path, lambda text: None)
        reported = Progress(7, 7, Activity.STEP)
        assert known.with_losses("a", reported) == reported
        known.make("0", "a")
        told = known.with_losses("a", reported)
        assert told.worker_lost == Resumption(7, 0.0)
        assert told.job_lost == told.node_lost and told.job_lost is not None
        assert told.job_lost.step == 0
        known.free("a")
        await known.end()

    asyncio.run(run())


def test_a_worker_finds_the_memory_of_the_other_replicas_that_are_there(tmp_path: Path) -> None:
    async def run() -> None:
        known = MemorySnapshots(
            resolved(**{**ON, "replicas": 3, "workers_per_replica": 2}), tmp_path, told.append
        )
        for name in "abc":
            known.make(name, name)
        own, *others = known.starts("b", 0).split()
        places = [memory.place for x in "bac" if (memory := known.of(x)) is not None]
        assert [own, *others] == places
        known.free("a")
        assert known.starts("b", 1).split() == [places[0], places[2]]
        await known.end()

    told: list[str] = []
    asyncio.run(run())


def test_what_a_replica_has_left_stays_until_its_next_processes_have_a_state(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        settings = resolved(**{**ON, "replicas": 2, "workers_per_replica": 2})
        known = MemorySnapshots(settings, tmp_path, told.append)

        def lives(name: str, until: float, *steps: int, newest: int = -1) -> tuple[int, str]:
            """A replica's processes, which leave states; what they find in memory."""
            known.make("0", name, until)
            what, _, place = known.starts(name, 0).split()[-1].rpartition(LEFT)
            step, _, whose = what.partition(LEFT)
            assert whose in ("", "0")
            memory = known.of(name)
            assert memory is not None
            for rank in range(2):
                memory.area(rank).divide()
                for step_ in steps:
                    memory.area(rank).write(step_, b"", [], step_, {}, {})
                memory.board.set(rank, Word.NEWEST, newest)
            known._look(WorkerKey("0", name, 0))
            known.free(name)
            return int(step or -1), place

        assert lives("a", -1, 6, 7)[0] == -1, "nobody was there before"
        step, place = lives("b", inf)
        assert step == 7, "and it leaves nothing itself"
        left = GroupMemory.open(place)
        assert [x.step for rank in range(2) for x in left.area(rank).generations()] == [7, 7]
        assert lives("c", inf, 8, 9)[0] == 7
        assert lives("d", 8)[0] == 8, "what came later is not sound"
        assert lives("e", -1)[0] == -1, "nothing is"
        assert lives("f", inf, 11, newest=11)[0] == -1
        assert lives("g", inf, newest=12)[0] == 11
        assert lives("h", inf, 13)[0] == -1, "there was a newer one"
        known.drop("0")
        assert lives("i", inf, 14)[0] == -1, "nobody was to need it"
        known.make("0", "j", inf)
        memory = known.of("j")
        assert memory is not None
        for rank in range(2):
            memory.area(rank).divide()
            memory.area(rank).write(15, b"", [], 15, {}, {})
        known.drop("0")
        known.free("j")
        assert not known._left, "its processes have ended since"
        await known.end()

    told: list[str] = []
    asyncio.run(run())


def test_all_replicas_begin_again_from_what_one_of_them_has(tmp_path: Path) -> None:
    async def run() -> None:
        settings = resolved(**{**ON, "replicas": 3, "workers_per_replica": 2})
        known = MemorySnapshots(settings, tmp_path, told.append)

        def lives(replica_id: str, name: str, *steps: int) -> None:
            known.make(replica_id, name, inf)
            memory = known.of(name)
            assert memory is not None
            for rank in range(2):
                memory.area(rank).divide()
                for step in steps:
                    memory.area(rank).write(step, b"", [], step, {}, {})
                memory.board.set(rank, Word.NEWEST, max(steps, default=-1))

        def begins(replica_id: str, name: str) -> tuple[str, ...]:
            """Its first process finds: the step, and whose it is."""
            known.make(replica_id, name, inf)
            *_, last = known.starts(name, 0).split()
            return tuple(last.split(LEFT)[:-1])

        for replica_id, steps in (("0", (5, 7)), ("1", (6, 7)), ("2", (4, 6))):
            lives(replica_id, f"{replica_id}a", *steps)
        known.free("2a")
        assert known.held() == (
            ("0", 5, 5),
            ("0", 7, 7),
            ("1", 6, 6),
            ("1", 7, 7),
            ("2", 6, 6),
        )
        known.share("1", 6)
        for replica_id in "01":
            known._look(WorkerKey(replica_id, f"{replica_id}a", 0))  # of before
            known.free(f"{replica_id}a")
        assert begins("0", "0b") == ("6", "1"), "it has none of that step"
        assert begins("1", "1b") == ("6", "1"), "nothing later than that"
        assert begins("2", "2b") == ("6", "2"), "it has its own"
        assert begins("0", "0c") == ("6", "1"), "nobody has come further"
        lives("1", "1c", 8)
        known._look(WorkerKey("1", "1c", 0))
        assert begins("0", "0d") == ("5", "0"), "they have gone on: it heals"
        known.free("1c")
        assert known.held() == (("0", 5, 5), ("1", 8, 8), ("2", 6, 6))
        known.share("1", 8)
        assert begins("2", "2c") == ("8", "1"), "what has been left"
        lives("0", "0e", 9)
        known.share("0", 9)
        memory = known.of("0e")
        assert memory is not None
        for rank in range(2):
            memory.area(rank).drop()  # there was too little of it
        known.free("0e")
        assert begins("2", "2d") == ("6", "2")
        await known.end()

    told: list[str] = []
    asyncio.run(run())


def test_a_job_that_ends_before_the_first_look_is_told_why_it_had_none(tmp_path: Path) -> None:
    async def run() -> None:
        known = MemorySnapshots(resolved(**ON), tmp_path, told.append)
        for incarnation in ("a", "b"):
            known.make("0", incarnation)
            memory = known.of(incarnation)
            assert memory is not None
            memory.board.set(0, Word.FALL, Fall.CALL)
            known.free(incarnation)
        await known.end()

    told: list[str] = []
    asyncio.run(run())
    assert told == [f"No memory snapshots: {Fall.CALL.words}. A death restarts all workers."]


def test_what_is_left_at_a_fall_is_kept_until_all_train_again(tmp_path: Path) -> None:
    """A state that is left at another place is not used beside the one that is shared."""

    async def run() -> None:
        settings = resolved(**{**ON, "memory_snapshots": "off", "replicas": 4})
        known = MemorySnapshots(settings, tmp_path, told.append)
        assert known.is_left_only

        def leaves(replica_id: str, *numbers: int) -> None:
            known.make(replica_id, f"{replica_id}a")
            for rank, number in enumerate(numbers):
                memory = GroupMemory.open(known.starts(f"{replica_id}a", rank))
                memory.area(rank).lay_out_states()
                memory.area(rank).write(number, b"", [], 7, {}, {})
                memory.close()

        def begins(replica_id: str, name: str) -> str:
            known.make(replica_id, name, 7)
            _, *left = known.starts(name, 0).split()
            return "".join(left).partition(LEFT)[2].partition(LEFT)[0]

        leaves("0", 5, 5)
        leaves("1", 5)  # one of its workers has died
        leaves("2", 7, 7)
        leaves("3", 5, 7)  # its workers have not noted the same steps
        assert known.held() == (("0", 7, 5), ("2", 7, 7))
        known.share("0", 7)
        for replica_id in "0123":
            known.free(f"{replica_id}a")
        assert [begins(x, f"{x}b") for x in "0123"] == ["0", "0", "0", "0"]
        known.drop("")
        assert known.held() == ()
        assert begins("0", "0c") == ""
        await known.end()

    told: list[str] = []
    asyncio.run(run())
    assert told == []


def test_the_newest_snapshot_on_the_disk_is_held_too(tmp_path: Path) -> None:
    async def run() -> None:
        where = tmp_path / "snapshots"
        settings = resolved(replicas=2, snapshot=where)
        known = MemorySnapshots(settings, tmp_path, lambda text: None)
        assert known.held() == ()
        write_tree(where, tree_of(17))
        assert known.held() == (("", 17, 17),)
        await known.end()

    asyncio.run(run())


def test_a_script_that_cannot_be_followed_is_told_before_anybody_dies(tmp_path: Path) -> None:
    told, _ = play(tmp_path, falls=Fall.SCRIPT)
    assert told[0].startswith("No memory snapshots: ftrun cannot follow this script")


@pytest.mark.parametrize("given", [{}, {"memory_snapshots": "auto"}])
def test_a_script_that_makes_a_manager_has_them_only_if_asked(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    async def run() -> None:
        found, told = asyncio.Event(), asyncio.Event()
        known = MemorySnapshots(
            resolved(replicas=2, workers_per_replica=2, **given),
            tmp_path,
            lambda text: (texts.append(text), told.set())[0],
        )
        known.on_manager = found.set
        known.make("0", "a")
        known.make("1", "b")
        seen = GroupMemory.open(known.starts("a", 0).split()[0])
        seen.board.add_group(0, 9)
        seen.board.writer(seen.board.places(9, [0])[0])(1)
        seen.board.set(0, Word.FALL, Fall.EXPLICIT)
        assert (known.kept("a", 0) is None) is not bool(given)
        await asyncio.wait_for((told if given else found).wait(), DEADLINE_S)
        known.make("0", "c")
        assert bool(known.of("b") and known.starts("c", 0)) is bool(given)
        await known.end()

    texts: list[str] = []
    asyncio.run(run())
    assert len(texts) == len(given)
    assert not given or "ftrun knows that in time only with --inject explicit" in texts[0]


def test_a_full_log_is_told_when_it_begins_to_be_so(tmp_path: Path) -> None:
    told, _ = play(tmp_path, fills=True)
    assert told[1] == (
        "Memory snapshots: the results of a step's collectives do not fit into its log (12 kB a "
        "worker). Until the next snapshot, a death takes all workers back to step 12. Free "
        "memory to get larger logs."
    )


def test_while_a_replacement_catches_up_nothing_is_told_to_be_too_large(tmp_path: Path) -> None:
    told, _ = play(tmp_path, gap=True)
    assert len(told) == 1 and told[0].startswith("Memory snapshots are kept on this node")


def test_of_several_replicas_one_is_restarted_then(tmp_path: Path) -> None:
    told, _ = play(tmp_path, fills=True, **TWO)
    assert "Until the next snapshot, a death restarts its replica. Free memory" in told[1]


def test_a_control_group_bounds_it(tmp_path: Path) -> None:
    proc, own = tmp_path / "cgroup", tmp_path / "own"
    own.mkdir()
    proc.write_text("0::/own\n")
    (own / "memory.max").write_text("1000\n")
    (own / "memory.current").write_text("400\n")
    assert free_bytes(tmp_path, proc) == 600
    assert free_bytes(tmp_path, proc, left=0.05) == 550
    (own / "memory.max").write_text("max\n")
    assert free_bytes(tmp_path, proc) > 600
    assert free_bytes(tmp_path, tmp_path / "none") > 600


def test_a_process_that_has_ended_well_is_told_of_while_its_words_are_there(
    tmp_path: Path,
) -> None:
    """Their other nodes wait for them, and the memory is freed when the last one has ended."""

    async def run() -> None:
        known = MemorySnapshots(resolved(workers_per_replica=2), tmp_path, lambda _: None)
        known.make("0", "a")
        seen = list[int]()

        def over() -> None:
            memory = known.of("a")
            assert memory is not None
            seen.append(memory.board.read(1, Word.OVER))

        known.on_over = over
        known.ended_well("a", 1)
        assert seen == [1]
        known.free("a")
        await known.end()

    asyncio.run(run())
