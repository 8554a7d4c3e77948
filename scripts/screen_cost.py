#!/usr/bin/env python
"""Measures ``ftrun status`` on a terminal: its start, its CPU and memory, its answers to keys.

    scripts/screen_cost.py [--seconds 30]

A real lighthouse's web server serves the tests' documents to a real ``ftrun status`` on a terminal
of its own (a pty that answers as a terminal does). Start: from exec to the first picture. CPU: of
one core, over ``--seconds``, with ten replicas and with a thousand. Keys: until what they write.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ftrun.core.lighthouse.status import Status
from ftrun.protocol.auth import new_token
from tests.unit.status.documents import healthy, thousand
from tests.unit.status.served_status import served

ROOT = Path(__file__).resolve().parents[1]
SHOWN = b"llama-1b-pretrain"
STARTS = 7
KEYS = 40
DEADLINE_S = 30.0
ANSWERS = ((b"\x1b]11;?", b"\x1b]11;rgb:1111/1414/1a1a\x1b\\"), (b"\x1b[c", b"\x1b[?62;22c"))


class Terminal:
    """A pty with ``ftrun status`` in it."""

    def __init__(self, words: list[str], environ: dict[str, str], size: tuple[int, int]) -> None:
        self.began_at = time.monotonic()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, [sys.executable, "-m", "ftrun", *words], environ)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.seen = b""

    def read(self, seconds: float) -> bytes:
        """What it writes within so long, until it is quiet for the first time."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return b""
        with contextlib.suppress(OSError):
            data = os.read(self.fd, 1 << 20)
            for question, answer in ANSWERS:
                if question in data:
                    os.write(self.fd, answer)
            self.seen = (self.seen + data)[-(1 << 22) :]
            return data
        return b""

    def wait(self, text: bytes) -> float:
        """Seconds since the start until the text was there."""
        while text not in self.seen:
            if time.monotonic() - self.began_at > DEADLINE_S:
                raise SystemExit(f"{text!r} did not come within {DEADLINE_S:g} s")
            self.read(0.5)
        return time.monotonic() - self.began_at

    def watch(self, seconds: float) -> int:
        """Read for so long; returns the bytes."""
        end, count = time.monotonic() + seconds, 0
        while (left := end - time.monotonic()) > 0:
            count += len(self.read(left))
        return count

    def press(self, key: bytes) -> float:
        """Seconds until the key has changed something."""
        self.watch(0.05)
        began_at = time.monotonic()
        os.write(self.fd, key)
        while time.monotonic() - began_at < DEADLINE_S:
            if self.read(0.5):
                return time.monotonic() - began_at
        raise SystemExit(f"the key {key!r} changed nothing")

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


@contextlib.contextmanager
def job(make: str, directory: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The words and the environment of a command that watches it."""
    documents: list[Status] = [(thousand if make == "thousand" else healthy)(n) for n in range(8)]
    token = new_token()
    token_file = directory / "token"
    token_file.write_text(token)
    token_file.chmod(0o600)
    with served(lambda: documents[int(time.monotonic()) % len(documents)], token) as address:
        words = ["status", "--lighthouse", address, "--token-file", str(token_file)]
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "XDG_STATE_HOME": str(directory),
        }
        yield words, environ


def measure(make: str, seconds: float, directory: Path) -> None:
    """Start, CPU and keys with one of the documents."""
    with job(make, directory) as (words, environ):
        starts = []
        for _ in range(STARTS):
            terminal = Terminal(words, environ, (120, 36))
            starts.append(terminal.wait(SHOWN))
            terminal.close()
        print(f"{make}: first picture after {statistics.median(starts):.2f} s "
              f"(of {STARTS}: {min(starts):.2f} to {max(starts):.2f})")  # fmt: skip
        terminal = Terminal(words, environ, (120, 36))
        terminal.wait(SHOWN)
        terminal.watch(3.0)
        process = psutil.Process(terminal.pid)
        before = process.cpu_times()
        written = terminal.watch(seconds)
        after = process.cpu_times()
        used = after.user + after.system - before.user - before.system
        print(f"{make}: {used / seconds * 100:.2f} % of a core over {seconds:g} s, "
              f"{process.memory_info().rss / 1e6:.0f} MB, {written / seconds / 1000:.1f} kB/s "
              "to the terminal")  # fmt: skip
        keys = [terminal.press(b"k" if n % 2 else b"j") for n in range(KEYS)]
        keys += [terminal.press(b"f") for _ in range(6)]
        print(f"{make}: keys answer after {statistics.median(keys) * 1000:.0f} ms, "
              f"at most {max(keys) * 1000:.0f} ms")  # fmt: skip
        terminal.close()


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for make in ("healthy", "thousand"):
            measure(make, options.seconds, Path(directory))


if __name__ == "__main__":
    main()
