from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ftrun.base.errors import UserError
from ftrun.config.checks import check
from ftrun.config.forms import (
    in_form,
    injection,
    standbys_of,
    why_no_memory_snapshots,
    without_effect,
    would_have_helped,
)
from ftrun.core.forms import MEMORY, Form
from tests.unit.run_settings import resolved


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "t.py"
    path.write_text("")
    return str(path)


def test_one_group_of_several_workers_has_them_and_a_standby(script: str) -> None:
    settings = resolved(script, workers_per_replica=2)
    check(settings)
    assert why_no_memory_snapshots(settings) == ""
    assert injection(settings) == MEMORY
    assert standbys_of(settings) == 1
    none = resolved(script, workers_per_replica=2, standbys=0)
    assert standbys_of(none) == 0
    assert standbys_of(resolved(script, workers_per_replica=2, memory_snapshots="off")) == 0


def test_where_parameters_of_one_group_are_not_compared_a_line_says_so(script: str) -> None:
    stop = partial(resolved, script, workers_per_replica=2, on_corruption="stop")
    assert without_effect(stop()) == []
    (line,) = without_effect(stop(memory_snapshots="off"))
    assert line.startswith("--on-corruption has no effect: without memory snapshots the workers of")
    assert without_effect(resolved(script, workers_per_replica=2, memory_snapshots="off")) == []
    assert without_effect(resolved(script, replicas=2, on_corruption="stop")) == []
    spans = resolved(script, **NODES, nnodes="2", memory_snapshots="auto", on_corruption="stop")
    assert without_effect(spans) == []


def test_after_a_death_under_torchruns_options_a_line_names_them(script: str) -> None:
    of = partial(resolved, script, nproc_per_node="2")
    assert "--memory-snapshots auto and --max-restarts 10 may" in would_have_helped(of())
    assert "--memory-snapshots auto may replace" in would_have_helped(of(max_restarts=1))
    more: dict[str, Any] = {"memory_snapshots": "auto"}
    for off in (more, {"memory_snapshots": "off"}, {"nproc_per_node": "1"}, {"inject": "off"}):
        assert would_have_helped(resolved(script, **{"nproc_per_node": "2", **off})) == ""
    assert would_have_helped(resolved(script, workers_per_replica=2)) == ""


NODES: dict[str, Any] = {"nproc_per_node": "1", "rdzv_endpoint": "h:1"}


def test_a_group_on_several_nodes_has_them_and_a_standby_for_each_worker(script: str) -> None:
    settings = resolved(script, memory_snapshots="auto", nnodes="2", **NODES)
    check(settings)
    assert why_no_memory_snapshots(settings) == ""
    assert injection(settings) == MEMORY
    assert standbys_of(settings) == 1
    settings = resolved(script, memory_snapshots="auto", nnodes="2", standbys=9, **NODES)
    assert standbys_of(settings) == 1


def test_such_nodes_may_have_labels_and_spares(script: str) -> None:
    """Copies are kept on a node of another label, and further nodes stand by: no lighthouse counts
    them."""
    several: dict[str, Any] = {"nnodes": "2", "topology": "r1", "spare_nodes": 1, **NODES}
    settings = resolved(script, memory_snapshots="auto", **several)
    check(settings)
    assert settings.spec().spare_nodes == 0
    with pytest.raises(UserError, match=r"--topology is for .* and for memory snapshots"):
        check(resolved(script, **several))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"replicas": 2, "inject": "off"}, "--inject off leaves the script alone"),
        ({"replicas": 2, "inject": "explicit", "nodes": 2, "lighthouse": "h:1"}, "one node so far"),
        ({"workers_per_replica": 1}, "one worker has no peers"),
        ({"lighthouse": "h:1"}, "on one node only"),
        ({"workers_per_replica": None, "nnodes": "1:2", **NODES}, "change its size"),
        ({"inject": "explicit"}, "--inject explicit leaves the script alone"),
        ({"no_python": True}, "for Python scripts"),
    ],
)
def test_they_are_refused_with_what_they_do_not_apply_to(
    script: str, given: dict[str, Any], why: str
) -> None:
    settings = resolved(script, **{"workers_per_replica": 2, "memory_snapshots": "auto", **given})
    assert why in why_no_memory_snapshots(settings)
    assert injection(settings) != MEMORY
    with pytest.raises(UserError, match=f"--memory-snapshots auto: not in this job: .*{why}"):
        check(settings)


TWO: dict[str, Any] = {"replicas": 2, "workers_per_replica": 2}


@pytest.mark.parametrize("inject", ["auto", "ddp"])
def test_replicas_of_several_workers_have_them_and_a_standby(script: str, inject: str) -> None:
    settings = resolved(script, **TWO, inject=inject)
    check(settings)
    assert why_no_memory_snapshots(settings) == ""
    assert injection(settings) == inject
    assert standbys_of(settings) == 1
    off = resolved(script, **TWO, inject=inject, memory_snapshots="off")
    assert (why_no_memory_snapshots(off), standbys_of(off)) == ("--memory-snapshots is off", 0)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"workers_per_replica": 1}, "2 replica groups heal from each other"),
        ({"nodes": 2, "lighthouse": "h:1"}, "on one node so far"),
        ({"inject": "off"}, "--inject off leaves the script alone"),
        ({"gpus": 2}, "on GPUs it is untried so far"),
        ({"no_python": True}, "for Python scripts"),
        ({"data": "exactly-once"}, "ftrun chooses the samples"),
        ({"global_batch": 8}, "ftrun chooses the samples"),
    ],
)
def test_other_replicas_have_none_and_are_not_refused(
    script: str, given: dict[str, Any], why: str
) -> None:
    settings = resolved(script, **{**TWO, **given})
    assert why in why_no_memory_snapshots(settings)
    assert standbys_of(settings) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_script_with_a_manager_has_them_if_asked(
    script: str, tmp_path: Path, workers: int
) -> None:
    of: dict[str, Any] = {"replicas": 2, "workers_per_replica": workers}
    given: dict[str, Any] = {**of, "inject": "explicit"}
    assert why_no_memory_snapshots(resolved(script, **given))
    found = in_form(resolved(script, **TWO), Form.EXPLICIT)
    assert "must compute a step again" in why_no_memory_snapshots(found)
    asked = in_form(resolved(script, **of, memory_snapshots="auto"), Form.EXPLICIT)
    assert why_no_memory_snapshots(asked) == ""
    assert why_no_memory_snapshots(in_form(resolved(script, **TWO), Form.DDP)) == ""
    settings = resolved(script, **given, memory_snapshots="auto")
    check(settings)
    assert why_no_memory_snapshots(settings) == ""
    assert injection(settings) == "explicit"
    assert standbys_of(settings) == 1
    written = resolved(script, **given, memory_snapshots="auto", snapshot=tmp_path)
    assert "without --snapshot" in why_no_memory_snapshots(written)


def test_replicas_of_one_node_are_told_that_they_could_be_one_group(script: str) -> None:
    given: dict[str, Any] = {
        **{"replicas": 2, "workers_per_replica": 3, "memory_snapshots": "auto"},
        "inject": "off",
    }
    with pytest.raises(UserError, match=r"out, or make all one group: --workers-per-replica 6\.$"):
        check(resolved(script, **given))
    with pytest.raises(UserError, match=r"Leave it out\.$"):
        check(resolved(script, **given, lighthouse="h:1"))


def test_a_disk_asks_for_them_unless_they_are_off(script: str, tmp_path: Path) -> None:
    on: dict[str, Any] = {"workers_per_replica": 2, "snapshot": tmp_path}
    assert why_no_memory_snapshots(resolved(script, **on)) == ""
    assert why_no_memory_snapshots(resolved(script, **on, memory_snapshots="off"))
    assert why_no_memory_snapshots(resolved(script, workers_per_replica=1, snapshot=tmp_path))


def test_torchrun_s_options_keep_torchrun_s_restarts(script: str, tmp_path: Path) -> None:
    settings = resolved(script, nproc_per_node=2, max_restarts=3)
    check(settings)
    assert "torchrun" in why_no_memory_snapshots(settings)
    assert (injection(settings), standbys_of(settings)) == ("explicit", 0)
    for asks in ({"memory_snapshots": "auto"}, {"snapshot": tmp_path}):
        assert not why_no_memory_snapshots(resolved(script, nproc_per_node=2, **asks))


def test_gpus_have_them_only_if_somebody_asks(script: str) -> None:
    for of in ({"gpus": 2}, {"gpus": 2, "device": "cuda"}, {"gpus": 4, "replicas": 2}):
        given: dict[str, Any] = {"workers_per_replica": 2, **of}
        assert "only if you ask" in why_no_memory_snapshots(resolved(script, **given))
        on = resolved(script, **given, memory_snapshots="auto")
        check(on)
        assert not why_no_memory_snapshots(on)
        assert injection(on) == ("auto" if "replicas" in of else MEMORY)


def test_another_word_is_refused(script: str) -> None:
    with pytest.raises(UserError, match="give one of auto, off"):
        check(resolved(script, memory_snapshots="on"))


def test_a_default_is_never_refused(script: str) -> None:
    check(resolved(script, replicas=2))
