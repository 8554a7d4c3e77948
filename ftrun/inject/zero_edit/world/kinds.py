"""The collectives of torch.distributed as a table: what each gives, gets, and is among fewer ranks.

While all ranks are there a call goes to torch's own backend as the script has made it. While some
are away, a rank that is there is the *deputy* of each of them and counts for it too: a sum over all
ranks divided by the size of the world stays an average, and each entry of a list is some rank's.

Not here: the life of a call (calls.py), groups (shell.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllToAllOptions, Backend
from torch.distributed import ReduceOp

from ftrun.core.ids import NO_ATTEMPT, Attempt
from ftrun.process_groups.built import BuiltGroup
from ftrun.process_groups.collectives import tensors_in

if TYPE_CHECKING:
    from ftrun.inject.zero_edit.world.calls import Call

GATHERED_BYTES_MIN = 256 << 10
_GATHERED = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8}
_ADDED = {torch.float32, torch.float64}
_SEGMENT = 1 << 20
_STRIDED = torch.strided
_numel = torch.Tensor.numel
Issued = tuple[Any, Callable[[], object] | None]
"""The native Work (None: nothing goes over the network), and what is to be done after it."""
Tensors = Callable[["Call"], list[torch.Tensor]]
Fewer = Callable[["Call", "There"], Issued]


class Impossible(Exception):
    """A call that cannot be made while a rank is away. The text says why."""


class RootAway(Impossible):
    """A call that only the rank gives which is away; it may come back."""


@dataclass(slots=True)
class There:
    """Who takes part in a group now.

    ``size``: of the group; ``own``: this rank's place in it; ``here``: the places of those that are
    there, in order; ``built``: their connections, None if this rank is the only one; ``devices``:
    of the group; ``since``: the attempt for which they were connected, alike at all of them.
    ``is_full``: nobody is away; ``is_alone``: this rank is the only one.

    Nothing else may hold the backend: its end waits for its threads, and one of these may wait for
    a message that was lost when a rank died. So it ends where ``built`` is shut down.
    """

    size: int
    own: int
    here: tuple[int, ...]
    built: BuiltGroup | None
    devices: Sequence[torch.device] = ()
    since: Attempt = NO_ATTEMPT
    is_full: bool = field(init=False)
    is_alone: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_alone = self.built is None
        self.is_full = len(self.here) == self.size and not self.is_alone

    @property
    def native(self) -> Any:
        """Their backend."""
        return None if self.built is None else self.built.native

    def torchs(self) -> Any:
        """A group of torch's own around the backend: profilers and dispatch modes see its calls.

        One that is not torch's own (process_groups/settled.py) stays as it is.
        """
        if not isinstance(self.native, Backend):
            return self.native
        group: Any = dist.ProcessGroup(self.own, self.size)  # type: ignore[call-arg]
        kinds: Any = dist.ProcessGroup.BackendType
        group._set_default_backend(kinds.GLOO)
        for device in self.devices:
            group._register_backend(device, kinds.GLOO, self.native)
        return group

    def deputy(self, place: int) -> int:
        """The index in ``here`` of the rank at ``place``, or of its deputy."""
        return self.here.index(place) if place in self.here else place % len(self.here)

    @property
    def weight(self) -> int:
        """How many ranks this one stands for."""
        if self.is_full:
            return 1
        mine = self.here.index(self.own)
        return sum(1 for place in range(self.size) if self.deputy(place) == mine)

    def index_of(self, place: int, what: str) -> int:
        """The index in ``here`` of the rank at ``place``.

        Raises:
            Impossible: it is away.
        """
        if place not in self.here:
            raise Impossible(f"{what} rank {place} of the group, which is away")
        return self.here.index(place)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of collective.

    ``inputs``, ``outputs``: the tensors that a call gives, and those that it writes.
    ``is_in_place``: it writes over what it gives. ``is_fence``: nobody has a result before all have
    come to it. ``is_by_rank``: each rank has another result. ``fewer``: issues it while ranks are
    away.
    ``is_ours``: so it does while all are there. ``is_unsettled``: a death in the middle of it
    cannot be settled. ``needs_all``: it cannot be made at all while a rank is away. ``quicker``: on
    a backend of all, the same by less work; None: not for this call. All ranks decide that alike,
    by what must be alike in their arguments.
    """

    name: str
    inputs: Tensors
    outputs: Tensors
    fewer: Fewer
    is_in_place: bool = False
    is_fence: bool = False
    is_by_rank: bool = False
    is_ours: bool = False
    is_unsettled: bool = False
    needs_all: bool = False
    quicker: Callable[[Call, Any], Issued | None] | None = None


def nbytes(tensor: torch.Tensor) -> float:
    """The size of a tensor as bytes; without a limit if it has no such form, as a sparse one."""
    return tensor.nbytes if tensor.layout is _STRIDED else inf


def has_no_data(call: Call) -> bool:
    """Whether its tensors have shapes only: meta tensors and fake ones. Then torch does nothing."""
    tensors = call.outputs or call.kind.inputs(call)
    if not tensors:
        return False
    tensor = tensors[0]
    is_plain = type(tensor) is torch.Tensor or tensor.layout is not torch.strided
    return tensor.is_meta or not (is_plain or tensor.untyped_storage().device.type != "meta")


def operation(opts: Any) -> Any:
    """The ReduceOp of the options."""
    return getattr(opts, "reduceOp", ReduceOp.SUM)


def may_share_out(call: Call) -> bool:
    """Whether each rank may give another part of one whole by it. Then no deputy has the part of a
    rank that is away. A single number, and the largest of all, are no such parts."""
    given = call.outputs if call.kind.is_in_place else call.kind.inputs(call) or call.outputs
    return sum(map(_numel, given)) > 1 and is_of_parts(call.args[-1])


def is_of_parts(opts: Any) -> bool:
    """Whether it adds up: to compare operations takes microseconds."""
    return operation(opts) not in _OF_ALIKE


_OF_ALIKE = (ReduceOp.MAX, ReduceOp.MIN, ReduceOp.BAND, ReduceOp.BOR)


# ---------------------------------------------------------------- while ranks are away


def _scale(tensors: Sequence[torch.Tensor], op: Any, by: int) -> None:
    """Let each tensor count ``by`` times."""
    if by == 1:
        return
    for tensor in tensors:
        if op == ReduceOp.SUM:
            tensor.mul_(by)
        elif op == ReduceOp.PRODUCT:
            tensor.pow_(by)


def _reduce_all(tensors: list[torch.Tensor], opts: Any, there: There) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = op = operation(opts)
    if not there.is_full:
        _scale(tensors, op, there.weight)
    return None if there.is_alone else there.native.allreduce(tensors, options)


def _fewer_allreduce(call: Call, there: There) -> Issued:
    tensors, opts = call.args
    if not there.is_alone and len(tensors) > 1:
        _scale(tensors, operation(opts), there.weight)
        return getattr(there.native, call.kind.name)(*call.args), None
    return _reduce_all(tensors, opts, there), None


def _fewer_broadcast(call: Call, there: There) -> Issued:
    tensors, opts = call.args
    root = opts.rootRank
    is_deputy = there.here[there.deputy(root)] == there.own
    if root not in there.here and call.shell.world.is_of_model(tensors):
        call.takes_deputy = True  # what it gave last is older than what all have of it now
    elif root not in there.here and call.shell.world.given.foresees(call.place()):
        call.takes_deputy = True
    if root not in there.here and is_deputy and not call.takes_deputy:
        given = call.given_last()
        if given is None:
            raise RootAway(
                f"a broadcast from rank {root} of the group, which is away and gave nothing there "
                "before"
            )
        for tensor, value in zip(tensors, given, strict=True):
            tensor.copy_(value)
    if there.is_alone:
        return None, None
    options = dist.BroadcastOptions()
    options.rootRank = there.deputy(root)
    options.rootTensor = opts.rootTensor
    return there.native.broadcast(tensors, options), None


def _fewer_allgather(call: Call, there: There) -> Issued:
    outputs, inputs, _ = call.args
    if isinstance(outputs, torch.Tensor):
        outputs, inputs = [list(outputs.view(there.size, -1))], [inputs.contiguous().view(-1)]
    parts = [[torch.empty_like(tensor) for _ in there.here] for tensor in inputs]
    work = None if there.is_alone else there.native.allgather(parts, list(inputs))

    def spread() -> None:
        for found, tensor, into in zip(parts, inputs, outputs, strict=False):
            if there.is_alone:
                found[0].copy_(tensor)
            for place, own in enumerate(into):
                own.copy_(found[there.deputy(place)].view_as(own))

    return work, spread


def _fewer_scatter(call: Call, there: There) -> Issued:
    outputs, inputs, opts = call.args
    if opts.rootRank not in there.here:
        raise RootAway(f"a scatter from rank {opts.rootRank} of the group, which is away")
    root = there.here.index(opts.rootRank)
    if there.is_alone:
        return None, lambda: outputs[0].copy_(inputs[0][there.own])
    options = dist.ScatterOptions()
    options.rootRank = root
    given = [[inputs[0][place] for place in there.here]] if inputs else []
    return there.native.scatter(outputs, given, options), None


def _reduce_scatter(call: Call, there: There) -> Issued:
    """By an all-reduce, as Gloo itself does it: the Work of its own ends in ``wait`` only.

    Raises:
        RuntimeError: as torch, for tensors that do not fit.
    """
    outputs, inputs, opts = call.args
    is_single = isinstance(outputs, torch.Tensor)
    output, given = (outputs, [inputs]) if is_single else (outputs[0], inputs[0])
    shape = output.shape
    if is_single:
        shape = (output.shape[0] * there.size, *output.shape[1:]) if output.dim() else ()
    elif len(given) != there.size:
        raise RuntimeError("invalid input tensor list size, must be world size")
    for tensor in given:
        if tensor.shape != shape or tensor.dtype != output.dtype:
            raise RuntimeError(
                f"reduce_scatter: an input of {tensor.dtype}{list(tensor.shape)} does not fit an "
                f"output of {output.dtype}{list(output.shape)}"
            )
    if is_single and there.is_full and (found := _reduce_scatter_by_alltoall(call, there)):
        return found
    buffers = call.shell.world.buffers
    if len(given) == 1:  # torch takes new memory for it at each call, which costs more than a copy
        whole = buffers.clone(given[0].reshape(there.size, output.numel()))
    else:
        whole = torch.cat([tensor.reshape(-1) for tensor in given])
    work = _reduce_all([whole], opts, there)

    def spread() -> None:
        output.copy_(whole.view(there.size, output.numel())[there.own].view_as(output))
        buffers.release([whole])

    return work, spread


def _reduce_scatter_by_alltoall(call: Call, there: There) -> Issued | None:
    """A large sum into one tensor: half of an all-reduce's bytes go over the network. Each rank
    adds up the parts that it has got, in the order of Gloo's ring, so that the result is equal to
    the bit; None: not for this call."""
    output, given, opts = call.args
    op = operation(opts)
    is_mean = op == ReduceOp.AVG  # as FSDP2 has it; torch's own class does not know "!="
    if not (is_mean or op == ReduceOp.SUM) or nbytes(given) <= GATHERED_BYTES_MIN:
        return None
    if given.device.type != "cpu" or output.dtype not in _ADDED:
        return None
    size, numel = there.size, output.numel()
    buffers, options = call.shell.world.buffers, AllToAllOptions()
    options.timeout = opts.timeout
    to_each = given.detach().reshape(size, numel)
    copies = [] if call.is_sync else [buffers.clone(to_each)]  # else it may be written over before
    got = buffers.taken(to_each)

    def add_up() -> None:
        into = output.detach() if output.is_contiguous() else torch.empty_like(output).contiguous()
        values = into.view(numel)
        for begin, end, order in ring_order(size, there.own, numel, output.element_size()):
            parts = (got if end - begin == numel else got[:, begin:end]).unbind()
            found = values if end - begin == numel else values[begin:end]
            torch.add(parts[order[0]], parts[order[1]], out=found)
            for rank in order[2:]:
                found.add_(parts[rank])
            if is_mean:
                found.div_(size)
        if not output.is_contiguous():
            output.copy_(into)
        buffers.release([got, *copies])

    source = copies[0] if copies else to_each
    return there.native.alltoall_base(got, source, [], [], options), add_up


def ring_order(size: int, own: int, numel: int, nbytes: int) -> list[tuple[int, int, list[int]]]:
    """In which order Gloo's ring all-reduce adds up the values of a rank's part.

    The ring has ``size`` blocks, of segments of 1 MiB at most, and at least two in a block. A block
    begins at the rank before its own, and goes down to it (gloo/allreduce.cc: ``ring``).

    Args:
        numel: the values of each rank's part. ``nbytes``: of a value.

    Returns:
        pieces of ``own``'s part: begin, end, and the ranks in their order.
    """
    segments = max(-(-size * numel * nbytes // max(nbytes, _SEGMENT // nbytes * nbytes)), 2 * size)
    each = -(-segments // size)
    block = each * -(-size * numel // (each * size))
    at, end, found = own * numel, (own + 1) * numel, []
    while at < end:
        number = at // block
        until = min(end, (number + 1) * block)
        order = [(number - 1 - step) % size for step in range(size)]
        found.append((at - own * numel, until - own * numel, order))
        at = until
    return found


def _gather_by_alltoall(call: Call, backend: Any) -> Issued | None:
    """A large all-gather into one tensor: Gloo's own gathers into memory of its own first, and
    copies all of it, which costs a fifth more of the processor than what this does."""
    output, given, opts = call.args
    size = len(call.shell.seats)
    if nbytes(output) <= GATHERED_BYTES_MIN or not output.dtype == given.dtype in _GATHERED:
        return None
    if output.device.type != "cpu" or output.numel() != size * given.numel():
        return None
    buffers, options = call.shell.world.buffers, AllToAllOptions()
    options.timeout = opts.timeout
    into = output if output.is_contiguous() else torch.empty_like(output).contiguous()
    to_each, given = buffers.taken(into), given.contiguous()
    begin, source, length = to_each.data_ptr(), given.data_ptr(), given.nbytes
    for place in range(size):  # torch's own copies of views take several times as long to begin
        ctypes.memmove(begin + place * length, source, length)

    def spread() -> None:
        buffers.release([to_each])
        if into is not output:
            output.copy_(into)

    return backend.alltoall_base(into, to_each, [], [], options), spread


def _barrier(call: Call, there: There) -> Issued:
    return (None if there.is_alone else there.native.barrier(*call.args)), None


def _never(call: Call, _there: There) -> Issued:
    raise Impossible(f"{call.kind.name} while a rank is away")


def _send(call: Call, there: There) -> Issued:
    tensors, to, tag = call.args
    return there.native.send(tensors, there.index_of(to, "a send to"), tag), None


def _recv(call: Call, there: There) -> Issued:
    tensors, source, tag = call.args
    return there.native.recv(tensors, there.index_of(source, "a receive from"), tag), None


# ---------------------------------------------------------------- the table


def listed_first(call: Call) -> list[torch.Tensor]:
    found: list[torch.Tensor] = call.args[0]
    return found


def in_first(call: Call) -> list[torch.Tensor]:
    found = call.args[0]
    return [found] if isinstance(found, torch.Tensor) else tensors_in(found)


def in_second(call: Call) -> list[torch.Tensor]:
    found = call.args[1]
    return [found] if isinstance(found, torch.Tensor) else tensors_in(found)


def _none(_call: Call) -> list[torch.Tensor]:
    return []


def _of_root(call: Call) -> list[torch.Tensor]:
    return in_first(call) if call.args[1].rootRank == call.own else []


def _kind(
    name: str, inputs: Tensors, outputs: Tensors, fewer: Fewer, *flags: str, **more: Any
) -> Kind:
    given: dict[str, Any] = {f"is_{flag}": True for flag in flags}
    return Kind(name, inputs, outputs, fewer, **given, **more)


_GATHERS, _SCATTERS = {"quicker": _gather_by_alltoall}, ("fence", "by_rank", "ours")
_NEEDS_ALL: dict[str, Any] = {"needs_all": True}
KINDS = {
    kind.name: kind
    for kind in (
        _kind("allreduce", listed_first, listed_first, _fewer_allreduce, "in_place", "fence"),
        _kind("allreduce_coalesced", in_first, in_first, _fewer_allreduce, "in_place", "fence"),
        _kind("reduce", in_first, in_first, _fewer_allreduce, "in_place", "by_rank"),
        _kind("broadcast", _of_root, listed_first, _fewer_broadcast),
        _kind("allgather", in_second, in_first, _fewer_allgather, "fence"),
        _kind("_allgather_base", in_second, in_first, _fewer_allgather, "fence", **_GATHERS),
        _kind("gather", in_second, in_first, _fewer_allgather, "by_rank"),
        _kind("scatter", in_second, in_first, _fewer_scatter, "by_rank"),
        _kind("reduce_scatter", in_second, in_first, _reduce_scatter, *_SCATTERS),
        _kind("_reduce_scatter_base", in_second, in_first, _reduce_scatter, *_SCATTERS),
        _kind("alltoall_base", in_second, in_first, _never, "fence", "by_rank", **_NEEDS_ALL),
        _kind("alltoall", in_second, in_first, _never, "fence", "by_rank", **_NEEDS_ALL),
        _kind("barrier", _none, _none, _barrier, "fence"),
        _kind("send", in_first, _none, _send, "by_rank", "unsettled", **_NEEDS_ALL),
        _kind("recv", _none, in_first, _recv, "by_rank", "unsettled", **_NEEDS_ALL),
        _kind("recv_anysource", _none, in_first, _never, "by_rank", "unsettled", **_NEEDS_ALL),
    )
}
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Those whose options have a root."""
