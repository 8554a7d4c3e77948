"""A worker's environment in explicit mode: torchrun's variables, for its replica group.

The token is in none of them (X4). Not here: the spawner's own environment (launch.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.agent.devices import Machine
from ftrun.agent.env_markers import OWNER_NAME
from ftrun.config.settings import RunSettings
from ftrun.core.ids import WorkerKey


@dataclass(frozen=True, slots=True)
class Place:
    """One worker's part of the environment."""

    key: WorkerKey
    restarts: int
    master_port: int
    devices: tuple[str, ...]
    lighthouse: str


def threads_per_worker(settings: RunSettings, machine: Machine) -> int:
    """The user's OMP_NUM_THREADS, or the node's cores shared out among the workers."""
    if machine.threads_wished is not None:
        return machine.threads_wished
    workers = max(1, machine.capacity * settings.workers_per_replica)
    return max(1, machine.cores // workers)


def worker_environment(
    settings: RunSettings, machine: Machine, place: Place, threads: int
) -> dict[str, str]:
    """The variables of one worker, in addition to ftrun's own environment."""
    rank, world = str(place.key.group_rank), str(settings.workers_per_replica)
    environment = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": machine.host,
        "MASTER_PORT": str(place.master_port),
        # The group's store is open already, so no worker must serve it.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(place.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(settings.max_restarts),
        "TORCHELASTIC_RUN_ID": settings.job_id,
        "REPLICA_GROUP_ID": place.key.replica_id,
        "NUM_REPLICA_GROUPS": str(settings.replicas),
        "TORCHFT_LIGHTHOUSE": f"http://{place.lighthouse}",
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "NUMEXPR_NUM_THREADS": str(threads),
        "FTRUN_JOB_ID": settings.job_id,
        "FTRUN_REPLICA_ID": place.key.replica_id,
        "FTRUN_GROUP_RANK": rank,
        "FTRUN_INCARNATION": place.key.incarnation,
        OWNER_NAME: place.key.incarnation,
    }
    if place.devices:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(place.devices)
    if len(set(machine.devices)) < len(machine.devices):
        # A device listed twice is shared, which NCCL refuses unless the ranks seem on two hosts.
        environment["NCCL_HOSTID"] = f"{settings.job_id}.{place.key}"
    if machine.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment
