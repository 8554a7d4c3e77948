"""Every program of the table says the same under torchrun and under ``ftrun --replicas``.

A file of programs is one job of each launcher. What ftrun cannot follow begins again as one world,
which gives the same text too: each such program has a job of its own. As one group, with memory
snapshots, none begins again.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired

import pytest

from tests.jobs import THIS_TREE, Command, Job
from tests.undisturbed.table import LINE

PROGRAMS = Path(__file__).with_name("programs")
PROGRAMS_MIN = 60
TORCHRUN_S = 180.0
"""torchrun alone stands still in one of some hundred runs of these programs: a Reducer that is the
last holder of its group joins Gloo's threads while it holds the interpreter's lock."""
BY_EXEC = "worlds"
"""Of this file torchrun and its workers are started by exec: nothing of ftrun is in them. Forks of
the template, which has imported ftrun, say the same of the other files."""
BEGINS_AGAIN = "restarts the job as torchrun would: as one world"
Said = dict[tuple[str, str], list[str]]
"""For each program and rank what it has said, in order."""


@dataclass(frozen=True)
class Case:
    """A job of ftrun's.

    ``names``: the programs of the file that it runs, by default all. ``workers``: of each replica.
    ``is_one_world``: it begins again.
    """

    file: str
    ranks: int
    names: tuple[str, ...] = ()
    workers: int = 1
    is_one_world: bool = False

    @property
    def is_one_group(self) -> bool:
        return self.workers == self.ranks

    def __str__(self) -> str:
        shape = f"{self.ranks // self.workers}x{self.workers}"
        return "-".join((self.file, shape, *(self.names if len(self.names) == 1 else ())))


def programs_of(path: Path) -> list[str]:
    """The names of a file's programs."""
    body = ast.parse(path.read_text()).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    return [
        function.name
        for function in functions
        if any(isinstance(x, ast.Name) and x.id == "program" for x in function.decorator_list)
    ]


AS_ONE_WORLD = (
    "sparse_gradients",
    "over_a_subgroup_of_each_rank",
    "copied_deeply",
    "saved_whole",
    "closure",
    "trained_by_hand",
)
"""The programs of ddp.py that ftrun cannot carry step by step."""
NO_MODEL = "this script has a process group and steps an optimizer, but"
REASONS = {
    "communication_hook": "a communication hook",
    "sharded_optimizer": "ZeroRedundancyOptimizer",
    "sharded_model": NO_MODEL,
    "weights_averaged_now_and_then": NO_MODEL,
}
"""What ftrun says of programs that it cannot carry, behind the line of the program."""
UNLIKE = frozenset(
    {
        # one replica writes for all, see docs/ZERO_EDIT_REFERENCE.md
        "checkpoint_saved_and_loaded",
    }
)
"""Programs that say something else: known, and named in docs/ZERO_EDIT_REFERENCE.md."""


ONE_GROUP = {
    "collectives": 3, "groups": 4, "worlds": 2, "another_process": 2, "again": 2, "ddp": 2,
    "refused": 2,
}  # fmt: skip
"""The files, and how many ranks one group of each has."""


def without(file: str, apart: tuple[str, ...]) -> tuple[str, ...]:
    """The programs of a file but for some."""
    return tuple(x for x in programs_of(PROGRAMS / f"{file}.py") if x not in apart)


def each(file: str, names: tuple[str, ...]) -> tuple[Case, ...]:
    """A job for each program that begins again: the next one would be in one world already."""
    return tuple(Case(file, 2, (name,), is_one_world=True) for name in names)


CASES = (
    Case("collectives", 3),
    Case("groups", 4),
    Case("groups", 4, workers=2),
    Case("worlds", 2),
    Case("another_process", 2),
    Case("again", 2),
    Case("ddp", 2, without("ddp", AS_ONE_WORLD)),
    *each("ddp", AS_ONE_WORLD),
    *each("refused", without("refused", ())),
    *(Case(file, ranks, workers=ranks) for file, ranks in ONE_GROUP.items()),
)
FRESH: dict[tuple[str, int], Said] = {}
"""What the files say under torchrun: each runs once for all of its cases."""


def under_torchrun(case: Case, directory: Path) -> Said:
    """What the programs of a file say under torchrun."""
    key = (case.file, case.ranks)
    if key not in FRESH:
        words = (sys.executable, "-m", "torch.distributed.run", "--standalone")
        directory.mkdir()
        command = (*words, "--nproc-per-node", str(case.ranks), str(PROGRAMS / f"{case.file}.py"))
        is_fresh = case.file == BY_EXEC
        try:
            code, output = _ended(directory, command, is_fresh)
        except TimeoutExpired:  # see TORCHRUN_S
            code, output = _ended(directory, command, is_fresh)
        assert code == 0, output
        FRESH[key] = said_in(output)
    return FRESH[key]


def _ended(directory: Path, command: tuple[str, ...], is_fresh: bool) -> tuple[int, str]:
    with Command(directory, command, {**THIS_TREE}, fresh=is_fresh) as job:
        return job.end(TORCHRUN_S), job.output


def said_in(output: str) -> Said:
    """What programs have said, without the launcher's prefixes and its own lines."""
    said: Said = {}
    for name, rank, text in LINE.findall(output):
        said.setdefault((name, rank), []).append(text)
    return said


def test_the_table_is_large_and_each_program_is_run() -> None:
    files = {path.stem: programs_of(path) for path in PROGRAMS.glob("[!_]*.py")}
    assert sum(map(len, files.values())) >= PROGRAMS_MIN
    for file, names in files.items():
        cases = [case for case in CASES if case.file == file]
        run = {name for case in cases for name in (case.names or names)}
        assert run == set(names), f"{file}: {sorted(set(names) - run)} are in no case"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short name: multiprocessing binds a socket in it, and pytest's own may be
    too long for that, so that torchrun stood still in one of its processes and not in another."""
    with tempfile.TemporaryDirectory(prefix="u") as made:
        yield Path(made)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_program_sees_what_it_sees_under_torchrun(case: Case, place: Path) -> None:
    plain = under_torchrun(case, place / "torchrun")
    shape = ("--replicas", str(case.ranks // case.workers), "--workers-per-replica")
    script = PROGRAMS / f"{case.file}.py"
    (place / "ftrun").mkdir()
    with Job(place / "ftrun", script, *shape, str(case.workers), args=case.names) as job:
        code, output = job.end(), job.output
    assert code == 0, output
    assert output.count(BEGINS_AGAIN) == case.is_one_world, output
    for name in REASONS.keys() & set(case.names if case.is_one_world else ()):
        assert re.search(rf"{case.file}\.py:\d+: {re.escape(REASONS[name])}", output), output
    found = said_in(output)
    wanted = {*case.names, "end"}
    for key, lines in plain.items():
        is_unlike = key[0] in UNLIKE and not case.is_one_group
        if is_unlike or (case.names and key[0] not in wanted):
            continue
        mine = found.get(key, [])
        if case.is_one_world:
            mine = mine[-len(lines) :]  # without what it had said before it began again
        assert mine == lines, f"{key[0]}, rank {key[1]}:\n{output}"
