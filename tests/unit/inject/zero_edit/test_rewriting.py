# ruff: noqa: SIM115  # files that stay open are what is tested
"""Files of a script that are opened for writing: before a join, in the loop, and half written."""

from __future__ import annotations

import inspect
import io
import json
import logging
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ftrun.inject.zero_edit import files, rewriting
from ftrun.inject.zero_edit.directories import Directories
from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.rewriting import Rewriting
from tests.unit.inject.zero_edit.worker import Worker


def left(path: Path, data: bytes) -> None:
    """A file that was there before this worker."""
    with rewriting._PLAIN(path, "wb") as file:
        file.write(data)


@pytest.fixture
def place() -> Any:
    """Where a worker stands that has peers to join."""
    return Worker(2, joins=True)


@pytest.fixture
def ours(place: Any) -> Iterator[Rewriting]:
    made = Rewriting(place)
    patches = Patches()
    made.install(patches)
    yield made
    patches.undo()


def test_a_successor_goes_on_where_it_has_joined(
    tmp_path: Path, place: Any, ours: Rewriting, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.csv"
    left(path, b"epoch,loss\n0,1.5\n")
    config = tmp_path / "config.json"
    left(config, b'{"seed": 1}')
    metrics = open(path, "w", newline="")
    metrics.write("epoch,loss\n")
    with open(config, "w") as file:
        json.dump({"seed": 2}, file)
    new = tmp_path / "new.txt"
    new.write_text("of this start")
    metrics.flush()
    assert path.read_bytes() == b"epoch,loss\n0,1.5\n"
    ours.joined()
    place.has_begun = True
    metrics.write("1,0.7\n")
    metrics.close()
    assert path.read_bytes() == b"epoch,loss\n0,1.5\n1,0.7\n"
    assert config.read_bytes() == b'{"seed": 1}'
    assert new.read_text() == "of this start"
    assert (
        "rank 2 continues its predecessor's files: metrics.csv, config.json"
        in capfd.readouterr().err
    )


def test_a_table_that_is_written_again_has_its_rows_once(
    tmp_path: Path, place: Any, ours: Rewriting
) -> None:
    """A logger (of guided-diffusion) goes back to the begin for one more column. Seen: a newcomer
    appended the whole table to that of its predecessor."""
    path = tmp_path / "progress.csv"
    left(path, b"step\n1\n")
    table = open(path, "w+")
    ours.joined()
    place.has_begun = True
    table.write("2\n")
    table.seek(0)
    rows = table.read().splitlines()
    table.seek(0)
    table.write("".join(f"{row},{end}\n" for row, end in zip(rows, ("loss", "", ""))))  # noqa: B905
    table.write("3,0.5\n")
    table.close()
    assert path.read_bytes() == b"step,loss\n1,\n2,\n3,0.5\n"


@pytest.mark.usefixtures("ours")
def test_open_is_a_function_of_pythons_own() -> None:
    """Seen: a script (VAR) puts its own ``print`` only if that has the type of ``open``."""
    assert type(open) is type(print) and inspect.isbuiltin(open)
    assert open is io.open
    assert pickle.loads(pickle.dumps(open)) is open  # noqa: S301  # its own bytes
    assert inspect.signature(open) == inspect.signature(rewriting._PLAIN)
    assert (open.__name__, open.__doc__) == ("open", rewriting._PLAIN.__doc__)
    with pytest.raises(FileNotFoundError):
        open("/nowhere", encoding="utf-8")


def test_on_the_way_past_a_loop_nothing_is_written(
    tmp_path: Path, place: Any, ours: Rewriting, capfd: pytest.CaptureFixture[str]
) -> None:
    journal, old, new = tmp_path / "journal", tmp_path / "old", tmp_path / "new"
    left(journal, b"before\n")
    left(old, b"old")
    lines = open(journal, "a")
    lines.write("of this start\n")
    with open(tmp_path / "closed", "a") as closed:
        closed.write("whole")
    place.passes = True
    ours.passes()
    for _ in range(rewriting.HELD_MAX + 1):
        new.write_text("on the way")
        with open(old, "a") as file:
            file.write("on the way")
    later = open(new, "w")
    lines.write("on the way\n")
    place.passes = False
    ours.joined()
    lines.write("after\n")
    later.write("after")
    for file in (lines, later):
        file.close()
    assert journal.read_text() == "before\nafter\n"
    assert (old.read_text(), new.read_text()) == ("old", "after")
    assert (tmp_path / "closed").read_text() == "whole"
    assert "rank 2 does not write new while it catches up with its peers" in capfd.readouterr().err


def test_on_the_way_past_a_loop_a_checkpoint_is_dropped(tmp_path: Path) -> None:
    patches, worker = Patches(), Worker(passes=True)
    files.install(patches, worker.drafts)
    try:
        torch.save({"a": 1}, tmp_path / "x.pt")
        assert list(tmp_path.iterdir()) == []
        worker.passes = False
        torch.save({"a": 1}, tmp_path / "x.pt")
    finally:
        patches.undo()
    assert torch.load(tmp_path / "x.pt") == {"a": 1}


def test_a_successor_removes_the_drafts_that_its_predecessor_has_left(tmp_path: Path) -> None:
    first = Worker(directory=tmp_path)
    with first.drafts.of(tmp_path / "saved.pt") as draft:
        draft.write_bytes(b"whole")
    torn = first.drafts.take(tmp_path / "torn.pt")
    torn.write_bytes(b"half")
    other = Worker(1, directory=tmp_path / "other").drafts.take(tmp_path / "torn.pt")
    other.write_bytes(b"of one that lives")
    assert Worker(directory=tmp_path).drafts.take(tmp_path / "torn.pt") == torn
    assert not torn.exists()
    assert other.exists() and (tmp_path / "saved.pt").read_bytes() == b"whole"


def test_on_the_way_a_temporary_file_is_not_renamed_and_a_new_directory_is_written(
    tmp_path: Path,
) -> None:
    patches = Patches()
    worker: Any = Worker(passes=True, directory=tmp_path)
    files.install(patches, worker.drafts)
    Directories(worker).install(patches)
    try:
        torch.save({"a": 1}, tmp_path / "x.pt.tmp")
        os.replace(tmp_path / "x.pt.tmp", tmp_path / "x.pt")
        with pytest.raises(FileNotFoundError):
            os.rename(tmp_path / "never", tmp_path / "x.pt")
        (tmp_path / "run" / "1").mkdir(parents=True)
        torch.save({"a": 1}, tmp_path / "run" / "1" / "x.pt")
    finally:
        patches.undo()
    assert [str(x.relative_to(tmp_path)) for x in tmp_path.rglob("*.pt*")] == ["run/1/x.pt"]


def test_a_successor_that_begins_anew_writes_what_it_has_written(
    tmp_path: Path, ours: Rewriting
) -> None:
    path, closed = tmp_path / "log", tmp_path / "closed"
    left(path, b"old " * 100)
    left(closed, b"old " * 100)
    log = open(path, "wb")
    log.write(b"new 1 ")
    with open(closed, "w") as file:
        file.write("new")
    ours.begun()
    log.write(b"new 2")
    log.close()
    assert path.read_bytes() == b"new 1 new 2"
    assert closed.read_bytes() == b"new"


def test_logging_and_pathlib_open_their_files_so_too(tmp_path: Path, ours: Rewriting) -> None:
    path, note = tmp_path / "train.log", tmp_path / "note"
    for each in (path, note):
        left(each, b"before\n")
    handler = logging.FileHandler(path, mode="w")
    try:
        handler.emit(logging.makeLogRecord({"msg": "set-up"}))
        note.write_text("set-up")
        ours.joined()
        handler.emit(logging.makeLogRecord({"msg": "goes on"}))
    finally:
        handler.close()
    assert path.read_bytes() == b"before\ngoes on\n"
    assert note.read_bytes() == b"before\n"


def test_nothing_is_held_where_nobody_is_to_be_joined(
    tmp_path: Path, place: Any, ours: Rewriting, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    place.joins = False
    for text in ("one", "two"):
        with open(path, "w") as file:
            file.write(text)
        assert path.read_bytes() == text.encode()
    place.is_known, place.joins = False, True
    open(path, "w").close()
    assert path.read_bytes() == b""
    ours.joined()
    assert (
        "the previous content of log is lost: the restarted script opened it"
        in capfd.readouterr().err
    )


def test_files_of_packages_and_other_modes_are_left_alone(
    tmp_path: Path, ours: Rewriting, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cache"
    left(path, b"old")
    with open(path, "r+") as file:
        file.write("new")
    assert path.read_bytes() == b"new"
    monkeypatch.setattr(files, "is_script", lambda file: False)
    open(path, "w").close()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("mode", ["w", "wb"])
def test_in_the_loop_a_file_is_whole_or_the_older_one(
    tmp_path: Path, place: Any, ours: Rewriting, mode: str
) -> None:
    place.has_begun = True
    path = tmp_path / "best.json"
    left(path, b"older")
    path.chmod(0o640)
    file = open(path, mode)
    assert (file.name, file.mode) == (str(path), mode)
    file.write("newer" if mode == "w" else b"newer")
    file.flush()
    assert path.read_bytes() == b"older"  # a death here leaves it
    file.close()
    file.close()
    assert path.read_bytes() == b"newer" and path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["best.json"]


def test_a_file_that_could_not_be_written_leaves_the_older_one(
    tmp_path: Path, place: Any, ours: Rewriting
) -> None:
    place.has_begun = True
    path = tmp_path / "best.json"
    left(path, b"older")
    file = open(path, "wb", buffering=0)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file.fileno())
    os.close(full)
    with pytest.raises(OSError, match="No space"):
        file.write(b"newer")
    file.close()
    assert path.read_bytes() == b"older" and os.listdir(tmp_path) == ["best.json"]


def test_two_writers_at_once_have_a_draft_each(tmp_path: Path, place: Any, ours: Rewriting) -> None:
    place.has_begun = True
    path = tmp_path / "log"
    left(path, b"older")
    first, second = open(path, "w"), open(path, "w")
    first.write("first")
    second.write("second")
    first.close()
    assert path.read_bytes() == b"first"
    second.close()
    assert path.read_bytes() == b"second"


def test_safetensors_are_written_by_a_draft(tmp_path: Path) -> None:
    seen: list[Path] = []

    class Module:
        @staticmethod
        def save_file(tensors: object, filename: Path, metadata: object = None) -> None:
            seen.append(Path(filename))
            Path(filename).write_text(f"{tensors} {metadata}")
            if tensors == "bad":
                raise RuntimeError("cannot be written")

    path = tmp_path / "model.safetensors"
    files._patch_safetensors(Worker(1).drafts, Module)
    Module.save_file("good", str(path), metadata=3)  # type: ignore[arg-type]
    assert path.read_text() == "good 3" and seen[0].name == ".model.safetensors.1.draft"
    with pytest.raises(RuntimeError, match="cannot be written"):
        Module.save_file("bad", path)
    assert path.read_text() == "good 3" and os.listdir(tmp_path) == [path.name]
    assert "safetensors" not in sys.modules or path.exists()


def test_a_successor_appends_nothing_before_it_has_joined(
    tmp_path: Path, place: Any, ours: Rewriting
) -> None:
    log, early, own = tmp_path / "main.log", tmp_path / "early.log", tmp_path / "own.log"
    left(log, b"step 0\n")
    left(early, b"begins\n")
    place.is_known = False
    before = open(early, "a")
    place.is_known = True
    ours.passes()  # its first model is made
    before.write("step 0\n")
    for _ in range(rewriting.HELD_MAX + 1):
        with open(log, "a") as file:
            file.write("step 0\n")
    for text in ("one ", "two"):
        with open(own, "a") as file:
            file.write(text)
    ours.joined()
    place.has_begun = True
    with open(log, "a") as file:
        file.write("step 20\n")
    before.write("step 20\n")
    before.close()
    assert log.read_text() == "step 0\nstep 20\n"
    assert early.read_text() == "begins\nstep 20\n"
    assert own.read_text() == "one two", "it has made this one itself"


@pytest.mark.parametrize("mode", ["a", "w"])
def test_what_a_predecessor_has_opened_and_not_written_is_written(
    tmp_path: Path, place: Any, ours: Rewriting, mode: str
) -> None:
    """Seen: the first lines of a log (VAR's) were in its predecessor's buffer, and in no file."""
    path = tmp_path / "main.log"
    left(path, b"")
    lines = open(path, mode)
    lines.write("begins\n")
    ours.joined()
    place.has_begun = True
    lines.write("step 20\n")
    lines.close()
    assert path.read_text() == "begins\nstep 20\n"


def test_a_successor_that_begins_anew_has_appended(tmp_path: Path, ours: Rewriting) -> None:
    path = tmp_path / "main.log"
    left(path, b"before ")
    with open(path, "a") as file:
        file.write("anew")
    ours.begun()
    assert path.read_text() == "before anew"


def test_a_package_s_file_stays_its_predecessor_s_too(
    tmp_path: Path, place: Any, ours: Rewriting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the current directory; what it writes in training makes the next step a noted one."""
    monkeypatch.chdir(tmp_path)
    left(tmp_path / "run.log", b"begins\n")
    package: dict[str, Any] = {}
    text = "def write(name, mode):\n with open(name, mode) as file: file.write('again')"
    exec(compile(text, "/site-packages/t.py", "exec"), package)
    for mode in ("a", "w"):
        package["write"]("run.log", mode)
        assert Path("run.log").read_bytes() == b"begins\n"
    ours.joined()
    place.has_begun, place.drafts.has_named = True, False
    open("own.log", "a").close()
    assert not place.drafts.has_named
    package["write"]("run.log", "a")
    assert Path("run.log").read_bytes() == b"begins\nagain" and place.drafts.has_named


def test_a_table_of_a_package_is_followed_where_the_script_works(
    tmp_path: Path, place: Any, ours: Rewriting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With memory snapshots. One elsewhere may be another job's, too."""
    seen: list[tuple[str, str]] = []

    class Appended:
        def rewrites(self, file: Any) -> None:
            seen.append(("rewrites", os.path.basename(file)))

        def makes(self, file: Any) -> None:
            seen.append(("makes", os.path.basename(file)))

        def opened(self, file: Any, _: Any) -> None:
            seen.append(("opened", os.path.basename(file)))

    appended: Any = Appended()
    ours.appended, place.has_begun = appended, True
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code = compile("def write(name, mode): open(name, mode).close()", "/site-packages/t.py", "exec")
    package: dict[str, Any] = {}
    exec(code, package)
    for name, mode in (
        ("rows", "w"),
        ("rows", "a"),
        ("rows", "r"),
        ("../all", "a"),
        ("other", "w"),
    ):
        package["write"](name, mode)
    open("../own", "a").close()
    assert seen == [
        *(("makes", "rows"), ("opened", "rows"), ("makes", "other")),
        *(("makes", "own"), ("opened", "own")),
    ]


@pytest.mark.parametrize("mode", ["a+", "+a", "ab+"])
@pytest.mark.parametrize("begins_anew", [False, True])
def test_a_file_that_is_read_too_shows_what_was_there(
    tmp_path: Path, place: Any, ours: Rewriting, mode: str, begins_anew: bool
) -> None:
    path, new = tmp_path / "rows.csv", tmp_path / "table.csv"
    left(path, b"loss\n")
    left(new, b"old")
    rows: Any = open(path, mode)
    rows.seek(0)
    head: Any = b"loss\n" if "b" in mode else "loss\n"
    more: Any = b"1\n" if "b" in mode else "1\n"
    assert rows.read() == head
    rows.write(head)
    with open(new, "w+") as table:
        table.write("new")
        table.seek(0)
        assert table.read() == "new"
    rows.flush()
    assert path.read_bytes() == b"loss\n" and new.read_bytes() == b"old"
    ours.begun() if begins_anew else ours.joined()
    place.has_begun = True
    rows.write(more)
    rows.flush()
    rows.seek(0)
    own = head if begins_anew else head[:0]
    assert rows.read() == head + own + more
    rows.close()
    assert new.read_bytes() == (b"new" if begins_anew else b"old")
    with open(path, "w+") as table:
        table.write("whole")
    assert path.read_bytes() == b"whole"


@pytest.fixture
def joining() -> Iterator[Worker]:
    """Whether a newcomer has still to join."""
    worker, patches = Worker(joins=True), Patches()
    files.install(patches, worker.drafts)
    yield worker
    patches.undo()


def test_nothing_that_a_newcomer_saves_replaces_what_was_there(
    tmp_path: Path, joining: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    best, moved, own = tmp_path / "best.pt", tmp_path / "moved.pt", tmp_path / "own.pt"
    for path in (best, moved):
        left(path, b"the predecessor's")
    torch.save(1, best)
    torch.save(1, tmp_path / "draft.pt")
    os.replace(tmp_path / "draft.pt", moved)
    os.remove(best)
    moved.unlink()
    for value in (1, 2):
        torch.save(value, own)
    torch.save(3, tmp_path / "draft.pt")
    os.replace(tmp_path / "draft.pt", own)
    assert best.read_bytes() == moved.read_bytes() == b"the predecessor's"
    assert torch.load(own) == 3
    assert sorted(x.name for x in tmp_path.iterdir()) == ["best.pt", "moved.pt", "own.pt"]
    assert "rank 0 does not write best.pt while it catches up" in capfd.readouterr().err
    joining.joins = False
    torch.save(4, best)
    moved.unlink()
    assert torch.load(best) == 4 and not moved.exists()


def test_what_a_newcomer_has_made_it_removes(
    tmp_path: Path, joining: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    """Seen: each replacement left a file of a multiprocessing.Value in /dev/shm."""
    script: Any = joining
    patches = Patches()
    Rewriting(script).install(patches)
    try:
        descriptor, name = tempfile.mkstemp(dir=tmp_path)
        os.close(descriptor)
        os.unlink(name)
        lock, mark = tmp_path / "lock", tmp_path / "mark"
        open(lock, "x").close()
        os.remove(lock)
        mark.touch()
        mark.unlink()
        theirs = tmp_path / "theirs"
        left(theirs, b"a peer's")
        theirs.touch()
        with pytest.raises(FileExistsError):
            open(theirs, "x")
        theirs.unlink()
    finally:
        patches.undo()
    assert sorted(x.name for x in tmp_path.iterdir()) == ["theirs"]
    assert capfd.readouterr().err.count("while it catches up") == 1


@pytest.mark.parametrize("remove", ["os.remove", "Path.unlink", "shutil.rmtree"])
def test_what_a_predecessor_has_removed_may_be_removed_once_more(
    tmp_path: Path, remove: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Seen: a list of the last checkpoints healed that named one removed just before the death."""
    gone = tmp_path / f"epoch-1-{remove}"
    for life in range(3):
        patches = Patches()
        files.install(patches, Worker(has_begun=True, directory=tmp_path).drafts)
        how: dict[str, Any] = {
            "os.remove": os.remove,
            "Path.unlink": Path.unlink,
            "shutil.rmtree": shutil.rmtree,
        }
        try:
            if not life:
                gone.mkdir() if remove == "shutil.rmtree" else left(gone, b"1")
            how[remove](gone)
            if life == 1:
                with pytest.raises(FileNotFoundError):
                    how[remove](gone)
                (tmp_path / "removed").unlink()
        except FileNotFoundError:
            assert life == 2, "nobody knows any more that it was there"
        else:
            assert life < 2
        finally:
            patches.undo()
    assert capfd.readouterr().err.count(f"had already removed {gone.name}") == 1
