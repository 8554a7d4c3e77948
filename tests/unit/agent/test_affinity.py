"""Binding a real process, in one of its own; all of its threads are bound."""

from __future__ import annotations

import os
import subprocess
import sys

THREADS = """
import os, threading
from ftrun.agent import affinity
begun, go = threading.Event(), threading.Event()
seen = []
def look():
    begun.set()
    go.wait(60)
    seen.append(os.sched_getaffinity(0))
thread = threading.Thread(target=look)
thread.start()
begun.wait(60)
cpu = min(os.sched_getaffinity(0))
affinity.bind([cpu], 0)
go.set()
thread.join(60)
assert os.sched_getaffinity(0) == {cpu} == seen[0], (cpu, seen)
try:
    affinity.bind([4095], -1)
except OSError:
    print("bound and refused")
"""
POLICY = """
from ftrun.agent import affinity
permitted = affinity.prefer_memory(0)
nowhere = affinity.prefer_memory(1023)
with open("/proc/self/numa_maps") as file:
    kinds = {line.split()[1] for line in file if "stack" in line or "heap" in line}
print(permitted, nowhere, kinds)
"""


def run(source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_threads_are_bound() -> None:
    assert run(THREADS).strip() == "bound and refused"


def test_memory_of_a_node_is_preferred_where_the_kernel_has_nodes() -> None:
    if os.path.exists("/proc/self/numa_maps"):
        assert run(POLICY).strip() in ("True False {'prefer:0'}", "False False {'default'}")
    else:
        assert "False" in run("from ftrun.agent import affinity; print(affinity.prefer_memory(0))")
