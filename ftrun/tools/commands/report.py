"""``ftrun report``: its options.

Not here: what it writes (report/).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ftrun.tools.commands.shared import jobs


def report(
    job_id: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            help="[default: of the jobs in --log-dir the one with the latest events]",
            autocompletion=jobs,
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The file to write.")
    ] = Path("report.html"),
    log_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for logs of jobs.")
    ] = Path("ftrun-logs"),
) -> None:
    """Write one HTML file about a job: its account, steps, failures and changes of membership.

    The file needs nothing else: it can be sent by mail. It is made of the job's events.jsonl.
    """
    from ftrun.tools.report.command import report as write

    raise typer.Exit(write(job_id, log_dir, output))
