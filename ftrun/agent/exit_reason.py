"""The reason for a run's end, as JSON: ``exit.json`` in the job's log directory and `--json-exit`.

It distinguishes a script's exit code from an equal one of ftrun's. Not here: the table of exit
codes (errors.py), how a job ends (core/agent/ending.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ftrun.base import clock
from ftrun.base.errors import exit_kind
from ftrun.base.files import write_whole
from ftrun.core import failure_kinds as kinds
from ftrun.core.agent.events import EndAgent

SCHEMA = "ftrun.exit/1"
FILE_NAME = "exit.json"
TEXT_CHARS_MAX = 2000


def exit_document(
    ending: EndAgent, job_id: str, host: str, incident: dict[str, Any] | None
) -> dict[str, Any]:
    """The record of this agent's end. ``incident``: the last one, if the job failed."""
    is_of_script = ending.kind == kinds.BY_SCRIPT
    first = (incident or {}).get("first_cause") or {}
    return {
        "schema": SCHEMA,
        "job_id": job_id,
        "host": host,
        "time": clock.wall().isoformat(timespec="milliseconds"),
        "exit_code": ending.exit_code,
        "source": "script" if is_of_script else "ftrun",
        "kind": exit_kind(ending.exit_code, is_of_script),
        "reason": ending.reason[:TEXT_CHARS_MAX],
        "incident": (incident or {}).get("number"),
        "verdict": (incident or {}).get("verdict"),
        "first_cause": {
            "replica_id": first.get("replica_id"),
            "host": first.get("host"),
            "kind": first.get("kind"),
            "cause": str(first.get("cause", ""))[:TEXT_CHARS_MAX],
        }
        if first
        else None,
    }


def write_exit(document: dict[str, Any], job_log_dir: Path) -> OSError | None:
    """Write the file completely or not at all. Returns the error, if there was one."""
    path = job_log_dir / FILE_NAME
    try:
        write_whole(path, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        return error
    return None
