"""One Slurm for the tests of a file; none of its machines is left."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.slurm import Slurm, why_no_slurm

NODES = 4


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm of four nodes."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("slurm")
    with Slurm(directory, NODES) as found:
        yield found
    assert nothing_is_left(directory, found) == []


def nothing_is_left(directory: Path, slurm: Slurm) -> list[str]:
    """Check that no process, mount or network of it is left."""
    found = [f"process: {line}" for line in _command_lines() if str(directory) in line]
    mounts = Path("/proc/mounts").read_text().splitlines()
    found += [f"mount: {line}" for line in mounts if str(directory) in line]
    listed = subprocess.run(["ip", "netns"], capture_output=True, text=True, timeout=60, check=True)
    return found + [f"network: {name}" for name in slurm.machines.names() if name in listed.stdout]


def _command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
