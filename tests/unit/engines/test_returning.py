"""Nodes that Slurm takes out of a job: a job for each, submitted once, and cancelled."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from ftrun.engines import returning
from ftrun.engines.returning import ReturningNodes
from tests.unit.engines.test_place import PLACE

WAIT_S = 60.0


def programs(directory: Path, monkeypatch: pytest.MonkeyPatch, **bodies: str) -> dict[str, str]:
    """Programs of these names instead of Slurm's; the environment in which they are found."""
    for name, body in bodies.items():
        by_name = f'case "$*" in *--name=*) cat {directory}/of_name 2>/dev/null; exit 0;; esac'
        (directory / name).write_text(f"#!/bin/sh\n{by_name}\n{body}\n")
        (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setattr(returning, "LOOK_S", 0.01)
    return {**os.environ, "SLURM_JOB_PARTITION": "big", "SLURM_CONF": "conf", "SLURM_NNODES": "3"}


def nodes(
    directory: Path, environ: dict[str, str], said: list[str], contenders: str = "n0 n1"
) -> ReturningNodes:
    return ReturningNodes(
        PLACE, contenders.split(), environ, ["ftrun", "a b"], lambda node: {"NODE": node},
        directory, said.append,
    )  # fmt: skip


async def until(one: ReturningNodes, said: list[str]) -> None:
    looking = asyncio.ensure_future(one.run())
    end = asyncio.get_running_loop().time() + WAIT_S
    while not said:
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    looking.cancel()
    await one.cancel()


def test_a_lost_node_gets_a_job_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = programs(
        tmp_path, monkeypatch,
        squeue=f"[ -e {tmp_path}/asked ] && echo n[0-1] || echo n[0-2]; touch {tmp_path}/asked",
        sbatch=f'echo "$NODE $SLURM_CONF.$SLURM_NNODES $*" >> {tmp_path}/submitted; echo 17',
        scancel=f'echo "$*" >> {tmp_path}/cancelled',
    )  # fmt: skip
    said: list[str] = []
    asyncio.run(until(nodes(tmp_path, environ, said, "n1 n2"), said))
    (line,) = (tmp_path / "submitted").read_text().splitlines()
    assert line.startswith("n2 conf. --parsable --nodes=1 --ntasks=1 --nodelist=n2 --partition=big")
    assert line.endswith("--wrap=exec ftrun 'a b'")
    assert (tmp_path / "cancelled").read_text() == "17\n"
    assert said == [
        "Slurm has lost n2 and taken it out of this job. Job 17 uses it again as soon as it is "
        "back."
    ]


def test_the_first_contender_that_is_left_takes_over_what_another_has_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    environ = programs(
        tmp_path, monkeypatch,
        squeue=f"[ -e {tmp_path}/lost ] && echo n1 || echo n[0-1]; echo >> {tmp_path}/looks",
        sbatch=f"echo 19; touch {tmp_path}/submitted",
        scancel=f'echo "$*" >> {tmp_path}/cancelled',
    )  # fmt: skip
    one = nodes(tmp_path, environ, said)

    async def looks() -> None:
        looking = asyncio.ensure_future(one.run())
        while not (tmp_path / "looks").exists():
            await asyncio.sleep(0.01)
        assert not said and not one._jobs, "n0 does it"
        (tmp_path / "of_name").write_text("9\n")
        (tmp_path / "lost").touch()
        await asyncio.wait_for(looking, WAIT_S)  # each other node has a job
        await one.cancel()

    asyncio.run(looks())
    assert not (tmp_path / "submitted").exists()
    assert (tmp_path / "cancelled").read_text() == "9 9\n"


@pytest.mark.parametrize("first", ["sbatch", "cancel"])
def test_none_comes_back_to_a_job_that_is_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Whether the job is submitted already or not."""
    said: list[str] = []
    lost = tmp_path / "lost"
    environ = programs(
        tmp_path, monkeypatch,
        squeue=f"[ -e {lost} ] && echo n[0-1] || echo n[0-2]; touch {tmp_path}/looked",
        sbatch=f"touch {tmp_path}/submitted; while [ ! -e {tmp_path}/go ]; do :; done; echo 17",
        scancel=f'echo "$*" >> {tmp_path}/cancelled',
    )  # fmt: skip
    one = nodes(tmp_path, environ, said, "n1 n2")

    async def end() -> None:
        looking = asyncio.ensure_future(one.run())
        if first == "sbatch":
            lost.touch()
        seen = tmp_path / ("submitted" if first == "sbatch" else "looked")
        until = asyncio.get_running_loop().time() + WAIT_S
        while not seen.exists():
            assert asyncio.get_running_loop().time() < until
            await asyncio.sleep(0.01)
        await one.cancel()
        for path in (lost, tmp_path / "go"):
            path.touch()
        await asyncio.wait_for(looking, WAIT_S)

    asyncio.run(end())
    assert not said
    cancelled = tmp_path / "cancelled"
    assert (cancelled.read_text() if cancelled.exists() else "") == (
        "17\n" if first == "sbatch" else ""
    )
    assert (tmp_path / "submitted").exists() == (first == "sbatch")


def test_a_refusal_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = {"squeue": "echo n[1-2]", "sbatch": "echo no; exit 1", "scancel": "exit 1"}
    said: list[str] = []
    environ = programs(tmp_path, monkeypatch, **bodies)
    asyncio.run(until(nodes(tmp_path, environ, said), said))
    assert said == ["Slurm has lost n0, and takes no job that would use it again: no"]


def test_while_slurm_does_not_answer_no_node_counts_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = f"[ -e {tmp_path}/asked ] && echo n[1-2] || {{ touch {tmp_path}/asked; exit 1; }}"
    said: list[str] = []
    environ = programs(tmp_path, monkeypatch, squeue=answers, sbatch="echo 18", scancel="")
    asyncio.run(until(nodes(tmp_path, environ, said), said))
    assert [line[:17] for line in said] == ["Slurm has lost n0"]
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    one = nodes(tmp_path, {"PATH": ""}, said)
    with pytest.raises(ValueError, match="No such file"):
        asyncio.run(one._ask("squeue"))
