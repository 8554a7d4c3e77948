"""A newcomer goes on in the directory that its predecessor has made for the run."""

from __future__ import annotations

import atexit
import glob
import os
import pickle
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.inject.zero_edit import directories, told
from ftrun.inject.zero_edit.directories import Directories
from ftrun.inject.zero_edit.patches import Patches
from tests.unit.inject.zero_edit.worker import Worker


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(told, "say", lambda text: None)
    monkeypatch.setattr(atexit, "register", lambda *words: None)


def life(**facts: bool) -> Directories:
    worker: Any = Worker(directory=Path.cwd(), **facts)
    return Directories(worker)


def make(by: Directories, name: str) -> None:
    by(name)  # one line: what makes a directory is known by it


def predecessor(*names: str) -> None:
    first = life()
    for name in names:
        make(first, name)
    first.begins()


def test_it_gets_the_predecessor_s_under_the_new_name_until_it_ends() -> None:
    predecessor("run-001")
    newcomer = life(joins=True)
    make(newcomer, "run-002")
    Path("run-002/best.pt").write_text("x")
    assert Path("run-001/best.pt").read_text() == "x"
    newcomer._remove(os.getpid())
    assert sorted(os.listdir()) == ["made", "run-001"]


def test_so_it_is_if_the_name_is_a_uuid() -> None:
    first, second = str(uuid.UUID(int=10**37)), str(uuid.UUID(int=3 * 10**38))
    predecessor(first)
    make(life(joins=True), second)
    assert os.path.realpath(second) == os.path.realpath(first) and os.path.islink(second)


def test_what_the_predecessor_has_made_in_it_is_there() -> None:
    predecessor("run-001", "run-001/checkpoints")
    newcomer = life(joins=True)
    make(newcomer, "run-002")
    make(newcomer, "run-002/checkpoints")
    assert Path("run-002/checkpoints").is_dir()
    make(newcomer, "run-002/more")
    assert sorted(os.listdir("run-001")) == ["checkpoints", "more"]


def test_of_several_that_are_made_alike_each_is_its_own() -> None:
    predecessor("run-1", "run-2")
    newcomer = life(joins=True)
    make(newcomer, "run-3")
    make(newcomer, "run-4")
    make(newcomer, "run-5")
    assert [os.path.realpath(f"run-{n}")[-5:] for n in (3, 4, 5)] == ["run-1", "run-2", "run-5"]


def test_other_names_and_lines_and_lives_make_their_own() -> None:
    predecessor("run-1")
    newcomer = life(joins=True)
    make(newcomer, "logs-1")
    newcomer("run-2")
    make(life(), "run-3")  # its peers do not train
    make(life(joins=True, has_begun=True), "run-4")
    assert not [name for name in os.listdir() if os.path.islink(name)]


def test_what_the_predecessor_has_made_is_made_again() -> None:
    predecessor("run-1")
    make(life(joins=True), "run-1")
    assert not os.path.islink("run-1")


def test_errors_are_the_system_s() -> None:
    predecessor("run-1")
    newcomer = life(joins=True)
    with pytest.raises(FileExistsError):
        newcomer("run-1")  # another line
    with pytest.raises(FileExistsError):
        make(life(), "run-1")  # its peers do not train
    with pytest.raises(FileNotFoundError):
        make(newcomer, "none/run-2")
    with pytest.raises(TypeError):
        make(newcomer, None)  # type: ignore[arg-type]


def test_a_file_that_cannot_be_read_leaves_nothing() -> None:
    Path("made").write_text("{")
    make(life(joins=True), "run-1")
    assert not os.path.islink("run-1")


def test_temporary_directories_are_left_alone(tmp_path: Path) -> None:
    assert directories._whole("/tmp/x-1") is None
    assert directories._whole(str(tmp_path / "x")) == str(tmp_path / "x")
    assert directories._whole(b"x") is None


def test_the_links_of_lives_that_were_killed_stay_until_the_end() -> None:
    """Values that heal, such as a list of checkpoints, may name them."""
    predecessor("run-1")
    make(life(joins=True), "run-2")
    make(life(joins=True), "run-2")  # another life in the same second
    os.symlink("run-1", "run-9")
    with pytest.raises(FileExistsError):
        make(life(joins=True), "run-9")
    os.unlink("run-9")
    last = life(joins=True)
    make(last, "run-3")
    assert [os.path.realpath(f"run-{n}")[-5:] for n in (2, 3)] == ["run-1", "run-1"]
    last._remove(os.getpid())
    assert sorted(os.listdir()) == ["made", "run-1"]


def test_a_life_that_ends_by_what_it_finds_is_followed_by_one_that_is_told_the_same() -> None:
    """The first one is told the truth: of a cache it takes the shorter way."""

    def ask(by: Directories, name: str) -> bool:
        return by.asks(os.path.exists, name)

    def asks(by: Directories) -> list[bool]:
        return [ask(by, name) for name in ("run", "run", "cache", "never")]

    Path("cache").touch()
    first = life()
    assert asks(first) == [False, False, True, False]
    first.begins()
    Path("run").touch()
    assert asks(life()) == [True, True, True, False]
    third = life()
    assert [*asks(third), ask(third, "run")] == [False, False, True, False, True]
    third.joined()
    assert asks(life()) == [False, False, True, False]


LOOKS: dict[str, Callable[[Directories], Any]] = {
    "listdir": lambda by: by.lists(os.listdir, "out"),
    "glob": lambda by: by.lists(glob.glob, "out/*"),
    "pathlib": lambda by: by.lists(Path.glob, Path("out"), "*"),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_it_is_told_what_its_predecessor_found_in_a_directory(
    look: Callable[[Directories], Any],
) -> None:
    """A script may train at another line if there is a checkpoint."""

    def looks(by: Directories, times: int = 1) -> list[list[str]]:
        found = [look(by) for _ in range(times)]
        assert all(isinstance(x, list | Iterator) for x in found)
        return [sorted(os.path.basename(x) for x in one) for one in found]

    Path("out").mkdir()
    Path("out/config").touch()
    first = life()
    assert looks(first) == [["config"]]
    first.begins()
    Path("out/checkpoint").touch()
    both = ["checkpoint", "config"]
    assert looks(life()) == [both]
    third = life()
    assert looks(third, times=2) == [["config"], both]  # the second is another question
    third.joined()
    assert looks(life()) == [["config"]]


def test_a_large_directory_is_shown_as_it_is() -> None:
    for number in range(directories.LISTED_MAX + 1):
        Path(f"{number}.jpg").touch()
    looks: Callable[[Directories], Any] = lambda by: by.lists(glob.glob, "*.jpg")  # noqa: E731
    first = life()
    assert len(looks(first)) == directories.LISTED_MAX + 1
    first.begins()
    Path("more.jpg").touch()
    assert [len(looks(life())) for _ in range(2)] == [directories.LISTED_MAX + 2] * 2


def test_what_a_package_lists_is_its_own() -> None:
    Path("out").mkdir()
    first = life()
    code = compile("look()", "/x/site-packages/hub.py", "exec")
    exec(code, {"look": lambda: first.lists(os.listdir, "out")})
    assert not first._listed


def test_a_newcomer_that_joins_with_the_truth_leaves_the_truth() -> None:
    first = life()
    first.asks(os.path.exists, "run")
    first.begins()
    Path("run").touch()
    for _ in range(2):
        newcomer = life()
        assert newcomer.asks(os.path.exists, "run")
        newcomer.joined()


def test_who_was_replaced_in_place_leaves_the_truth_to_a_newcomer_of_its_replica() -> None:
    """Its mates, which were not replaced, leave it too: all of them take the same way."""

    def ask(by: Directories) -> bool:
        return by.asks(os.path.exists, "run")

    found = []
    for name in ("first", "replacement", "newcomer"):
        now = life(is_in_place=name == "replacement")
        found.append(ask(now))
        if name == "first":
            now.begins()
            Path("run").touch()
        else:
            now.joined()
    assert found == [False, False, True]


def test_a_file_that_is_no_directory_is_there() -> None:
    """A package that lists its own files asks so for hundreds: there is no room for all."""

    def ask(by: Directories, plain: Callable[..., bool], name: str) -> bool:
        return (lambda: by.asks(plain, name))()  # one line: an answer is known by it

    first = life()
    for number in range(directories.ABSENT_MAX):
        Path(f"file-{number}").touch()
        assert not ask(first, os.path.isdir, f"file-{number}")
    answers = [ask(first, os.path.exists, "run")]
    first.begins()
    Path("run").touch()
    answers += [ask(life(), os.path.exists, "run") for _ in range(2)]
    assert answers == [False, True, False]


def test_before_the_process_group_a_package_makes_its_own() -> None:
    """A logger would go on in its predecessor's table with other columns."""
    predecessor("run-1")
    newcomer = life(joins=True, has_world=False)
    code = compile("by(name)", "/x/site-packages/logger.py", "exec")
    exec(code, {"by": lambda name: make(newcomer, name), "name": "run-2"})
    assert os.path.islink("run-2")  # the innermost lines are this file's
    exec(code, {"by": newcomer, "name": "run-3"})
    assert not os.path.islink("run-3")


def test_functions_that_ask_can_be_pickled_and_are_put_back() -> None:
    def all_of_them() -> list[Callable[..., Any]]:
        asked = [os.path.exists, os.path.isdir, os.path.lexists, Path.exists]
        return [*asked, os.listdir, glob.glob, glob.iglob, Path.glob, Path.iterdir]

    before, plain = all_of_them(), os.mkdir
    patches = Patches()
    life().install(patches)
    for function in all_of_them():
        assert function not in before
        assert pickle.dumps(function)  # by its name: an error if another object is there
    assert (
        sorted(os.listdir()) == sorted(glob.glob("*")) == sorted(x.name for x in Path().iterdir())
    )
    patches.undo()
    assert all_of_them() == before and os.mkdir is plain
