"""The memory that a state is read into: new, or the receiver's own if it permits that.

Not here: the streams that read into it (heal.py), which chunks have arrived (stripes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from ftrun.base.errors import PeerError
from ftrun.checkpoint.header import Header
from ftrun.checkpoint.layout import CHUNK_BYTES, Layout, allocate, digest_seed, sample
from ftrun.checkpoint.leaves import Leaf, in_place
from ftrun.checkpoint.stripes import Stripes
from ftrun.core.ids import Tag


@dataclass(frozen=True, slots=True)
class Overwritten:
    """A leaf in the receiver's own memory, and its fingerprint at the donor."""

    path: str
    memory: torch.Tensor
    sample: int

    @property
    def is_whole(self) -> bool:
        """Whether its memory still holds the fetched bytes, because nothing else has written to it
        since."""
        return sample(self.memory) == self.sample


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Permission to read a state straight into the receiver's own tensors.

    The tensors must not be used during the fetch. After an error they hold neither the old state
    nor the new one.

    Attributes:
        allows: returns whether this leaf's memory may be written to.
        begins: called before the first byte; if it returns False, the fetch ends with PeerError.
    """

    allows: Callable[[Leaf], bool] = lambda leaf: True
    begins: Callable[[], bool] = lambda: True


@dataclass(slots=True)
class Destination:
    """The memory that a state is read into, and the header of that state."""

    header: Header
    raw: bytes
    buffers: list[torch.Tensor]
    layout: Layout
    stripes: Stripes
    seed: int
    overwritten: tuple[Overwritten, ...]

    @property
    def arrived_bytes(self) -> int:
        """How much of the state has arrived, in whole chunks."""
        return min(self.layout.nbytes, self.stripes.arrived_chunks * CHUNK_BYTES)


class Arrivals:
    """The part of a state that has arrived, kept from one fetch to the next.

    When a donor dies its quorum ends. The next quorum has another tag, but usually the same state
    to heal from. Chunks that were verified under the old tag are then not fetched again: equal
    state ids mean equal bytes (S1), and headers are compared like those of two donors. Drop the
    Arrivals once the state is applied, because its memory then belongs to the receiver's tree.
    """

    def __init__(self) -> None:
        self.destination: Destination | None = None

    def open(
        self,
        tag: Tag,
        header: Header,
        raw: bytes,
        mine: Sequence[Leaf],
        overwrite: Overwrite | None,
    ) -> Destination:
        """The destination of the state of ``header``. Chunks that have arrived before are kept.

        Raises:
            PeerError: own memory would be written to, and ``overwrite`` does not permit it.
        """
        seed, before = digest_seed(tag, header.state_id), self.destination
        may_go_on = before is not None and (overwrite is not None or not before.overwritten)
        if before is not None and may_go_on and replace(before.header, tag=header.tag) == header:
            to = replace(before, header=header, raw=raw, seed=seed)
        else:
            buffers, overwritten = _buffers(header, mine, overwrite)
            layout = Layout(buffers)
            stripes = Stripes(layout.chunks)
            to = Destination(header, raw, buffers, layout, stripes, seed, overwritten)
        if to.overwritten and not (overwrite is not None and overwrite.begins()):
            raise PeerError(f"the state of {tag} is not wanted any more")
        to.stripes.resume()
        self.destination = to
        return to


def _buffers(
    header: Header, mine: Sequence[Leaf], overwrite: Overwrite | None
) -> tuple[list[torch.Tensor], tuple[Overwritten, ...]]:
    """Memory for each leaf, and the leaves that use the receiver's own memory."""
    own = {leaf.spec.path: leaf for leaf in mine}
    buffers, overwritten = list[torch.Tensor](), list[Overwritten]()
    for spec, fingerprint in zip(header.specs, header.samples, strict=True):
        leaf, memory = own.get(spec.path), None
        if leaf is not None and overwrite is not None and overwrite.allows(leaf):
            memory = in_place(leaf, spec)
        if memory is not None:
            overwritten.append(Overwritten(spec.path, memory, fingerprint))
        buffers.append(allocate(spec.nbytes) if memory is None else memory)
    return buffers, tuple(overwritten)
