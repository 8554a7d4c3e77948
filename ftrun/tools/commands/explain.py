"""``ftrun explain``: its options.

Not here: where incidents are found and how they are shown (explain/).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ftrun.tools.commands.shared import TlsCa, TlsCert, TlsKey, TokenFile, jobs


def explain(
    job_id: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            help="[default: of the jobs in --log-dir the one that failed or ended last]",
            autocompletion=jobs,
        ),
    ] = None,
    incident: Annotated[
        int | None, typer.Argument(metavar="INCIDENT", help="Its number. [default: the latest]")
    ] = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="List all incidents.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
    log_dir: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Directory for logs of jobs. One without jobs: the job that runs."
        ),
    ] = Path("ftrun-logs"),
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Ask the job's lighthouse or, once the job has ended, read its log directory.

    News are a job's end and its incidents. Where ./ftrun-logs has no job, it is the one that runs.
    """
    from ftrun.protocol.tls import TlsFiles
    from ftrun.tools.explain.command import explain as show
    from ftrun.tools.explain.finding import Query

    query = Query(job_id, log_dir, token_file, TlsFiles(tls_cert, tls_key, tls_ca))
    raise typer.Exit(show(query, incident, as_json=as_json, all_of_them=all_of_them))
