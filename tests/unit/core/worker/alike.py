"""A step machine whose peers have the same operations, and answer at once."""

from __future__ import annotations

from dataclasses import replace

from ftrun.core.worker import events as e
from ftrun.core.worker.machine import StepMachine


def handle(machine: StepMachine, event: e.Event, now: float) -> list[e.Instruction]:
    """The machine's instructions after ``event``, without those that compare operations."""
    instructions: list[e.Instruction] = []
    events = [event]
    while events:
        for instruction in machine.handle(events.pop(0), now):
            if isinstance(instruction, e.Ask):
                question = instruction.question
                entry = machine.look_up(replace(question, cleared=False))
                assert entry is not None, "it asks about an operation that it does not have"
                events += [
                    e.OperationAnswered(question, member.replica_id, entry)
                    for member in question.members
                ]
            elif not isinstance(instruction, e.Launch):
                instructions.append(instruction)
    return instructions
