"""Files to which a worker of one group appends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftrun.core.replay.mirroring import RankWords
from ftrun.inject.zero_edit.appended import Appended
from ftrun.snapshots.board import bits_of
from ftrun.snapshots.group_memory import GroupMemory

Files = dict[str, tuple[int, int, int]]


def append(worker: Appended, path: Path, text: str) -> None:
    with path.open("a") as file:
        worker.opened(path, file)
        file.write(text)


def generation(worker: Appended, step: int = 0) -> tuple[int, Files]:
    worker.at_place = worker.lengths()
    return step, json.loads(json.dumps(worker.for_generation(step)))


def test_what_came_after_the_generation_is_cut_off(tmp_path: Path) -> None:
    held, often, late = files = [tmp_path / x for x in ("held", "often", "late")]
    worker = Appended(tmp_path / "appended-1.0")
    with held.open("w") as file:
        worker.opened(held, file)
        file.write("a")
        append(worker, often, "a")
        third = generation(worker)
        file.write("b")
        append(worker, often, "b")
        append(worker, late, "b")
        fourth = generation(worker)
        file.write("c")
        append(worker, late, "c")
    assert [x.read_text() for x in files] == ["abc", "ab", "bc"]
    Appended(tmp_path / "appended-1.0").goes_on(*fourth)
    assert [x.read_text() for x in files] == ["ab", "ab", "b"]
    Appended(tmp_path / "appended-1.0").goes_on(*third)  # its replacement has died before its first
    assert [x.read_text() for x in files] == ["a", "a", ""]


def test_a_replacement_that_dies_before_its_first_generation(tmp_path: Path) -> None:
    """It has opened a file first in a step that the next one repeats."""
    log, late = tmp_path / "log", tmp_path / "late"
    late.write_text("of before\n")
    worker = Appended(tmp_path / "appended-1.0")
    made = generation(worker)
    append(worker, log, "a")
    second = Appended(tmp_path / "appended-1.0")
    second.goes_on(*made)
    append(second, log, "a")
    append(second, late, "b")
    third = Appended(tmp_path / "appended-1.0")
    third.goes_on(*made)
    assert log.read_text() == "" and late.read_text() == "of before\n"
    append(third, late, "b")
    after = generation(third)
    append(third, log, "a")  # not since its own generation
    Appended(tmp_path / "appended-1.0").goes_on(*after)
    assert log.read_text() == "" and late.read_text() == "of before\nb"


def test_a_file_that_was_not_there_is_none(tmp_path: Path) -> None:
    """What writes a table's head where there is no table; also if it is begun by another open."""
    table = tmp_path / "table.csv"
    worker = Appended(tmp_path / "appended-1.0")
    before = generation(worker, 3)
    worker.makes(table)
    table.write_text("head\n")
    since = generation(worker, 6)
    append(worker, table, "6\n")
    after = generation(worker, 7)
    append(worker, table, "7\n")
    for made, text in ((after, "head\n6\n"), (since, "head\n"), (before, None)):
        Appended(tmp_path / "appended-1.0").goes_on(*made)
        assert (table.read_text() if table.exists() else None) == text


def test_the_files_of_a_job_that_has_ended_stay(tmp_path: Path) -> None:
    """Another one goes on from its snapshot on the disk."""
    worker = Appended(tmp_path / "appended-1.0")
    append(worker, tmp_path / "log", "a")
    made = generation(worker)
    append(worker, tmp_path / "log", "b")
    (tmp_path / "slot").mkdir()
    Appended(tmp_path / "slot" / "appended-1.0").goes_on(*made)
    assert (tmp_path / "log").read_text() == "ab"


def test_a_file_of_several_workers_stays(tmp_path: Path) -> None:
    path = tmp_path / "all"
    workers = [Appended(tmp_path / f"appended-{rank}.0") for rank in range(2)]
    for worker in workers:
        append(worker, path, "a")
        made = generation(worker)
        append(worker, path, "b")
    Appended(tmp_path / "appended-1.0").goes_on(*made)
    assert path.read_text() == "abab"


def test_a_worker_goes_on_at_its_own_place(tmp_path: Path) -> None:
    """Of a file that several write, each from its beginning."""
    path, own = tmp_path / "all", tmp_path / "own"
    worker = Appended(tmp_path / "appended-1.0")
    with path.open("w") as file, own.open("a") as other:
        worker.opened(path, file)
        worker.opened(own, other)
        file.write("abc")
        third = generation(worker)
        file.write("d")
        generation(worker)
    replacement = Appended(tmp_path / "appended-1.0")
    assert replacement.place(str(path)) is None, "it stands nowhere so far"
    replacement.goes_on(*third)
    assert replacement.place(str(path)) == 3
    assert replacement.place(str(own)) is None, "it appends"


@pytest.mark.parametrize("mode", ["w", "a"])
def test_what_was_written_again_in_front_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], mode: str
) -> None:
    """A table whose columns are more now; what appends to it has written it anew."""
    path = tmp_path / "table.csv"
    for is_again in (False, True):
        path.unlink(missing_ok=True)
        worker = Appended(tmp_path / "appended-1.0")
        with path.open(mode) as file:
            worker.opened(path, file)
            file.write("a\n1\n")
            made = generation(worker)
            file.write("2\n")
            if is_again:
                file.flush()
                path.write_text("a,b\n1,\n2,\n")
        Appended(tmp_path / "appended-1.0").goes_on(*made)
        text = "some lines of table.csv may be wrong"
        assert (text in capfd.readouterr().err) == is_again
        assert path.stat().st_size == (10 if is_again and mode == "a" else 4)


def test_what_it_had_before_is_put_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also at the generation before the newest, and for one that follows the replacement."""

    def rewrite(worker: Appended, text: str) -> None:
        worker.rewrites(path)
        path.write_text(text)

    path = tmp_path / "table.csv"
    worker = Appended(tmp_path / "appended-1.0")
    worker.rewrites(path)  # nobody goes on from there
    append(worker, path, "a\n1\n")
    first = generation(worker)
    append(worker, path, "2\n")
    second = generation(worker, 1)
    rewrite(worker, "a,b\n1,\n2,\n")
    rewrite(worker, "c")
    for (step, files), text in ((first, "a\n1\n"), (second, "a\n1\n2\n"), (second, "a\n1\n2\n")):
        replacement = Appended(tmp_path / "appended-1.0")
        replacement.goes_on(step, files)
        assert path.read_text() == text
        path.write_text("c") if step == 0 else rewrite(replacement, "a,b\n1,\n2,\n")
    assert "written again" not in capfd.readouterr().err


def test_what_an_open_file_had_before_is_put_back(tmp_path: Path) -> None:
    """Seen in guided-diffusion: a logger goes back to the begin of its table for one more column.
    The table was truncated in the middle of a row then."""
    path = tmp_path / "table.csv"
    worker = Appended(tmp_path / "appended-1.0")
    with path.open("w+") as file:
        worker.opened(path, file)
        file.write("a\n1\n")
        made = generation(worker)
        file.seek(0)
        file.write("a,b\n1,\n2,3\n")
    Appended(tmp_path / "appended-1.0").goes_on(*made)
    assert path.read_text() == "a\n1\n"


def test_few_files_are_followed(tmp_path: Path) -> None:
    worker = Appended(tmp_path / "appended-0.0")
    for number in range(70):
        append(worker, tmp_path / str(number), "a")
    assert len(worker.lengths()) == 64
    (tmp_path / "0").unlink()
    assert len(worker.lengths()) == 63


def of_two_nodes() -> tuple[GroupMemory, int]:
    """Rank 0 is here, and rank 1 is elsewhere."""
    return GroupMemory.make(2, 64 << 20, range(1)), 0


def test_a_file_that_another_node_appends_to_stays(tmp_path: Path) -> None:
    """Its words tell which, also those of a node that is lost."""
    memory = of_two_nodes()
    board = memory[0].board
    theirs = bits_of("/elsewhere/all")
    for row in (RankWords(1, 1, 0, False, 0, 0, appends=theirs), RankWords(1, 1, 0, False, 0, 0)):
        board.take(row)
    worker = Appended(tmp_path / "appended-0.0", memory)
    for name in ("own", "all"):
        append(worker, tmp_path / name, "a")
    made = generation(worker)
    for name in ("own", "all"):
        append(worker, tmp_path / name, "b")
    assert board.row(0).appends == bits_of("own") | bits_of("all")
    Appended(tmp_path / "appended-0.0", memory).goes_on(*made)
    assert (tmp_path / "own").read_text() == "a"
    assert (tmp_path / "all").read_text() == "ab"


def test_a_node_that_comes_for_a_lost_one_has_the_files_of_the_generation(tmp_path: Path) -> None:
    """It has nothing of the slot's own. What a job that has ended has left is no lost node's."""
    worker = Appended(tmp_path / "appended-0.0", of_two_nodes())
    append(worker, tmp_path / "log", "a")
    made = generation(worker)
    append(worker, tmp_path / "log", "b")
    comes = of_two_nodes()
    (tmp_path / "comes").mkdir()
    Appended(tmp_path / "comes" / "appended-0.0", comes).goes_on(*made)
    assert (tmp_path / "log").read_text() == "ab"
    comes[0].board.make_decree(1, 0)
    Appended(tmp_path / "comes" / "appended-0.0", comes).goes_on(*made)
    assert (tmp_path / "log").read_text() == "a"
    assert comes[0].board.row(0).appends == bits_of("log")
