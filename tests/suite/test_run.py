"""What a run of the tests excuses: a test that passes by itself, and nothing else."""

from __future__ import annotations

import os
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from tests.suite import run
from tests.suite.durations import ROOT, read_files, write_files, write_slowest
from tests.suite.levels import KEPT, LONG, SLOW, TESTS, is_long, is_slow, missing

ONCE = """
from pathlib import Path
import pytest

@pytest.fixture
def slip():
    yield
    marked("teardown")

def marked(name):
    mark = Path(name)
    if not mark.exists():
        mark.touch()
        raise AssertionError(f"{name} was not there")

def test_passes(): pass
@pytest.mark.skip
def test_is_skipped(): pass
@pytest.mark.parametrize("x", ["a b"])
def test_fails_once(x): marked("call")
def test_leaves_something_once(slip): pass
"""
ALWAYS = """
def test_fails_always():
    print("of another process")
    assert 1 == 2
"""
FAILS = "test_it.py::test_fails_always"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in other directories find the plugin, and have no part in this run."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # none is needed, and they cost time
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)


def started(directory: Path, text: str, *options: str) -> run.Run:
    """A run of one file."""
    (directory / "test_it.py").write_text(text)
    return run.pytest(["-p", "no:cacheprovider", *options], 60.0, directory)


def test_what_fails_once_is_flaky_and_what_fails_again_fails_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = started(tmp_path, ONCE + ALWAYS)
    assert found.code == run.TESTS_FAILED
    assert found.counts == {"passed": 2, "skipped": 1, "failed": 3}
    assert found.broken == []
    once = ["test_it.py::test_fails_once[a b]", "test_it.py::test_leaves_something_once"]
    assert list(found.failures) == [*once, FAILS]
    assert set(found.failures) < set(found.seconds)
    assert "-- Captured stdout call\nof another process\n" in found.failures[FAILS]
    capfd.readouterr()
    assert run.run_again(found, [], tmp_path) == run.TESTS_FAILED
    printed = capfd.readouterr().out
    for name, mark in zip(once, ("call", "teardown"), strict=True):
        assert f"flaky: {name}\n" in printed
        assert f"AssertionError: {mark} was not there" in printed
    assert "failed again: test_it.py::test_fails_always\n" in printed
    # By now all that fails once has failed.
    flaky = replace(found, failures={name: found.failures[name] for name in once})
    assert run.run_again(flaky, [], tmp_path) == 0


def test_what_is_nobodys_failure_is_not_excused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_other.py").write_text("raise OSError('on import')")
    crash = f"import os\ndef test_ends(): os._exit(3)\n{ONCE}"
    together = ("-p", "xdist", "-n", "1", "--continue-on-collection-errors")
    found = started(tmp_path, crash, *together)
    assert found.code != 0
    assert found.broken == [
        "test_other.py: not collected",
        "worker 'gw0' crashed while running 'test_it.py::test_ends'",
    ]
    assert len(found.failures) == 2
    capfd.readouterr()
    assert run.run_again(found, [], tmp_path) == found.code
    assert capfd.readouterr().out == (
        "not excused: test_other.py: not collected\n"
        "not excused: worker 'gw0' crashed while running 'test_it.py::test_ends'\n"
        "tests that failed: 2; none is run again\n"
    )


def test_many_failures_are_no_accident(capsys: pytest.CaptureFixture[str]) -> None:
    failures = {f"test_it.py::test_{number}": "" for number in range(run.FLAKES_MAX + 1)}
    assert run.run_again(run.Run(run.TESTS_FAILED, {}, {}, failures, []), []) == run.TESTS_FAILED
    assert capsys.readouterr().out == "tests that failed: 11; none is run again\n"


def test_a_run_that_does_not_end_is_no_pass(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import threading\nthreading.Event().wait()\n")
    found = run.pytest([], 3.0, tmp_path)
    assert (found.code, found.broken) == (-1, ["pytest has not ended within 3 s"])


def test_what_all_does_not_know_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.run_tests(["all", "--write-durations", "-x"]) == run.USAGE_ERROR
    assert "not -x" in capsys.readouterr().out


def test_a_check_that_fails_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    checks: Future[list[tuple[str, int, str]]] = Future()
    checks.set_result([("ruff check .", 0, "All checks passed!"), ("mypy", 1, "a.py:1: error\n")])
    assert run.report_checks(checks) == 1
    printed = capsys.readouterr().out
    assert printed == "\n== mypy: exit code 1\na.py:1: error\n\nchecks: 1 passed, 1 failed\n"


def test_a_check_is_a_tool_beside_python_or_a_script_of_the_repository() -> None:
    (found,) = run.check([("python", "-c", "print(7); exit(3)")])
    assert found == ("python -c print(7); exit(3)", 3, "7\n")
    (script,) = (words[0] for words in run.CHECKS if "/" in words[0])
    assert os.access(ROOT / script, os.X_OK)


def test_the_table_of_levels_names_tests_that_are_there() -> None:
    for table, is_in_gate in ((KEPT, True), (LONG, False), (SLOW, False)):
        for name, tests in table.items():
            text = (TESTS / name).read_text()
            for test in tests:
                assert f"\ndef {test.partition('[')[0]}(" in text, (name, test)
                assert is_long(TESTS / name, test) != is_in_gate
                assert is_slow(TESTS / name, test) == (table is SLOW)
    assert is_long(TESTS / "process" / "test_new.py", "test_a_job")
    assert is_long(TESTS / "process" / "test_run.py", "test_another_job")
    assert not is_long(Path(__file__), "test_another")
    assert not is_long(Path("/elsewhere/process/test_run.py"), "test_another")


def test_a_test_that_the_gate_is_to_keep_and_that_did_not_run_is_named() -> None:
    names = [f"tests/{file}::{name}" for file, kept in KEPT.items() for name in kept]
    assert missing(names) == []
    assert missing([*names[1:], "tests/unit/test_it.py::test_other"]) == names[:1]
    assert missing([f"{name}[a]" for name in names if "[" not in name]) == [
        name for name in names if "[" in name
    ]


def test_durations_are_written_and_read(tmp_path: Path) -> None:
    seconds = {f"tests/a.py::test[{number}]": 0.5 + number for number in range(60)}
    seconds |= {"tests/b.py::test": 9.25, "tests/c.py::test": 0.4}
    lines = write_slowest(seconds, tmp_path / "slowest").read_text().splitlines()
    assert len(lines) == 50
    assert lines[0] == "    59.5 tests/a.py::test[59]"
    path = write_files(seconds, tmp_path / "files")
    assert path.read_text() == "  1800.0 tests/a.py\n     9.2 tests/b.py\n"
    assert read_files(path) == {ROOT / "tests/a.py": 1800.0, ROOT / "tests/b.py": 9.2}


def test_a_commit_has_the_linters_of_the_gate() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text().splitlines()
    entries = [line.split(".venv/bin/")[1] for line in hooks if "entry:" in line]
    assert entries == [" ".join(words) for words in run.LINTERS]
