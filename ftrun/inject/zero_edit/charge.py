"""Describes the objects of a script that ftrun has taken charge of, and those that it has not.

Not here: how state is carried (carried.py), other notices to the user (told.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftrun.inject.zero_edit.models import Models
from ftrun.inject.zero_edit.stepping import Stepping


def line(models: Models, stepping: Stepping, loop: str) -> str:
    """Describe in one line what ftrun has taken charge of. ``loop``: where batches come from."""
    carried, loose = parts(models, stepping)
    text = f"took charge of {'; '.join(carried)}; batches of {loop}"
    return text + (f". Not carried: {'; '.join(loose)}" if loose else "")


def parts(models: Models, stepping: Stepping) -> tuple[list[str], list[str]]:
    """Describe the objects that are carried, and those that are not.

    Each comes with the line of the script that made it, but for modules that nothing wraps.
    """
    optimizers = stepping.optimizers.all()
    sites = dict(zip(map(id, models.wrapped), models.sites, strict=True))
    sharded = [x for x in models.wrapped if models.is_sharded(x)]
    in_whole = [x for x in models.wrapped if not models.is_sharded(x)]
    managed = [x for x in optimizers if models.has_parameter_of(x)]
    loose = [x for x in optimizers if not models.has_parameter_of(x)]
    scalers = [x for x in stepping.scalers.all() if x.is_enabled()]
    carried = [
        _names("DistributedDataParallel of", in_whole, lambda x: sites[id(x)]),
        _names("FSDP2's", sharded, lambda x: sites[id(x)]),
        _names("other modules", models.loose_roots()),
        _names("optimizers", managed, stepping.optimizers.site_of),
        _names("schedulers", stepping.schedulers.all(), stepping.schedulers.site_of),
        _names("scalers", scalers, stepping.scalers.site_of),
    ]
    left = [_names("optimizers of other parameters", loose, stepping.optimizers.site_of)]
    return [part for part in carried if part], [part for part in left if part]


def _names(what: str, found: list[Any], site_of: Callable[[Any], str] | None = None) -> str:
    if not found:
        return ""
    each = [type(x).__name__ + (f" ({site_of(x)})" if site_of is not None else "") for x in found]
    return f"{what} {', '.join(each)}"
