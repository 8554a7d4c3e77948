"""The commands as typed: help, defaults, the plan, and each error in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftrun.cli import OTHER_COMMANDS, means_a_run
from ftrun.config.options import COMMAND_ONLY, OPTIONS, SECTIONS
from ftrun.tools.commands.app import app
from ftrun.tools.status.jobs import RunningJob, birth_mark, jobs_dir, write_job
from tests.jobs import FTRUN, THIS_TREE
from tests.jobs.forks import run

COLUMNS = "250"
"""A temporary directory's path fits in one line of a table."""


def ftrun(
    *words: str, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    return run(
        [*FTRUN, *words],
        capture_output=True, text=True, timeout=60, cwd=cwd,
        env={**os.environ, **THIS_TREE, "COLUMNS": COLUMNS, **variables},
    )  # fmt: skip


def plan(*words: str, cwd: Path, **variables: str) -> dict[str, Any]:
    """What ``--dry-run --json`` prints for these words in front of train.py."""
    done = ftrun(*words, "--dry-run", "--json", "train.py", cwd=cwd, **variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


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
        ("--nproc-per-node 2 train.py", True),
        ("--standalone --nproc_per_node=2 train.py", True),
        ("-r 3 -t 0:1 -m package.train", True),
        ("--no_python run.sh", True),
        ("--standalone --nproc-per-node=2", False),
        ("-h", False),
        ("run -h", False),
        ("--nproc-per-node 2 --dry-run --json train.py", False),
    ],
)
def test_only_what_may_be_a_run_is_launched_before_its_words_are_checked(
    words: str, expected: bool
) -> None:
    assert means_a_run(words.split()) is expected


def test_no_command_is_taken_for_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Any] = app.registered_commands
    names = {command.name or command.callback.__name__ for command in commands}
    assert names - {"run"} == OTHER_COMMANDS
    monkeypatch.setenv("_FTRUN_COMPLETE", "complete_bash")
    assert not means_a_run(["train.py"])


def test_a_command_names_the_package_that_it_lacks_and_what_brings_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from ftrun.cli import main; sys.argv = ['ftrun', 'certs']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 2 and list(tmp_path.iterdir()) == []
    assert done.stderr == (
        "ftrun: This needs the package cryptography, which is not installed. Nothing was started. "
        "Install it: pip install 'ftrun[lighthouse]'\n"
    )


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
    assert re.findall(r"(?m)^([A-Z][\w ]*):$", text) == list(SECTIONS)
    shown = set(re.findall(r"(?m)^  (?:-\w, )?(--[\w-]+)", text))
    options = [*OPTIONS, *COMMAND_ONLY]
    assert shown == {"--help", *(option.flag for option in options if not option.hidden)}


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


def test_a_dry_run_shows_where_several_nodes_meet(script: Path) -> None:
    words = ("--nnodes", "1:2", "--rdzv-endpoint", "127.0.0.1:29400", "--dry-run", "--device=cpu")
    done = ftrun(*words, str(script))
    assert done.returncode == 0, done.stderr
    assert "1 to 2, with the workers of one replica group" in done.stdout
    assert "127.0.0.1:29400 (--rdzv-endpoint), on this node" in done.stdout


def test_a_plan_as_json_names_what_states_each_setting(script: Path) -> None:
    cwd = script.parent
    (cwd / "ftrun.toml").write_text("grace = 7\nmax-restarts = 9\n")
    words = ("--device=cpu", "--rdzv_id", "run7")
    found = plan(*words, cwd=cwd, PET_NPROC_PER_NODE="2", PET_MAX_RESTARTS="3", PET_NNODES="1:1")
    settings = found["settings"]
    assert settings["workers_per_replica"] == {"value": 2, "source": "PET_NPROC_PER_NODE"}
    assert settings["max_restarts"] == {"value": 3, "source": "PET_MAX_RESTARTS"}
    assert settings["grace_s"] == {"value": 7.0, "source": "ftrun.toml: grace"}
    assert settings["job_id"] == {"value": "run7", "source": "--rdzv-id"}
    assert settings["replicas"] == {"value": 1, "source": "default"}
    assert settings["as_torchrun"]["value"] is True
    assert found["given"]["nnodes"] == "PET_NNODES"
    assert found["environment"]["WORLD_SIZE"] == "2"
    assert found["slots"] == {"0": []}
    assert all(relation["holds"] for relation in found["times"])
    assert not (cwd / "ftrun-logs").exists()


def test_a_job_in_torchruns_spelling_has_torchruns_defaults(script: Path) -> None:
    settings = plan("--standalone", "--device=cpu", cwd=script.parent)["settings"]
    assert settings["max_restarts"]["value"] == 0
    assert settings["grace_s"]["value"] == 30.0
    assert "torchrun" in settings["grace_s"]["source"]


def test_what_is_not_stated_on_the_command_line_is_told(script: Path) -> None:
    (script.parent / "ftrun.toml").write_text("replicas = 2\n")
    done = ftrun(
        "--dry-run", "--device", "cpu", "train.py", cwd=script.parent, FTRUN_GRACEE="3"
    )  # fmt: skip
    assert "The variable FTRUN_GRACEE is not an option and has no effect." in done.stderr
    assert "Did you mean FTRUN_GRACE?" in done.stderr
    assert "ftrun.toml of this directory states: replicas." in done.stderr
    assert "2, at least 1 to train" in done.stdout


def complete(line: str, **variables: str) -> list[str]:
    """What bash is offered for the last word of ``line``."""
    start = "import sys; sys.argv = ['ftrun']; from ftrun.cli import main; main()"
    words = line.split(" ")
    bash = {"_FTRUN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": len(words) - 1}
    done = subprocess.run(
        [sys.executable, "-c", start], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, **{name: str(x) for name, x in bash.items()}, **variables,
             "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ftrun sta", {"stack", "status"}),
        ("ftrun --replic", {"--replicas"}),
        ("ftrun --ver", {"--version"}),
        ("ftrun run --master", {"--master-addr", "--master-port"}),
        ("ftrun --replicas 2 --max_restarts 3 --nproc", {"--nproc-per-node"}),
        ("ftrun --no-such 2 --nproc", {"--nproc-per-node"}),
        ("ftrun lighthouse --bin", {"--bind"}),
    ],
)
def test_the_shell_completes_commands_and_options(line: str, offered: set[str]) -> None:
    assert set(complete(line)) == offered


@pytest.mark.parametrize("command", ["status", "chaos"])
def test_the_shell_completes_running_jobs(tmp_path: Path, command: str) -> None:
    me = os.getpid()
    for job_id, birth in (
        ("train-1", birth_mark(me)),
        ("train-2", "gone"),
        ("eval", birth_mark(me)),
    ):
        job = RunningJob(job_id, "h:1", me, "", "", "2026-01-01T00:00:00", birth=birth)
        write_job(job, tmp_path / "ftrun" / "jobs" / jobs_dir().name)
    state = {"XDG_STATE_HOME": str(tmp_path)}
    assert set(complete(f"ftrun {command} ", **state)) == {"train-1", "eval"}
    assert complete(f"ftrun {command} tr", **state) == ["train-1"]


def test_the_shell_gets_its_completion_script() -> None:
    command = f"{sys.executable} -m ftrun --show-completion; exit $?"  # typer looks for its parent
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "complete -o default" in done.stdout


@pytest.mark.parametrize("words", [["--help"], ["status", "--once"], ["status", "--json"]])
def test_only_the_screen_imports_textual(script: Path, words: list[str]) -> None:
    source = (
        "import sys; from ftrun.cli import main;\n"
        "try: main()\n"
        "finally: print('textual' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", source, *words], capture_output=True, text=True, timeout=60,
        check=False, cwd=script.parent,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "XDG_STATE_HOME": str(script.parent / "state"),
        },
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == "False", done.stderr


def test_the_ways_to_print_a_status_exclude_each_other() -> None:
    done = ftrun("status", "--once", "--json")
    assert done.returncode == 2
    assert "exclude each other" in done.stderr


@pytest.mark.parametrize(
    "words", [("-h",), ("run", "-h"), ("--standalone", "-h"), ("status", "-h")]
)
def test_h_is_help(words: tuple[str, ...]) -> None:
    done = ftrun(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage:" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nproc_per_noed", "2", "train.py"], "Did you mean --nproc-per-node?"),
        (["--standalonee", "train.py"], "Did you mean --standalone?"),
        (["--nnodes", "2", "train.py"], "ftrun --nodes 2 --replicas N --lighthouse HOST:PORT"),
        (["--rdzv-backend", "mine", "train.py"], "--rdzv-backend mine"),
        (["--rdzv-backend", "etcd", "--nnodes=2", "train.py"], "where do the nodes meet"),
        (["--logs_specs", "mine", "train.py"], "--logs-specs mine"),
        (["--event-log-handler", "mine", "train.py"], "--event-log-handler mine"),
        (["--nproc-per-node", "gpu", "train.py"], "this job has no CUDA device"),
        (["-w", "2", "--nproc-per-node=3", "train.py"], "two names of one thing"),
        (["--numa-binding", "nod", "train.py"], "give one of node, socket"),
        (["--json", "train.py"], "--json is for --dry-run"),
        (["--config", "none.toml", "train.py"], "none.toml cannot be read"),
        (["--isolation-limit=6", "train.py"], "--isolation-limit 6 is less than twice"),
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
        (["lighthouse", "--bind", "0.0.0.0:0", "--state", "s"], "insecure-plaintext"),
        (["lighthouse", "--jobs", "--once"], "--jobs has no --once"),
        (["lighthouse", "--state", "k8s://team/job"], "in no pod of Kubernetes"),
        (["status", "no-such-job"], "no-such-job"),
    ],
)
def test_what_is_wrong_is_said_in_one_message_with_exit_code_2(
    script: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    if {"gpu", "cuda"} & set(words):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # read by imports, so it costs an exec
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


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_is_in_a_pipe_while_the_command_goes_on(unbuffered: str) -> None:
    code = "import os; from ftrun import cli; cli._let_any_text_out(); print('up'); os._exit(0)"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, timeout=60, check=True
    )
    assert done.stdout == b"up\n"


def test_the_help_has_each_command_below_a_heading() -> None:
    from ftrun.tools.commands.app import GROUPS, app

    names = {x.name or (x.callback.__name__ if x.callback else "") for x in app.registered_commands}
    assert sorted(names) == sorted(name for group in GROUPS.values() for name in group)
    text = ftrun("--help").stdout
    assert all(f"\n{heading}:\n" in text for heading in GROUPS)
    assert "..." not in text.partition("COMMAND [ARGS]...")[2], "a description is cut"
