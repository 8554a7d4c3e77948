"""The process that a launching program starts: it becomes the agent of an ordinary run.

It has its own session, so that Ctrl-C reaches only the program, which forwards it once. When the
program ends without waiting, however it ends, the job is drained as by SIGTERM.

Not here: the program's side (job.py), the agent (agent/), the settings' names (settings.py).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import threading
from pathlib import Path

from ftrun.agent.launch import SpawnerLaunch, handle_signals, leave
from ftrun.base.errors import ExitCode, FtrunError
from ftrun.base.own_process import not_started
from ftrun.config.script import Script, TargetKind
from ftrun.protocol.auth import take_token
from ftrun.tools.launching.job import ORDER
from ftrun.tools.launching.reporter import Reporter


def main() -> None:
    """Run with the arguments DIRECTORY FD PID. Only job.py starts this."""
    directory, fd, caller = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    handle_signals()
    signal.signal(signal.SIGHUP, leave)
    os.set_inheritable(fd, False)
    pidfd = _pidfd_of_parent(caller)
    reporter = Reporter(fd, pidfd)
    launch: SpawnerLaunch | None = None
    code: int = ExitCode.BUG
    try:
        token = take_token(os.environ)  # before a child can inherit it
        launch = _launch()  # early, because importing torch takes longest
        threading.Thread(target=_follow, args=(pidfd,), name="caller", daemon=True).start()
        code = _run(directory, launch, reporter, token)
    except FtrunError as error:
        code = error.exit_code
        reporter.refused(code, str(error))
    except OSError as error:
        code = ExitCode.USAGE
        reporter.refused(code, f"The job cannot be run: {error}.")
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else ExitCode.BUG
    finally:
        if launch is not None:
            launch.end()
        reporter.close(code)
        if _has_ended(pidfd):
            shutil.rmtree(directory, ignore_errors=True)
    sys.exit(code)


def _launch() -> SpawnerLaunch:
    try:
        return SpawnerLaunch()
    except OSError as error:
        raise not_started(error) from None


def _run(directory: Path, launch: SpawnerLaunch, reporter: Reporter, token: str) -> int:
    order = json.loads((directory / ORDER).read_text())
    target, *arguments = order["target"]
    script = Script(target, TargetKind(order["kind"]), tuple(arguments))

    from ftrun.agent.devices import gpu_count
    from ftrun.config.settings import resolve
    from ftrun.tools.launching.settings import stated_options
    from ftrun.tools.start import start_run

    stated = stated_options(order["settings"], os.environ, one_group=order["one_group"])
    settings = resolve(script, stated, gpu_count(os.environ))
    reporter.settled(settings.job_id, settings.workers_per_replica)
    return start_run(settings, launch, watch=reporter, token=token)


def _pidfd_of_parent(pid: int) -> int:
    pidfd = os.pidfd_open(pid)
    if os.getppid() != pid:
        sys.exit(ExitCode.PREEMPTED)  # the program has ended already
    return pidfd


def _has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def _follow(pidfd: int) -> None:
    """Start a thread that drains the job when the launching program has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    os.kill(os.getpid(), signal.SIGTERM)
