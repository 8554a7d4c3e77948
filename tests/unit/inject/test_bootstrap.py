"""What a forked worker does first, tried in a fork: its script sees a fresh interpreter."""

from __future__ import annotations

import py_compile
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ftrun.core.messages import FailureReport
from ftrun.inject.bootstrap import TRACEBACK_CHARS_MAX, failure_report
from tests.unit.inject.forked import fork_and_run, listening


def test_the_script_is_main_with_its_own_arguments_path_and_environment(tmp_path: Path) -> None:
    done = fork_and_run(
        tmp_path,
        """
        import os, sys
        import ftrun.training.context as context
        print(__name__, os.path.basename(__file__), sys.argv[1:], os.environ["FLAG"])
        print(sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
        print(sys.modules["__main__"].__dict__ is globals(), __spec__)
        print(context.current().job_id, context.Process.failed)
        print(os.path.isabs(__file__), sys.orig_argv == [sys.executable, "-u", *sys.argv])
        """,
    )
    assert done.stdout.splitlines() == [
        "__main__ script.py ['--x', '1'] on", "True", "True None", "job False", "True True",
        "status 0",
    ]  # fmt: skip
    assert done.stderr == ""


def test_streams_have_the_encoding_that_was_asked_for(tmp_path: Path) -> None:
    source = "import sys; print(sys.stdin.encoding, sys.stdout.encoding, sys.stderr.errors)"
    wanted = {"PYTHONIOENCODING": "latin-1:replace"}
    done = fork_and_run(tmp_path, source, environment=wanted, torch=False)
    assert done.stdout.splitlines() == ["iso8859-1 iso8859-1 backslashreplace", "status 0"]


DRAWS = """
import random, numpy, torch
seed, drop = torch.initial_seed(), torch.nn.functional.dropout(torch.ones(256)).tolist()
print("drew", random.random(), numpy.random.rand(), seed, torch.rand(1).item(), hash(str(drop)))
"""


def test_two_forks_do_not_draw_the_same_numbers(tmp_path: Path) -> None:
    done = fork_and_run(tmp_path, DRAWS, targets=[str(tmp_path / "script.py")] * 2)
    draws = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("drew")]
    assert len(draws) == 2
    for what, first, second in zip(
        ("random", "numpy", "seed", "torch", "dropout"), *draws, strict=True
    ):
        assert first != second, what


@pytest.mark.parametrize(
    "target",
    [
        "sub/../script.py",
        "t.pyz",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("script.py", "./script.py", "tool")),
    ],
)
def test_file_is_absolute_as_the_interpreter_makes_it(tmp_path: Path, target: str) -> None:
    """A script may change its directory and then look for what lies beside it."""
    source = "import os\nos.chdir('/')\nprint('file', __file__)\n"
    (tmp_path / "sub").mkdir()
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__main__.py").write_text(source)
    with zipfile.ZipFile(tmp_path / "t.pyz", "w") as archive:
        archive.writestr("__main__.py", source)
    done = fork_and_run(tmp_path, source, targets=[target])
    own = subprocess.run(
        [sys.executable, target], stdout=subprocess.PIPE, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.splitlines()[0] == own.stdout.strip()
    assert own.stdout.startswith("file /")


def test_what_was_printed_survives_a_sigkill(tmp_path: Path) -> None:
    source = """
        import os, signal, sys
        print("no newline", end="")
        print(" in stderr", end="", file=sys.stderr)
        sys.stdout.buffer.write(b" nor flush")
        os.kill(os.getpid(), signal.SIGKILL)
        """
    done = fork_and_run(tmp_path, source)
    assert done.stdout == "no newline nor flushstatus -9\n"
    assert done.stderr == " in stderr"


def test_numpys_threads_are_the_workers_own(tmp_path: Path) -> None:
    source = """
        import ctypes
        paths = {line.split()[-1] for line in open("/proc/self/maps") if "openblas" in line}
        for path in paths:
            for name in ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads"):
                if hasattr(ctypes.CDLL(path), name):
                    print("threads", getattr(ctypes.CDLL(path), name)())
        """
    done = fork_and_run(tmp_path, source, threads=2)
    assert set(done.stdout.splitlines()) == {"threads 2", "status 0"}


@pytest.mark.parametrize(
    ("source", "status", "words"),
    [
        ("", 0, ""),
        pytest.param("raise SystemExit(3)", 3, "", marks=pytest.mark.slow),
        ("raise SystemExit('no data')", 1, "no data"),
        pytest.param("raise SystemExit", 0, "", marks=pytest.mark.slow),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("raise ValueError('no')", 1, "ValueError: no"),
        pytest.param("def f():\n    1 / 0\nf()", 1, "ZeroDivisionError", marks=pytest.mark.slow),
        ("import sys\nsys.stdout.close()\nraise ValueError('no')", 1, "ValueError: no"),
    ],
)
def test_it_ends_as_the_interpreter_would(
    tmp_path: Path, source: str, status: int, words: str
) -> None:
    done = fork_and_run(tmp_path, source)
    assert f"status {status}" in done.stdout
    assert words in done.stderr
    assert "bootstrap.py" not in done.stderr


def test_exit_handlers_see_the_script_as_main_and_know_that_it_failed(tmp_path: Path) -> None:
    done = fork_and_run(
        tmp_path,
        """
        import atexit, sys
        import ftrun.training.context as context
        def leave():
            print("exit", sys.modules["__main__"].__file__, context.Process.failed)
        atexit.register(leave)
        raise ValueError("no")
        """,
    )
    assert f"exit {tmp_path / 'script.py'} True" in done.stdout


@pytest.mark.parametrize("name", ["triton._C.libtriton", "other"])
def test_triton_finds_nothing_left_at_the_end(tmp_path: Path, name: str) -> None:
    done = fork_and_run(
        tmp_path,
        f"""
        import gc, sys, types
        class Held:
            def __del__(self):
                print("collected")
        held = Held()
        held.itself = held
        gc.freeze()  # as the spawner does after its imports
        sys.modules[{name!r}] = types.ModuleType({name!r})
        del held
        """,
        torch=False,
    )
    assert ("collected" in done.stdout) == ("triton" in name)


def test_a_module_runs_as_with_m(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "tool.py").write_text(
        "import sys; print(__name__, sys.argv[1:], sys.orig_argv[1:])"
    )
    done = fork_and_run(tmp_path, "", targets=["package.tool"], kind="module")
    assert done.stdout.splitlines() == [
        "__main__ ['--x', '1'] ['-u', '-m', 'package.tool', '--x', '1']", "status 0",
    ]  # fmt: skip


def test_a_module_that_is_not_there_is_named_without_frames_of_ours(tmp_path: Path) -> None:
    done = fork_and_run(tmp_path, "", targets=["json.no_such"], kind="module")
    assert done.stdout == "status 1\n"
    assert done.stderr == "ImportError: No module named json.no_such\n"


def test_the_agent_hears_of_an_exception_before_the_process_ends(tmp_path: Path) -> None:
    with listening(tmp_path) as (path, told):
        done = fork_and_run(tmp_path, "raise ValueError('no')", socket=path)
    ((_, report),) = told
    assert done.stdout == "status 1\n"
    assert isinstance(report, FailureReport)
    assert (report.error_type, report.message) == ("ValueError", "no")
    assert "script.py" in report.traceback
    assert "bootstrap.py" not in report.traceback


def test_a_report_is_bounded_and_survives_a_broken_message() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    report = failure_report(Broken(), None)
    assert report.message == "(its message cannot be shown)"
    long = failure_report(ValueError("x" * 1_000_000), None)
    assert len(long.traceback) < TRACEBACK_CHARS_MAX + 100
    assert len(long.message) == 4000


def test_bytecode_runs_and_a_safe_path_has_no_directory_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        "import os, sys\n"
        "print(__name__, os.path.basename(__file__), sys.argv[1:])\n"
        "print(os.path.dirname(os.path.abspath(__file__)) in sys.path)\n"
    )
    target = py_compile.compile(str(source), str(tmp_path / "train.pyc"), doraise=True)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # known to Python 3.11 and later
    done = fork_and_run(tmp_path, "", targets=[target])
    in_path = str(sys.version_info < (3, 11))
    assert done.stdout.splitlines() == [
        "__main__ train.pyc ['--x', '1']", in_path, "status 0",
    ]  # fmt: skip


def test_a_module_of_the_script_is_not_taken_for_one_that_ftrun_has_loaded(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "secrets.py").write_text("KEY = 'the key'")
    (beside / "random.py").write_text("raise AssertionError('torch needs that of Python')")
    script = beside / "train.py"
    script.write_text("import secrets, random, torch\nprint(secrets.KEY, torch.rand(1).shape)")
    done = fork_and_run(tmp_path, "", targets=[str(script)], preload=["secrets", "hmac"])
    assert done.stdout.splitlines() == ["the key torch.Size([1])", "status 0"]
