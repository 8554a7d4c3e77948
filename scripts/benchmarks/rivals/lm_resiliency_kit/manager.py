"""The manager for which lm-resiliency's rendezvous waits after a death; the package ships none.

``manager.py PORT RUN_ID OUT DISK WORKERS``. It watches the workers' processes, by the names of
their files in OUT. When one has died it waits until all of its generation have ended, finds the
newest step that every rank has written to DISK, and publishes the generation that resumes from
there. It exits with 1 if there is no such step, and with 0 when all ranks have ended.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lm_resiliency.integrations.torchrun import (
    TorchrunRecoveryCoordinator,
    TorchrunRecoveryRequest,
)
from torch.distributed import DistNetworkError, TCPStore

LOOK_S = 0.02
STORE_TIMEOUT_S, DEATHS_TIMEOUT_S, RESTART_TIMEOUT_S = 90.0, 60.0, 120.0


def main(port: int, run_id: str, out: Path, disk: Path, workers: int) -> int:
    """Publish a generation after each death, until the job ends."""
    coordinator = TorchrunRecoveryCoordinator(connect(port), run_id=run_id)
    limit = time.monotonic() + STORE_TIMEOUT_S
    while (placement := initial_placement(coordinator)) is None:
        if time.monotonic() > limit:
            return 1
        time.sleep(LOOK_S)
    nodes = list(placement.active_node_ids)
    buried: set[int] = set()
    generation = 0
    while len({path.name.split(".")[1] for path in out.glob("end.*")}) < workers:
        pids = {int(path.name.split(".")[2]) for path in out.glob("steps.*")} - buried
        if len(pids) < workers or all(map(is_alive, pids)) or list(out.glob("end.*")):
            time.sleep(LOOK_S)
            continue
        limit = time.monotonic() + DEATHS_TIMEOUT_S
        while any(map(is_alive, pids)) and time.monotonic() < limit:
            time.sleep(LOOK_S)
        buried |= pids
        found = newest_whole_step(disk, workers)
        if found is None:
            print("manager: no step that all ranks have", flush=True)
            return 1
        step, topology = found
        print(f"manager: all go on from step {step}", flush=True)
        request = request_for(generation + 1, step, topology)
        published = coordinator.publish_successor(
            generation=generation,
            active_node_ids=nodes,
            quarantined_node_ids=[],
            request=request,
            local_world_size=workers,
            replacement=None,
        )
        generation, nodes = published.generation, list(published.active_node_ids)
    return 0


def connect(port: int) -> TCPStore:
    """The store of torchrun's rendezvous, once it is there."""
    limit = time.monotonic() + STORE_TIMEOUT_S
    while True:
        try:
            return TCPStore(
                "127.0.0.1",
                port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=30),
            )
        except DistNetworkError:
            if time.monotonic() > limit:
                raise
            time.sleep(LOOK_S)


def initial_placement(coordinator: TorchrunRecoveryCoordinator) -> Any:
    """The nodes of generation 0; None before they have registered."""
    return coordinator.initial_placement(active_node_count=1, allocated_node_count=1)


def newest_whole_step(disk: Path, workers: int) -> tuple[int, str] | None:
    """The newest step of which each rank has a file, and the topology's digest in those files."""
    found: dict[int, list[Path]] = {}
    for path in disk.glob("runs/*/*/step-*/rank-*.pt"):
        found.setdefault(int(path.parent.name.removeprefix("step-")), []).append(path)
    whole = [step for step, paths in found.items() if len(paths) == workers]
    if not whole:
        return None
    saved = torch.load(found[max(whole)][0], weights_only=True)
    return max(whole), saved.get("identity", saved)["topology_id"]


def request_for(generation: int, step: int, topology: str) -> TorchrunRecoveryRequest:
    """A restart of all workers from the checkpoint of ``step``."""
    return TorchrunRecoveryRequest(
        plan_id=f"plan-{generation}",
        intent_id=f"intent-{generation}",
        reason_code="process_crash",
        recovery_mode="latest",
        checkpoint_source="gemini",
        checkpoint_step=step,
        checkpoint_manifest_id=f"gemini-latest-{step}",
        topology_digest=topology,
        restart_deadline_unix_ms=time.time_ns() // 1_000_000 + int(RESTART_TIMEOUT_S * 1000),
    )


def is_alive(pid: int) -> bool:
    """False for a zombie as well."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


if __name__ == "__main__":
    port, run_id, out, disk, workers = sys.argv[1:]
    sys.exit(main(int(port), run_id, Path(out), Path(disk), int(workers)))
