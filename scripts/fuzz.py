#!/usr/bin/env python3
"""Feed damaged bytes to everything in ftrun that reads bytes from outside.

    scripts/fuzz.py                          100,000 inputs for each reader and each server
    scripts/fuzz.py --inputs 1000 --only codec

One row each: inputs, accepted, refused by a declared error, memory before and after, seconds. Exit
code 1 if any other error was raised, a server died, or memory grew by more than 16 MiB. A seed and
a number reproduce an input.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzz.feeding import Server
from tests.fuzz.servers import servers
from tests.fuzz.targets import Target, targets

GROWTH_BYTES_MAX = 16 << 20
WARM_UP = 2000
SHOWN_MAX = 5


@dataclass
class Row:
    """The outcome of one target."""

    name: str
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    before: int = 0
    after: int = 0
    elapsed_s: float = 0.0
    findings: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """No finding, and no growth of memory."""
        return not self.findings and self.after - self.before <= GROWTH_BYTES_MAX


def main() -> int:
    """Parse the options, feed all targets, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="inputs per target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", default="", metavar="WORD", help="only targets with WORD in their name"
    )
    parser.add_argument(
        "--table", metavar="FILE", help="also write the table to FILE, after each target"
    )
    options = parser.parse_args()
    # Corrupt journals are reported each time, and gRPC's poller reports our cut calls to event
    # loops that have ended.
    logging.disable(logging.CRITICAL)
    # Files are bytes from outside, too; in memory, because a disk would only be slower.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="ftrun-fuzz-", dir=memory) as directory:
        rows = []
        for row in _rows(options, Path(directory)):
            rows.append(row)
            print(f"{row.name}: {row.elapsed_s:.0f} s", file=sys.stderr, flush=True)
            # Written again after each target, so that a stopped run leaves a table.
            if options.table:
                Path(options.table).write_text(_text(rows))
    print(_text(rows))
    for row in rows:
        for finding in row.findings[:SHOWN_MAX]:
            print(f"{row.name}: {finding}")
    return 0 if all(row.is_good for row in rows) else 1


def _text(rows: list[Row]) -> str:
    """The table as plain text."""
    with open(os.devnull, "w") as nowhere:
        console = Console(width=118, record=True, file=nowhere)
        console.print(_table(rows))
        return console.export_text()


def _rows(options: argparse.Namespace, directory: Path) -> Iterator[Row]:
    for target in targets(directory):
        if options.only in target.name:
            yield _read(target, options.inputs, options.seed)
    for server in servers(directory):
        if options.only in server.name:
            yield _serve(server, options.inputs, options.seed)


def _read(target: Target, inputs: int, seed: int) -> Row:
    """Feed a target in this process. Some inputs are fed first, so that imports and caches are no
    growth."""
    row = Row(target.name)
    for number in range(-min(WARM_UP, inputs), inputs):
        if number == 0:
            row = Row(target.name, before=_rss(), findings=row.findings)
            started = time.monotonic()
        data = target.make(Random(f"{seed}/{number}"))
        row.inputs += 1
        try:
            if target.feed(data):
                row.accepted += 1
            else:
                row.refused += 1
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding and told
            row.findings.append(f"input {seed}/{number} {data[:300]!r}\n{traceback.format_exc()}")
    row.elapsed_s, row.after = time.monotonic() - started, _rss()
    return row


def _serve(server: Server, inputs: int, seed: int) -> Row:
    """Feed a server in a separate process. It must live, answer and not grow."""
    row = Row(server.name)
    with server:
        server.feed(range(-min(WARM_UP, inputs), 0), seed)
        row.before, started = server.rss(), time.monotonic()
        row.accepted, row.refused = server.feed(range(inputs), seed)
        row.elapsed_s = time.monotonic() - started
        row.inputs = inputs
        row.after = server.rss()
        row.findings = server.findings()
    return row


def _rss() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _table(rows: list[Row]) -> Table:
    table = Table("what is fed", title="damaged bytes", title_justify="left")
    for name in ("inputs", "accepted", "refused", "else", "MiB before", "after", "grown", "s"):
        table.add_column(name, justify="right")
    for row in rows:
        figures = (row.inputs, row.accepted, row.refused, len(row.findings))
        sizes = (row.before, row.after, row.after - row.before)
        table.add_row(
            row.name,
            *(f"{figure:,}" for figure in figures),
            *(f"{size / (1 << 20):.1f}" for size in sizes),
            f"{row.elapsed_s:.0f}",
            style="" if row.is_good else "red",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
