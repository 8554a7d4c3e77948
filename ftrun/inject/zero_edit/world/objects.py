"""torch's collectives for objects: each consists of several calls, which count as one unit.

torch first exchanges the sizes of the pickled objects, and then their bytes. If a rank dies between
the two, the sizes come from more ranks than the bytes. Then the whole unit is retried. All
survivors see the same results, so all of them retry. During set-up the objects themselves are
noted, because a newcomer's objects have other sizes than its predecessor's.

Not here: the collectives inside (calls.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.frames import near_site
from ftrun.inject.zero_edit.patches import Patches
from ftrun.inject.zero_edit.world.shell import Shell

OUTPUT = {
    "broadcast_object_list": "object_list",
    "all_gather_object": "object_list",
    "gather_object": "object_gather_list",
    "scatter_object_list": "scatter_object_output_list",
}
"""For each function the parameter with the list that it writes to."""
TRIES_MAX = 8


class Objects:
    """Patches torch's functions for objects."""

    def install(self, patches: Patches) -> None:
        """Patch the functions where scripts find them."""
        for name in OUTPUT:
            patches.around(distributed_c10d, name, self._call, dist)

    def _call(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            given = inspect.signature(plain).bind(*args, **kwargs).arguments
        except TypeError:
            return plain(*args, **kwargs)  # torch's own error
        group = given.get("group")
        if group is None and dist.is_initialized():
            group = distributed_c10d._get_default_group()
        if not isinstance(group, Shell):
            return plain(*args, **kwargs)
        return self._as_one(plain, group, given, args, kwargs)

    def _as_one(
        self, plain: Callable[..., Any], group: Shell, named: Any, args: Any, kwargs: Any
    ) -> Any:
        world, what = group.world, plain.__name__
        output = named.get(OUTPUT[what])
        site = f"{what} {near_site()}"
        notes = world.in_set_up and world.kept is not None
        if world.is_walking and world.kept is not None:
            known = world.kept.take(group.key, site)
            if known is not None:
                self._replay(output, _to_object(known[0]), what)
                return None
        if world.kept is not None and self._is_unknown(what, group, named):
            told.once(world.kept.unknown(near_site(), what))
            return None
        given = list(output) if isinstance(output, list) else None
        for _ in range(TRIES_MAX):
            with world.one_unit() as calls:
                error, result = None, None
                try:
                    result = plain(*args, **kwargs)
                except Exception as raised:  # noqa: BLE001  # e.g. sizes and bytes do not match
                    error = raised
            if len({call.tag for call in calls}) <= 1:
                break
            if given is not None:
                output[:] = given
        if error is not None:
            raise error
        if notes and not world.is_walking and world.kept is not None:
            world.kept.add(group.key, site, [_to_bytes(output if given is not None else None)])
        return result

    def _is_unknown(self, what: str, group: Shell, named: Any) -> bool:
        """Whether this call would receive the objects of a root that cannot be reached."""
        world = group.world
        has_root = what in ("broadcast_object_list", "scatter_object_list")
        if not world.is_apart or world.is_passing or group.replays or not has_root:
            return False
        root = named.get("group_src")
        if root is None:
            root = dist.get_group_rank(group, named.get("src") or 0)
        return bool(root != group.own)

    def _replay(self, output: Any, known: Any, what: str) -> None:
        if not isinstance(output, list) or known is None:
            return
        if what == "broadcast_object_list" and _differ(output, known):
            told.once(
                f"{near_site()}: rank {dist.get_rank()} has other objects to broadcast than its "
                "predecessor had. ftrun uses its predecessor's"
            )
        output[:] = known


def _differ(mine: list[Any], known: list[Any]) -> bool:
    try:
        return any(x is not None and x != y for x, y in zip(mine, known, strict=True))
    except Exception:  # noqa: BLE001  # the script's objects define their comparison
        return False


def _to_bytes(value: Any) -> bytes:
    torchs: Any = distributed_c10d
    tensor, _ = torchs._object_to_tensor(value, torch.device("cpu"), None)
    found: bytes = tensor.numpy().tobytes()
    return found


def _to_object(body: bytes) -> Any:
    tensor = torch.frombuffer(bytearray(body), dtype=torch.uint8)
    torchs: Any = distributed_c10d
    return torchs._tensor_to_object(tensor, tensor.numel(), None)
