"""torch's methods of a process group, all mapped to a single method of the subclass.

torch's C++ code calls some of these names, its Python code more, and versions differ.

Not here: what is done with a collective (the subclasses).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed import Work

WITHOUT_OPTIONS = ("send", "recv", "recv_anysource")


class Collectives:
    """torch's methods. A subclass defines ``_collective``.

    Options are torch's. Instead of options a caller may pass what torch's overloads take: an
    operation, or the root's rank.
    """

    def _collective(self, name: str, *arguments: Any) -> Work:
        """Begin the collective ``name``.

        ``arguments`` are torch's, in its order: tensors in lists, and the options last. Options are
        never None; the names of ``WITHOUT_OPTIONS`` have none.
        """
        raise NotImplementedError(f"{type(self).__name__} does not support {name}")

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        """Reduce in place."""
        if type(tensors) is not list:
            tensors = listed(tensors)
        if type(opts) is not dist.AllreduceOptions:
            opts = _options(opts, dist.AllreduceOptions, "reduceOp")
        return self._collective("allreduce", [*tensors], opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        """Reduce several tensors of one dtype in one collective, in place."""
        options = _options(opts, dist.AllreduceCoalescedOptions, "reduceOp")
        return self._collective("allreduce_coalesced", listed(tensors), options)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None) -> Work:
        """Reduce in place at the root."""
        options = _options(opts, dist.ReduceOptions, "rootRank")
        if op is not None:
            options.reduceOp = op
        return self._collective("reduce", listed(tensors), options)

    def broadcast(self, tensor_list: Any, opts: Any = None) -> Work:
        """Send the root's tensors to all."""
        options = _options(opts, dist.BroadcastOptions, "rootRank")
        return self._collective("broadcast", listed(tensor_list), options)

    def allgather(self, output_tensors: Any, input_tensor: Any, opts: Any = None) -> Work:
        """Gather the tensors of all ranks on every rank."""
        outputs, inputs = output_tensors, listed(input_tensor)
        if isinstance(input_tensor, torch.Tensor):
            outputs = [outputs]
        options = _options(opts, AllgatherOptions)
        return self._collective("allgather", [list(x) for x in outputs], inputs, options)

    def allgather_into_tensor_coalesced(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None
    ) -> Work:
        """Gather several tensors, each into one tensor."""
        tensors, options = (list(output_tensors), list(input_tensors)), AllgatherOptions
        name = "allgather_into_tensor_coalesced"
        return self._collective(name, *tensors, _options(opts, options))

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        """Gather the tensors of all ranks on the root."""
        outputs, inputs = output_tensors, listed(input_tensors)
        if isinstance(input_tensors, torch.Tensor):
            outputs = [outputs] if outputs else []
        options = _options(opts, dist.GatherOptions, "rootRank")
        return self._collective("gather", [list(x) for x in outputs], inputs, options)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        """Send each rank its part of the root's lists."""
        outputs, inputs = listed(output_tensors), input_tensors
        if isinstance(output_tensors, torch.Tensor):
            inputs = [inputs] if inputs else []
        options = _options(opts, dist.ScatterOptions, "rootRank")
        return self._collective("scatter", outputs, [list(x) for x in inputs], options)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        """Reduce; each rank keeps its part."""
        outputs, inputs = listed(output_tensors), input_tensors
        if isinstance(output_tensors, torch.Tensor):
            inputs = [inputs]
        options = _options(opts, dist.ReduceScatterOptions, "reduceOp")
        return self._collective("reduce_scatter", outputs, [list(x) for x in inputs], options)

    def reduce_scatter_tensor_coalesced(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None
    ) -> Work:
        """Reduce several tensors; each rank keeps its part of each."""
        tensors, options = (list(output_tensors), list(input_tensors)), dist.ReduceScatterOptions
        name = "reduce_scatter_tensor_coalesced"
        return self._collective(name, *tensors, _options(opts, options, "reduceOp"))

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Work:
        """Exchange a tensor with each rank."""
        options = _options(opts, dist.AllToAllOptions)
        return self._collective("alltoall", list(output_tensors), list(input_tensors), options)

    def alltoall_base(
        self,
        output_buffer: Any,
        input_buffer: Any,
        output_split_sizes: Any,
        input_split_sizes: Any,
        opts: Any = None,
    ) -> Work:
        """Exchange parts of one tensor; empty split sizes mean equal parts."""
        sizes = list(output_split_sizes), list(input_split_sizes)
        options = _options(opts, dist.AllToAllOptions)
        return self._collective("alltoall_base", output_buffer, input_buffer, *sizes, options)

    def barrier(self, opts: Any = None) -> Work:
        """Complete when every rank has called it."""
        return self._collective("barrier", _options(opts, dist.BarrierOptions))

    def send(self, tensors: Any, dst_rank: int, tag: int = 0) -> Work:
        """Send tensors to one rank."""
        return self._collective("send", listed(tensors), dst_rank, tag)

    def recv(self, tensors: Any, src_rank: int, tag: int = 0) -> Work:
        """Receive tensors from one rank."""
        return self._collective("recv", listed(tensors), src_rank, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receive tensors from any rank."""
        return self._collective("recv_anysource", listed(tensors), tag)

    # ------------------------------------------------------------ other names for these

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """``dist.all_gather_into_tensor`` of torch 2.13 and newer."""
        return self._allgather_base(output, input, opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """``all_gather_single`` of several tensors."""
        return self.allgather_into_tensor_coalesced(outputs, inputs, opts)

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """``dist.reduce_scatter_tensor`` of torch 2.13 and newer."""
        return self._reduce_scatter_base(output, input, opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """``reduce_scatter_single`` of several tensors."""
        return self.reduce_scatter_tensor_coalesced(outputs, inputs, opts)

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any = (),
        input_split_sizes: Any = (),
        opts: Any = None,
    ) -> Work:
        """``dist.all_to_all_single`` of torch 2.13 and newer."""
        return self.alltoall_base(output, input, output_split_sizes, input_split_sizes, opts)


def listed(tensors: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """``tensors`` as a new list, also for a single tensor."""
    is_one = type(tensors) is not list and isinstance(tensors, torch.Tensor)
    return [tensors] if is_one else list(tensors)  # type: ignore[list-item]


def tensors_in(argument: Any) -> list[torch.Tensor]:
    """All tensors in an argument of a collective, in order."""
    if isinstance(argument, torch.Tensor):
        return [argument]
    if isinstance(argument, (list, tuple)):
        return [tensor for item in argument for tensor in tensors_in(item)]
    return []


def _options(opts: Any, kind: Any, field: str = "") -> Any:
    """``opts`` as options. If torch's overload takes a plain value instead, it is set as
    ``field``."""
    if opts is None:
        return kind()
    if not field or isinstance(opts, kind):
        return opts
    made = kind()
    setattr(made, field, opts)
    return made
