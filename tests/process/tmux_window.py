"""A window of a separate tmux, for tests of the output on a terminal."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

WAIT_S = 180.0


class Tmux:
    """One window of a separate tmux."""

    def __init__(self, directory: Path, *command: str, size: tuple[int, int]) -> None:
        self._socket = str(directory / "tmux")
        environ = {
            "XDG_STATE_HOME": str(directory / "state"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        setting = [part for name, value in environ.items() for part in ("-e", f"{name}={value}")]
        # A shell writes the exit code, because tmux does not always learn it.
        self._code = directory / "code"
        shell = ["sh", "-c", f'"$@"; echo $? > {self._code}; sleep {WAIT_S:.0f}', "sh"]
        columns, rows = (str(cells) for cells in size)
        self.call("-f", "/dev/null", "new-session", "-d", "-x", columns, "-y", rows, *setting,
                  "-c", str(directory), *shell, *command)  # fmt: skip

    def call(self, *words: str) -> str:
        """One command of tmux."""
        found = subprocess.run(
            ["tmux", "-S", self._socket, *words],
            env={name: value for name, value in os.environ.items() if name != "TMUX"},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=True,
        )
        return found.stdout

    def text(self) -> str:
        """The text on the terminal."""
        return self.call("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        """Press keys."""
        self.call("send-keys", *keys)

    def ending(self) -> str:
        """The command's exit code; empty: it has not ended."""
        return self._code.read_text().strip() if self._code.exists() else ""

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.call("kill-server")
