"""``ftrun status --watch``: one line every second, for a log or a pipe.

Not here: fetching (source.py), the live screen (screen/).
"""

from __future__ import annotations

import os
import queue
import sys
from typing import TextIO

from ftrun.base import clock
from ftrun.base.addresses import parse_address
from ftrun.base.errors import ExitCode, UserError
from ftrun.base.words import age, duration, plain, ranges
from ftrun.core.lighthouse.status import Status
from ftrun.tools.status.once import StatusQuery, find_job
from ftrun.tools.status.source import Picture, Source, State

PICTURES_MAX = 16
LOOK_S = 60.0


def show_lines(query: StatusQuery, out: TextIO | None = None) -> int:
    """Print a line for each status until the job has ended. Returns the exit code.

    Raises:
        UserError: the address is invalid, there is no such job, or several and none was named.
    """
    if query.lighthouse is not None:
        parse_address(query.lighthouse, "--lighthouse")
    else:
        query = StatusQuery(None, find_job(query.job_id).job_id, query.token_file, query.tls)
    out = sys.stdout if out is None else out
    pictures: queue.Queue[Picture] = queue.Queue(PICTURES_MAX)
    source = Source(query, pictures.put)
    source.start()
    try:
        while True:
            picture = _next(pictures)
            if picture.state is State.REFUSED and picture.status is None:
                raise UserError(picture.words)
            print(line_of(picture, clock.now()), file=out, flush=True)
            if picture.state is State.ENDED:
                return ExitCode.OK
    except BrokenPipeError:  # the reader has closed the pipe
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())
        return ExitCode.OK
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    finally:
        source.stop()


def _next(pictures: queue.Queue[Picture]) -> Picture:
    """The next picture. The source sends at least one after each of its pauses."""
    while True:
        try:
            return pictures.get(timeout=LOOK_S)
        except queue.Empty:
            continue


def line_of(picture: Picture, now: float) -> str:
    """One line; the time first, then the job's facts."""
    moment = clock.wall().isoformat(timespec="seconds").replace("+00:00", "Z")
    return plain(f"{moment}  {_facts(picture, now)}")


def _facts(picture: Picture, now: float) -> str:
    status = picture.status
    if picture.outcome is not None:
        code = picture.outcome["exit_code"]
        how = "ended" if code < 0 else f"ended with exit code {code}"
        return f"{how}: {picture.outcome['reason']}"
    if picture.state is State.LIVE and status is not None:
        return _words(status)
    silent = "" if status is None else f" for {age(picture.age_s(now))}"
    again = f"; asked again in {picture.next_s:.1f} s"
    return f"no answer{silent}: {picture.words}{again}"


def _words(status: Status) -> str:
    job, rate, account = status["job"], status["rate"]["now"], status["account"]
    up = 0 if status["quorum"] is None else len(status["quorum"]["live"])
    facts = [
        status["phase"],
        f"step {status['step']}",
        f"{rate:.2f} steps/s" if rate is not None else "- steps/s",
        f"{up} of {job['replicas']} replicas",
    ]
    if account["goodput"] is not None:
        facts.append(f"goodput {account['goodput'] * 100:.1f} %")
    facts.append(f"lost {duration(account['lost_s'])}")
    hung = [replica["replica_id"] for replica in status["replicas"] if replica["is_hung"]]
    if hung:
        facts.append(f"hung: {ranges(hung)}")
    if status["waiting"] is not None:
        facts.append(f"{status['waiting']['for']}, since {age(status['waiting']['since_s'])}")
    return "  ".join(facts)
