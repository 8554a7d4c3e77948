"""The copies of the current directory in which ``ftrun check`` runs a script."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.tools.check import place
from ftrun.tools.check.place import Difference, How, Place, compare, due_after


@pytest.fixture
def source(tmp_path: Path) -> Path:
    here = tmp_path / "up" / "here"
    (here / "data").mkdir(parents=True)
    (tmp_path / "up" / "beside").write_text("beside")
    (here / "train.py").write_text("train")
    (here / "data" / "a").write_text("a")
    (here / "log").write_text("one\n")
    (here / "link").symlink_to("train.py")
    for name in (".git", "ftrun-logs", "venv"):
        (here / name).mkdir()
    (here / "venv" / "pyvenv.cfg").touch()
    return here


def made(tmp_path: Path, source: Path) -> Place:
    (tmp_path / "work").mkdir()
    return Place(tmp_path / "work", source)


def test_each_run_begins_from_the_same_files_at_the_same_path(tmp_path: Path, source: Path) -> None:
    copy = made(tmp_path, source)
    runs = []
    for kind in ("one", "two"):
        copy.begin()
        assert sorted(x.name for x in copy.path.iterdir()) == ["data", "link", "log", "train.py"]
        assert (copy.path / ".." / "beside").read_text() == "beside"
        assert os.readlink(copy.path / "link") == "train.py"
        with (copy.path / "log").open("a") as log:
            log.write(f"{kind}\n")
        (copy.path / "out").mkdir()
        (copy.path / "out" / "best.pt").write_bytes(b"\0same")
        runs.append(copy.end(kind))
        assert not copy.path.exists()
    assert (source / "log").read_text() == "one\n" and not (source / "out").exists()
    assert sorted(runs[0]) == ["log", "out/best.pt"]
    files = compare(runs[0], runs[1], {})
    assert files.equal == ["out/best.pt"]
    assert files.unlike == {"log": Difference(How.LINES)}


def test_a_path_leads_out_of_the_copy_as_out_of_the_directory(tmp_path: Path, source: Path) -> None:
    """``PYTHONPATH=../../..`` of an example deep in its repository."""
    (deep := source / "data" / "far" / "below" / "its" / "package").mkdir(parents=True)
    copy = made(tmp_path, deep)
    copy.begin()
    assert (copy.path / "../../../../../../beside").read_text() == "beside"
    assert (copy.path / os.path.relpath("/etc", deep)).samefile("/etc")


def test_files_are_compared_by_bytes_lines_and_numbers(tmp_path: Path) -> None:
    contents = {
        "gone": (b"x", None),
        "short": (b"1\n2\n", b"1\n"),
        "twice": (b"1\n2\n", b"1\n1\n2\n"),
        "numbers": (b"loss 0.5\n", b"loss 0.25\n"),
        "binary": (b"\0\1", b"\0\2"),
        "same": (b"x", b"x"),
    }
    before, after = dict[str, Path](), dict[str, Path]()
    for name, both in contents.items():
        for run, body in zip((before, after), both, strict=True):
            if body is not None:
                run[name] = tmp_path / f"{name}-{'a' if run is before else 'b'}"
                run[name].write_bytes(body)
    files = compare(before, after, {})
    assert files.equal == ["same"]
    assert {name: str(found) for name, found in files.unlike.items()} == {
        "binary": "has other bytes",
        "gone": "was not written",
        "numbers": "has the same lines with other numbers",
        "short": "lacks 1 line",
        "twice": "has 1 line more",
    }
    assert {name for name, found in files.unlike.items() if found.is_lack} == {"gone", "short"}


def test_what_was_due_is_what_a_file_got_from_a_step_to_the_next_one() -> None:
    sizes = {"log": {"0": 10, "4": 30, "5": 35}, "late": {"5": 7}, "early": {"0": 3}, "draft": {}}
    assert due_after(sizes, 4) == {
        **{"log": (30, 35), "late": (0, 7)},
        **{"early": (3, 3), "draft": (0, 0)},
    }


def test_what_native_code_wrote_is_lost_with_what_was_written_beside_it(tmp_path: Path) -> None:
    """No worker knows of it, as of a tokenizer's file in a checkpoint."""
    (tmp_path / "x").write_bytes(b"x")
    names = ["1/model", "1/tokenizer", "2/model", "2/tokenizer", "3/tokenizer", "tokenizer"]
    whole = dict.fromkeys(names, tmp_path / "x")
    due = {"1/model": (0, 1), "2/model": (0, 0), "3/model": (0, 1)}
    files = compare(whole, {}, due)
    assert files.unlike.keys() == whole.keys()
    assert files.lost == {"1/model", "1/tokenizer"}
    assert compare(whole, {"1/model": tmp_path / "x"}, due).lost == set()


def test_only_lines_that_were_due_at_a_death_are_lost(tmp_path: Path) -> None:
    def is_lost(ours: str | None, due: tuple[int, int], whole: str = "abcdef") -> bool:
        paths = tmp_path / "whole", tmp_path / "ours"
        for path, letters in zip(paths, (whole, ours or ""), strict=True):
            path.write_text("".join(f"{x}{n}\n" for n, x in enumerate(letters)))
        killed = {} if ours is None else {"log": paths[1]}
        at = (due[0] * len("a0\n"), due[1] * len("a0\n"))
        return "log" in compare({"log": paths[0]}, killed, {"log": at}).lost

    assert all(is_lost(x, (2, 4)) for x in ("abef", "abcef", "abdef"))
    assert is_lost("abcd", (4, 6)) and is_lost("cdef", (0, 2)) and is_lost("", (0, 6))
    assert not any(is_lost(x, (2, 4)) for x in ("abf", "bcdef", "abcde", "abxef", "abcf", ""))
    assert is_lost(None, (0, 6)) and not is_lost(None, (2, 4)) and not is_lost(None, (0, 0))


def test_the_copies_are_not_copied(source: Path) -> None:
    copy = made(source, source)  # TMPDIR is the current directory
    copy.begin()
    assert sorted(x.name for x in copy.path.iterdir()) == ["data", "link", "log", "train.py"]


def test_large_files_are_links(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "LINKED_BYTES", 4)
    copy = made(tmp_path, source)
    copy.begin()
    assert os.readlink(copy.path / "train.py") == str(source / "train.py")
    assert not (copy.path / "data" / "a").is_symlink()


def test_a_directory_that_is_too_large_is_refused(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "BYTES_MAX", 4)
    with pytest.raises(UserError, match=r"holds more than .* Nothing was started"):
        made(tmp_path, source).begin()


@pytest.mark.parametrize(
    "names",
    [
        ["events.17.host.42.0", "events.18.host.43.0"],
        ["9c98d916-80ee-4c95-92a6-47b4d80348da.txt", "2de5cfe1-4608-4af1-bedc-cf33c67c3fb9.txt"],
    ],
)
def test_a_name_with_a_time_or_a_uuid_is_found_by_its_form(
    tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"\0" + name.encode())
    files = compare({names[0]: tmp_path / names[0]}, {names[1]: tmp_path / names[1]}, {})
    assert files.unlike == {names[0]: Difference(How.BYTES)} and files.more == []


def test_what_only_the_run_with_deaths_has_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "any"
    path.write_bytes(b"x")
    before = dict.fromkeys(["run-1/epoch-2", "last"], path)
    after = dict.fromkeys(["run-2/epoch-2", "run-3/epoch-1", "last"], path)
    assert compare(before, after, {}).more == ["run-2/epoch-2"]
    assert compare(before, before, {}).more == []


def test_what_each_start_appends_is_not_compared(tmp_path: Path) -> None:
    """A table's head, of a start that came to no step."""
    paths = before, after = tmp_path / "before", tmp_path / "after"
    for path, text in zip(paths, ("a,b\n1,2\n", "a,b\na,b\n1,2\n"), strict=True):
        path.write_text(text)
    (more,) = compare({"t": before}, {"t": after}, {}, starts={"t": 4}).equal
    assert more == "t (but for what a start wrote that came to no step)"
    after.write_text("a,b\na,b\n1,2\n1,2\n")
    found = compare({"t": before}, {"t": after}, {}, starts={"t": 4}).unlike
    assert found == {"t": Difference(How.COUNT, 1)}


def test_a_start_that_came_to_no_step_is_left_out_whatever_the_time_was(tmp_path: Path) -> None:
    """Seen: "has 13 lines more" of a log with times, after a death before the first step."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.write_text("1:01 begin\n1:02 data\n1:03 step\n")
    first = len("1:01 begin\n1:02 data\n")
    text = "2:01 begin\n2:02 data\n3:01 begin\n3:02 data\n"
    for end, how in (("3:03 step\n", How.NUMBERS), ("3:03 stop\n", How.LINES)):
        after.write_text(text + end)
        found = compare({"t": before}, {"t": after}, {}, starts={"t": first}).unlike
        assert found == {"t": Difference(how)}
    found = compare({"t": before}, {"t": after}, {}).unlike
    assert found == {"t": Difference(How.COUNT, 2)}


def test_files_of_one_form_are_paired_in_their_order(tmp_path: Path) -> None:
    """Each worker has one in a directory by the time, and a start that came to no step has left
    some, of which one is not written later at all."""
    for body in "abx":
        (tmp_path / body).write_text(f"{body}\n")
    before = {"at-1/log": tmp_path / "a", "at-2/log": tmp_path / "b", "at-1/seed": tmp_path / "a"}
    after = dict.fromkeys(["at-5/log", "at-6/log", "at-5/seed"], tmp_path / "x")
    early = {*after, "at-7/seed"}
    after |= {"at-7/log": tmp_path / "a", "at-8/log": tmp_path / "b", "at-7/seed": tmp_path / "a"}
    files = compare(before, after, {}, early)
    assert files.equal == [*sorted(before)] and files.more == ["at-5/log", "at-5/seed", "at-6/log"]


def test_the_files_of_a_replica_s_lives_are_one(tmp_path: Path) -> None:
    for name, body in (("log.1", b"a\nb\nc\n"), ("log.2", b"a\n"), ("log.3", b"b\nc\n")):
        (tmp_path / name).write_bytes(body)
    lives = {x: tmp_path / x for x in ("log.2", "log.3")}
    files = compare({"log.1": tmp_path / "log.1"}, lives, {})
    assert files.equal == ["log.1"] and files.more == ["log.2"]
    assert compare({"log.1": tmp_path / "log.3"}, lives, {}, early={"log.2"}).equal == ["log.1"]
    both = {"log.2", "log.3"}  # no life has written it later
    assert compare({"log.1": tmp_path / "log.3"}, lives, {}, early=both).equal == ["log.1"]
