"""A script or module that cannot run is named, with the remedy, before anything is started."""

from __future__ import annotations

import os
import py_compile
import sys
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.config.script import Script, TargetKind, check_script, other_python, own_path

FILE, MODULE = TargetKind.FILE, TargetKind.MODULE


def test_a_script_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        check_script(Script(str(tmp_path / "none.py"), FILE))
    broken = tmp_path / "broken.py"
    broken.write_text("x = 1\ndef f(:\n")
    with pytest.raises(UserError, match=r"broken\.py, line 2: syntax error"):
        check_script(Script(str(broken), FILE))
    text = tmp_path / "notes.txt"
    text.write_text("this is not a program")
    with pytest.raises(UserError, match="is not a Python file"):
        check_script(Script(str(text), FILE))
    binary = tmp_path / "program"
    binary.write_bytes(b"\x7fELF\0\0")
    with pytest.raises(UserError, match="is not a Python file"):
        check_script(Script(str(binary), FILE))
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    for stream in (str(pipe), "-", "/dev/null"):
        with pytest.raises(UserError, match="is a stream, which can be read only once"):
            check_script(Script(stream, FILE))
    with pytest.raises(UserError, match="is a stream"):
        check_script(Script("-", FILE, python="python"))


def test_a_descriptor_that_leads_to_a_file_is_that_file(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    link = tmp_path / "link.py"
    link.symlink_to(script)
    assert own_path(str(link)) == str(link), "a name of the user's own stays"
    with script.open() as file:
        for name in (f"/dev/fd/{file.fileno()}", f"/proc/self/fd/{file.fileno()}"):
            assert own_path(name) == str(script)
        script.unlink()
        gone = f"/dev/fd/{file.fileno()}"
        assert own_path(gone) == gone
    read_end, write_end = os.pipe()
    substituted = f"/dev/fd/{read_end}"
    assert own_path(substituted) == substituted
    with pytest.raises(UserError, match="is a stream"):
        check_script(Script(substituted, FILE))
    os.close(read_end)
    os.close(write_end)


def test_bytecode_is_a_script_of_the_python_that_made_it(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("print(1)")
    compiled = tmp_path / "train.pyc"
    py_compile.compile(str(source), str(compiled), doraise=True)
    check_script(Script(str(compiled), FILE))
    other = tmp_path / "other.pyc"
    other.write_bytes(b"\0\0\r\n" + compiled.read_bytes()[4:])
    with pytest.raises(UserError, match="compiled by another version of Python"):
        check_script(Script(str(other), FILE))


def test_a_directory_with_a_main_and_an_archive_are_scripts(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text("print(1)")
    check_script(Script(str(tmp_path), FILE))
    archive = tmp_path / "app.pyz"
    archive.write_bytes(b"PK\x03\x04")
    check_script(Script(str(archive), FILE))


def test_a_directory_without_a_main_is_called_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    with pytest.raises(UserError, match=r"'pkg' is a directory and has no __main__\.py.*-m pkg "):
        check_script(Script("pkg", FILE))
    with pytest.raises(UserError, match=r"'\.' is a directory .*-m PACKAGE "):
        check_script(Script(".", FILE))
    with pytest.raises(UserError, match=r"-m pkg: the package has no __main__\.py.*-m pkg\.MODULE"):
        check_script(Script("pkg", MODULE))
    (tmp_path / "pkg" / "__main__.py").write_text("")
    check_script(Script("pkg", MODULE))
    check_script(Script("pkg", FILE))


def test_a_working_directory_that_is_gone_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for script in (Script("train.py", FILE), Script("no_such_top", MODULE)):
        with pytest.raises(UserError, match="The working directory is gone"):
            check_script(script)


def test_a_modules_name_and_source_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is not a module name"):
        check_script(Script("train.py ", MODULE))
    with pytest.raises(UserError, match="no module named 'no_such_top'"):
        check_script(Script("no_such_top.train", MODULE))
    (tmp_path / "bad.py").write_text("x = 1\nif:\n")
    with pytest.raises(UserError, match=r"bad.py, line 2: syntax error"):
        check_script(Script("bad", MODULE))


def test_the_plain_command_of_a_script() -> None:
    assert Script("t.py", FILE, ("--x",)).command() == ("python", "t.py", "--x")
    assert Script("p.t", MODULE, ("--x",)).command() == ("python", "-m", "p.t", "--x")


def test_a_script_that_trains_in_parallel_is_known_by_its_words(tmp_path: Path) -> None:
    path = tmp_path / "t.py"
    path.write_text("import torch")
    assert not Script(str(path), FILE).trains_in_parallel()
    path.write_text("import ftrun")
    assert Script(str(path), FILE).trains_in_parallel()
    assert Script("p.t", MODULE).trains_in_parallel()


def test_another_interpreter_is_told_from_another_name_of_ours(tmp_path: Path) -> None:
    own = Path(sys.executable)
    for value in ("", sys.executable, str(own.with_name("python3"))):
        assert other_python({"PYTHON_EXEC": value}) == ""
    assert other_python({}) == ""
    link = tmp_path / "python"
    link.symlink_to(sys.executable)  # as in a virtual environment of its own
    for value in (str(link), str(tmp_path / "none")):
        assert other_python({"PYTHON_EXEC": value}) == value


def test_another_interpreter_runs_the_script_as_a_command(tmp_path: Path) -> None:
    file = Script("t.py", FILE, ("--lr", "1"), "/x/python")
    assert file.command() == ("/x/python", "t.py", "--lr", "1")
    assert file.as_started() == Script("/x/python", TargetKind.COMMAND, ("-u", "t.py", "--lr", "1"))
    assert Script("p.m", MODULE, (), "py").as_started().args == ("-u", "-m", "p.m")
    assert Script("t.py").as_started() == Script("t.py")
    assert (file.name, file.trains_in_parallel()) == ("t", False)


def test_what_another_interpreter_could_not_begin_with_is_named(tmp_path: Path) -> None:
    newer = tmp_path / "newer.py"
    newer.write_text("a syntax of its own\n")
    check_script(Script(str(newer), FILE, (), sys.executable))
    check_script(Script("not.installed.here", MODULE, (), sys.executable))
    with pytest.raises(UserError, match=r"PYTHON_EXEC '/none/python' is no program"):
        check_script(Script(str(newer), FILE, (), "/none/python"))
    with pytest.raises(UserError, match="does not exist"):
        check_script(Script(str(tmp_path / "none.py"), FILE, (), sys.executable))
