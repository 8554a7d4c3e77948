"""A worker's environment: torchrun's variables of its replica group, and ftrun's own.

docs/WORKER_ENVIRONMENT.md has them all. The token is in none of them (X4). Not here: the spawner's
own environment (launch.py).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ftrun.agent.devices import Machine
from ftrun.agent.env_markers import OWNER_NAME
from ftrun.agent.file_timer import FILE_VARIABLE
from ftrun.agent.setup import AgentSetup
from ftrun.base.addresses import interface_of
from ftrun.config.forms import injection, sees_gpus, why_no_memory_snapshots
from ftrun.config.settings import RunSettings
from ftrun.config.starting import starts_fresh
from ftrun.core.forms import AUTO, Form
from ftrun.core.ids import WorkerKey

SIGNALS_HANDLED = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""What torchrun handles by default."""
LIGHTHOUSE = "TORCHFT_LIGHTHOUSE"
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
NCCL_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


@dataclass(frozen=True, slots=True)
class Place:
    """One worker's part of the environment.

    ``master_port``: of its replica group's store; ``world_port``: of that of all replicas.
    ``timer_file``: the pipe for its timers; "": none.
    """

    key: WorkerKey
    restarts: int
    master_port: int
    devices: tuple[str, ...]
    lighthouse: str
    error_file: str = ""
    timer_file: str = ""
    world_port: int = 0


def spawner_configuration(setup: AgentSetup, *, waits: bool = False) -> dict[str, Any]:
    """The configuration of a spawner, which process.py sends once.

    ``eager``: import what torch imports late before the first worker is forked, because there is
    time while the node waits. ``late``: import that at all; workers that are separate interpreters
    do not use it. ``heal_tls``: workers will make certificates.
    """
    settings = setup.settings
    return {
        "token": setup.token,
        "host": setup.machine.host,
        "preload": list(settings.preload),
        "eager": waits or settings.script.trains_in_parallel(),
        "late": not starts_fresh(settings, os.environ),
        "heal_tls": bool(settings.tls),
        "runtime_dir": str(setup.runtime_dir),
    }


def threads_per_worker(settings: RunSettings, machine: Machine) -> int:
    """The user's OMP_NUM_THREADS, or the node's cores divided among the workers.

    A command with torchrun's options gets what torchrun sets: one thread if there are several
    workers. A worker that is bound to CPUs has no more threads than CPUs.
    """
    if machine.threads_wished is not None:
        return machine.threads_wished
    workers = max(1, machine.capacity * len(settings.ranks_here))
    if settings.as_torchrun and workers > 1:
        return 1
    bound = [len(binding.cpus) for binding in machine.bindings]
    return max(1, min(machine.cores // workers, *bound, machine.cores))


def worker_environment(
    settings: RunSettings, machine: Machine, place: Place, threads: int, injected: str = ""
) -> dict[str, str]:
    """The variables of one worker, in addition to ftrun's own environment.

    ``injected``: see config/forms.py; "": from the settings.
    """
    injected = injected or injection(settings)
    rank, world = str(place.key.group_rank), str(settings.workers_per_replica)
    span, here = settings.span, settings.ranks_here
    own = place.key.group_rank - here.start
    environment = {
        "RANK": rank,
        "LOCAL_RANK": "0" if settings.virtual_local_rank else str(own),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(len(here)),
        "GROUP_RANK": str(span.number if span is not None else 0),
        "GROUP_WORLD_SIZE": str(span.nodes if span is not None else 1),
        "ROLE_NAME": settings.role,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": (
            span.master_addr
            if span is not None
            else settings.master_addr or settings.local_addr or machine.host
        ),
        "MASTER_PORT": str(place.master_port),
        # The group's store is open already, so no worker must serve it.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(place.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(settings.max_restarts),
        "TORCHELASTIC_RUN_ID": settings.job_id,
        "TORCHELASTIC_ERROR_FILE": place.error_file,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": settings.signals_to_handle or SIGNALS_HANDLED,
        "REPLICA_GROUP_ID": place.key.replica_id,
        "NUM_REPLICA_GROUPS": str(settings.replicas),
        LIGHTHOUSE: f"http://{place.lighthouse}",
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
    is_alone = settings.lighthouse is None and span is None
    interface = "" if is_alone else interface_of(machine.host)
    if interface and GLOO_INTERFACE not in os.environ:
        # The script's own groups would resolve the host's name, often to a loopback address.
        environment[GLOO_INTERFACE] = interface
    if injected in (AUTO, Form.DDP.value):
        environment.update(_one_world(settings, machine, place))
    if settings.torchft == "real" and LIGHTHOUSE in os.environ:
        environment[LIGHTHOUSE] = os.environ[LIGHTHOUSE]  # ftrun's does not speak its protocol
    if settings.as_torchrun:
        # Replica groups abort their own NCCL groups, so there the variable is left to the user.
        environment[NCCL_HANDLING] = os.environ.get(NCCL_HANDLING, "1")
    if sees_gpus(settings) and not why_no_memory_snapshots(settings):
        environment[NCCL_HANDLING] = "0"  # else torch's watchdog would end waiting workers
    if place.timer_file:
        environment[FILE_VARIABLE] = place.timer_file
    if place.devices:
        devices = place.devices[own : own + 1] if settings.virtual_local_rank else place.devices
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    if len(set(machine.devices)) < len(machine.devices):
        # A device listed twice is shared, which NCCL refuses unless the ranks seem on two hosts.
        environment["NCCL_HOSTID"] = f"{settings.job_id}.{place.key}"
    if settings.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    elif injected in (AUTO, Form.DDP.value) and not settings.virtual_local_rank:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(machine.devices))
    return environment


def _one_world(settings: RunSettings, machine: Machine, place: Place) -> dict[str, str]:
    """The variables of an unmodified script, which sees the workers of all replicas as one world.

    Ranks follow the slots. ``LOCAL_RANK`` is the place on this node, because many scripts write
    their files if it is 0.
    """
    workers, span = settings.workers_per_replica, settings.span
    replica = int(place.key.replica_id)
    rank = replica * workers + place.key.group_rank
    world = settings.replicas * workers
    slot = place.key.group_rank - settings.ranks_here.start
    here = max(1, min(machine.capacity * len(settings.ranks_here), world))
    known = list(dict.fromkeys(machine.devices))
    at = rank % here if span is None else slot
    own = known.index(place.devices[slot]) if place.devices else at
    nodes = {}
    if span is not None:
        nodes = {
            "GROUP_RANK": str(replica * span.nodes + span.number),
            "GROUP_WORLD_SIZE": str(settings.replicas * span.nodes),
        }
    return {
        **nodes,
        "RANK": str(rank),
        "MASTER_PORT": str(place.world_port or place.master_port),
        "ROLE_RANK": str(rank),
        "LOCAL_RANK": "0" if settings.virtual_local_rank else str(own),
        "WORLD_SIZE": str(world),
        "ROLE_WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(here),
    }
