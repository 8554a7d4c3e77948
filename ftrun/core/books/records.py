"""The records that the books ask to keep, and the records of an earlier life of the lighthouse.

Not here: their content (account_record.py, incident_record.py), the files (lighthouse/).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ftrun.core.messages import IncidentRecord


@dataclass(frozen=True, slots=True)
class SaveIncident:
    """Keep the record of an incident, and send it to these agents.

    ``age_s``: the time since its first cause. ``document``: its content, without dates. The
    document of ``record`` is this as text, with dates.
    """

    agents: tuple[str, ...]
    record: IncidentRecord
    age_s: float
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SaveAccount:
    """Keep the job's account, and replace the former one. No decision depends on it."""

    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EarlierIncident:
    """A record that an earlier life of the lighthouse has written.

    ``age_s``: the time since its first cause.
    """

    document: dict[str, Any]
    age_s: float


@dataclass(frozen=True, slots=True)
class AccountRecord:
    """The account's document of an earlier life, and how long ago it was written."""

    document: dict[str, Any]
    age_s: float
