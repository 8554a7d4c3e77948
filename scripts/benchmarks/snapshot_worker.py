"""A loop of short steps beside a large state, of which a snapshot is taken now and then.

    snapshot_worker.py WAY PARAMETERS SNAPSHOTS EVERY_S OUT

WAY: ``ftrun`` (under its launcher), ``thread`` or ``process`` (torch's ``async_save`` so). Writes
the durations of all steps as JSON, and in which of them a snapshot was taken.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

STEP_S = 0.004
TENSORS = 48
TAIL_S = 0.5
LIMIT_S = 240.0
COPIES = 6

State = dict[str, dict[str, torch.Tensor]]
Times = tuple[list[Any], list[Any]]
"""(when each step began, and how long it took), and the facts about each snapshot."""


def make_state(parameters: int) -> State:
    """Parameters and Adam's two moments."""
    size = parameters // TENSORS
    return {
        part: {f"layer{i}": torch.rand(size) for i in range(TENSORS)}
        for part in ("model", "exp_avg", "exp_avg_sq")
    }


def work() -> None:
    """One step's own work: much of it in Python, so that it notices a thread that holds the GIL."""
    deadline = time.perf_counter() + STEP_S
    while time.perf_counter() < deadline:
        sum(range(200))


def copy_s(state: State) -> float:
    """A plain copy of the state into memory that was used before: the minimum for any snapshot.

    The best of several, because other processes may use the machine.
    """
    tensors = [tensor for part in state.values() for tensor in part.values()]
    into = [torch.empty_like(tensor).zero_() for tensor in tensors]
    found = []
    for _ in range(COPIES):
        began = time.perf_counter()
        for a, b in zip(into, tensors, strict=True):
            a.copy_(b)
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    way, parameters, count, every_s, out = sys.argv[1:]
    torch.set_num_threads(2)
    state = make_state(int(parameters))
    plain_s = copy_s(state)
    run = with_ftrun if way == "ftrun" else with_torch
    steps, snapshots = run(state, way, int(count), float(every_s), Path(out))
    result = {"steps": steps, "snapshots": snapshots, "copy_s": plain_s}
    Path(out).write_text(json.dumps(result))


def with_ftrun(state: State, way: str, count: int, every_s: float, out: Path) -> Times:
    """For each snapshot: its step, when it was taken and written, and how long its copy took."""
    import ftrun

    manager = ftrun.manager(lambda given: None, lambda: state)
    snapshots = manager.session.snapshots
    assert snapshots is not None, "the run has no --snapshot-dir"
    steps: list[Any] = []
    taken: list[Any] = []
    small = torch.zeros(8)
    directory = out.with_suffix(".snapshots")
    held, seen = 0.0, set[str]()
    began = time.perf_counter()
    ends = 0.0
    while not ends or time.perf_counter() < ends:
        begin = time.perf_counter()
        manager.start_quorum()
        work()
        manager.allreduce(small).wait()
        manager.should_commit()
        steps.append((begin, time.perf_counter() - begin))
        if snapshots.held_s != held:
            held = snapshots.held_s
            taken.append([len(steps) - 1, begin, None, snapshots.copy_s])
        if taken and taken[-1][2] is None and len(steps) % 25 == 0:
            names = {path.name for path in directory.glob("step-*")} - seen
            if names:
                seen |= names
                taken[-1][2] = time.perf_counter()
        if not ends and len(taken) == count and taken[-1][2] is not None:
            ends = time.perf_counter() + TAIL_S
        if time.perf_counter() - began > LIMIT_S:
            sys.exit("no snapshot came")
    return steps, taken


def with_torch(state: State, way: str, count: int, every_s: float, out: Path) -> Times:
    """As ``with_ftrun``."""
    import warnings

    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    kind = AsyncCheckpointerType(way)
    steps: list[Any] = []
    taken: list[Any] = []
    under_way: Any = None
    due = time.perf_counter() + every_s
    ends = 0.0
    while not ends or time.perf_counter() < ends:
        begin = time.perf_counter()
        if begin >= due and under_way is None and len(taken) < count:
            where = out.with_suffix(f".{len(taken)}")
            under_way = dcp.async_save(
                state, checkpoint_id=str(where), async_checkpointer_type=kind
            )
            taken.append([len(steps), begin, None, None])
            due += every_s
        work()
        steps.append((begin, time.perf_counter() - begin))
        if under_way is not None and under_way.done():
            under_way.result()
            taken[-1][2] = time.perf_counter()
            under_way = None
            if len(taken) == count:
                ends = time.perf_counter() + TAIL_S
    dist.destroy_process_group()
    return steps, taken


if __name__ == "__main__":
    main()
