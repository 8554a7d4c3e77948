"""This node's cores, CUDA devices and address, found without torch and without CUDA.

Not here: which slots run on this node, and for how long (DeviceSlices only counts).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ftrun.agent import numa
from ftrun.agent.numa import Binding
from ftrun.base.addresses import (
    address_towards,
    interface_address,
    is_loopback,
    is_loopback_name,
    parse_address,
)
from ftrun.base.errors import UserError
from ftrun.config.settings import RunSettings

MEET_TIMEOUT_S = 5.0
_NVIDIA_DEVICE = re.compile(r"nvidia\d+")


@dataclass(frozen=True, slots=True)
class Machine:
    """The node as the job sees it. ``devices``: CUDA ids or UUIDs, empty on cpu.

    ``threads_wished``: OMP_NUM_THREADS of ftrun's own environment, if it is set. ``bindings``: the
    CPUs of each worker, by its place on the node; none if the workers are not bound.
    """

    device: str
    devices: tuple[str, ...]
    cores: int
    host: str
    capacity: int
    threads_wished: int | None = None
    bindings: tuple[Binding, ...] = ()


def inspect_machine(settings: RunSettings, environ: Mapping[str, str]) -> Machine:
    """Resolve ``--device`` and count the replica groups that fit.

    Raises:
        UserError: ``--device cuda`` without a CUDA device, or W does not divide their number.
    """
    if settings.workers_per_node is not None:  # it has a part of one group
        settings = replace(settings, workers_per_replica=settings.workers_per_node, replicas=1)
    devices = () if settings.device == "cpu" else cuda_devices(environ)
    if settings.device == "cuda" and not devices:
        raise UserError(
            "--device cuda: this node shows no CUDA device (CUDA_VISIBLE_DEVICES is "
            f"{environ.get('CUDA_VISIBLE_DEVICES', 'not set')!r}). Use --device cpu, or auto."
        )
    if settings.device == "auto" and not _torch_has_cuda():
        devices = ()
    capacity = _capacity(settings, devices) if devices else settings.replicas
    return Machine(
        device="cuda" if devices else "cpu",
        devices=devices,
        cores=len(os.sched_getaffinity(0)),
        host=_meeting_address(settings) or _host(settings),
        capacity=capacity,
        threads_wished=_wished(environ.get("OMP_NUM_THREADS", "")),
        bindings=_bindings(settings, devices, capacity, environ),
    )


def _bindings(
    settings: RunSettings, devices: tuple[str, ...], capacity: int, environ: Mapping[str, str]
) -> tuple[Binding, ...]:
    kind = settings.numa_binding
    if kind is None:
        return ()
    topology = numa.read_topology(kind, os.sched_getaffinity(0))
    if len(topology.nodes) == 1:
        nodes = [*topology.nodes] * max(len(devices), capacity * settings.workers_per_replica)
    elif devices:
        nodes = numa.gpu_nodes(kind, devices, environ.get("CUDA_DEVICE_ORDER", ""))
    else:
        nodes = numa.spread(capacity * settings.workers_per_replica, topology)
    return numa.bind_workers(kind, topology, nodes)


def _wished(text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _capacity(settings: RunSettings, devices: tuple[str, ...]) -> int:
    workers = settings.workers_per_replica
    if len(devices) % workers != 0:
        raise UserError(
            f"--workers-per-replica {workers} does not divide the {len(devices)} CUDA devices of "
            "this node. Give a divisor, or narrow CUDA_VISIBLE_DEVICES."
        )
    capacity = len(devices) // workers
    if settings.lighthouse is None and settings.replicas > capacity:
        raise UserError(
            f"--replicas {settings.replicas} x {workers} workers need "
            f"{settings.replicas * workers} CUDA devices and this node has {len(devices)}. "
            f"Give --replicas {capacity}, or --device cpu."
        )
    return min(capacity, settings.replicas)


def cuda_devices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The devices that a CUDA program started here would see."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        # As in the driver, the list ends at the first invalid entry, "-1" by custom.
        valid = names[: names.index("-1")] if "-1" in names else names
        return tuple(name for name in valid if name)
    try:
        found = [name for name in os.listdir("/dev") if _NVIDIA_DEVICE.fullmatch(name)]
    except OSError:
        found = []
    return tuple(str(index) for index in range(len(found)))


def gpu_count(environ: Mapping[str, str]) -> int:
    """How many GPUs a program that is started here can use."""
    return len(cuda_devices(environ)) if _torch_has_cuda() else 0


def _torch_has_cuda() -> bool:
    try:
        return not importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return False


def _host(settings: RunSettings) -> str:
    """The address at which other nodes reach this one; loopback if there are none."""
    if settings.interface and settings.lighthouse is not None:
        return interface_address(settings.interface)
    return own_address(settings.lighthouse, settings.nodes)


def _meeting_address(settings: RunSettings) -> str | None:
    """The numeric address of ``--master-addr`` or ``--local-addr``, which must be this node's.

    Raises:
        UserError: the name is not known, or names another machine.
    """
    name = settings.master_addr or settings.local_addr
    if name is None:
        return None
    flag = "--master-addr" if settings.master_addr else "--local-addr"
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UserError(
            f"{flag} {name}: the host name is not known ({error.strerror}). Nothing was started."
        ) from None
    for family in (socket.AF_INET, socket.AF_INET6):
        for address in (str(one[4][0]) for one in found if one[0] == family):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.bind((address, 0))
                return address
    raise UserError(
        f"{flag} {name} is not an address of this node, and this job has one node. Nothing was "
        "started. Leave it out, or give --nnodes or --lighthouse for several nodes."
    )


def check_master_port(host: str, port: int) -> None:
    """Check that the group's store can listen at ``--master-port``.

    Raises:
        UserError: the port is taken, or may not be used. The text names the process, if it is
        visible.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise UserError(
            f"port {port} of {host} cannot be used ({error.strerror}{_holder(port)}). Nothing was "
            "started. Give another --master-port, or none: then ftrun takes a free one."
        ) from None


def _holder(port: int) -> str:
    """The process that listens at a port, if it is visible to this user."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for row in psutil.net_connections("tcp"):
            if row.laddr and row.laddr.port == port and row.status == "LISTEN" and row.pid:
                return f"; {psutil.Process(row.pid).name()}, pid {row.pid}, listens there"
    return ""


def own_address(lighthouse: str | None, nodes: int = 1) -> str:
    """The numeric address on which other nodes reach this one.

    It is the address of the interface that routes to the lighthouse; a host name may resolve to
    another. If there are several nodes and the lighthouse's name means this machine alone, because
    it runs here, it is the address of the interface that leads to other machines.

    Raises:
        UserError: the lighthouse's name is not known; or it means this machine alone, there are
            several nodes, and no interface leads to other machines.
    """
    if lighthouse is None:
        return "127.0.0.1"
    host, port = parse_address(lighthouse.partition(",")[0], "--lighthouse")
    if nodes > 1 and is_loopback_name(host):
        elsewhere = address_towards([host])
        if elsewhere is not None:
            return elsewhere
        raise UserError(
            f"--lighthouse {lighthouse}: on this machine that name is an address of the loopback "
            f"interface, --nodes is {nodes}, and no interface is the one to other nodes. Nothing "
            "was started. State it (--interface NAME), or correct the name in /etc/hosts; for "
            f"agents on this one machine: --lighthouse 127.0.0.1:{port}."
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        raise UserError(
            f"--lighthouse {lighthouse}: the host name {host!r} is not known ({error.strerror})."
        ) from None
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address)  # A datagram socket: nothing is sent.
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def check_own_address(host: str) -> None:
    """Check that processes of this node can connect at ``host``, by one connection.

    Raises:
        UserError: nothing can listen or be reached there. Without this check all workers would just
        wait.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, 0), family=family) as listener:
            socket.create_connection(listener.getsockname()[:2], MEET_TIMEOUT_S).close()
    except OSError as error:
        remedy = (
            "Bring the loopback interface up: ip link set lo up"
            if is_loopback(host)
            else "Check the interface that has this address, and the firewall."
        )
        raise UserError(
            f"This node cannot reach itself at {host} ({error.strerror or error}), where its "
            f"processes are to meet. Nothing was started. {remedy}"
        ) from None


class DeviceSlices:
    """Each slot's devices; a slot keeps them over restarts.

    ``ranks``: the group ranks of a slot's workers on this node.
    """

    def __init__(self, devices: tuple[str, ...], ranks: range) -> None:
        self._devices = devices
        self._workers = len(ranks)
        self._first = ranks.start
        self._places: dict[str, int] = {}

    def take(self, replica_id: str) -> tuple[str, ...]:
        """The devices of a slot, the lowest free ones the first time."""
        if replica_id not in self._places:
            taken = set(self._places.values())
            free = (place for place in range(len(taken) + 1) if place not in taken)
            self._places[replica_id] = next(free)
        start = self._places[replica_id] * self._workers
        return self._devices[start : start + self._workers]

    def device(self, replica_id: str, group_rank: int) -> str | None:
        """The device of one of its workers, "" on a node without; None: the slot has none now."""
        if not self._devices:
            return ""
        place = self._places.get(replica_id)
        at = None if place is None else place * self._workers + group_rank - self._first
        return self._devices[at] if at is not None and at < len(self._devices) else None

    def binding(self, replica_id: str, group_rank: int, machine: Machine) -> Binding | None:
        """The CPUs of one of its workers, once it has its devices; None: it is not bound."""
        if not machine.bindings:
            return None
        place = self._places[replica_id] * self._workers
        return machine.bindings[place + group_rank - self._first]

    def keep_only(self, replica_ids: tuple[str, ...]) -> None:
        self._places = {slot: at for slot, at in self._places.items() if slot in replica_ids}
