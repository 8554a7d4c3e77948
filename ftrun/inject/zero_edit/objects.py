"""Objects that the script sends to all replicas: one exchange each.

torch sends the sizes first and then the bytes. If a replica dies between the two, or is away, they
do not fit together. Here both go in one exchange. What the root of a broadcast has given at a place
of the script is kept: while it is away that is given again, and without it the script's own objects
stay. A list has the lowest rank's object in the place of a replica that is away.

The bytes are pickled by torch's own functions, as between ranks under torchrun. Not here: tensors
(world.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.frames import call_site
from ftrun.inject.zero_edit.given import LastGiven, place_of
from ftrun.inject.zero_edit.patches import Patches

Give = Callable[[str, bytes], dict[int, bytes]]
"""An exchange of bytes of any length, by rank."""


class Objects:
    """Stands in for torch's functions.

    Args:
        of_world: the exchange of a group, if the group is of all replicas; else None.
        last: what was given by broadcasts.
    """

    def __init__(self, of_world: Callable[[Any], Give | None], last: LastGiven) -> None:
        self._of_world = of_world
        self._last = last

    def install(self, patches: Patches) -> None:
        """Patch the functions where scripts find them."""
        for name in ("broadcast_object_list", "all_gather_object", "gather_object"):
            plain, ours = getattr(distributed_c10d, name), getattr(self, f"_{name}")
            stand_in = functools.wraps(plain)(functools.partial(ours, plain))
            for module in (dist, distributed_c10d):
                patches.put(module, name, stand_in)

    def _broadcast_object_list(
        self,
        plain: Callable[..., Any],
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: torch.device | None = None,
        group_src: int | None = None,
    ) -> None:
        give = self._of_world(group)
        if give is None:
            plain(object_list, src, group, device, group_src)
            return
        root, site = group_src if src is None else src, call_site()
        root = root or 0
        is_root = dist.get_rank() == root
        what = f"broadcast_object_list of {len(object_list)} from {root}"
        place = place_of(what)
        own = _to_bytes(list(object_list)) if is_root else self._last.at(place)
        found = give(what, own)
        given = found.get(root)
        if given is None:
            given = next((found[rank] for rank in sorted(found) if found[rank]), b"")
            what = "what it gave there last" if given else "left as each replica has it"
            told.once(f"{site}: rank {root} gave nothing, so its broadcast_object_list is {what}")
        if given:
            self._last.keep(place, given)
        if given and not is_root:
            object_list[:] = _to_object(given)

    def _all_gather_object(
        self, plain: Callable[..., Any], object_list: list[Any], obj: Any, group: Any = None
    ) -> None:
        give = self._of_world(group)
        if give is None:
            plain(object_list, obj, group)
        else:
            self._gathered(
                give("all_gather_object", _to_bytes(obj)), object_list, "all_gather_object"
            )

    def _gather_object(
        self,
        plain: Callable[..., Any],
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: int | None = None,
    ) -> None:
        give = self._of_world(group)
        if give is None:
            plain(obj, object_gather_list, dst, group, group_dst)
            return
        root = (group_dst if dst is None else dst) or 0
        found = give(f"gather_object to {root}", _to_bytes(obj))
        if dist.get_rank() == root:
            if object_gather_list is None:
                raise ValueError("gather_object: the rank dst needs an object_gather_list")
            self._gathered(found, object_gather_list, "gather_object")

    def _gathered(self, found: dict[int, bytes], into: list[Any], what: str) -> None:
        lowest = min(found)
        for rank in range(len(into)):
            if rank not in found and not self._last.is_still:
                told.once(
                    f"{call_site()}: rank {rank} gave nothing, so {what} has rank {lowest}'s "
                    "object twice"
                )
            into[rank] = _to_object(found.get(rank, found[lowest]))


def _to_bytes(value: Any) -> bytes:
    torchs: Any = distributed_c10d
    tensor, _ = torchs._object_to_tensor(value, torch.device("cpu"), None)
    found: bytes = tensor.numpy().tobytes()
    return found


def _to_object(body: bytes) -> Any:
    tensor = torch.frombuffer(bytearray(body), dtype=torch.uint8)
    torchs: Any = distributed_c10d
    return torchs._tensor_to_object(tensor, tensor.numel(), None)
