"""Local training for the benchmark, a script of torchft for either peer: bytes and times.

``$BENCH_FORM`` is a form of local.py. The inner step is stretched by sleeping. ``$BENCH_RATE``: the
bytes per second that the kernel lets each TCP connection of this process send (0: no limit). With
two replicas this simulates a network card of that speed. Writes ``$BENCH_OUT/seen.<replica>.json``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo

FORM = json.loads(os.environ["BENCH_FORM"])
OUT = Path(os.environ["BENCH_OUT"])
RATE = int(os.environ["BENCH_RATE"])
WARM_UP, STEPS = 3, int(os.environ["BENCH_STEPS"])
REPLICA = os.environ["REPLICA_GROUP_ID"]
WIDTH, LAYERS, SYNC_EVERY, INNER_S = 512, 38, 10, 0.03
SO_MAX_PACING_RATE, BYTES_ACKED_AT = 47, 120
LIMIT = timedelta(seconds=60)


def connections() -> Iterator[socket.socket]:
    """This process's TCP connections, each through a duplicated descriptor."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as found:
                    is_tcp = found.family in (socket.AF_INET, socket.AF_INET6)
                    if is_tcp and found.type == socket.SOCK_STREAM:
                        found.getpeername()
                        yield found


def sent_bytes() -> dict[str, int]:
    """The bytes that this process has sent and its peers have received, by connection."""
    found = {}
    for connection in connections():
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        name = f"{connection.getsockname()} {connection.getpeername()}"
        found[name] = struct.unpack_from("Q", info, BYTES_ACKED_AT)[0]
    return found


def limit_rate() -> None:
    """Slow all connections down."""
    if RATE:
        for connection in connections():
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, RATE)


def outer_steps(manager: Manager) -> Iterator[float]:
    """The seconds of each outer step that the training thread spent in ``inner.step()``."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    inner = torch.optim.SGD(model.parameters(), lr=1e-4)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    arguments = dict(FORM)
    half = LAYERS // 2
    parts = [model] if arguments.pop("fragments", 1) == 1 else [model[:half], model[half:]]
    manager.set_state_dict_fns(model.load_state_dict, model.state_dict)
    each = SYNC_EVERY // len(parts)
    with DiLoCo(manager, parts, inner, outer, sync_every=SYNC_EVERY, **arguments):
        while True:
            held_s = 0.0
            for _ in range(each):
                began = time.monotonic()
                inner.zero_grad()
                model(torch.randn(4, WIDTH)).square().mean().backward()
                time.sleep(max(0.0, INNER_S - (time.monotonic() - began)))
                began = time.monotonic()
                inner.step()
                held_s += time.monotonic() - began
            yield held_s


def reductions(manager: Manager) -> Iterator[float]:
    """The seconds of each all-reduce of the same number of values."""
    tensor = torch.randn(WIDTH * WIDTH * LAYERS)
    kind = FORM["allreduce"]
    manager.set_state_dict_fns(lambda state: None, lambda: {"none": 0})
    while True:
        manager.start_quorum()
        began = time.monotonic()
        manager.allreduce(tensor, should_quantize=kind).wait()
        took_s = time.monotonic() - began
        if manager.should_commit():  # torchft's first step heals, and may not be committed
            yield took_s


def main() -> None:
    """Measure ``STEPS`` steps."""
    torch.set_num_threads(1)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=LIMIT),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=2,
        use_async_quorum=False,
        timeout=LIMIT,
        replica_id=f"bench_{REPLICA}",
    )
    times, last = [], 0.0
    before, after = dict[str, int](), dict[str, int]()
    steps = reductions(manager) if "allreduce" in FORM else outer_steps(manager)
    for number, held_s in enumerate(steps):
        now = time.monotonic()
        if number == WARM_UP + STEPS:
            break  # a step later, because a peer that has ended has no connection to count at
        if number >= WARM_UP:
            times.append((held_s, now - last))
        if number == WARM_UP - 1:
            before = sent_bytes()
        if number == WARM_UP + STEPS - 1:
            after = sent_bytes()
        limit_rate()
        last = now
    sent = sum(count - before.get(name, 0) for name, count in after.items())
    seen = {"times": times, "bytes": sent / STEPS}
    (OUT / f"seen.{REPLICA}.json").write_text(json.dumps(seen))
    manager.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
