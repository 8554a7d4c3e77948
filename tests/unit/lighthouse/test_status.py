"""The status: every field that is served is declared, and every declared field is served."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from ftrun.core.activity import Activity
from ftrun.core.ids import StateId, WorkerKey
from ftrun.core.lighthouse.events import JournalState, LighthouseSettings
from ftrun.core.lighthouse.machine import Lighthouse
from ftrun.core.lighthouse.status import Status
from ftrun.core.messages import (
    Hello,
    JobSpec,
    Notice,
    Progress,
    ReplicaStarted,
    Report,
    WorkerMessage,
)
from ftrun.core.quorum import Endpoint
from ftrun.lighthouse.journal import JournalFile
from ftrun.lighthouse.openapi import openapi, schema_of
from ftrun.lighthouse.shell import Shell
from ftrun.lighthouse.status import full_status
from ftrun.protocol.serving import Session

HELLO = Hello("node", JobSpec("job", 2, 1, 2, 5.0, 2.0, 60.0), 8, "h", "s")
KEY = WorkerKey("0", "aa", 0)


def mismatches(kind: Any, value: Any, path: str = "status") -> list[str]:
    """The paths at which ``value`` is not of ``kind``, with fields that either side lacks."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_typeddict(kind) and not isinstance(value, dict):
        return [path]
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        both = [(of, name) for name, of in hints.items() if name in value]
        found = [x for of, name in both for x in mismatches(of, value[name], f"{path}.{name}")]
        return found + [f"{path}.{name} (on one side)" for name in sorted(set(hints) ^ set(value))]
    if origin is list:
        return [x for item in value for x in mismatches(inner[0], item, f"{path}[]")]
    if origin is dict:
        return [x for item in value.values() for x in mismatches(inner[1], item, f"{path}{{}}")]
    if origin in (Union, UnionType):
        return [] if any(not mismatches(of, value) for of in inner) else [path]
    return [] if type(value) is kind else [path]


def served_status(directory: Path) -> Status:
    """Of a real shell and core, with an agent, a replica and a notice."""
    found: list[Status] = []

    async def main() -> None:
        journal = JournalFile(directory / "journal")
        core = Lighthouse(LighthouseSettings(takeover_grace_s=0.0), JournalState(), 0.0)
        shell, session = Shell(core, journal), Session("node")
        shell.start()
        shell.attached(session, HELLO)
        shell.received(
            session,
            ReplicaStarted("0", "aa", 3),
            WorkerMessage(KEY, Report(StateId(7, "ab"), Endpoint("h", "h:1"))),
            WorkerMessage(KEY, Progress(7, 7, Activity.STEP, (("loss", 0.5), ("bad", math.nan)))),
        )
        shell.event_log.note(Notice("lost", ("0",), "Replica 0 lost."))
        found.append(full_status(shell, journal, 1.5))
        shell.stop()

    asyncio.run(main())
    return found[0]


def test_what_is_served_is_what_is_declared(tmp_path: Path) -> None:
    status = served_status(tmp_path)
    assert mismatches(Status, status) == []
    assert status == json.loads(json.dumps(status, allow_nan=False))
    assert status["lighthouse"]["agents_attached"] == len(status["agents"]) == 1
    assert status["lighthouse"]["epoch"] == status["epoch"]
    assert status["messages_received"] == {"Progress": 1, "ReplicaStarted": 1, "Report": 1}
    replica = status["replicas"][0]
    assert replica["scalars"] == {"loss": 0.5, "bad": None}
    assert replica["last_event"] is not None
    assert replica["last_event"]["text"] == status["events"][-1]["text"] == "Replica 0 lost."


def test_the_document_declares_every_field_with_its_type() -> None:
    content = openapi("1")["paths"]["/status"]["get"]["responses"]["200"]["content"]
    schema = content["application/json"]["schema"]
    assert set(schema["required"]) == set(schema["properties"]) == set(Status.__annotations__)
    replica = schema["properties"]["replicas"]["items"]["properties"]
    assert replica["restarts"] == {"type": "integer"}
    assert replica["step"] == {"type": "integer", "nullable": True}
    assert replica["scalars"]["additionalProperties"] == {"type": "number", "nullable": True}
    with pytest.raises(KeyError):
        schema_of(set)
