"""``ftrun explain [JOB] [INCIDENT]``: prints one incident, or the list of them.

Not here: the options (commands/), where incidents are found (finding.py).
"""

from __future__ import annotations

import json
import sys
from typing import TextIO

from ftrun.base.errors import ExitCode, UserError
from ftrun.base.words import plain
from ftrun.core.incident_words import block, line
from ftrun.tools.explain.finding import Found, Query, Record, find

ALL_LINES = 10_000


def explain(
    query: Query,
    number: int | None = None,
    *,
    as_json: bool = False,
    all_of_them: bool = False,
    out: TextIO | None = None,
) -> int:
    """Print the incident with this number, by default the latest. Returns the exit code.

    Raises:
        UserError: there is no such job, or it has no such incident.
    """
    found = find(query)
    out = out if out is not None else sys.stdout
    chosen = found.records if all_of_them else _chosen(found, number)
    if as_json:
        print(json.dumps(chosen if all_of_them else next(iter(chosen), None), indent=2), file=out)
        return ExitCode.OK
    for text in _text(found, chosen, all_of_them):
        print(plain(text), file=out)
    return ExitCode.OK


def _chosen(found: Found, number: int | None) -> list[Record]:
    if number is None:
        return found.records[-1:]
    chosen = [record for record in found.records if record.get("number") == number]
    if not chosen:
        known = ", ".join(str(record.get("number")) for record in found.records[-20:])
        raise UserError(
            f"Job {found.job_id} has no incident {number} ({found.where}). "
            + (f"It has: {known}." if known else "It has none.")
        )
    return chosen


def _text(found: Found, chosen: list[Record], all_of_them: bool) -> list[str]:
    lines = [found.choice] if found.choice else []
    if not found.records:
        lines.append(f"Job {found.job_id} has no incident: nothing has failed ({found.where}).")
    elif all_of_them:
        lines.append(f"Job {found.job_id}, {len(chosen)} incidents ({found.where}):")
        lines += [line(record) for record in chosen]
    else:
        for record in chosen:
            lines += block(record, traceback_lines=ALL_LINES)
        hidden = len(found.records) - len(chosen)
        if hidden:
            lines.append(f"{hidden} more of job {found.job_id}: ftrun explain --all {found.job_id}")
    if found.ending is not None:
        ending = found.ending
        lines.append(
            f"The job has ended with exit code {ending.get('exit_code')}, "
            f"{ending.get('kind')}: {ending.get('reason')}"
        )
    return lines
