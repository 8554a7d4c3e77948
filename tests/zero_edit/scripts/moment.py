"""Kills this worker at a named moment of a script, once in a job: what the matrix is made of.

``FTRUN_TEST_KILLS``: ``RANK@NAME`` with commas between. ``FTRUN_TEST_DIR``: keeps what was done.
``FTRUN_TEST_LATE``: the rank that is slow to begin once more. ``FTRUN_TEST_STEP_S``: how long a
moment of training takes, because real steps take their time too.
"""

import hashlib
import json
import os
import signal
import time
from pathlib import Path

LATE_S = 2.0


def _begin_late() -> None:
    """A replica that takes long to begin comes back when the others wait for it."""
    rank = os.environ.get("RANK", "")
    was_killed = any(Path(os.environ.get("FTRUN_TEST_DIR", ".")).glob(f"{rank}@*"))
    if was_killed and rank == os.environ.get("FTRUN_TEST_LATE"):
        time.sleep(LATE_S)


def at(name: str) -> None:
    """The script is at the moment ``name``."""
    if name.startswith("train"):
        time.sleep(float(os.environ.get("FTRUN_TEST_STEP_S", "0")))
    key = f"{os.environ.get('RANK')}@{name}"
    if key not in os.environ.get("FTRUN_TEST_KILLS", "").split(","):
        return
    try:
        os.close(os.open(Path(os.environ["FTRUN_TEST_DIR"]) / key, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def end(modules: dict, alike: dict | None = None, **facts: object) -> None:
    """The script is over: write what it has come to.

    ``alike``: equal on all replicas, but not to a run that nobody disturbs; as ``modules`` are.
    """
    digests = dict(alike or {})
    for name, module in modules.items():
        whole = [getattr(x, "full_tensor", lambda x=x: x)().detach() for x in module.parameters()]
        raw = b"".join(x.cpu().numpy().tobytes() for x in whole)
        digests[name] = hashlib.sha256(raw).hexdigest()[:16]
    line = json.dumps({"digests": digests, **facts}, sort_keys=True)
    path = Path(os.environ["FTRUN_TEST_DIR"]) / f"end-{os.environ['RANK']}.json"
    path.write_text(line)


_begin_late()
