"""Scripts whose loops end now and then, followed by an evaluation, which needs all peers.

A worker that has committed the last step of a loop keeps its state for peers that have lost it, and
these take it before they continue (StateKept). Not here: unmodified scripts
(inject/zero_edit/script.py).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

from ftrun.core.worker import events as e
from ftrun.core.worker.facts import StepPhase
from tests.sim.actor import QUORUM_TIMEOUT_S
from tests.sim.until import Until, Wait
from tests.sim.violation import require

if TYPE_CHECKING:
    from tests.sim.script import Script
    from tests.sim.worker import Worker
    from tests.sim.world import Job

KEEPING_FROM, KEEPING_TO = 320_000_000, 330_000_000
"""The scripts of seeds between these have such loops. (No recorded seed is among them.)"""
LOOP_STEPS = 2
EVALUATION_S, LOOKS_EACH_S = 600.0, 0.1
"""The script waits for its peers this long there: longer than a world may take to end."""


def keeps(seed: int) -> bool:
    """Whether the scripts of this seed have such loops."""
    return KEEPING_FROM <= seed < KEEPING_TO


def that_keeps(job: Job) -> Job:
    """A job whose newcomers heal first, like the newcomers of unmodified scripts."""
    return replace(job, heal_first=True, spares=False, workers=1)


def is_last_of_loop(step: int) -> bool:
    """Whether a loop ends after this step."""
    return step >= 0 and (step + 1) % LOOP_STEPS == 0


def loop_ends(script: Script, *, has_lost: bool) -> Generator[Wait, None, None]:
    """Act after the last step of a loop; ``has_lost``: the step was not committed here."""
    worker, machine = script.worker, script.worker.machine
    after = machine.state.step + has_lost
    while has_lost:
        yield Until(
            lambda: machine.in_force is not None or machine.is_alone, QUORUM_TIMEOUT_S, "a quorum"
        )
        if not machine.must_catch_up:
            break
        yield from script.start_quorum(holds=True)
        if machine.phase is StepPhase.LEFT:
            return
        has_lost = machine.healing
        text = f"{worker.name} stands at the end of step {after - 1}, and holds {machine.state}"
        require(machine.healing or machine.state.step <= after, "Z1", text)
        worker.feed(e.Decided(False, shared=False, reason="begun to take the peers' state"))
    if not is_last_of_loop(machine.state.step - 1):
        return  # no replica has committed that step: all retry it
    worker.evaluated = machine.state.step
    worker.feed(e.StateKept())
    until = worker.world.now + EVALUATION_S
    while worker.world.now < until and not _are_there(worker):
        yield LOOKS_EACH_S


def _are_there(worker: Worker) -> bool:
    """Whether all that have trained with this worker, and are still in its quorum, have reached the
    evaluation or passed it."""
    own, quorum = worker.machine.state, worker.machine.in_force
    if quorum is None:
        return False
    together = worker.together & {x.incarnation for x in quorum.members}
    peers = [x for x in worker.world.workers() if x.alive and x.key.incarnation in together]
    return all(max(x.evaluated, x.machine.state.step - 1) >= own.step for x in peers)
