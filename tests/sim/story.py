"""A trace in words: one short line per event, for a person who reads a failed schedule."""

from __future__ import annotations

import dataclasses

from ftrun.core import messages as m
from ftrun.core.ids import Attempt, StateId, Tag, WorkerKey
from ftrun.core.quorum import Endpoint, Quorum


def line(when: float, actor: str, kind: str, detail: object) -> str:
    """One entry."""
    return f"{when:9.4f}  {actor:<14} {kind:<10} {short(detail)}"


def short(value: object) -> str:
    """A value as a short text."""
    match value:
        case str():
            return value[:160]
        case Attempt() | Tag() | StateId() | WorkerKey():
            return str(value)
        case Quorum():
            ids = ",".join(f"{x.replica_id}({x.incarnation[:4]})" for x in value.members)
            heals = f" newcomers={','.join(value.newcomers)}" if value.newcomers else ""
            return f"{value.attempt} [{ids}] step={value.step} state={value.state}{heals}"
        case m.Loss():
            return f"{value.replica_id}({value.incarnation[:4]}): {value.cause}"
        case Endpoint():
            return value.heal
        case tuple():
            return "(" + ", ".join(short(x) for x in value) + ")"
    if dataclasses.is_dataclass(value):
        pairs = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        said = [f"{f.name}={short(x)}" for f, x in pairs if not _default(f, x)]
        return f"{type(value).__name__}({', '.join(said)})"
    return repr(value)


def _default(field: dataclasses.Field[object], value: object) -> bool:
    return field.default is not dataclasses.MISSING and field.default == value
