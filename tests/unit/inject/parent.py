"""The process that forks workers for forked.py: ``python -m tests.unit.inject.parent FACTS``."""

from __future__ import annotations

import json
import os
import sys

from ftrun.config.script import TargetKind
from ftrun.core.ids import WorkerKey
from ftrun.inject.bootstrap import WorkerTask, prepare, run
from ftrun.training.context import WorkerContext

facts = json.loads(sys.argv[1])
imported = ("numpy.random", "random", "torch") if facts["torch"] else ()
for name in (*imported, *facts["preload"]):
    __import__(name)
for turn, target in enumerate(facts["targets"]):
    pid = os.fork()
    if pid == 0:
        here = WorkerContext(
            job_id="job",
            key=WorkerKey("0", f"{turn:016x}", 0),
            replicas=facts["replicas"],
            min_replicas=1,
            workers_per_replica=1,
            host="127.0.0.1",
            socket_path=facts["socket"],
            token="a" * 64,
        )
        arguments = ("--x", "1"), {"FLAG": "on"}
        prepare(facts["threads"])
        more = {"inject": facts["inject"], "explicit_environment": facts["explicit"]}
        run(WorkerTask(here, target, TargetKind(facts["kind"]), *arguments, **more))
    _, status = os.waitpid(pid, 0)
    print("status", os.waitstatus_to_exitcode(status), flush=True)
