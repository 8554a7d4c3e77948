"""The journal: whole or not there, never half, never silently wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.core.ids import EPOCH_MAX, Attempt, StateId, pack_quorum_id
from ftrun.core.lighthouse.events import JournaledOperation, JournalState
from ftrun.core.messages import EndJob, JobSpec
from ftrun.core.quorum import Endpoint, Member, Quorum
from ftrun.lighthouse.journal import JournalFile
from ftrun.lighthouse.sealed_file import CORRUPT_MAX

QUORUM = Quorum(
    Attempt(pack_quorum_id(3, 7), 2),
    (Member("0", "aa", (Endpoint("127.0.0.1", "127.0.0.1:1"),), "127.0.0.1:2"),),
    "127.0.0.1:2",
    41,
    StateId(41, "ab" * 16),
)
SPEC = JobSpec("job", 2, 1, 1, 5.0, 2.0, 60.0)
OPERATIONS = (
    JournaledOperation(1, "kill", "1", 0, request_id="x", incarnation="aa", was_live=True, step=7),
    JournaledOperation(2, "drain", node="host-é", has_ended=True, has_failed=True, text="x"),
    JournaledOperation(3, "restart", "0", is_held=True),
)
STATE = JournalState(
    3,
    QUORUM,
    44,
    SPEC,
    ("1",),
    outcome=EndJob(1, "why"),
    agents_seen=2,
    operations=OPERATIONS,
)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "journal")
    assert journal.load() is None
    for state in (JournalState(1), STATE):
        journal.write(state)
        assert JournalFile(tmp_path / "journal").load() == state
    assert journal.writes == 2
    assert os.listdir(tmp_path) == ["journal"]
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600


def test_every_corruption_is_found_kept_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each byte flipped, each length cut: the digest or the magic shows it."""
    path = tmp_path / "journal"
    JournalFile(path).write(STATE)
    whole = path.read_bytes()
    damaged = [whole[:n] for n in range(0, len(whole), 7)]
    damaged += [whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :] for n in range(len(whole))]
    damaged += [whole + b"\0"]
    for data in damaged:
        path.write_bytes(data)
        assert JournalFile(path).load() is None
        aside = path.with_name("journal.corrupt-1")
        assert aside.read_bytes() == data
        assert str(aside) in caplog.text
        assert not path.exists()
        aside.unlink()
        caplog.clear()


def test_corrupt_files_are_numbered_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for number in range(1, CORRUPT_MAX + 3):
        path.write_bytes(b"noise %d" % number)
        assert JournalFile(path).load() is None
    assert (tmp_path / "journal.corrupt-1").read_bytes() == b"noise 1"
    assert len(os.listdir(tmp_path)) == CORRUPT_MAX
    last = tmp_path / f"journal.corrupt-{CORRUPT_MAX}"
    assert last.read_bytes() == b"noise %d" % (CORRUPT_MAX + 2)


def test_a_journal_that_may_not_be_read_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        JournalFile(tmp_path / "journal").load()


def test_a_write_that_fails_leaves_the_old_record(tmp_path: Path) -> None:
    here, away = tmp_path / "here", tmp_path / "away"
    here.mkdir()
    JournalFile(here / "journal").write(STATE)
    here.rename(away)
    with pytest.raises(OSError, match="directory"):
        JournalFile(here / "journal").write(JournalState(9))
    assert JournalFile(away / "journal").load() == STATE


WRITER = """
import sys
from pathlib import Path
from ftrun.core.lighthouse.events import JournaledOperation, JournalState
from ftrun.lighthouse.journal import JournalFile
journal = JournalFile(Path(sys.argv[1]))
epoch = 0
while True:
    epoch += 1
    journal.write(JournalState(epoch, finished=("x" * 100,) * 500))
    print(epoch, flush=True)
"""


def test_kill_dash_nine_leaves_a_whole_record(tmp_path: Path) -> None:
    """A record reported as written is on disk: never an older epoch, at most the one under way."""
    path = tmp_path / "journal"
    for lines in (1, 5, 23):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        told = 0
        for _ in range(lines):
            told = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        told = max([told, *(int(line) for line in process.stdout.read().split("\n") if line)])
        process.stdout.close()
        process.wait(10.0)
        found = JournalFile(path).load()
        assert found is not None
        assert found.epoch in (told, told + 1)


def test_an_epoch_with_none_after_it_is_kept_aside(tmp_path: Path) -> None:
    """Found by fuzzing: the next life's epoch would be beyond all, and it could never start."""
    journal = JournalFile(tmp_path / "journal")
    for epoch in (EPOCH_MAX, EPOCH_MAX + 1, 1 << 62):
        journal.write(JournalState(epoch=epoch))
        assert journal.load() is None
    journal.write(JournalState(epoch=EPOCH_MAX - 1))
    assert journal.load() == JournalState(epoch=EPOCH_MAX - 1)


def test_only_a_journal_that_outlives_the_machine_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Survivors wait for it, and a disk to which a checkpoint is written is slow for seconds."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    JournalFile(tmp_path / "of a life", outlives=False).write(STATE)
    assert not synced
    assert JournalFile(tmp_path / "of a life").load() == STATE
    JournalFile(tmp_path / "for good").write(STATE)
    assert len(synced) == 2, "the file and its directory"
