"""The entry point: launches the spawner if a run is asked for, and only then loads the commands.

torch takes longest, so what imports it starts before the options are parsed, which takes a library
of its own. A command line that turns out to be wrong ends it again: by then it has done nothing but
import. Not here: the commands (commands.py), what is launched (agent/launch.py).
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import TYPE_CHECKING

from ftrun.errors import ExitCode, FtrunError, UserError

if TYPE_CHECKING:
    from ftrun.agent.launch import SpawnerLaunch

OTHER_COMMANDS = frozenset({"lighthouse", "status", "chaos", "certs"})
STARTS_NOTHING = frozenset(
    {"--help", "--version", "--dry-run", "--install-completion", "--show-completion"}
)
COMPLETION = "_FTRUN_COMPLETE"


class _Launches:
    """Launches one spawner, early or when it is called for, and ends it in any case."""

    def __init__(self) -> None:
        self._launch: SpawnerLaunch | None = None

    def __call__(self) -> SpawnerLaunch:
        """The spawner, which imports torch by now."""
        if self._launch is None:
            from ftrun.agent.launch import SpawnerLaunch

            signal.signal(signal.SIGINT, _leave)  # until the agent's own handlers are there
            try:
                self._launch = SpawnerLaunch()
            except OSError as error:
                raise UserError(
                    f"No process can be started ({error.strerror}). Nothing was started. Raise "
                    "the limits of this shell: ulimit -n (files), ulimit -u (processes)."
                ) from None
        return self._launch

    def end(self) -> None:
        """Nobody needs it any more."""
        if self._launch is not None:
            self._launch.end()


def main() -> None:
    """One line for what ftrun raises on purpose, and its exit code."""
    _fill_standard_descriptors()
    _let_any_text_out()
    launches = _Launches()
    try:
        if means_a_run(sys.argv[1:]):
            launches()
        from ftrun.commands import app

        app(obj=launches)
    except FtrunError as error:
        print(f"ftrun: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _drop_output()
        print(f"ftrun: standard output cannot be written: {error.strerror}.", file=sys.stderr)
        sys.exit(ExitCode.USAGE)
    except KeyboardInterrupt:  # Before the agent's own handlers are there: nothing runs yet.
        sys.exit(ExitCode.INTERRUPTED)
    finally:
        launches.end()


def means_a_run(words: list[str]) -> bool:
    """Whether these words, if nothing is wrong with them, start a run.

    False is never wrong, only slower: an argument of the script may be ``--help`` too.
    """
    if not words or words[0] in OTHER_COMMANDS or not STARTS_NOTHING.isdisjoint(words):
        return False
    return COMPLETION not in os.environ and not all(word.startswith("-") for word in words)


def _leave(number: int, frame: object) -> None:
    """A Ctrl-C while all is starting.

    No KeyboardInterrupt: where one passes through an ``exec`` of text, as dataclasses do, CPython
    3.11 ends by SIGINT whoever has caught it.
    """
    raise SystemExit(ExitCode.INTERRUPTED)


def _let_any_text_out() -> None:
    """A character that the terminal's encoding lacks is shown as another, and is no error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """The interpreter writes what is left when it ends, and would fail once more."""
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 1)


def _fill_standard_descriptors() -> None:
    """Started with one of 0, 1, 2 closed, the next file opened would get the workers' output."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


if __name__ == "__main__":
    main()
