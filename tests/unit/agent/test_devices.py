"""A node's devices, and each slot's share of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftrun.agent import devices, numa
from ftrun.agent.devices import (
    DeviceSlices,
    check_own_address,
    cuda_devices,
    inspect_machine,
    own_address,
)
from ftrun.agent.numa import Topology
from ftrun.base.errors import UserError
from tests.unit.run_settings import run_settings

SETTINGS = run_settings(replicas=2, device="cuda")


def machine_of(visible: str, **changes: object) -> object:
    settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    return inspect_machine(settings, {"CUDA_VISIBLE_DEVICES": visible})


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        ("", ()),
        ("0,1", ("0", "1")),
        ("GPU-a, GPU-b", ("GPU-a", "GPU-b")),
        ("3,-1,2", ("3",)),
    ],
)
def test_visible_devices_are_what_the_driver_would_show(
    visible: str, devices: tuple[str, ...]
) -> None:
    assert cuda_devices({"CUDA_VISIBLE_DEVICES": visible}) == devices


def test_a_node_without_cuda_is_told_before_anything_starts() -> None:
    with pytest.raises(UserError, match="shows no CUDA device"):
        machine_of("")


def test_workers_must_divide_the_devices() -> None:
    with pytest.raises(UserError, match="3 does not divide the 4 CUDA devices"):
        machine_of("0,1,2,3", workers_per_replica=3)


def test_more_groups_than_fit_are_refused_on_a_single_node() -> None:
    with pytest.raises(UserError, match="need 6 CUDA devices and this node has 4"):
        machine_of("0,1,2,3", workers_per_replica=2, replicas=3)


def test_among_several_nodes_the_rest_runs_elsewhere() -> None:
    machine = inspect_machine(
        replace(SETTINGS, replicas=8, workers_per_replica=2, lighthouse="127.0.0.1:1"),
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3"},
    )
    assert machine.capacity == 2
    assert machine.device == "cuda"


def test_on_cpu_everything_fits() -> None:
    machine = inspect_machine(replace(SETTINGS, device="cpu"), {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert (machine.device, machine.devices, machine.capacity) == ("cpu", (), 2)


@pytest.mark.parametrize(("text", "wished"), [("", None), ("4", 4), ("0", None), ("4,2", None)])
def test_the_users_thread_count_is_taken_if_it_is_one(text: str, wished: int | None) -> None:
    settings = replace(SETTINGS, device="cpu")
    assert inspect_machine(settings, {"OMP_NUM_THREADS": text}).threads_wished == wished


def test_a_slot_keeps_its_devices_and_a_free_part_is_given_again() -> None:
    slices = DeviceSlices(("a", "b", "c", "d"), range(2))
    assert slices.take("5") == ("a", "b")
    assert slices.take("7") == ("c", "d")
    assert slices.take("5") == ("a", "b")
    slices.keep_only(("7",))
    assert slices.take("9") == ("a", "b")
    assert slices.take("7") == ("c", "d")


def test_the_own_address_is_the_one_that_routes_to_the_lighthouse() -> None:
    assert own_address(None) == "127.0.0.1"
    assert own_address("127.0.0.1:29510") == "127.0.0.1"
    with pytest.raises(UserError, match="is not known"):
        own_address("no-such-host.invalid:29510")


def test_several_nodes_do_not_meet_at_a_name_of_this_machine_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert own_address("localhost:29510") in ("127.0.0.1", "::1")
    assert own_address("127.0.0.1:29510", nodes=2) == "127.0.0.1"
    monkeypatch.setattr(devices, "address_towards", lambda hosts: "10.0.0.7")
    assert own_address("localhost:29510", nodes=2) == "10.0.0.7"
    monkeypatch.setattr(devices, "address_towards", lambda hosts: None)
    with pytest.raises(UserError, match=r"--nodes is 2, .*--lighthouse 127\.0\.0\.1:29510"):
        own_address("localhost:29510", nodes=2)


def test_an_address_is_tried_before_processes_are_to_meet_there() -> None:
    check_own_address("127.0.0.1")
    with pytest.raises(UserError, match=r"cannot reach itself at 192\.0\.2\.1 .* firewall"):
        check_own_address("192.0.2.1")  # for documentation: no interface has it


def test_each_slot_has_the_binding_of_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = Topology({0: frozenset({0, 1}), 1: frozenset({2, 3})}, {}, {}, {})
    monkeypatch.setattr(numa, "read_topology", lambda kind, allowed: topology)
    settings = run_settings(replicas=2, workers_per_replica=2, numa_binding="node", device="cpu")
    machine = inspect_machine(settings, {})
    assert [binding.cpus for binding in machine.bindings] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    slices = DeviceSlices((), range(2))
    for slot in ("5", "3"):
        slices.take(slot)
    assert slices.binding("3", 1, machine) == machine.bindings[3]
    assert slices.binding("5", 0, machine) == machine.bindings[0]
    assert slices.binding("5", 0, replace(machine, bindings=())) is None


def test_the_interface_that_is_stated_counts_where_other_nodes_are() -> None:
    alone = replace(SETTINGS, device="cpu", interface="no-such-interface")
    assert inspect_machine(alone, {}).host == "127.0.0.1"
    several = replace(alone, lighthouse="no-such-host.invalid:1", interface="127.0.0.0/8")
    assert inspect_machine(several, {}).host == "127.0.0.1"
