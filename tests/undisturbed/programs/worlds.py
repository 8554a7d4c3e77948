"""Ways to make a world, and stores. Each program makes and ends its own world. For two ranks."""

from __future__ import annotations

import itertools
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.undisturbed.table import outcome, program, rank, run, size

LIMIT = timedelta(seconds=90)
FORGOTTEN = itertools.count()
"""The numbers of the worlds that were forgotten."""


def used() -> list[Any]:
    """What the world of now does; it is ended."""
    tensor = torch.tensor([rank() + 1.0])
    dist.all_reduce(tensor)
    objects: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(objects, f"rank {rank()}")
    found = [tensor, objects, dist.get_backend(), dist.get_rank(), dist.get_world_size()]
    dist.barrier()
    dist.destroy_process_group()
    forget()
    return [*found, dist.is_initialized()]


def forget() -> None:
    """Delete what the world that has ended has left in the store.

    torch does not: a rank of the next world would connect to an address of the last one.
    """
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=LIMIT
    )
    if rank() == 0:
        for key in store.list_keys():
            if "default_pg" in key:
                store.delete_key(key)
    number = next(FORGOTTEN)
    store.set(f"forgotten/{number}/{rank()}", "yes")
    store.wait([f"forgotten/{number}/{other}" for other in range(size())])


def address() -> str:
    """Where the ranks meet."""
    return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


@program
def environment() -> Any:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
    return [
        *[os.environ.get(name) for name in names],
        os.environ["MASTER_ADDR"] != "",
        int(os.environ["MASTER_PORT"]) > 0,
        dist.is_torchelastic_launched(),
        "TORCHELASTIC_RUN_ID" in os.environ,
        os.environ.get("TORCHELASTIC_RESTART_COUNT"),
        os.environ.get("TORCHELASTIC_MAX_RESTARTS") is not None,
        os.environ.get("OMP_NUM_THREADS"),
    ]


@program
def before_a_world() -> Any:
    return [
        dist.is_initialized(),
        outcome(dist.get_rank),
        outcome(dist.get_world_size),
        outcome(lambda: dist.all_reduce(torch.ones(1))),
        outcome(dist.barrier),
        outcome(dist.new_group),
        outcome(dist.destroy_process_group),
        dist.get_node_local_rank(),
    ]


@program
def by_the_environment() -> Any:
    dist.init_process_group("gloo")
    return used()


@program
def by_env_as_a_method() -> Any:
    dist.init_process_group("gloo", init_method="env://", timeout=LIMIT)
    return used()


@program
def with_a_rank_and_a_size() -> Any:
    dist.init_process_group("gloo", rank=rank(), world_size=size())
    return used()


@program
def by_an_address() -> Any:
    method = f"tcp://{address()}"
    dist.init_process_group("gloo", init_method=method, rank=rank(), world_size=size())
    return used()


@program
def by_a_store_of_its_own() -> Any:
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=LIMIT
    )
    mine = dist.PrefixStore("mine", store)
    dist.init_process_group("gloo", store=mine, rank=rank(), world_size=size())
    return used()


@program
def by_a_file() -> Any:
    dist.init_process_group("gloo")
    path = [f"{os.environ['TMPDIR']}/meeting-{os.getpid()}"]
    dist.broadcast_object_list(path, 0)
    dist.barrier()
    dist.destroy_process_group()
    forget()
    method = f"file://{path[0]}"
    dist.init_process_group("gloo", init_method=method, rank=rank(), world_size=size())
    return used()


@program
def without_a_backend() -> Any:
    dist.init_process_group()
    return [dist.get_backend_config(), *used()]


@program
def with_a_backend_for_each_device() -> Any:
    dist.init_process_group("cpu:gloo")
    return [dist.get_backend_config(), *used()]


@program
def with_options_by_name() -> Any:
    dist.init_process_group(backend=dist.Backend.GLOO, timeout=LIMIT, group_name="")
    return used()


@program
def mesh_first() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (size(),))
    return [mesh.size(), mesh.get_local_rank(), dist.is_initialized(), *used()]


@program
def twice_at_once() -> Any:
    dist.init_process_group("gloo")
    return [outcome(lambda: dist.init_process_group("gloo")), *used()]


@program
def many_times() -> Any:
    found = []
    for _ in range(3):
        dist.init_process_group("gloo")
        found.append(used()[0])
    return found


@program
def by_wrong_arguments() -> Any:
    return [
        outcome(lambda: dist.init_process_group("nonsense")),
        outcome(
            lambda: dist.init_process_group("gloo", init_method="nonsense://"), has_words=False
        ),
        outcome(lambda: dist.init_process_group("gloo", timeout=5), has_words=False),
        outcome(
            lambda: dist.init_process_group("gloo", init_method="env://", store=dist.HashStore()),
            has_words=False,
        ),
        outcome(lambda: dist.init_process_group("gloo", store=dist.HashStore()), has_words=False),
        dist.is_initialized(),
    ]


@program
def the_store_of_the_job() -> Any:
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=LIMIT
    )
    store.set(f"programs/{rank()}", f"value {rank()}")
    other = store.get(f"programs/{(rank() + 1) % size()}")
    store.add("programs/count", rank() + 1)
    store.wait([f"programs/{at}" for at in range(size())])
    return [other, store.check(["programs/0"]), store.check(["programs/nobody"])]


@program
def the_store_of_the_world() -> Any:
    dist.init_process_group("gloo", timeout=LIMIT)
    store = distributed_c10d._get_default_store()
    store.set(f"at/{rank()}", "here")
    store.wait([f"at/{other}" for other in range(size())])
    total = store.add("count", 2)
    dist.barrier()
    first = store.compare_set("agreed", "", "yes").decode() if rank() == 0 else "yes"
    dist.barrier()
    found = [
        first,
        total > 0,
        store.add("count", 0),
        store.get("agreed"),
        store.check(["agreed", "nobody"]),
        outcome(lambda: store.wait(["nobody"], timedelta(milliseconds=50)), has_words=False),
        store.multi_get(["at/0", "agreed"]),
        isinstance(store, dist.Store),
        type(store).__name__,
        store.timeout,
    ]
    dist.barrier()
    return [*found, *used()]


@program
def stores_with_prefixes_and_a_barrier_by_hand() -> Any:
    dist.init_process_group("gloo")
    store = dist.PrefixStore("a", dist.PrefixStore("b", distributed_c10d._get_default_store()))
    count = store.add("come", 1)
    if count == size():
        store.set("all", "yes")
    store.wait(["all"])
    dist.barrier()
    gone = store.delete_key("come") if rank() == 0 else True
    return [store.get("all"), gone, *used()]


@program
def a_store_of_the_script() -> Any:
    dist.init_process_group("gloo")
    served = None
    chosen = [0]
    if rank() == 0:
        served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        chosen = [served.port]
    dist.broadcast_object_list(chosen, 0)
    store = served or dist.TCPStore("127.0.0.1", chosen[0], is_master=False)
    store.set(str(rank()), "x")
    store.wait([str(at) for at in range(size())])
    found = [store.num_keys() >= size()]
    return [*found, *used()]


@program
def as_a_subset_of_threads() -> Any:
    import threading

    dist.init_process_group("gloo", timeout=LIMIT)
    group = dist.new_group()
    tensor = torch.tensor([rank() + 1.0])

    def in_a_thread() -> None:
        dist.all_reduce(tensor, group=group)

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    return [tensor, *used()]


if __name__ == "__main__":
    run(makes_world=False)
