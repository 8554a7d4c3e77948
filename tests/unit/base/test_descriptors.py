"""How many descriptors a job needs, and limits that allow them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ftrun.base.descriptors import descriptors_needed

MEASURED = [
    # replicas, workers in each, the most that any process was seen to hold (torch 2.13, Gloo)
    (1, 1, 46), (2, 1, 57), (4, 1, 77), (8, 1, 117), (16, 1, 197), (2, 4, 63), (4, 4, 100),
    (2, 8, 100),
]  # fmt: skip


@pytest.mark.parametrize(("replicas", "workers", "seen"), MEASURED)
def test_twice_of_what_was_seen_is_asked_for(replicas: int, workers: int, seen: int) -> None:
    assert 2 * seen <= descriptors_needed(replicas, workers, replicas) <= 4 * seen


def test_other_nodes_and_standbys_count() -> None:
    alone = descriptors_needed(2, 1, 2)
    assert descriptors_needed(2, 1, 1000) - alone > 2 * 998
    assert descriptors_needed(2, 1, 2, standbys=10) - alone >= 50


def limited(soft: int, hard: int, needed: int) -> str:
    """The limits that ``allow_descriptors`` sets, in its process and in a child."""
    code = (
        "import resource, subprocess, sys\n"
        "from ftrun.base.descriptors import allow_descriptors\n"
        "from ftrun.errors import UserError\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        f"try: allow_descriptors({needed}, 'This', child.pid)\n"
        "except UserError as error: print(error)\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE),\n"
        "      resource.prlimit(child.pid, resource.RLIMIT_NOFILE))\n"
        "child.communicate(b'x')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


def test_a_limit_that_is_enough_is_left_alone() -> None:
    assert limited(100, 200, 100) == "(100, 200) (100, 200)\n"


def test_a_soft_limit_is_raised_for_the_child_too_up_to_the_hard_one() -> None:
    assert limited(64, 400, 100) == "(164, 400) (164, 400)\n"
    assert limited(64, 120, 100) == "(120, 120) (120, 120)\n"


def test_a_hard_limit_that_is_too_low_is_said_and_nothing_changed() -> None:
    said, limits = limited(40, 64, 2000).splitlines()
    assert said.startswith("This may need 2000 open files in one process, and 64 is the most ")
    assert "Raise that to 2000 or more" in said
    assert limits == "(40, 64) (40, 64)"
