"""The entry point: launches the spawner if the command line starts a run, then loads the commands.

Importing torch takes longest, so the spawner starts to import it before the options are parsed. If
the command line is wrong, the spawner is ended; it has only imported by then. Not here: the
commands (commands/), the launch itself (agent/launch.py).
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any

from ftrun.agent.env_markers import FROM_KEEPER
from ftrun.base.errors import ExitCode, FtrunError, exit_kind, naming, not_installed
from ftrun.protocol.auth import take_token

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftrun.agent.launch import SpawnerLaunch

OTHER_COMMANDS = frozenset(
    {
        "lighthouse", "status", "explain", "chaos", "certs", "drain", "restart", "kill", "stack",
        "ps", "logs", "doctor", "report", "check", "sbatch",
    }
)  # fmt: skip
STARTS_NOTHING = frozenset(
    {"-h", "--help", "--version", "--dry-run", "--install-completion", "--show-completion"}
)
COMPLETION = "_FTRUN_COMPLETE"


class _Launches:
    """Launches one spawner, at the first call, and ends it in any case. ``token``: FTRUN_TOKEN's.

    It is taken out of the environment first, because the spawner inherits that. Commands that only
    ask find it there.
    """

    def __init__(self, words: list[str]) -> None:
        self._launch: SpawnerLaunch | None = None
        only_asks = bool(words) and words[0] in OTHER_COMMANDS - {"lighthouse"}
        self.token = "" if only_asks else take_token(os.environ)

    def __call__(self) -> SpawnerLaunch:
        """The spawner, which is importing torch."""
        if self._launch is None:
            from ftrun.agent.launch import SpawnerLaunch, handle_signals
            from ftrun.base.own_process import not_started

            handle_signals()
            try:
                self._launch = SpawnerLaunch()
            except OSError as error:
                raise not_started(error) from None
        return self._launch

    def end(self) -> None:
        if self._launch is not None:
            self._launch.end()


def main() -> None:
    """Run the command; an error that ftrun raises on purpose becomes one line and an exit code."""
    _fill_standard_descriptors()
    _let_any_text_out()
    launches: _Launches | None = None
    from_keeper = os.environ.pop(FROM_KEEPER, "")
    try:
        launches = _Launches(sys.argv[1:])
        if means_a_run(sys.argv[1:]) and (from_keeper or not is_kept(os.environ)):
            launches()
        if from_keeper:
            os.environ |= _words_of_keeper(int(from_keeper))
        from ftrun.tools.commands.app import app

        app(obj=launches)
    except (FtrunError, ModuleNotFoundError) as raised:
        error = not_installed(raised) if isinstance(raised, ModuleNotFoundError) else raised
        if error is None:
            raise
        print(f"ftrun: {error}", file=sys.stderr)
        if "--json-exit" in sys.argv[1:]:
            _print_exit(error)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is None:
            raise
        _drop_output()
        print(f"ftrun: {error.filename} cannot be written: {error.strerror}.", file=sys.stderr)
        sys.exit(ExitCode.USAGE)
    except KeyboardInterrupt:  # before the agent's own handlers: nothing runs yet
        sys.exit(ExitCode.INTERRUPTED)
    finally:
        if launches is not None:
            launches.end()


def _print_exit(error: FtrunError) -> None:
    """The exit reason of a run that did not begin, as agent/exit_reason.py has it of others."""
    import json

    document = {
        "schema": "ftrun.exit/1",
        "exit_code": int(error.exit_code),
        "source": "ftrun",
        "kind": exit_kind(int(error.exit_code), is_of_script=False),
        "reason": str(error),
    }
    print(json.dumps(document), file=sys.stderr)


def means_a_run(words: list[str]) -> bool:
    """True if these words, when they are valid, start a run.

    False is always safe, only slower: ``--help`` may also be an argument of the script.
    """
    if not words or words[0] in OTHER_COMMANDS or not STARTS_NOTHING.isdisjoint(words):
        return False
    return COMPLETION not in os.environ and not all(word.startswith("-") for word in words)


def is_kept(environ: Mapping[str, str]) -> bool:
    """Whether this process may be a keeper (engines/keeper.py), whose agent has a spawner."""
    return "SLURM_STEP_ID" in environ and not environ.get("FTRUN_LIGHTHOUSE")


def _words_of_keeper(fd: int) -> dict[str, str]:
    """Wait for them while the spawner imports torch; without any the keeper has said why."""
    import json

    with open(fd, "rb") as pipe:
        text = pipe.read()
    if not text:
        sys.exit(ExitCode.LIGHTHOUSE_UNREACHABLE)
    found: dict[str, str] = json.loads(text)
    return found


def _let_any_text_out() -> None:
    """Replace characters that the terminal's encoding lacks, instead of raising an error.

    Each line goes out at once: who reads a pipe waits for the words of a command that serves.
    """
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out is sys.__stdout__:
        raw: Any = io.BufferedWriter(_StandardOutput(1, "wb", closefd=False))
        sys.stdout = io.TextIOWrapper(raw, out.encoding, "replace", line_buffering=True)


class _StandardOutput(io.FileIO):
    """Its errors have its name."""

    def write(self, data: Any, /) -> int:
        with naming("standard output"):
            return super().write(data)


def _drop_output() -> None:
    """Discard buffered output: the interpreter would fail again to write it at its end."""
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 1)


def _fill_standard_descriptors() -> None:
    """Open 0, 1, 2 if closed: otherwise the next file opened would get the workers' output."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


if __name__ == "__main__":
    main()
