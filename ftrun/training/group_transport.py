"""torchft's ``PGTransport``: a checkpoint over a process group, without pickle.

A header is sent first (checkpoint/header.py, JSON), then the leaves one by one, as they lie in
memory. If the receiver has a matching leaf in a state of its own, it receives directly into it.

For scripts that transfer checkpoints themselves. Not here: the heals of a Manager, which do not use
this (healing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import Work

from ftrun.base.errors import ProtocolError
from ftrun.checkpoint.format import pack, unpack
from ftrun.checkpoint.header import HEADER_BYTES_MAX, Header, decode_header, header_of
from ftrun.checkpoint.leaves import Leaf, in_place
from ftrun.checkpoint.transport import CheckpointTransport, tag_of
from ftrun.core.ids import SHARED_LINEAGE, StateId

T = TypeVar("T")

LENGTH_TAG, HEADER_TAG, LEAF_TAG = 1, 2, 3


class PGTransport(CheckpointTransport[T]):
    """Sends a checkpoint to ranks of a process group, which receive it at the same time.

    Args:
        pg: the group. ``send_checkpoint`` and ``recv_checkpoint`` use its ranks.
        timeout: deadline of each wait, unless a call states one.
        device: the device from which the group sends and to which it receives.
        state_dict: returns the receiver's own state, which is overwritten where it matches.
    """

    def __init__(
        self,
        pg: dist.ProcessGroup,
        timeout: timedelta,
        device: torch.device | str,
        state_dict: Callable[[], object] | None = None,
    ) -> None:
        self._pg = pg
        self._timeout = timeout
        self._device = torch.device(device)
        self._state_dict = state_dict

    def metadata(self) -> str:
        """A fixed text. Receivers do not need it, because the group knows its ranks."""
        return "<n/a>"

    def disallow_checkpoint(self) -> None:
        """Nothing to do: everything has been sent when ``send_checkpoint`` returns."""

    def send_checkpoint(
        self,
        dst_ranks: Sequence[int],
        step: int,
        state_dict: T,
        timeout: timedelta | None = None,
    ) -> None:
        """Send ``state_dict`` to these ranks. Returns when it has been sent.

        Raises:
            UserError: it holds an object that cannot be sent; names its key.
            RuntimeError: a rank did not receive within ``timeout``.
        """
        limit = self._timeout if timeout is None else timeout
        packed = pack(state_dict)
        header = header_of(tag_of(step), StateId(step, SHARED_LINEAGE), packed).encode()
        first = torch.tensor([len(header)], dtype=torch.int64, device=self._device)
        second = torch.frombuffer(bytearray(header), dtype=torch.uint8).to(self._device)
        works = []
        for rank in dst_ranks:
            works.append(self._pg.send([first], rank, LENGTH_TAG))
            works.append(self._pg.send([second], rank, HEADER_TAG))
        for tag, leaf in _tagged(packed.leaves):
            data = _as_tensor(leaf).to(self._device)
            works += [self._pg.send([data], rank, tag) for rank in dst_ranks]
            if data.device != _device_of(leaf):  # a copy: free it before the next one is made
                _wait(works, limit)
                works = []
        _wait(works, limit)

    def recv_checkpoint(
        self, src_rank: int, metadata: str, step: int, timeout: timedelta | None = None
    ) -> T:
        """Receive the checkpoint of ``step`` that rank ``src_rank`` sends.

        Raises:
            ProtocolError: the data is no checkpoint, or belongs to another step.
            RuntimeError: it did not arrive within ``timeout``.
        """
        limit = self._timeout if timeout is None else timeout
        mine = pack(self._state_dict()).leaves if self._state_dict is not None else ()
        header = self._receive_header(src_rank, step, limit)
        own = {leaf.spec.path: leaf for leaf in mine}
        works: list[Work] = []
        buffers: list[torch.Tensor] = []
        tag = LEAF_TAG
        for spec in header.specs:
            leaf = own.get(spec.path)
            into = None if leaf is None else self._in_place(leaf, spec)
            buffer = self._empty(spec.nbytes) if into is None else into
            if spec.nbytes:
                work = self._pg.recv([buffer], src_rank, tag)
                tag += 1
                if into is None:
                    _wait([work], limit)
                    buffer = buffer.cpu()
                else:
                    works.append(work)
            buffers.append(buffer)
        _wait(works, limit)
        state: T = unpack(header.structure, header.specs, buffers, mine)
        return state

    def _receive_header(self, src_rank: int, step: int, limit: timedelta) -> Header:
        length = torch.zeros(1, dtype=torch.int64, device=self._device)
        _wait([self._pg.recv([length], src_rank, LENGTH_TAG)], limit)
        size = int(length.item())
        if not 0 < size <= HEADER_BYTES_MAX:
            raise ProtocolError(f"rank {src_rank} sends a header of {size} bytes: no checkpoint")
        data = self._empty(size)
        _wait([self._pg.recv([data], src_rank, HEADER_TAG)], limit)
        header = decode_header(data.cpu().numpy().tobytes())
        if header.tag != tag_of(step).path():
            raise ProtocolError(
                f"rank {src_rank} sends the checkpoint of step {header.state_id.step}, not {step}"
            )
        return header

    def _in_place(self, leaf: Leaf, spec: Any) -> torch.Tensor | None:
        data = in_place(leaf, spec, self._device.type)
        return data if data is not None and data.nbytes == spec.nbytes else None

    def _empty(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)


def _tagged(leaves: Sequence[Leaf]) -> Iterator[tuple[int, Leaf]]:
    """The leaves that have bytes, each with its message tag."""
    return enumerate((leaf for leaf in leaves if leaf.spec.nbytes), LEAF_TAG)


def _as_tensor(leaf: Leaf) -> torch.Tensor:
    data = leaf.data
    if isinstance(data, torch.Tensor):
        return data
    return torch.frombuffer(bytearray(data) if data.readonly else data, dtype=torch.uint8)


def _device_of(leaf: Leaf) -> torch.device:
    return leaf.data.device if isinstance(leaf.data, torch.Tensor) else torch.device("cpu")


def _wait(works: Sequence[Work], limit: timedelta) -> None:
    for work in works:
        work.wait(limit)
