"""In which form a script begins, and the settings of another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.config.forms import in_form, injection
from ftrun.config.script import Script, TargetKind
from ftrun.config.settings import RunSettings
from ftrun.core.forms import Form, parse
from tests.unit.agent.test_environment import SETTINGS


def settings(**changes: Any) -> RunSettings:
    return replace(
        SETTINGS, **{"inject": "auto", "replicas": 4, "workers_per_replica": 1, **changes}
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "auto"),
        ({"replicas": 1}, "explicit"),
        ({"replicas": 1, "snapshot": Path("s")}, "auto"),
        ({"replicas": 1, "snapshot": Path("s"), "inject": "explicit"}, "explicit"),
        ({"replicas": 1, "snapshot": Path("s"), "nodes": 2}, "explicit"),
        ({"workers_per_replica": 2}, "auto"),
        ({"inject": "ddp", "replicas": 1}, "ddp"),
        ({"inject": "off"}, "off"),
        ({"script": Script("tool", TargetKind.COMMAND)}, "explicit"),
        ({"script": Script("m.f", TargetKind.FUNCTION, ("d", ""))}, "explicit"),
        ({"script": Script("a.py", TargetKind.FILE, (), "/usr/bin/python3")}, "explicit"),
    ],
)
def test_scripts_that_may_heal_are_open(changes: dict[str, Any], expected: str) -> None:
    assert injection(settings(**changes)) == expected


def test_one_world_is_one_group_of_all_workers() -> None:
    found = in_form(settings(min_replicas=2, stdin="3.0"), Form.ONE_WORLD)
    assert (found.replicas, found.min_replicas, found.workers_per_replica) == (1, 1, 4)
    assert found.stdin == "0.3"
    assert injection(found) == "memory"  # it never asks for another form
    off = in_form(settings(memory_snapshots="off"), Form.ONE_WORLD)
    assert injection(off) == off.inject == "explicit"
    several = in_form(settings(workers_per_replica=2, stdin="3.1"), Form.ONE_WORLD)
    assert (several.workers_per_replica, several.stdin) == (8, "0.7")
    stored = in_form(settings(snapshot=Path("s"), resume="r"), Form.ONE_WORLD)
    assert stored.snapshot_path is None, "its snapshots are none of one world"


@pytest.mark.parametrize(("form", "inject"), [(Form.EXPLICIT, "watched"), (Form.DDP, "ddp")])
def test_the_other_forms_keep_the_replicas(form: Form, inject: str) -> None:
    found = in_form(settings(), form)
    assert found == settings(inject=inject)
    assert injection(found) == inject


def test_a_name_that_is_none() -> None:
    assert parse("auto") is None
