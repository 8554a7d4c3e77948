"""Logs: complete in the file, in lines or as they come on the terminal; a slow disk loses none."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

from ftrun.agent.copies import Copies
from ftrun.agent.logs import Output, WorkerLog
from ftrun.agent.terminal import Terminal
from ftrun.config.streams import Streams
from ftrun.logs import disk
from ftrun.logs.disk import DiskWriter
from ftrun.logs.index import parse_record
from ftrun.logs.layout import index_path, log_path

TIMEOUT_S = 60.0


class Stage:
    """One worker's pipes, its log, and a terminal whose output is read at the end."""

    def __init__(
        self, directory: Path, path: Path, *, prefixes: bool = True, **streams: object
    ) -> None:
        self.path = path
        self.ended: list[WorkerLog] = []
        self._screens = [os.pipe(), os.pipe()]
        wanted = Streams(**streams)  # type: ignore[arg-type]
        (_, out), (_, err) = self._screens
        self.terminal = Terminal(out, err, streams=wanted, prefixes=prefixes)
        self.disk = DiskWriter(self.terminal.event_line)
        merged = directory / "merged.log"
        self.terminal.copies = Copies(self.disk, wanted, directory, merged)
        self.output = Output(self.terminal, self.disk)

    def play(self, *pieces: tuple[str, bytes], rank: int = 1) -> None:
        """Write pieces, ``("out", bytes)`` or ``("err", bytes)``, one after the other; then end."""

        async def act() -> None:
            log = WorkerLog(self.path, self.output, "0", rank, self.ended.append)
            (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe()
            log.follow(out_read, err_read)
            for name, data in pieces:
                os.write(out_write if name == "out" else err_write, data)
                log.drain()
            os.close(out_write)
            os.close(err_write)
            log.drain()

        asyncio.run(act())

    def close(self) -> tuple[bytes, bytes]:
        """End all; what is on stdout and on stderr."""
        self.output.close()
        shown = []
        for read, write in self._screens:
            os.close(write)
            with os.fdopen(read, "rb") as screen:
                shown.append(screen.read())
        return shown[0], shown[1]


def test_lines_are_prefixed_and_the_file_is_whole(tmp_path: Path) -> None:
    path = log_path(tmp_path, "0", 1, 2)
    stage = Stage(tmp_path, path)
    stage.play(("out", b"hello\nwor"), ("err", b"oops\n"), ("out", b"ld"))
    assert stage.close() == (b"[0.1] hello\n[0.1] world\n", b"[0.1] oops\n")
    assert path == tmp_path / "replica_0" / "rank_1" / "2.log"
    assert path.read_bytes() == b"hello\nworoops\nld"
    records = [parse_record(line) for line in index_path(path).read_bytes().splitlines()]
    assert [(r.offset, r.stream) for r in records if r] == [(0, "o"), (9, "e"), (14, "o")]
    assert len(stage.ended) == 1


def test_a_log_of_before_is_kept(tmp_path: Path) -> None:
    path = log_path(tmp_path, "0", 0, 0)
    path.parent.mkdir(parents=True)
    path.write_text("before\n")
    stage = Stage(tmp_path, path)
    stage.play(("out", b"after\n"))
    stage.close()
    assert path.read_text().splitlines() == ["before", "after"]


def test_without_prefixes_bytes_pass_as_they_come(tmp_path: Path) -> None:
    stage = Stage(tmp_path, log_path(tmp_path, "0", 0, 0), prefixes=False)
    data = b"a prompt? \r10%\r20%\x1b[A\n\n\xff\x00 no end"
    stage.play(("out", data[:7]), ("err", b"half"), ("out", data[7:]), rank=0)
    stage.terminal.event_line("of ftrun")
    assert stage.close() == (data, b"halfftrun: of ftrun\n")


def test_streams_that_are_named_have_files_of_their_own(tmp_path: Path) -> None:
    path = log_path(tmp_path, "0", 0, 0)
    stage = Stage(tmp_path, path, redirected=3, teed={0: 2})
    stage.play(("out", b"one\n"), ("err", b"two\n"), rank=0)
    assert stage.close() == (b"", b"[0.0] two\n")
    assert path.read_bytes() == b"one\ntwo\n"
    assert path.with_name("0.stdout.log").read_bytes() == b"one\n"
    assert path.with_name("0.stderr.log").read_bytes() == b"two\n"


def test_streams_that_are_not_named_have_one_file(tmp_path: Path) -> None:
    path = log_path(tmp_path, "0", 0, 0)
    stage = Stage(tmp_path, path)
    stage.play(("out", b"one\n"), ("err", b"two\n"), rank=0)
    stage.close()
    assert sorted(file.name for file in path.parent.iterdir()) == ["0.index", "0.log"]


def test_lines_are_copied_to_the_merged_file_and_to_the_filtered_ones(tmp_path: Path) -> None:
    words = {"out_words": ("loss", "acc"), "err_words": ("x,y",)}
    stage = Stage(tmp_path, log_path(tmp_path, "0", 1, 0), ranks=frozenset({0}), **words)  # type: ignore[arg-type]
    stage.play(("out", b"loss 1\nnothing\nacc 2\n"), ("err", b"loss\nx,y\n"))
    stage.terminal.event_line("a line of ftrun")
    assert stage.close() == (b"", b"ftrun: a line of ftrun\n")
    assert (tmp_path / "filtered_stdout.log").read_bytes() == b"[0.1] loss 1\n[0.1] acc 2\n"
    assert (tmp_path / "filtered_stderr.log").read_bytes() == b"[0.1] x,y\n"
    merged = (tmp_path / "merged.log").read_text().splitlines()
    stamps, lines = zip(*(line.split(" ", 1) for line in merged), strict=True)
    assert lines == (
        "[0.1] loss 1", "[0.1] nothing", "[0.1] acc 2", "[0.1] loss", "[0.1] x,y",
        "ftrun: a line of ftrun",
    )  # fmt: skip
    assert list(stamps) == sorted(stamps)
    assert all(stamp.endswith("Z") for stamp in stamps)


def test_a_log_that_cannot_be_written_costs_no_output(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    stage = Stage(tmp_path, tmp_path / "file" / "0.log", redirected=3)
    stage.play(("out", b"before the error is known\n"))
    assert stage.disk.flush(TIMEOUT_S)
    assert stage.ended
    _, err = stage.close()
    assert b"is on the terminal only" in err


def test_output_without_a_log_is_shown_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    stage = Stage(tmp_path, tmp_path / "file" / "0.log", redirected=3, ranks=frozenset({7}))

    async def act() -> None:
        log = WorkerLog(stage.path, stage.output, "0", 0, stage.ended.append)
        (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe()
        log.follow(out_read, err_read)
        os.write(out_write, b"first\n")
        log.drain()
        assert stage.disk.flush(TIMEOUT_S)
        os.write(out_write, b"second\n")
        log.close()
        os.close(out_write)
        os.close(err_write)

    asyncio.run(act())
    out, _ = stage.close()
    assert out == b"[0.0] second\n"


def test_a_disk_that_stands_still_holds_the_workers_and_loses_nothing(tmp_path: Path) -> None:
    """The log is a named pipe that nobody reads at first."""
    path = log_path(tmp_path, "0", 0, 0)
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    slow = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    stage = Stage(tmp_path, path)
    chunk = b"x" * 65535 + b"\n"
    total = 3 * disk.QUEUE_BYTES_MAX // len(chunk)
    received = bytearray()

    async def act() -> None:
        log = WorkerLog(path, stage.output, "0", 0, stage.ended.append)
        (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe()
        log.follow(out_read, err_read)
        loop = asyncio.get_running_loop()
        printing = threading.Thread(target=print_all, args=(out_write, chunk, total))
        printing.start()
        os.close(err_write)
        while not stage.disk.is_full:
            await asyncio.sleep(0.01)
        assert stage.disk._bytes < 2 * disk.QUEUE_BYTES_MAX
        stage.output.note_slow(path)
        loop.add_reader(slow, lambda: received.extend(os.read(slow, 1 << 20)))
        while not stage.ended:
            await asyncio.sleep(0.01)
        printing.join(TIMEOUT_S)

    asyncio.run(asyncio.wait_for(act(), TIMEOUT_S))
    os.set_blocking(slow, True)
    while len(received) < total * len(chunk):
        received.extend(os.read(slow, 1 << 20))
    assert bytes(received) == total * chunk
    stage.terminal.hurry()
    os.close(slow)
    assert b"they wait for it when" in stage.close()[1]


def print_all(fd: int, chunk: bytes, count: int) -> None:
    for _ in range(count):
        os.write(fd, chunk)
    os.close(fd)
