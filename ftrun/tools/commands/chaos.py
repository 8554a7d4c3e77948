"""``ftrun chaos``: its options.

Not here: the kills (chaos/).
"""

from __future__ import annotations

from typing import Annotated

import typer

from ftrun.tools.commands.shared import JobId, TokenFile


def chaos(
    job_id: JobId = None,
    mtbf: Annotated[
        str, typer.Option(metavar="TIME", help="Average time between kills: 30s, 2m, 1h.")
    ] = "30s",
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time to go on. [default: until the job ends, or Ctrl-C]"
        ),
    ] = None,
    kills: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of kills. [default: no limit]")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Seed of the random draws. [default: random; it is printed]"
        ),
    ] = None,
    signal: Annotated[
        str, typer.Option(metavar="NAME", help="KILL, SEGV, ABRT, BUS or TERM.")
    ] = "KILL",
    only_replica: Annotated[
        str | None, typer.Option(metavar="ID", help="Kill workers of this replica only.")
    ] = None,
    token_file: TokenFile = None,
) -> None:
    """Kill workers until the time is over or the number of kills is reached."""
    from ftrun.tools.chaos.draws import parse_duration, parse_signal
    from ftrun.tools.chaos.session import ChaosSettings, run_chaos

    settings = ChaosSettings(
        mtbf_s=parse_duration(mtbf, "--mtbf"),
        job_id=job_id,
        duration_s=None if duration is None else parse_duration(duration, "--duration"),
        kills=kills,
        seed=seed,
        signal=parse_signal(signal),
        only_replica=only_replica,
        token_file=token_file,
    )
    raise typer.Exit(run_chaos(settings))
