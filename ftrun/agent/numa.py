"""``--numa-binding``: the CPUs on which each worker of this node runs.

| node          all CPUs of the worker's NUMA node
| socket        all CPUs of all NUMA nodes on the same socket
| exclusive     cores of the node that no other worker has, with all threads of each core
| core-complex  the CPUs of the node that share one last-level cache; each worker gets another cache
|     while there are enough

A worker's node is the node of its GPU. Workers without a GPU are spread evenly over the nodes, and
neighbours share a node. Only CPUs that ftrun itself may use count. If the kernel shows no NUMA
nodes, the machine counts as one node with all CPUs.

All facts are read from /sys, /dev and /proc, without torch and without CUDA. Not here: binding a
process (affinity.py).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftrun.base.errors import UserError

SYS = Path("/sys")
DEV = Path("/dev")
GPUS = Path("/proc/driver/nvidia/gpus")
NODE, SOCKET, EXCLUSIVE, CORE_COMPLEX = "node", "socket", "exclusive", "core-complex"
_NODE_DIRECTORY = re.compile(r"node(\d+)")
_DATA_CACHES = ("Data", "Unified")


@dataclass(frozen=True, slots=True)
class Binding:
    """One worker's CPUs.

    ``memory_node``: the NUMA node for its memory; -1: the node that uses it.
    """

    cpus: tuple[int, ...]
    memory_node: int = -1

    def words(self) -> str:
        """The CPUs as ranges, and the node."""
        on = f", memory of node {self.memory_node}" if self.memory_node >= 0 else ""
        return f"CPUs {ranges(self.cpus)}{on}"


@dataclass(frozen=True, slots=True)
class Topology:
    """The CPUs of the machine that this process may use.

    ``nodes``: the CPUs of each NUMA node, perhaps none. ``sockets``: the socket of each CPU.
    ``cores``, ``caches``: the lowest CPU of those on the same physical core, and of those that
    share its last-level cache. A CPU for which the machine does not show a fact is missing there.
    """

    nodes: Mapping[int, frozenset[int]]
    sockets: Mapping[int, int]
    cores: Mapping[int, int]
    caches: Mapping[int, int]


def bind_workers(kind: str, topology: Topology, worker_nodes: Sequence[int]) -> tuple[Binding, ...]:
    """Each worker's binding. ``worker_nodes``: each worker's NUMA node.

    Raises:
        UserError: a node has no CPU for its workers, or the machine does not show what ``kind``
            needs.
    """
    sharers, before = Counter(worker_nodes), Counter[int]()
    found = []
    for node in worker_nodes:
        if not topology.nodes.get(node):
            raise _refusal(
                kind,
                f"none of the CPUs of NUMA node {node} may be used by this process",
                "Widen its CPU set (taskset, cgroup), or leave the option out",
            )
        cpus = _cpus(kind, topology, node, before[node], sharers[node])
        before[node] += 1
        is_within = cpus <= topology.nodes[node] and len(topology.nodes) > 1
        found.append(Binding(tuple(sorted(cpus)), node if is_within else -1))
    return tuple(found)


def spread(workers: int, topology: Topology) -> list[int]:
    """The node of each worker, if none has a GPU: one of the nodes that have usable CPUs."""
    nodes = sorted(node for node, cpus in topology.nodes.items() if cpus)
    return [nodes[worker * len(nodes) // workers] for worker in range(workers)]


def _cpus(kind: str, topology: Topology, node: int, place: int, sharers: int) -> frozenset[int]:
    """The CPUs of the ``place``-th of ``sharers`` workers on this node."""
    own = topology.nodes[node]
    if kind == NODE:
        return own
    if kind == SOCKET:
        return _of_socket(topology, node)
    if kind == EXCLUSIVE:
        return _share(list(_groups(kind, own, topology.cores).values()), node, place, sharers)
    complexes = list(_groups(kind, own, topology.caches).values())
    complexes.sort(key=lambda cpus: (-len(cpus), min(cpus)))
    return complexes[place % len(complexes)]


def _of_socket(topology: Topology, node: int) -> frozenset[int]:
    same = [cpus for cpus in topology.nodes.values() if cpus]
    sockets = [topology.sockets.get(min(cpus)) for cpus in same]
    if None in sockets:
        raise _refusal(
            SOCKET,
            "this machine does not show which CPUs are on one socket",
            "Use --numa-binding node, or leave the option out",
        )
    own = topology.sockets[min(topology.nodes[node])]
    of_own = [cpus for cpus, socket in zip(same, sockets, strict=True) if socket == own]
    return frozenset[int]().union(*of_own)


def _groups(
    kind: str, cpus: frozenset[int], lowest: Mapping[int, int]
) -> dict[int, frozenset[int]]:
    """CPUs grouped by the core or cache that they share, in ascending order."""
    missing = sorted(cpus - lowest.keys())
    if missing:
        what = "cores" if kind == EXCLUSIVE else "caches"
        raise _refusal(
            kind,
            f"this machine does not show the {what} of CPU {missing[0]}",
            "Use --numa-binding node, or leave the option out",
        )
    groups: defaultdict[int, set[int]] = defaultdict(set)
    for cpu in cpus:
        groups[lowest[cpu]].add(cpu)
    return {key: frozenset(groups[key]) for key in sorted(groups)}


def _share(cores: Sequence[frozenset[int]], node: int, place: int, sharers: int) -> frozenset[int]:
    """Neighbouring cores, evenly divided; the first workers get one of the rest."""
    each, extra = divmod(len(cores), sharers)
    if not each:
        raise _refusal(
            EXCLUSIVE,
            f"NUMA node {node} has {len(cores)} cores for this process and {sharers} workers",
            "Start fewer workers here, or use --numa-binding node",
        )
    start = place * each + min(place, extra)
    return frozenset[int]().union(*cores[start : start + each + (place < extra)])


def _refusal(kind: str, what: str, remedy: str) -> UserError:
    return UserError(f"--numa-binding {kind}: {what}. Nothing was started. {remedy}.")


# ---------------------------------------------------------------- reading the machine


def read_topology(kind: str, allowed: Iterable[int], sys: Path = SYS) -> Topology:
    """The machine's topology from its /sys. ``allowed``: the CPUs that this process may use.

    Raises:
        UserError: /sys shows no CPUs.
    """
    usable = frozenset(allowed)
    directory = sys / "devices/system"
    if not (directory / "cpu").is_dir():
        raise _refusal(kind, f"{directory} shows no CPUs", "Mount /sys, or leave the option out")
    sockets, cores, caches = {}, {}, {}
    for cpu in usable:
        own = directory / f"cpu/cpu{cpu}"
        socket = _read(own / "topology/physical_package_id")
        siblings = parse_ranges(_read(own / "topology/thread_siblings_list"))
        sharers = _cache_sharers(own / "cache")
        if socket.isdecimal():
            sockets[cpu] = int(socket)
        if siblings:
            cores[cpu] = min(siblings)
        if sharers:
            caches[cpu] = min(sharers)
    return Topology(_read_nodes(directory / "node", usable), sockets, cores, caches)


def _read_nodes(directory: Path, usable: frozenset[int]) -> dict[int, frozenset[int]]:
    nodes = {}
    for path in directory.glob("node*"):
        name = _NODE_DIRECTORY.fullmatch(path.name)
        cpus = parse_ranges(_read(path / "cpulist"))
        if name is not None and cpus:  # a node may have memory only
            nodes[int(name[1])] = usable & cpus
    return nodes if nodes else {0: usable}


def _cache_sharers(directory: Path) -> frozenset[int]:
    """The CPUs that share the largest data cache."""
    found: dict[int, frozenset[int]] = {}
    for path in directory.glob("index*"):
        level = _read(path / "level")
        if level.isdecimal() and _read(path / "type") in _DATA_CACHES:
            found[int(level)] = parse_ranges(_read(path / "shared_cpu_list"))
    return found[max(found)] if found else frozenset()


def gpu_nodes(
    kind: str,
    devices: Sequence[str],
    order: str,
    *,
    sys: Path = SYS,
    gpus: Path = GPUS,
    dev: Path = DEV,
) -> list[int]:
    """The NUMA node of each device, by the numbers and names of CUDA_VISIBLE_DEVICES.

    ``order``: CUDA_DEVICE_ORDER. Without it CUDA numbers the fastest GPU first, so numbers identify
    no GPU if the GPUs are of several models and on several nodes.

    Raises:
        UserError: the node of a device cannot be determined.
    """
    found = []
    for address in sorted(path.name for path in gpus.glob("*:*")):
        facts = _gpu_facts(gpus / address / "information")
        minor = facts.get("Device Minor", "")
        if not minor or (dev / f"nvidia{minor}").exists():  # a container may show only some
            node = _node_of(sys / "bus/pci/devices" / address / "numa_node")
            found.append((facts.get("GPU UUID", ""), facts.get("Model", ""), node))
    nodes = {node for _, _, node in found}
    if len(nodes) == 1:
        return [*nodes] * len(devices)
    numbers_hold = len({model for _, model, _ in found}) == 1 or order == "PCI_BUS_ID"
    return [_device_node(kind, device, found, numbers_hold) for device in devices]


def _device_node(
    kind: str, device: str, gpus: Sequence[tuple[str, str, int]], numbers_hold: bool
) -> int:
    """One device's node; ``gpus``: UUID, model and node of each, in the order of the bus."""
    if device.isdecimal() and int(device) < len(gpus) and numbers_hold:
        return gpus[int(device)][2]
    named = [node for uuid, _, node in gpus if uuid.startswith(device)]
    if device.startswith("GPU-") and len(named) == 1:
        return named[0]
    raise _refusal(
        kind,
        f"the NUMA node of CUDA device {device} cannot be found in {GPUS}",
        "Set CUDA_DEVICE_ORDER=PCI_BUS_ID, name the GPUs by UUID in CUDA_VISIBLE_DEVICES, or leave "
        "the option out",
    )


def _gpu_facts(path: Path) -> dict[str, str]:
    rows = (line.partition(":") for line in _read(path).splitlines())
    return {name.strip(): value.strip() for name, _, value in rows}


def _node_of(path: Path) -> int:
    """A PCI device's node. A machine with one node often writes -1."""
    text = _read(path)
    return int(text) if text.isdecimal() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def parse_ranges(text: str) -> frozenset[int]:
    """Parse ``0-2,4``, the kernel's notation for sets of CPUs; an empty set for any other text."""
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            return frozenset()
        found.update(range(int(low), int(high if dash else low) + 1))
    return frozenset(found)


def ranges(numbers: Iterable[int]) -> str:
    """Format numbers as ``parse_ranges`` reads them."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(str(end) for end in part) for part in parts)
