"""Files to which a worker of one group appends."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.inject.zero_edit.appended import Appended


def append(worker: Appended, path: Path, text: str) -> None:
    with path.open("a") as file:
        worker.opened(path, file)
        file.write(text)


def step(worker: Appended, number: int) -> None:
    worker.at_place = worker.lengths()
    worker.takes(number)


def test_what_came_after_the_generation_is_cut_off(tmp_path: Path) -> None:
    held, often, late = (tmp_path / x for x in ("held", "often", "late"))
    worker = Appended(tmp_path / "appended-1.0")
    with held.open("w") as file:
        worker.opened(held, file)
        file.write("a")
        append(worker, often, "a")
        step(worker, 3)
        file.write("b")
        append(worker, often, "b")
        append(worker, late, "b")
        step(worker, 4)
        file.write("c")
        append(worker, late, "c")
    assert [x.read_text() for x in (held, often, late)] == ["abc", "ab", "bc"]
    Appended(tmp_path / "appended-1.0").goes_on(4)
    assert [x.read_text() for x in (held, often, late)] == ["ab", "ab", "b"]
    Appended(tmp_path / "appended-1.0").goes_on(3)  # its replacement has died before its first one
    assert [x.read_text() for x in (held, often, late)] == ["a", "a", ""]
    Appended(tmp_path / "appended-1.0").goes_on(2)
    assert held.read_text() == "a", "nothing is known of that step"


def test_a_file_of_several_workers_stays(tmp_path: Path) -> None:
    path = tmp_path / "all"
    workers = [Appended(tmp_path / f"appended-{rank}.0") for rank in range(2)]
    for worker in workers:
        append(worker, path, "a")
        step(worker, 0)
        append(worker, path, "b")
    Appended(tmp_path / "appended-0.0").goes_on(0)
    assert path.read_text() == "abab"


def test_a_worker_goes_on_at_its_own_place(tmp_path: Path) -> None:
    """Of a file that several write, each from its beginning."""
    path, own = tmp_path / "all", tmp_path / "own"
    worker = Appended(tmp_path / "appended-1.0")
    with path.open("w") as file, own.open("a") as other:
        worker.opened(path, file)
        worker.opened(own, other)
        file.write("abc")
        step(worker, 3)
        file.write("d")
        step(worker, 4)
    replacement = Appended(tmp_path / "appended-1.0")
    assert replacement.place(str(path)) is None, "it stands nowhere so far"
    replacement.goes_on(3)
    assert replacement.place(str(path)) == 3
    assert replacement.place(str(own)) is None, "it appends"


def test_what_was_written_again_in_front_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.csv"
    for is_again in (False, True):
        worker = Appended(tmp_path / "appended-1.0")
        with path.open("w+") as file:
            worker.opened(path, file)
            file.write("a\n1\n")
            step(worker, 3)
            file.seek(0 if is_again else 4)
            file.write("a,b\n1,\n")
            file.flush()
        Appended(tmp_path / "appended-1.0").goes_on(3)
        text = "table.csv was written again from its beginning"
        assert (text in capfd.readouterr().err) == is_again


def test_few_files_are_followed(tmp_path: Path) -> None:
    worker = Appended(tmp_path / "appended-0.0")
    for number in range(70):
        append(worker, tmp_path / str(number), "a")
    assert len(worker.lengths()) == 64
    (tmp_path / "0").unlink()
    assert len(worker.lengths()) == 63
