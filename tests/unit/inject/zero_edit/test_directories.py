"""A newcomer goes on in the directory that its predecessor has made for the run."""

from __future__ import annotations

import atexit
import glob
import os
import pickle
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
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


def test_so_it_is_if_another_rank_had_made_it_first() -> None:
    """Seen in Fabric's DCGAN: both ranks make the directory of the run, named by the second."""
    for name in ("run-001", "fixed"):
        os.mkdir(name)
    first = life()
    for name in ("run-001", "fixed"):
        with pytest.raises(FileExistsError):
            make(first, name)
    first.begins()
    newcomer = life(joins=True)
    make(newcomer, "run-002")
    assert os.path.realpath("run-002") == os.path.realpath("run-001") and not newcomer._later
    with pytest.raises(FileExistsError):
        make(newcomer, "fixed")
    successor = life(joins=True)
    make(successor, "run-003")
    assert os.path.realpath("run-003") == os.path.realpath("run-001")


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


LOOKS: dict[str, Callable[[], Any]] = {
    "listdir": lambda: os.listdir("out"),
    "scandir": lambda: [x.name for x in os.scandir("out")],
    "glob": lambda: glob.glob("out/*"),
    "pathlib": lambda: Path("out").glob("*"),
    "iterdir": lambda: Path("out").iterdir(),
    "walk": lambda: next(os.walk("out"))[2],
}


@pytest.fixture
def looks() -> Iterator[Callable[..., list[list[str]]]]:
    """Gives what a life finds when it looks."""
    patches = Patches()

    def found(by: Directories, look: Callable[[], Any], times: int = 1) -> list[list[str]]:
        patches.undo()
        by.install(patches)
        try:
            return [sorted(os.path.basename(x) for x in look()) for _ in range(times)]
        finally:
            patches.undo()

    yield found
    patches.undo()


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_it_is_told_what_its_predecessor_found_in_a_directory(
    look: Callable[[], Any], looks: Callable[..., list[list[str]]]
) -> None:
    """A script may train at another line if there is a checkpoint."""
    Path("out").mkdir()
    Path("out/config").touch()
    first = life()
    assert looks(first, look) == [["config"]]
    first.begins()
    Path("out/checkpoint").touch()
    both = ["checkpoint", "config"]
    assert looks(life(), look) == [both]
    third = life()
    assert looks(third, look, times=2) == [["config"], both]  # the second is another question
    third.joined()
    assert looks(life(), look) == [["config"]]


def test_what_was_made_in_training_is_not_there_for_who_joins(
    looks: Callable[..., list[list[str]]],
) -> None:
    """Seen with IBRNet: it went on from its newest checkpoint, and counted its steps from there, to
    another end than its peers. A cache, which the set-up makes, it finds."""

    def finds(by: Directories) -> list[str]:
        asked = [x for x in ("last.pt", "cache") if by.asks(os.path.exists, x)]
        asked += [f"open {x}" for x in ("last.pt", "cache") if by.reads(x) and os.path.exists(x)]
        return [*asked, *(f"out/{x}" for x in looks(by, LOOKS["listdir"])[0])]

    Path("out").mkdir()
    first = life()
    assert finds(first) == []
    Path("cache").touch()
    Path("out/cache").touch()
    first.begins()
    Path("last.pt").touch()
    Path("out/checkpoint").touch()
    for _ in range(2):
        newcomer = life(joins=True)
        assert finds(newcomer) == ["cache", "open cache", "out/cache"] and newcomer.hides
        newcomer.joined()
    alone = life()
    every = ["last.pt", "cache", "open last.pt", "open cache", "out/cache", "out/checkpoint"]
    assert finds(alone) == every and not alone.hides


def test_a_directory_that_was_made_in_training_is_not_there_for_who_joins(
    looks: Callable[..., list[list[str]]],
) -> None:
    first = life()
    with pytest.raises(FileNotFoundError):
        looks(first, LOOKS["listdir"])
    first.begins()
    Path("out").mkdir()
    with pytest.raises(FileNotFoundError):
        looks(life(joins=True), LOOKS["listdir"])
    assert looks(life(), LOOKS["listdir"]) == [[]]


def test_of_more_than_can_be_left_nothing_is_hidden(
    looks: Callable[..., list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "NAMES_MAX", 1)
    Path("out").mkdir()
    first = life()
    assert looks(first, LOOKS["listdir"]) == [[]]
    Path("out/a").touch()
    Path("out/b").touch()
    first.begins()
    Path("out/checkpoint").touch()
    assert looks(life(joins=True), LOOKS["listdir"]) == [["a", "b", "checkpoint"]]


def test_a_large_directory_is_shown_as_it_is(looks: Callable[..., list[list[str]]]) -> None:
    for number in range(directories.LISTED_MAX + 1):
        Path(f"{number}.jpg").touch()
    look: Callable[[], Any] = lambda: glob.glob("*.jpg")  # noqa: E731
    first = life()
    assert len(*looks(first, look)) == directories.LISTED_MAX + 1
    first.begins()
    Path("more.jpg").touch()
    assert [len(*looks(life(), look)) for _ in range(2)] == [directories.LISTED_MAX + 2] * 2


def test_what_imports_look_into_leaves_room_for_what_the_script_does(
    looks: Callable[..., list[list[str]]],
) -> None:
    """Seen with FastChat: an import of transformers filled the table, and a newcomer was told of a
    checkpoint that its predecessor had died in."""
    Path("out").mkdir()
    package = Path("env/site-packages/package")
    package.mkdir(parents=True)
    standard = os.path.dirname(os.__file__)

    def look() -> list[str]:
        for path in (standard, package):
            for _ in range(directories.ABSENT_MAX):
                os.listdir(path)
        return os.listdir("out")

    first = life()
    assert looks(first, look) == [[]]
    first.begins()
    Path("out/checkpoint").touch()
    assert looks(life(), look) == [["checkpoint"]]
    assert looks(life(), look) == [[]]


def test_what_a_life_before_the_first_step_has_made_is_there_in_every_way(
    looks: Callable[..., list[list[str]]],
) -> None:
    """Seen with distributed-training-guide: a replacement was told that its directory is there,
    and an error when it asked for more of it."""

    def makes() -> list[str]:
        found = str(Path("run").is_mount() or Path("run").exists())
        os.makedirs("run", exist_ok=True)
        return [found]

    assert looks(life(), makes) == [["False"]]
    second = life()
    assert second.begins_again
    assert looks(second, makes) == [["True"]]
    second.begins()
    assert looks(life(is_in_place=True, joins=True), makes) == [["True"]]


@pytest.mark.parametrize("is_in_place", [True, False])
def test_what_was_looked_at_by_stat_is_as_it_was_for_a_replacement(
    looks: Callable[..., list[list[str]]], is_in_place: bool
) -> None:
    def makes() -> list[str]:
        try:
            os.stat("run")
        except FileNotFoundError:
            os.mkdir("run")
            return ["made"]
        return ["there"]

    first = life()
    assert looks(first, makes) == [["made"]]
    first.begins()
    again = life(is_in_place=is_in_place, joins=True)
    assert looks(again, makes) == [["made" if is_in_place else "there"]]


LOGGER = """
import os

class Logger:
    def __init__(self):
        names = os.listdir("logs") if os.path.isdir("logs") else []
        free = max([int(x) for x in names], default=-1) + 1
        self.directory, self.rows = f"logs/{free}", []
        if os.path.exists(self.directory) or is_there(self.directory):
            os.remove(f"{self.directory}/table")
        os.makedirs(self.directory, exist_ok=True)

def is_there(path):
    try:
        return bool(os.stat(path))
    except FileNotFoundError:
        return False
"""


@pytest.mark.parametrize("is_in_place", [False, True])
def test_a_package_finds_the_same_free_number(is_in_place: bool) -> None:
    """What its predecessor has made, also in training, is not there until it is made again; what
    another process has made since is not there either."""
    known: dict[str, Any] = {"__name__": "logger"}
    exec(compile(LOGGER, "/x/site-packages/logger.py", "exec"), known)
    for number in range(2):
        os.makedirs(f"logs/{number}")
    worker: Any = Worker(directory=Path.cwd())
    patches, first = Patches(), Directories(worker)
    first.install(patches)
    made = known["Logger"]()
    assert made.directory == "logs/2" and first.writers() == [made]
    first.begins()
    Path("logs/2/table").touch()
    worker.has_begun = True
    os.mkdir("logs/2/checkpoints")
    patches.undo()
    os.makedirs("logs/3")
    for _ in range(2):
        second = life(joins=True, is_in_place=is_in_place)
        second.install(patches)
        look = "import os; found = os.path.isdir('logs/2/checkpoints')"
        exec(compile(look, "/x/site-packages/logger.py", "exec"), known)
        again = known["Logger"]()
        patches.undo()
        assert not known["found"]
        assert again.directory == "logs/2" and second.writers() == [again]
        assert Path("logs/2/table").exists()
        second.joined()
    newest = life()  # its peers do not train
    newest.install(patches)
    assert known["Logger"]().directory == "logs/4"
    patches.undo()


@pytest.mark.parametrize("is_of_group", [False, True])
def test_who_follows_a_life_without_a_step_goes_on_in_its_directories(is_of_group: bool) -> None:
    """Seen: all workers began again before the first step, and Lightning's logger in version_1."""
    known: dict[str, Any] = {"__name__": "logger"}
    exec(compile(LOGGER, "/x/site-packages/logger.py", "exec"), known)
    os.makedirs("logs/0")
    worker: Any = Worker(directory=Path.cwd())
    if is_of_group:
        worker.memory = SimpleNamespace(world=SimpleNamespace(is_newcomer=False))
    patches = Patches()
    for number in range(4):
        now = Directories(worker)
        now.install(patches)
        assert known["Logger"]().directory == "logs/1"
        look = "import os; found = os.path.isdir('logs/1/media')"
        exec(compile(look, "/x/site-packages/logger.py", "exec"), known)
        assert not known["found"]
        exec(compile("import os; os.mkdir('logs/1/media')", "/x/site-packages/l.py", "exec"), {})
        if number != 1:  # that one ends before
            make(now, f"run-at-{number}")
        patches.undo()
    now.begins()
    assert {os.path.realpath(x) for x in glob.glob("run-at-*")} == {os.path.realpath("run-at-0")}
    anew = Directories(worker)
    anew.install(patches)
    assert known["Logger"]().directory == "logs/2", "a run has begun in it"
    patches.undo()


def test_a_newcomer_without_a_predecessor_has_trained_once_it_has_joined() -> None:
    newcomer = life(joins=True)
    make(newcomer, "run-1")
    assert life().begins_again and not life().is_successor
    newcomer.joined()
    assert life().is_successor and not life().begins_again


def test_what_a_package_finds_elsewhere_is_its_own(tmp_path: Path) -> None:
    """A cache in the user's directory may be another job's too."""
    (here := tmp_path / "here").mkdir()
    (tmp_path / "cache").mkdir()
    os.chdir(here)
    first, patches = life(), Patches()
    first.install(patches)
    code = compile("import os; os.listdir('../cache')", "/x/site-packages/hub.py", "exec")
    exec(code, {})
    patches.undo()
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


def test_a_package_s_directory_is_the_predecessor_s_too() -> None:
    patches = Patches()
    package: dict[str, Any] = {}
    code = "import os\nmake = lambda name: os.makedirs(f'runs/{name}')"
    exec(compile(code, "/x/site-packages/logger.py", "exec"), package)
    for name in ("at-1", "at-2", "at-3"):
        now = life(joins=name != "at-1", has_world=False)
        now.install(patches)
        package["make"](name)
        patches.undo()
        if name == "at-1":
            now.begins()
    assert [x for x in sorted(os.listdir("runs")) if os.path.islink(f"runs/{x}")] == [
        "at-2",
        "at-3",
    ]


def test_functions_that_ask_can_be_pickled_and_are_put_back() -> None:
    def all_of_them() -> list[Callable[..., Any]]:
        asked = [os.path.exists, os.path.isdir, os.path.lexists, Path.exists]
        return [*asked, os.listdir, os.scandir, os.stat]

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
