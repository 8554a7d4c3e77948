"""The script of the chaos runs: it trains, keeps a journal, and runs into traps.

``$CHAOS_OUT/journal.<replica>.<pid>`` has one JSON object per line: ``start``, then ``try`` before
each backward pass, ``heal`` after a peer's state was loaded, and ``commit`` after each commit. The
file ``stop`` in that directory holds the step at which all end.

A trap is a file ``trap.<replica>`` that names a place; the first process to reach the place falls
into it: ``exception``, ``memory``, ``segv``, ``deaf`` (hangs and ignores SIGTERM) at its next step;
``load`` and ``donate`` in a heal; ``build`` while it builds a process group; ``repair`` at the
first reduction on a group built after the trap was set.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import torch

import ftrun
from ftrun.core.ids import Tag
from ftrun.process_groups.built import BuiltGroup
from ftrun.training.context import current
from tests.chaos.model import Trained, sample_ids

OUT = Path(os.environ["CHAOS_OUT"])
STEP_S = float(os.environ.get("CHAOS_STEP_S", "0.02"))
BALLAST_BYTES = int(os.environ.get("CHAOS_BALLAST_BYTES", "0"))
TIMEOUT_S = float(os.environ.get("CHAOS_TIMEOUT_S", "20"))
REPLICA = os.environ["REPLICA_GROUP_ID"]
TRAP = OUT / f"trap.{REPLICA}"
MEMORY_MORE_BYTES = 64 << 20


def main() -> None:
    """Train until the stop file exists."""
    context = current()
    assert context is not None, "it is started by ftrun"
    incarnation = context.key.incarnation
    trained = Trained(seed=os.getpid(), ballast_bytes=BALLAST_BYTES)
    timeout = timedelta(seconds=TIMEOUT_S)
    heals: list[str] = []

    def load(state: dict[str, Any]) -> None:
        fall("load")
        trained.load(state)
        heals.append(trained.digest())

    manager = ftrun.Manager(
        TrappedGloo(timeout=timeout),
        load,
        lambda: (fall("donate"), trained.state())[1],
        timeout=timeout,
        quorum_timeout=timedelta(seconds=60),
    )
    network = ftrun.DistributedDataParallel(manager, trained.model)
    optimizer = ftrun.Optimizer(manager, trained.optimizer)
    with open(OUT / f"journal.{REPLICA}.{os.getpid()}", "w", buffering=1) as journal:
        lineage = manager.state_dict()["lineage"]
        about = {"replica": REPLICA, "incarnation": incarnation, "pid": os.getpid()}
        about |= {"seed": os.getpid(), "ballast_bytes": BALLAST_BYTES}
        note(journal, "start", **about, lineage=lineage, hash=trained.digest())
        while not stopped(manager.current_step()):
            spring()
            optimizer.zero_grad()
            before = manager.state_dict()
            step = manager.current_step()
            ids = sample_ids(step, int(REPLICA))
            held = {"held": before["step"], "lineage": before["lineage"]}
            note(journal, "try", step=step, **held, ids=ids)
            loss = trained.loss(network, ids)
            time.sleep(STEP_S)
            loss.backward()
            optimizer.step()
            note_heals(journal, heals)
            after = manager.state_dict()
            if after["step"] > before["step"]:
                note_commit(journal, manager, after, trained.digest())
    print(f"hash {trained.digest()}", flush=True)


def note_heals(journal: TextIO, heals: list[str]) -> None:
    """Note the states that were loaded since the last check."""
    while heals:
        note(journal, "heal", hash=heals.pop(0))


def note_commit(journal: TextIO, manager: ftrun.Manager, held: dict[str, Any], digest: str) -> None:
    """Note a commit. The Manager's public interface has only the number of contributors."""
    quorum, ranks = manager.session.engine._stock
    assert quorum is not None
    tag = Tag(quorum.attempt, held["step"] - 1)
    note(
        journal,
        "commit",
        step=held["step"],
        lineage=held["lineage"],
        hash=digest,
        tag=[tag.attempt.quorum_id, tag.attempt.number, tag.step],
        number=manager.num_participants(),
        who=[[quorum.members[r].replica_id, quorum.members[r].incarnation] for r in ranks],
        members=[[member.replica_id, member.incarnation] for member in quorum.members],
    )


def note(journal: TextIO, what: str, **facts: Any) -> None:
    """Write one line; all processes of a machine have the same monotonic clock."""
    journal.write(json.dumps({"what": what, "at": time.monotonic(), **facts}) + "\n")


def stopped(step: int) -> bool:
    """Whether the step at which all end has been reached."""
    try:
        return step >= int((OUT / "stop").read_text())
    except FileNotFoundError:
        return False


# ---------------------------------------------------------------- traps


def trapped(*places: str) -> str:
    """Take the trap that is set for one of these places, and remove it, so that one worker
    falls."""
    try:
        place = TRAP.read_text().strip()
        if place in places:
            TRAP.rename(OUT / f"{TRAP.name}.sprung.{os.getpid()}")
            return place
    except FileNotFoundError:
        pass
    return ""


def fall(place: str) -> None:
    """Die here if a trap is set for this place."""
    if trapped(place):
        os.kill(os.getpid(), signal.SIGKILL)


def spring() -> None:
    """Spring the traps at the beginning of a step."""
    match trapped("exception", "memory", "segv", "deaf"):
        case "exception":
            raise ValueError("the trap of a chaos run")
        case "memory":
            use_up_memory()
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                signal.pause()


def use_up_memory() -> None:
    """Allocate beyond a limit set for this process, until Python raises MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    eaten = []
    while True:
        eaten.append(bytearray(1 << 20))


class TrappedGloo(ftrun.ProcessGroupGloo):
    """Gloo with a trap inside ``build`` and one after it."""

    def build(self, *arguments: Any, **named: Any) -> BuiltGroup:
        """Build like Gloo."""
        fall("build")
        group = super().build(*arguments, **named)
        if trapped("repair"):
            group.allreduce = _die  # type: ignore[method-assign, assignment]
        return group


def _die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
