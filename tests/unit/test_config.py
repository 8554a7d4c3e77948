"""Every bad input has its own message, before anything is started."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.config import (
    RunSettings,
    Script,
    check_script,
    check_writable,
    default_job_id,
    normal_address,
    parse_address,
    parse_replicas,
)
from ftrun.errors import UserError

SETTINGS = RunSettings(Script("t.py", False), "job", replicas=2, min_replicas=1)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return path


@pytest.mark.parametrize(
    ("text", "minimum", "found"),
    [("4", None, (1, 4)), ("4", 2, (2, 4)), ("2:4", None, (2, 4)), ("2:4", 2, (2, 4))],
)
def test_replicas_are_a_number_or_a_range(
    text: str, minimum: int | None, found: tuple[int, int]
) -> None:
    assert parse_replicas(text, minimum) == found


@pytest.mark.parametrize(
    ("text", "minimum", "message"),
    [
        ("four", None, "neither a number nor MIN:MAX"),
        ("2:", None, "neither a number nor MIN:MAX"),
        ("4:2", None, "MIN 4 is above MAX 2. Did you mean 2:4"),
        ("2:4", 3, "Give one of the two"),
    ],
)
def test_bad_replicas_are_explained(text: str, minimum: int | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_replicas(text, minimum)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replicas": 0}, "--replicas 0"),
        ({"min_replicas": 0}, "at least 1 must train"),
        ({"min_replicas": 3}, "the job could never begin"),
        ({"workers_per_replica": 0}, "--workers-per-replica 0"),
        ({"max_restarts": -1}, "--max-restarts -1"),
        ({"nodes": 0}, "--nodes 0"),
        ({"nodes": 2}, "--nodes above 1 needs a lighthouse"),
        ({"join_timeout_s": 0.0}, "--join-timeout 0"),
        ({"heartbeat_timeout_s": -1.0}, "--heartbeat-timeout -1"),
        ({"isolation_limit_s": 6.0}, "less than twice --heartbeat-timeout"),
        ({"hang_timeout_s": -1.0}, "--hang-timeout -1"),
        ({"hang_timeout_s": 0.01}, "--hang-timeout 0.01: give seconds from 1"),
        ({"hang_timeout_s": float("nan")}, "--hang-timeout nan"),
        ({"grace_s": -1.0}, "--grace -1"),
        ({"job_id": "../up"}, "--job-id '../up'"),
        ({"job_id": ""}, "--job-id ''"),
        ({"device": "tpu"}, "--device 'tpu'"),
        ({"inject": "magic"}, "--inject 'magic'"),
        ({"preload": ("a b",)}, "--preload 'a b'"),
        ({"preload": ("m",) * 65}, "at most 64 modules"),
        ({"lighthouse": "nowhere"}, "--lighthouse 'nowhere' is not HOST:PORT"),
    ],
)
def test_bad_settings_are_explained(script: Path, changes: dict[str, Any], message: str) -> None:
    settings = replace(SETTINGS, script=Script(str(script), False), **changes)
    with pytest.raises(UserError, match=message):
        settings.check()


def test_good_settings_say_what_the_job_is(script: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, script=Script(str(script), False), log_dir=tmp_path / "logs")
    settings.check()
    assert not (tmp_path / "logs").exists()
    settings.check_directories()
    assert (tmp_path / "logs" / "job").is_dir()
    spec = settings.spec()
    assert (spec.job_id, spec.replicas, spec.min_replicas, spec.nodes) == ("job", 2, 1, 1)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--log-dir: cannot write in .*file/logs"):
        check_writable(tmp_path / "file" / "logs", "--log-dir")
    settings = replace(SETTINGS, log_dir=tmp_path, state_dir=tmp_path / "file")
    with pytest.raises(UserError, match="--state-dir: cannot write"):
        settings.check_directories()


def test_a_script_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        check_script(Script(str(tmp_path / "none.py"), False))
    broken = tmp_path / "broken.py"
    broken.write_text("x = 1\ndef f(:\n")
    with pytest.raises(UserError, match=r"broken\.py, line 2: syntax error"):
        check_script(Script(str(broken), False))
    text = tmp_path / "notes.txt"
    text.write_text("this is not a program")
    with pytest.raises(UserError, match="is not a Python file"):
        check_script(Script(str(text), False))
    binary = tmp_path / "program"
    binary.write_bytes(b"\x7fELF\0\0")
    with pytest.raises(UserError, match="is not a Python file"):
        check_script(Script(str(binary), False))
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="is not a file"):
        check_script(Script(str(pipe), False))


def test_a_directory_with_a_main_and_an_archive_are_scripts(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text("print(1)")
    check_script(Script(str(tmp_path), False))
    archive = tmp_path / "app.pyz"
    archive.write_bytes(b"PK\x03\x04")
    check_script(Script(str(archive), False))


def test_a_directory_without_a_main_is_called_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    with pytest.raises(UserError, match=r"'pkg' is a directory and has no __main__\.py.*-m pkg "):
        check_script(Script("pkg", False))
    with pytest.raises(UserError, match=r"'\.' is a directory .*-m PACKAGE "):
        check_script(Script(".", False))
    with pytest.raises(UserError, match=r"-m pkg: the package has no __main__\.py.*-m pkg\.MODULE"):
        check_script(Script("pkg", True))
    (tmp_path / "pkg" / "__main__.py").write_text("")
    check_script(Script("pkg", True))
    check_script(Script("pkg", False))


def test_a_working_directory_that_is_gone_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for script in (Script("train.py", False), Script("no_such_top", True)):
        with pytest.raises(UserError, match="The working directory is gone"):
            check_script(script)


def test_modules_are_looked_for_without_importing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("raise RuntimeError('imported')")
    check_script(Script("mine.train", True))
    check_script(Script("json.tool", True))
    check_script(Script("this", True))
    with pytest.raises(UserError, match="no module named 'no_such_top'"):
        check_script(Script("no_such_top.train", True))
    with pytest.raises(UserError, match="is not a module name"):
        check_script(Script("train.py ", True))


def test_addresses(tmp_path: Path) -> None:
    assert parse_address("http://h:1/", "--x") == ("h", 1)
    assert parse_address("[::1]:2", "--x") == ("::1", 2)
    assert normal_address(None) is None
    assert normal_address("http://h:1") == "h:1"
    assert normal_address("[::1]:2") == "[::1]:2"
    for bad in ("h", ":1", "h:", "h:x", "h:70000"):
        with pytest.raises(UserError, match="is not HOST:PORT"):
            parse_address(bad, "--x")


def test_a_job_alone_gets_a_name_of_its_own_and_a_shared_one_the_scripts() -> None:
    script = Script("/a/b/train digits.py", False)
    assert default_job_id(script, "h:1") == "train-digits"
    one, two = default_job_id(script, None), default_job_id(script, None)
    assert one != two
    assert one.startswith("train-digits-")
    assert default_job_id(Script("pkg.train", True), "h:1") == "train"


def test_the_plain_command_of_a_script() -> None:
    assert Script("t.py", False, ("--x",)).command() == ("python", "t.py", "--x")
    assert Script("p.t", True, ("--x",)).command() == ("python", "-m", "p.t", "--x")


def test_a_script_that_trains_in_parallel_is_known_by_its_words(tmp_path: Path) -> None:
    path = tmp_path / "t.py"
    path.write_text("import torch")
    assert not Script(str(path), False).trains_in_parallel()
    path.write_text("import ftrun")
    assert Script(str(path), False).trains_in_parallel()
    assert Script("p.t", True).trains_in_parallel()
