"""Options and arguments that several commands have.

Not here: the options of ``ftrun run`` (config/options.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TlsCert = Annotated[Path | None, typer.Option(metavar="PEM", help="TLS: certificate to present.")]
TlsKey = Annotated[
    Path | None, typer.Option(metavar="PEM", help="TLS: private key of that certificate.")
]
TlsCa = Annotated[
    Path | None, typer.Option(metavar="PEM", help="TLS: CA that signed the peer's certificate.")
]
TokenFile = Annotated[Path | None, typer.Option(metavar="FILE", help="File with the job's token.")]
WebAddress = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="HTTP address of the job's lighthouse.")
]


def jobs(incomplete: str) -> list[str]:
    """The ids of this user's jobs that run on this machine, for the shell's completion."""
    from ftrun.tools.status.jobs import running_jobs

    return [job.job_id for job in running_jobs() if job.job_id.startswith(incomplete)]


JobId = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="[default: the one that runs on this machine]",
        autocompletion=jobs,
    ),
]
