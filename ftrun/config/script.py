"""The target that workers run, a script or a function, checked before any worker starts.

Not here: the search for a module (modules.py), the other settings of a run (settings.py), running
it (inject/).
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from ftrun.base.errors import UserError

SCRIPT_BYTES_MAX = 16 << 20
PYTHON_VARIABLE = "PYTHON_EXEC"
_PARALLEL_WORDS = (b"ftrun", b"torchft", b"DistributedDataParallel", b"fully_shard", b"compile")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class TargetKind(str, Enum):
    """How a worker runs its target; the value is sent to the spawner."""

    FILE = "file"
    MODULE = "module"
    PATH = "path"
    COMMAND = "command"
    FUNCTION = "function"


@dataclass(frozen=True, slots=True)
class Script:
    """A target, with its own arguments unchanged.

    Attributes:
        target: a file, a module, a command, or the name of a function. A PATH is a file that
            ``runpy.run_path`` runs.
        args: for a function: the directory of its packed call, and the source file of its module or
            "" (packed.py).
        python: another interpreter than ftrun's, which runs the file or module; "": ftrun's own.
    """

    target: str
    kind: TargetKind = TargetKind.FILE
    args: tuple[str, ...] = ()
    python: str = ""

    @property
    def name(self) -> str:
        """A short name for job ids and plans."""
        if self.kind in (TargetKind.FILE, TargetKind.PATH, TargetKind.COMMAND):
            return Path(self.target).stem
        return self.target.rpartition(".")[2].rpartition(":")[2]

    def trains_in_parallel(self) -> bool:
        """Whether the script seems to need modules that torch imports late, or is itself a module.

        This is a guess. It affects only the order in which modules are imported.
        """
        if self.kind is TargetKind.COMMAND or self.python:
            return False
        source_file = self.args[1] if self.kind is TargetKind.FUNCTION else self.target
        try:
            source = Path(source_file).read_bytes()
        except OSError:
            return True
        return any(word in source for word in _PARALLEL_WORDS)

    def command(self) -> tuple[str, ...]:
        """The command that runs the script without ftrun."""
        if self.kind is TargetKind.FUNCTION:
            return (self.target,)
        if self.kind is TargetKind.COMMAND:
            return (self.target, *self.args)
        is_module = self.kind is TargetKind.MODULE
        python = self.python or "python"
        return (python, *(("-m",) if is_module else ()), self.target, *self.args)

    def as_started(self) -> Script:
        """The program of a worker: a command, if the interpreter is another one."""
        if not self.python:
            return self
        _, *words = self.command()
        return Script(self.python, TargetKind.COMMAND, ("-u", *words))


def own_path(target: str) -> str:
    """The real path of a script's file, if ``target`` is a descriptor such as /dev/stdin.

    Each worker has other descriptors, but all run the same file.
    """
    if target.startswith(("/dev/", "/proc/")):
        path = os.path.realpath(target)
        if os.path.isfile(path) and os.path.samefile(path, target):
            return path
    return target


def is_module_name(text: str) -> bool:
    """Whether the text has the form ``package.module``. The module need not exist."""
    return _MODULE.fullmatch(text) is not None


def other_python(environ: Mapping[str, str]) -> str:
    """torchrun's PYTHON_EXEC, if it is another interpreter than ftrun's; otherwise "".

    Two names of one interpreter count as the same only in one directory, because the interpreter of
    a virtual environment is a link to another one.
    """
    wanted = environ.get(PYTHON_VARIABLE, "")
    found = shutil.which(wanted) if wanted else None
    if found is None:
        return wanted
    own = Path(sys.executable).absolute()
    path = Path(found).absolute()
    is_same = path.parent == own.parent and path.resolve() == own.resolve()
    return "" if is_same else wanted


def check_script(script: Script) -> None:
    """Check that the script exists and is Python, or the command a program.

    Raises:
        UserError: missing, unreadable, not Python, or with a syntax error.
    """
    if script.kind is TargetKind.COMMAND:
        _check_command(script.target)
        return
    if script.kind is TargetKind.FUNCTION:
        return  # the launching program has packed, and so found, it
    if script.kind is not TargetKind.MODULE and _is_stream(script.target):
        raise UserError(
            f"Script {script.target!r} is a stream, which can be read only once, and each worker "
            "of each start has to read it. Nothing was started. Write the script to a file: "
            "cat > train.py"
        )
    if script.python:
        is_file = script.kind is TargetKind.FILE
        _check_for_another(script.python, Path(script.target) if is_file else None)
        return
    if script.kind is TargetKind.MODULE:
        _check_module(script.target)
        return
    path = Path(script.target)
    if path.is_dir():
        path = path / "__main__.py"
        if not path.exists():
            name = path.parent.name if is_module_name(path.parent.name) else "PACKAGE"
            raise UserError(
                f"{script.target!r} is a directory and has no __main__.py. Nothing was started. "
                f"Name a script in it; -m {name} runs a package that has one, "
                f"-m {name}.MODULE a module of it."
            )
    if not path.exists():
        here = _working_directory()
        raise UserError(f"Script {str(path)!r} does not exist (looked from {here}).")
    _check_source(path)


def _check_command(target: str) -> None:
    if shutil.which(target) is None:
        why = "is not executable" if Path(target).is_file() else "is no program"
        remedy = f"chmod +x {target}" if Path(target).is_file() else "Give its path, or install it."
        raise UserError(
            f"--no-python {target!r}: it {why} (looked from {_working_directory()} and in PATH). "
            f"Nothing was started. {remedy}"
        )


def _check_for_another(python: str, path: Path | None) -> None:
    """Check what does not depend on the other interpreter's version and packages."""
    if shutil.which(python) is None:
        raise UserError(
            f"{PYTHON_VARIABLE} {python!r} is no program (looked from {_working_directory()} and "
            "in PATH). Nothing was started. Give the interpreter's path, or unset the variable."
        )
    if path is not None and not path.exists():
        here = _working_directory()
        raise UserError(f"Script {str(path)!r} does not exist (looked from {here}).")


def _check_source(path: Path) -> None:
    try:
        if path.stat().st_size > SCRIPT_BYTES_MAX:
            raise UserError(f"{path} is not a Python file: it is larger than 16 MiB.")
        source = path.read_bytes()
    except OSError as error:
        raise UserError(f"Script {str(path)!r} cannot be read ({error.strerror}).") from None
    if source[:2] == b"PK" and path.suffix in (".zip", ".pyz"):
        return
    if is_compiled(path, source):
        if not source.startswith(MAGIC_NUMBER):
            raise UserError(
                f"{path} was compiled by another version of Python than {sys.version.split()[0]}. "
                "Nothing was started. Compile it with this one, or give the source."
            )
        return
    try:
        compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        if path.suffix not in (".py", ".pyw"):
            raise UserError(
                f"{path} is not a Python file. Nothing was started. ftrun runs Python scripts, "
                "with -m modules, and with --no-python any program."
            ) from None
        raise UserError(f"{path}, line {error.lineno}: syntax error: {error.msg}.") from None
    except ValueError:
        raise UserError(f"{path} is not a Python file: it holds binary data.") from None


def is_compiled(path: Path, source: bytes) -> bool:
    """Whether the interpreter would run this file as bytecode."""
    return path.suffix == ".pyc" or source.startswith(MAGIC_NUMBER)


def _is_stream(target: str) -> bool:
    """Whether the path is standard input, a pipe, a socket or a terminal. False for a missing
    path."""
    if target == "-":
        return True
    try:
        mode = os.stat(target).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _check_module(name: str) -> None:
    if not is_module_name(name):
        raise UserError(f"-m {name!r} is not a module name. For example: -m package.train.")
    from ftrun.config.modules import find_module  # here, because workers import this module

    source = find_module(name, _working_directory())
    if source is not None:
        _check_source(source)


def _working_directory() -> Path:
    """The directory in which the command was typed.

    Raises:
        UserError: it has been removed since.
    """
    try:
        return Path.cwd()
    except OSError as error:
        raise UserError(
            f"The working directory is gone ({error.strerror}). Nothing was started. "
            "Change to a directory that exists."
        ) from None
