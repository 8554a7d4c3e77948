"""Messages between a process and the child that holds its group: JSON with descriptors.

One packet of a Unix socket is one message. A tensor is sent as a descriptor of its shared memory
and its offset there, so no element is copied or sent, and nothing is pickled.

Not here: which messages are sent (group.py, host.py).
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from ftrun.base.errors import ProtocolError, UserError
from ftrun.compat.child_groups.memory import MappedBlocks, Staging

PACKET_BYTES_MAX = 128 << 10
FDS_MAX = 200
"""Below the kernel's limit of descriptors in one packet, which is 253."""
DTYPES = {str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
OPTIONS = {
    name: getattr(_distributed_c10d, name)
    for name in (
        "AllgatherOptions",
        "AllreduceCoalescedOptions",
        "AllreduceOptions",
        "AllToAllOptions",
        "BarrierOptions",
        "BroadcastOptions",
        "GatherOptions",
        "ReduceOptions",
        "ReduceScatterOptions",
        "ScatterOptions",
    )
}
"""The options that a collective may have. Their timeouts are not sent: the child has its own."""
FIELDS = ("rootRank", "rootTensor")


def send(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message.

    Raises:
        OSError: the other end is gone.
        UserError: it is too large.
    """
    data = json.dumps(message).encode()
    if len(data) > PACKET_BYTES_MAX or len(fds) > FDS_MAX:
        raise UserError(
            f"a collective of {len(fds)} tensors is too large for a group in a process of its own: "
            f"{FDS_MAX} at most"
        )
    socket.send_fds(sock, [data], list(fds))


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message, and its descriptors, which the caller closes; None: the end.

    Raises:
        ProtocolError: it is no message.
    """
    try:
        data, fds, _, _ = socket.recv_fds(sock, PACKET_BYTES_MAX, FDS_MAX)
    except ConnectionError:
        return None
    if not data:
        return None
    try:
        message = json.loads(data)
        if not isinstance(message, dict):
            raise ValueError("no object")
    except ValueError as error:
        for fd in fds:
            os.close(fd)
        raise ProtocolError(f"a group's process sent what cannot be read: {error}") from error
    return message, list(fds)


# ---------------------------------------------------------------- arguments


def pack(value: Any, fds: list[int], staging: Staging | None = None) -> Any:
    """An argument of a collective as JSON.

    ``staging`` copies tensors to blocks. Without it they are moved to shared memory, whose
    descriptors are added to ``fds``.
    """
    if isinstance(value, torch.Tensor):
        if staging is not None:
            return {"staged": staging.put(value)}
        return {"tensor": _share(value, fds)}
    if isinstance(value, (list, tuple)):
        return [pack(item, fds, staging) for item in value]
    if isinstance(value, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
        return {"op": _op_number(value)}
    name = type(value).__name__
    if name in OPTIONS:
        fields = {f: getattr(value, f) for f in FIELDS if hasattr(value, f)}
        if hasattr(value, "reduceOp"):
            fields["reduceOp"] = _op_number(value.reduceOp)
        return {"options": name, "fields": fields}
    if value is None or type(value) in (bool, int, str):
        return value
    raise UserError(f"a {name} cannot be given to a group in a process of its own")


def unpack(written: Any, fds: Sequence[int], blocks: MappedBlocks | None = None) -> Any:
    """Rebuild an argument from ``pack``'s output. Tensors use the same memory."""
    if isinstance(written, list):
        return [unpack(item, fds, blocks) for item in written]
    if not isinstance(written, dict):
        return written
    if "staged" in written and blocks is not None:
        return blocks.find(written["staged"], DTYPES)
    if "tensor" in written:
        return _attach(written["tensor"], fds)
    if "op" in written:
        return dist.ReduceOp(dist.ReduceOp.RedOpType(written["op"]))
    options: Any = OPTIONS[written["options"]]()
    for name, value in written["fields"].items():
        if name == "reduceOp":
            value = dist.ReduceOp(dist.ReduceOp.RedOpType(value))
        setattr(options, name, value)
    return options


def _op_number(op: Any) -> int:
    for number, known in enumerate(dist.ReduceOp.RedOpType.__members__.values()):
        if op == known:
            return int(number)
    raise UserError(f"{op} cannot be given to a group in a process of its own")


def _share(tensor: torch.Tensor, fds: list[int]) -> list[Any]:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise UserError(
            f"a tensor on {tensor.device} cannot be given to a Gloo group in a process of its own"
        )
    shared: Any = tensor
    if not shared.is_shared():
        shared.share_memory_()
    storage: Any = tensor.untyped_storage()
    fd, size = storage._share_fd_cpu_()
    fds.append(fd)
    place = list(tensor.shape), list(tensor.stride()), tensor.storage_offset()
    return [len(fds) - 1, size, str(tensor.dtype), *place]


def _attach(written: Any, fds: Sequence[int]) -> torch.Tensor:
    index, size, dtype, shape, stride, offset = written
    storage: Any = torch.UntypedStorage
    memory = storage._new_shared_fd_cpu(fds[index], size)
    empty = torch.empty(0, dtype=DTYPES[dtype])
    return empty.set_(memory, offset, shape, stride)
