"""Runs ``--health-check CMD`` before a restart, with a deadline and with bounded output.

The command is a line for ``/bin/sh``. Its environment has FTRUN_REPLICA_ID. At the deadline its
process group is killed. Processes that it leaves carry the job's marker, and end with the job.

Not here: when it runs, and the decision after it (core/agent/health.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from ftrun.agent.env_markers import GUARD_NAME

OUTPUT_BYTES_MAX = 4096
LINES_MAX = 5
DRAIN_S = 1.0


async def check_health(command: str, replica_id: str, guard_id: str, timeout_s: float) -> str:
    """Why the node is not healthy, with the command's last lines; "" if it exited with 0."""
    try:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, GUARD_NAME: guard_id, "FTRUN_REPLICA_ID": replica_id},
            start_new_session=True,
        )
    except OSError as error:
        return f"--health-check could not be started ({error.strerror})"
    output = bytearray()
    reading = asyncio.ensure_future(_read(process, output))
    try:
        status = await asyncio.wait_for(process.wait(), timeout_s)
        why = "" if status == 0 else f"--health-check ended with {_status(status)}"
    except asyncio.TimeoutError:
        why = f"--health-check did not end within {timeout_s:g} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(reading, DRAIN_S)
    lines = [line.strip() for line in bytes(output).decode(errors="replace").splitlines()]
    said = " / ".join([line[:200] for line in lines if line][-LINES_MAX:])
    return f"{why}: {said}" if why and said else why


async def _read(process: asyncio.subprocess.Process, output: bytearray) -> None:
    """Read the command's output, and keep the end of it."""
    assert process.stdout is not None
    while data := await process.stdout.read(4096):
        output += data
        del output[:-OUTPUT_BYTES_MAX]


def _status(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit code {status}"
