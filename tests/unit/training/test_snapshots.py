"""Snapshots of real Managers: taken at boundaries, written by a process, claimed by the next."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.core.messages import Healed
from ftrun.snapshots import serving
from ftrun.snapshots.directory import look, snapshots
from ftrun.training.manager import Drained, Manager
from tests.unit.training.scripted_agent import DEADLINE_S, Job, job

EVERY_S = 0.2
PACE_S = 0.01
"""Between steps, so that those who train leave the cores to the process that writes."""


@contextmanager
def saving(
    tmp_path: Path,
    replicas: int = 2,
    every_s: float = EVERY_S,
    state_dict: Callable[[], Any] | None = None,
    **context: Any,
) -> Iterator[Job]:
    """A job whose replicas take snapshots in ``tmp_path/snapshots``."""
    directory = tmp_path / f"agent{len(list(tmp_path.iterdir()))}"
    directory.mkdir()
    with job(directory, replicas, min_replicas=1) as running:
        plain = running.agent.context
        listening = serving.listen(Path(plain("0").socket_path).parent / serving.NAME)
        threading.Thread(target=serving.serve, args=(listening,), daemon=True).start()
        fields = {
            "snapshot_dir": str(tmp_path / "snapshots"),
            "snapshot_every_s": every_s,
            "script": "train",
            **context,
        }
        running.agent.context = lambda slot: replace(plain(slot), **fields)  # type: ignore[method-assign, assignment]
        for slot in range(replicas):
            own: dict[str, Any] = {"state_dict": state_dict} if state_dict else {}
            running.add(str(slot), **own)
        try:
            yield running
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()


def step_until(running: Job, condition: Callable[[], bool]) -> None:
    """Make steps until ``condition`` is true."""
    deadline = clock.now() + DEADLINE_S
    while not condition():
        assert clock.now() < deadline, "it did not come true"
        running.step(value=0.5)
        time.sleep(PACE_S)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two snapshots of a job that is gone."""
    directory = tmp_path_factory.mktemp("earlier")
    where = directory / "snapshots"
    with saving(directory) as running:
        step_until(running, lambda: len(snapshots(where)) >= 2)
    return where


@pytest.fixture
def taken(tmp_path: Path, earlier: Path) -> int:
    """Both in ``tmp_path/snapshots``; the step of the newest."""
    shutil.copytree(earlier, tmp_path / "snapshots")
    found = look(tmp_path / "snapshots").newest
    assert found is not None
    return found.manifest.step


def counts(manager: Manager) -> tuple[int, int, int]:
    """Snapshots of this worker: written, skipped, failed."""
    assert manager.session.snapshots is not None
    schedule = manager.session.snapshots._schedule
    assert schedule is not None
    return schedule.counts.written, schedule.counts.skipped, schedule.counts.failed


def spoil(path: Path) -> None:
    """Change a byte of a snapshot."""
    file = path / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("restarts", [0, 1])
def test_the_next_job_goes_on(tmp_path: Path, taken: int, restarts: int) -> None:
    """Whether its workers load at once, or only when their first quorum counts on it."""
    with saving(tmp_path, every_s=3600.0, restarts=restarts) as running:
        assert running.step(value=0.5) == [True, True]
        zero, one = running.managers["0"], running.managers["1"]
        assert zero.current_step() == one.current_step() == taken + 1
        assert zero.batches_committed() == 2 * (taken + 1)
        assert torch.equal(running.weights["0"], torch.full((3,), 0.5 * (taken + 1)))
        assert torch.equal(running.weights["1"], running.weights["0"])
        assert not running.agent.sent("0", Healed) and not running.agent.sent("1", Healed)


def test_the_first_contributor_writes_and_the_next_one_takes_over(tmp_path: Path) -> None:
    where = tmp_path / "snapshots"
    with saving(tmp_path) as running:
        step_until(running, lambda: bool(snapshots(where)))
        assert counts(running.managers["1"])[0] == 0
        assert counts(running.managers["0"])[0] <= len(snapshots(where))
        running.die("0")
        step_until(running, lambda: counts(running.managers["1"])[0] >= 1)
        assert running.managers["1"].session.snapshots is not None
        found = look(where).newest
        assert found is not None and found.manifest.step > 0


def test_a_writer_that_is_killed_is_counted_and_replaced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with saving(tmp_path, replicas=1) as running:
        manager = running.managers["0"]
        step_until(running, lambda: counts_or_none(manager)[0] >= 1)
        assert manager.session.snapshots is not None
        manager.session.snapshots._writing._writer.kill()
        step_until(running, lambda: counts(manager)[2] >= 1)
        written = counts(manager)[0]
        step_until(running, lambda: counts(manager)[0] > written)
    assert "was not written: the process that writes it has ended. Training continues" in (
        capfd.readouterr().err
    )


def counts_or_none(manager: Manager) -> tuple[int, int, int]:
    """As ``counts``, also before the first step."""
    assert manager.session.snapshots is not None
    return counts(manager) if manager.session.snapshots._schedule is not None else (0, 0, 0)


def test_a_state_that_cannot_be_had_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    weight = torch.ones(3)
    fails = False

    def state() -> dict[str, torch.Tensor]:
        if fails:
            raise ValueError("the script's own error")
        return {"weight": weight}

    with saving(tmp_path, replicas=1, state_dict=state) as running:
        manager = running.managers["0"]
        step_until(running, lambda: counts_or_none(manager)[0] >= 1)
        fails = True
        step_until(running, lambda: counts(manager)[2] >= 1)
        fails = False
    assert "the script's own error. Training continues" in capfd.readouterr().err


def test_one_that_heals_from_peers_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with saving(tmp_path) as running:
        step_until(running, lambda: bool(snapshots(tmp_path / "snapshots")))
        running.die("1")
        running.step(["0"], value=0.5)
        monkeypatch.setattr("ftrun.snapshots.reading.read", None)  # a call would be an error
        running.agent.restart("1")
        plain = running.agent.context
        running.agent.context = lambda slot: replace(plain(slot), restarts=1)  # type: ignore[method-assign, assignment]
        late = running.add("1", weight=0.0)
        joined = threading.Event()

        def train(slot: str, manager: Manager) -> None:
            commits = 0
            while not joined.is_set():
                manager.start_quorum()
                gradient = torch.full((3,), 0.5)
                manager.allreduce(gradient).wait()
                if manager.should_commit():
                    running.weights[slot] += gradient
                    commits += 1
                if slot == "1" and commits == 2:
                    manager.leave()
                    joined.set()

        running.run(train)
        resuming = late.session.resuming
        assert resuming is not None and not resuming.is_pending
        [healed] = running.agent.sent("1", Healed)[-1:]
        assert healed.donors == ("0",)
        ours, theirs = running.managers["0"].current_step(), late.current_step()
        expected = running.weights["1"] + 0.5 * (ours - theirs)
        assert torch.equal(running.weights["0"], expected)


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.usefixtures("taken")
def test_a_damaged_one_is_renamed_and_the_one_before_is_taken(
    tmp_path: Path, restarts: int
) -> None:
    newest, older = snapshots(tmp_path / "snapshots")[:2]
    spoil(newest)
    with saving(tmp_path, replicas=1, every_s=3600.0, restarts=restarts) as running:
        running.step(value=0.5)
        assert running.managers["0"].current_step() == int(older.name[5:]) + 1
    assert newest.with_name(f"{newest.name}.damaged").is_dir()


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.usefixtures("taken")
def test_without_a_whole_one_it_begins_anew_and_says_so(
    tmp_path: Path, restarts: int, caplog: pytest.LogCaptureFixture
) -> None:
    for path in snapshots(tmp_path / "snapshots"):
        spoil(path)
    with saving(tmp_path, replicas=1, every_s=3600.0, restarts=restarts) as running:
        running.step(value=0.5)
        assert running.managers["0"].current_step() == 1
    assert "this replica starts over" in caplog.text


def test_a_script_that_has_loaded_a_newer_state_keeps_it(
    tmp_path: Path, taken: int, caplog: pytest.LogCaptureFixture
) -> None:
    with saving(tmp_path, replicas=1, every_s=3600.0) as running:
        manager = running.managers["0"]
        manager.load_state_dict({"step": taken + 5, "batches_committed": 9})
        running.step(value=0.5)
        assert manager.current_step() == taken + 6
    assert f"so the snapshot of step {taken} is not taken" in caplog.text


@pytest.mark.usefixtures("taken")
def test_other_keys_and_another_script_are_refused(tmp_path: Path) -> None:
    with saving(tmp_path, replicas=1, every_s=3600.0) as running:
        running.managers["0"].register_state_dict_fn("extra", print, dict)
        with pytest.raises(UserError, match=r"it has no state for extra.*Nothing was loaded"):
            running.step()
    other = saving(tmp_path, replicas=1, every_s=3600.0, script="other")
    with other as running, pytest.raises(UserError, match=r"is of train with .*, not of other"):
        running.step()


@pytest.mark.usefixtures("taken")
def test_one_that_leaves_before_it_has_read_its_claim_has_nothing_to_save(tmp_path: Path) -> None:
    """A script that saves at ``Drained`` would save its first weights as those of a late step."""
    with saving(tmp_path, replicas=1, every_s=3600.0, restarts=1) as running:
        manager = running.managers["0"]
        assert manager.session.resuming is not None
        manager.session.resuming.claim()
        with pytest.raises(SystemExit) as leaving:
            manager.session.leaving.at_once()
        assert not isinstance(leaving.value, Drained) and leaving.value.code == 75
