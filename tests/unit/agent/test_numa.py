"""Bindings on invented machines: two sockets, two threads a core, GPUs, restricted CPU sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.agent import numa
from ftrun.agent.numa import Binding, bind_workers, gpu_nodes, parse_ranges, ranges, read_topology
from ftrun.base.errors import UserError


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def machine(root: Path, *, nodes_per_socket: int = 1, cores: int = 4, complexes: int = 2) -> Path:
    """A tree like /sys: two sockets, two threads a core, thread 1 of core c is CPU c + half."""
    nodes = 2 * nodes_per_socket
    half = nodes * cores
    system = root / "devices/system"
    for node in range(nodes):
        first = node * cores
        low, high = f"{first}-{first + cores - 1}", f"{half + first}-{half + first + cores - 1}"
        write(system / f"node/node{node}/cpulist", f"{low},{high}")
    write(system / f"node/node{nodes}/cpulist", "")  # memory only
    write(system / "node/has_cpu", f"0-{nodes - 1}")
    size = cores // complexes
    for cpu in range(2 * half):
        core = cpu % half
        own = system / f"cpu/cpu{cpu}"
        write(own / "topology/physical_package_id", core // cores // nodes_per_socket)
        write(own / "topology/thread_siblings_list", f"{core},{core + half}")
        start = core - core % size
        shared = f"{start}-{start + size - 1},{start + half}-{start + half + size - 1}"
        for index, (level, kind, cpus) in enumerate(
            ((1, "Data", core), (1, "Instruction", core), (3, "Unified", shared))
        ):
            write(own / f"cache/index{index}/level", level)
            write(own / f"cache/index{index}/type", kind)
            write(own / f"cache/index{index}/shared_cpu_list", cpus)
    return root


def gpus(root: Path, nodes: list[int], models: list[str] | None = None) -> dict[str, Path]:
    """Directories like those of NVIDIA's driver, one GPU on each of ``nodes``."""
    for at, node in enumerate(nodes):
        address = f"0000:{at + 10:02x}:00.0"
        write(root / "sys/bus/pci/devices" / address / "numa_node", node)
        model = models[at] if models else "H100"
        facts = f"Model: \t\t {model}\nGPU UUID: \t GPU-{at}{at}-x\nDevice Minor: \t {at}"
        write(root / "gpus" / address / "information", facts)
        write(root / f"dev/nvidia{at}", "")
    return {"sys": root / "sys", "gpus": root / "gpus", "dev": root / "dev"}


def cpus(kind: str, root: Path, worker_nodes: list[int], allowed: str = "0-63") -> list[str]:
    topology = read_topology(kind, parse_ranges(allowed), root)
    return [ranges(found.cpus) for found in bind_workers(kind, topology, worker_nodes)]


def test_each_kind_binds_as_it_is_described(tmp_path: Path) -> None:
    root = machine(tmp_path)  # node 0: 0-3 and 8-11; node 1: 4-7 and 12-15
    assert cpus("node", root, [0, 1, 1], "0-15") == ["0-3,8-11", "4-7,12-15", "4-7,12-15"]
    assert cpus("socket", root, [0, 1], "0-15") == ["0-3,8-11", "4-7,12-15"]
    shares = ["4-5,12-13", "6,14", "7,15"]  # four cores for three: the first has one more
    assert cpus("exclusive", root, [1, 0, 1, 1], "0-15") == [shares[0], "0-3,8-11", *shares[1:]]
    complexes = ["0-1,8-9", "2-3,10-11", "0-1,8-9"]
    assert cpus("core-complex", root, [0, 0, 0], "0-15") == complexes


def test_a_socket_may_have_several_nodes(tmp_path: Path) -> None:
    root = machine(tmp_path, nodes_per_socket=2)
    assert cpus("socket", root, [0, 3], "0-31") == ["0-7,16-23", "8-15,24-31"]
    topology = read_topology("socket", range(32), root)
    (binding,) = bind_workers("socket", topology, [0])
    assert binding.memory_node == -1  # the memory of both nodes is as near
    (binding,) = bind_workers("node", topology, [2])
    assert binding.memory_node == 2
    assert binding.words() == "CPUs 8-11,24-27, memory of node 2"


def test_only_the_cpus_that_ftrun_may_use_count(tmp_path: Path) -> None:
    root = machine(tmp_path)
    assert cpus("node", root, [0], "1,9,4-7") == ["1,9"]
    assert cpus("exclusive", root, [0, 0], "0-2") == ["0-1", "2"]
    # The complex with more CPUs left goes first.
    assert cpus("core-complex", root, [0, 0], "0,2-3") == ["2-3", "0"]
    with pytest.raises(UserError, match=r"none of the CPUs of NUMA node 1 .* Nothing was started"):
        cpus("node", root, [1], "0-3")


def test_too_few_cores_and_what_is_not_shown_are_refused(tmp_path: Path) -> None:
    root = machine(tmp_path)
    with pytest.raises(UserError, match=r"node 0 has 4 cores for this process and 5 workers"):
        cpus("exclusive", root, [0] * 5, "0-15")
    (root / "devices/system/cpu/cpu3/topology/thread_siblings_list").unlink()
    (root / "devices/system/cpu/cpu0/topology/physical_package_id").unlink()
    (root / "devices/system/cpu/cpu0/cache/index2/type").write_text("Instruction\n")
    (root / "devices/system/cpu/cpu0/cache/index0/type").write_text("Instruction\n")
    for kind, what in (
        ("exclusive", "the cores of CPU 3"),
        ("core-complex", "the caches of CPU 0"),
        ("socket", "which CPUs are on one socket"),
    ):
        with pytest.raises(UserError, match=f"--numa-binding {kind}: this machine .*{what}"):
            cpus(kind, root, [0], "0-15")
    assert cpus("node", root, [0], "0-15") == ["0-3,8-11"]
    with pytest.raises(UserError, match="shows no CPUs"):
        read_topology("node", [0], tmp_path / "nothing")


def test_a_kernel_without_nodes_has_one(tmp_path: Path) -> None:
    write(tmp_path / "devices/system/cpu/cpu0/topology/physical_package_id", 0)
    topology = read_topology("node", [0, 1], tmp_path)
    assert bind_workers("node", topology, [0]) == (Binding((0, 1), -1),)


def test_workers_without_gpus_are_spread_in_blocks(tmp_path: Path) -> None:
    topology = read_topology("node", range(16), machine(tmp_path))
    assert numa.spread(4, topology) == [0, 0, 1, 1]
    assert numa.spread(3, topology) == [0, 0, 1]
    assert numa.spread(1, topology) == [0]
    restricted = read_topology("node", range(4, 8), tmp_path)
    assert numa.spread(2, restricted) == [1, 1]


def test_a_gpus_node_is_its_place_on_the_bus(tmp_path: Path) -> None:
    where = gpus(tmp_path, [0, 0, 1, 1])
    assert gpu_nodes("node", ["0", "3", "2"], "", **where) == [0, 1, 1]
    assert gpu_nodes("node", ["GPU-22-x", "GPU-1"], "", **where) == [1, 0]
    with pytest.raises(UserError, match="CUDA device MIG-7 cannot be found"):
        gpu_nodes("node", ["MIG-7"], "", **where)
    with pytest.raises(UserError, match="CUDA device 4 cannot be found"):
        gpu_nodes("node", ["4"], "", **where)
    (tmp_path / "dev/nvidia0").unlink()  # a container that has the other three
    assert gpu_nodes("node", ["0", "1"], "", **where) == [0, 1]


def test_numbers_of_unlike_gpus_need_the_order_of_the_bus(tmp_path: Path) -> None:
    where = gpus(tmp_path, [0, 1], ["A", "B"])
    with pytest.raises(UserError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        gpu_nodes("node", ["0"], "", **where)
    assert gpu_nodes("node", ["1", "0"], "PCI_BUS_ID", **where) == [1, 0]
    assert gpu_nodes("node", ["GPU-11-x"], "", **where) == [1]


def test_on_one_node_any_device_will_do(tmp_path: Path) -> None:
    where = gpus(tmp_path, [-1, -1], ["A", "B"])
    assert gpu_nodes("node", ["1", "MIG-7"], "", **where) == [0, 0]


@pytest.mark.parametrize("text", ["", "x", "1-", "-2", "1,,2"])
def test_what_is_no_range_is_nothing(text: str) -> None:
    assert parse_ranges(text) == frozenset()


def test_ranges_there_and_back() -> None:
    assert sorted(parse_ranges("0-2,4,6-7")) == [0, 1, 2, 4, 6, 7]
    assert ranges([7, 0, 1, 2, 4, 6]) == "0-2,4,6-7"
    assert ranges([]) == ""
