"""``ftrun.launch`` from programs that really run: values, failures, interruptions, odd callers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ftrun
from ftrun.base.errors import UserError
from tests.jobs import THIS_TREE, Command
from tests.jobs.forks import Popen

HEAD = """
import asyncio, os, signal, sys, threading, time
import ftrun

def where():
    return int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["RANK"])

def go(function, *args, **settings):
    return ftrun.launch(function, args, device="cpu", log_dir="logs", **settings)
"""


class Program(Command):
    """A Python program that launches; at the end of the ``with`` nothing of it may be left."""

    def __init__(
        self,
        directory: Path,
        source: str,
        *,
        guarded: bool = True,
        args: tuple[str, ...] = (),
        fresh: bool = False,
    ) -> None:
        self.script = directory / "program.py"
        body = textwrap.dedent(source)
        definitions, _, main = body.partition("# main\n")
        if guarded:
            main = 'if __name__ == "__main__":\n' + textwrap.indent(main, "    ")
        self.script.write_text(HEAD + definitions + main)
        words = (sys.executable, str(self.script), *args)
        environment = {**THIS_TREE, "PYTHONUNBUFFERED": "1"}
        super().__init__(directory, words, environment, fresh=fresh)

    def kill_worker(self, pid: int) -> None:
        """SIGKILL a worker."""
        assert pid in self.pids()
        os.kill(pid, signal.SIGKILL)

    def leaves_nothing(self) -> None:
        """No process, and none of the directories in TMPDIR."""
        assert self.process.returncode is not None
        assert not self.left()
        assert not [path.name for path in self.directory.glob("ftrun-*")]


def test_values_come_back_by_global_rank(tmp_path: Path) -> None:
    source = """
    class Thing:
        def __init__(self, value):
            self.value = value

    def work(a, b, *, c):
        print("in", __name__, a, "FTRUN_TOKEN" in os.environ)
        return Thing((*where(), a, b, c, sys.argv))

    def nested():
        return go(where, workers_per_replica=2)

    # main
    sys.argv.append("--flag")
    os.environ["FTRUN_TOKEN"] = 64 * "a"
    values = ftrun.launch(
        work, ("x", [1]), {"c": 3}, replicas=2, workers_per_replica=2, device="cpu", log_dir="logs"
    )
    for rank, thing in values.items():
        print("value", rank, type(thing) is Thing, thing.value[:5], thing.value[5] == sys.argv)
    print("of a module", go(os.getcwd))
    print("nested", go(nested))
    """
    with Program(tmp_path, source) as program:
        assert program.end() == 0
        values = [line for line in program.output.splitlines() if line.startswith("value")]
        assert values == [
            f"value {2 * replica + rank} True ({replica}, {rank}, 'x', [1], 3) True"
            for replica in (0, 1)
            for rank in (0, 1)
        ]
        assert f"of a module {{0: '{tmp_path}'}}" in program.output
        assert "[1.1] in __mp_main__ x False" in program.output
        assert "nested {0: {0: (0, 0), 1: (0, 1)}}" in program.output
        program.leaves_nothing()


def test_an_error_has_every_exception_and_what_was_restarted(tmp_path: Path) -> None:
    source = """
    def fail():
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        if where() == (0, 1):
            raise ValueError("not this way")
        time.sleep(3600)

    # main
    try:
        go(fail, workers_per_replica=2, max_restarts=1)
    except ftrun.LaunchError as error:
        print("code", error.exit_code != 0, len(error.failures), error.values)
        first = error.failures[0]
        print("first", first.rank, first.replica_id, first.group_rank, first.restart, first.status)
        print("raised", first.error_type, first.message, 'raise ValueError("not' in first.traceback)
        print("earlier", {one.signal_name for one in error.earlier}, error.earlier[0].restart)
        print("text", *(word in str(error) for word in ("rank 1 ", "Traceback", "program.py")))
    """
    with Program(tmp_path, source) as program:
        assert program.end() == 0
        for line in (
            "code True 1 {}",
            "first 1 0 1 1 1",
            "raised ValueError not this way True",
            "earlier {'SIGKILL'} 0",
            "text True True True",
        ):
            assert line in program.output.splitlines()
        program.leaves_nothing()


def test_a_killed_worker_heals_and_has_the_value_of_its_last_life(tmp_path: Path) -> None:
    source = """
    def train(steps):
        import torch
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        manager = ftrun.manager(
            load_state_dict=lambda state: model.load_state_dict(state["model"]),
            state_dict=lambda: {"model": model.state_dict()},
        )
        optimizer = ftrun.Optimizer(manager, sgd)
        network = ftrun.DistributedDataParallel(manager, model)
        restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        while manager.current_step() < steps:
            optimizer.zero_grad()
            network(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            if where()[0] == 1 and restart == 0 and manager.current_step() == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            if where()[0] == 0 and manager.current_step() >= 6:
                time.sleep(0.002)  # time for the other one to come back
        return restart, manager.current_step(), model.weight.detach()

    # main
    values = go(train, 600, replicas=2, join_timeout_s=120)
    (r0, s0, w0), (r1, s1, w1) = values[0], values[1]
    print("restarts", r0, r1, "steps", s0, s1, "equal", bool((w0 == w1).all()))
    """
    with Program(tmp_path, source) as program:
        assert program.end() == 0, program.output
        assert "restarts 0 1 steps 600 600 equal True" in program.output.splitlines()


WAITING = """
def wait():
    print("runs", where(), flush=True)
    time.sleep(3600)

"""
ENDINGS = {
    "main": "go(wait, workers_per_replica=2)",
    "loop": """
async def run():
    go(wait, workers_per_replica=2)
asyncio.run(run())
""",
}


@pytest.mark.parametrize("caller", list(ENDINGS))
def test_ctrl_c_ends_the_job_and_is_raised(tmp_path: Path, caller: str) -> None:
    call = textwrap.indent(ENDINGS[caller].strip("\n"), "    ")
    source = f"{WAITING}# main\ntry:\n{call}\nexcept KeyboardInterrupt:\n    print('interrupted')\n"
    with Program(tmp_path, source) as program:
        program.expect(r"runs \(0, \d\)", 2)
        program.signal(signal.SIGINT)
        assert program.end() == 0, program.output
        assert "interrupted" in program.output
        assert program.output.count("leaving within") == 1
        program.leaves_nothing()


def test_sigterm_to_a_program_without_a_handler_drains_its_job(tmp_path: Path) -> None:
    source = f"{WAITING}# main\ntry:\n    go(wait)\nexcept ftrun.LaunchError as error:\n"
    source += "    print('code', error.exit_code, error.failures)\n    sys.exit(error.exit_code)\n"
    with Program(tmp_path, source) as program:
        program.expect(r"runs \(0, 0\)")
        program.signal(signal.SIGTERM)
        assert program.end() == 75
        assert "code 75 ()" in program.output
        program.leaves_nothing()


def test_a_program_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    source = f"{WAITING}# main\ngo(wait, workers_per_replica=2, grace_s=5)\n"
    with Program(tmp_path, source, fresh=True) as program:
        program.expect(r"runs \(0, \d\)", 2)
        program.signal(signal.SIGKILL)
        program.end()
        program.leaves_nothing()


def test_threads_and_event_loops_may_launch(tmp_path: Path) -> None:
    source = """
    # main
    def launch(name):
        found = go(os.getpid, job_id=name)
        print(f"thread {name} {found}")  # one write, which a line of the other's cannot part
    threads = [threading.Thread(target=launch, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    async def direct():
        return go(where)
    print("in a loop", asyncio.run(direct()))
    async def beside():
        return await asyncio.to_thread(go, where)
    print("beside a loop", asyncio.run(beside()))
    print("handler", signal.getsignal(signal.SIGINT) is signal.default_int_handler,
          signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
    """
    with Program(tmp_path, source) as program:
        assert program.end() == 0, program.output
        assert program.output.count("thread a {0: ") == program.output.count("thread b {0: ") == 1
        assert "in a loop {0: (0, 0)}" in program.output
        assert "beside a loop {0: (0, 0)}" in program.output
        assert "handler True True" in program.output
        program.leaves_nothing()


def test_what_cannot_travel_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    source = """
    # main
    sys.modules["cloudpickle"] = None
    lock = threading.Lock()
    for function, args in ((lambda: 1, ()), (print, (lock,)), (3, ())):
        try:
            go(function, *args)
        except ftrun.errors.UserError as error:
            print("refused", error)
    try:
        go(print, replcas=2)
    except ftrun.errors.UserError as error:
        print("refused", error)
    """
    with Program(tmp_path, source) as program:
        assert program.end() == 0, program.output
        refused = [line for line in program.output.splitlines() if line.startswith("refused")]
        assert len(refused) == 4, program.output
        assert "<lambda> cannot be sent" in refused[0] and "pip install cloudpickle" in refused[0]
        assert "cannot pickle '_thread.lock'" in refused[1]
        assert "3 is not a function" in refused[2]
        assert "There is no setting 'replcas'. Nothing was started. Did you mean" in refused[3]
        assert not (tmp_path / "logs").exists()


def test_a_value_that_cannot_travel_is_named_and_not_tried_again(tmp_path: Path) -> None:
    source = """
    def work():
        return 7 if where()[1] == 0 else threading.Lock()

    # main
    try:
        go(work, workers_per_replica=2)
    except ftrun.LaunchError as error:
        print("values", error.values, error.exit_code)
        print("reason", error.failures[0].rank, error.failures[0].reason)
    """
    with Program(tmp_path, source) as program:
        assert program.end() == 0, program.output
        assert "values {0: 7} 2" in program.output
        assert "reason 1 a value of type lock was returned and cannot be pickled" in program.output
        assert "Restart" not in program.output


def test_a_program_without_a_guard_is_told_so(tmp_path: Path) -> None:
    source = "# main\ngo(where, max_restarts=0)\n"
    with Program(tmp_path, source, guarded=False) as program:
        assert program.end() == 1
        assert "Put the launch under `if __name__" in program.output
        program.leaves_nothing()


def ranks(word: str) -> tuple[str, str]:
    """A function of a module that is not the main one."""
    print(f"{word} to stdout")
    print(f"{word} to stderr", file=sys.stderr)
    return word, os.environ["RANK"]


@pytest.fixture
def forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process launches is a fork, too."""
    for name, value in (*THIS_TREE.items(), ("XDG_STATE_HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(subprocess, "Popen", Popen)


@pytest.mark.usefixtures("forked")
def test_output_arrives_where_the_program_has_put_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = ftrun.launch(ranks, ["héllo"], workers_per_replica=2, device="cpu", log_dir=tmp_path)
    assert values == {0: ("héllo", "0"), 1: ("héllo", "1")}
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["[0.0] héllo to stdout", "[0.1] héllo to stdout"]
    assert "[0.1] héllo to stderr" in err
    with pytest.raises(UserError, match=r"--replicas 0: give 1 to"):
        ftrun.launch(ranks, ["x"], replicas=0, log_dir=tmp_path)
    with pytest.raises(UserError, match=r"--max-restarts: 'many' is not.*Nothing was started"):
        ftrun.launch(ranks, ["x"], max_restarts="many", log_dir=tmp_path)


@pytest.mark.usefixtures("forked")
def test_a_lambda_travels_with_cloudpickle(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    here = "closed over"
    assert ftrun.launch(lambda: here, device="cpu", log_dir=tmp_path) == {0: here}
