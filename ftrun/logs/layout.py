"""Names of the files below a job's log directory.

Not here: their content (index.py, disk.py, marker.py).
"""

from __future__ import annotations

import re
from pathlib import Path

MARKER = "ftrun-job.json"
MERGED = "merged.log"
OLD = ".old"
"""A file that reached half of its limit gets this before its suffix, until the next one does."""

WORKER_DIR = re.compile(r"replica_(?P<replica>[^/]+)/rank_(?P<rank>\d+)")
ATTEMPT_LOG = re.compile(r"(?P<attempt>\d+)(\.old)?\.log")
OWN_FILES = re.compile(
    r"ftrun-job\.json|exit\.json|lighthouse\.log|(merged|filtered_stdout|filtered_stderr)[^/]*\.log"
    r"|events(\.old)?\.jsonl|errors/[^/]+\.json|incidents/\d+\.json"
    r"|replica_[^/]+/rank_\d+/\d+\.[^/]*(log|index|json|txt)"
)
"""Every file that ftrun writes below a job's log directory. No other file is ever removed."""


def log_path(directory: Path, replica_id: str, group_rank: int, restarts: int) -> Path:
    """``replica_<id>/rank_<r>/<restart>.log``."""
    return directory / f"replica_{replica_id}" / f"rank_{group_rank}" / f"{restarts}.log"


def stream_path(log: Path, *, error: bool) -> Path:
    """The file of one stream, next to the log of both: ``0.stdout.log``."""
    return log.with_suffix(".stderr.log" if error else ".stdout.log")


def index_path(log: Path) -> Path:
    """The file that maps offsets in ``log`` to times and streams: ``0.index``."""
    return log.with_suffix(".index")


def old_path(path: Path) -> Path:
    """The path of the older half of a limited file: ``0.old.log``."""
    return path.with_name(f"{path.stem}{OLD}{path.suffix}")
