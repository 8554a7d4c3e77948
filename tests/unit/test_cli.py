"""The commands as typed: help, defaults, the plan, and each error in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.cli import OTHER_COMMANDS, means_a_run
from ftrun.commands import app


def ftrun(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ftrun", *words],
        capture_output=True, text=True, timeout=60, cwd=cwd, check=False,
        env={**os.environ, "COLUMNS": "120", "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return path


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['ftrun', '--help']\n"
        "from ftrun.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'grpc', 'aiohttp', 'asyncio', 'google'} & set(sys.modules)\n"
        "print('heavy:', heavy)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "heavy: set()" in done.stdout
    assert "lighthouse" in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train.py", True),
        ("run train.py", True),
        ("--replicas 3 train.py --lr 0.1", True),
        ("-m package.train", True),
        ("", False),
        ("--help", False),
        ("run --help", False),
        ("--dry-run train.py", False),
        ("train.py --help", False),  # The script's own: it is launched later, no more.
        ("--no-such-flag", False),
        ("status train.py", False),
        ("certs --out here", False),
    ],
)
def test_only_what_may_be_a_run_is_launched_before_its_words_are_checked(
    words: str, expected: bool
) -> None:
    assert means_a_run(words.split()) is expected


def test_no_command_is_taken_for_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert names - {"run"} == OTHER_COMMANDS
    monkeypatch.setenv("_FTRUN_COMPLETE", "complete_bash")
    assert not means_a_run(["train.py"])


def test_what_comes_before_the_launch_is_light() -> None:
    code = (
        "import sys; import ftrun.cli, ftrun.agent.launch\n"
        "print({'typer', 'rich', 'dataclasses', 'ctypes', 'asyncio', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"


def test_run_is_the_default_and_its_help_shows_the_options() -> None:
    text = ftrun("run", "--help").stdout
    for option in (
        "--replicas", "--workers-per-replica", "--lighthouse", "--job-id", "--max-restarts",
        "--min-replicas", "--join-timeout", "--heartbeat-timeout", "--log-dir", "--device",
        "--preload", "--dry-run", "--nodes", "--grace", "--token-file", "--state-dir",
        "--hang-timeout",
    ):  # fmt: skip
        assert option in text


def test_a_dry_run_shows_the_plan_and_starts_nothing(script: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    done = ftrun(
        "--replicas", "2:3", "-w", "2", "--device", "cpu", "--log-dir", str(logs), "--dry-run",
        str(script), "--lr", "0.1", "--help",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "train.py --lr 0.1 --help" in done.stdout
    assert "3, at least 2 to train" in done.stdout
    assert "MASTER_PORT" in done.stdout
    assert "NUM_REPLICA_GROUPS" in done.stdout
    assert "Nothing was started" in done.stdout
    assert not logs.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.py"], "Script 'none.py' does not exist"),
        (["state"], "'state' is a directory and has no __main__.py"),
        (["--replicas", "3:1", "train.py"], "Did you mean 1:3"),
        (["--no-such-flag", "train.py"], "No such option: --no-such-flag"),
        (["-m", "no_such_top.train"], "no module named 'no_such_top'"),
        (["run"], "Give a script"),
        (["--device", "cuda", "train.py"], "no CUDA device"),
        (["--log-dir", "train.py/x", "train.py"], "cannot write in"),
        (["--lighthouse", "here", "train.py"], "is not HOST:PORT"),
        (["--lighthouse", "no-such-host.invalid:1", "train.py"], "is not known"),
        (["lighthouse", "--bind", "0.0.0.0:0"], "insecure-plaintext"),
        (["status", "no-such-job"], "no-such-job"),
    ],
)
def test_what_is_wrong_is_said_in_one_message_with_exit_code_2(
    script: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(script.parent / "state"))
    (script.parent / "state").mkdir()
    done = ftrun(*words, cwd=script.parent)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["--dry-run", "train.py"]])
def test_an_output_that_is_full_is_said_in_one_line(script: Path, words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ftrun", *words], stdout=full, stderr=subprocess.PIPE,
            text=True, timeout=60, cwd=script.parent, check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "ftrun: standard output cannot be written: No space left on device.\n"


def test_a_terminal_without_a_character_gets_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    (tmp_path / "tr\xe4in.py").write_text("")
    done = ftrun("--dry-run", "--device", "cpu", "tr\xe4in.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tr?in.py" in done.stdout


def test_version() -> None:
    assert ftrun("--version").stdout.startswith("ftrun 0.")
