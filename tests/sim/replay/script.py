"""A script for the schedules of world.py, and what an undisturbed run of it gives.

Each rank has some words of state. In a step it makes calls of several kinds, some of them waited
for later only, and then changes its state by what they gave. ``Undisturbed`` is the dumb oracle:
all ranks side by side, without decrees, logs and generations.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

FENCES = ("allreduce", "_allgather_base", "reduce_scatter", "alltoall", "barrier")
LOOSE = ("broadcast", "gather", "reduce", "scatter")
MASK = (1 << 32) - 1

State: TypeAlias = list[int]
Request: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Operation:
    """A call of the script. ``lag``: it is waited for after so many further ones."""

    kind: str
    root: int
    lag: int


@dataclass(frozen=True)
class Spec:
    """A job. ``has_fences``: in each step, as an all-reduce of gradients is one."""

    workers: int
    words: int
    steps: tuple[tuple[Operation, ...], ...]
    has_fences: bool

    @classmethod
    def drawn(cls, draws: random.Random) -> Spec:
        """A job of a seed."""
        workers, kind = draws.choice([2, 2, 3, 3, 4]), draws.random()
        kinds = LOOSE if draws.random() < 0.4 else FENCES + LOOSE
        steps = [cls._step(draws, workers, kinds) for _ in range(draws.randint(2, 4))]
        if kind < 0.8:
            for number, one in enumerate(steps):
                if not {operation.kind for operation in one} & set(FENCES):
                    steps[number] = (*one, Operation("allreduce", 0, draws.choice([0, 0, 2])))
        elif kind < 0.9:  # one rank runs away from what the others need of it
            steps = [(Operation("_allgather_base", 0, 0),), *steps[:1]]
            steps += [cls._step(draws, 1, ("broadcast", "scatter")) for _ in range(4)]
        return cls(workers, draws.randint(1, 3), tuple(steps), kind < 0.8)

    @staticmethod
    def _step(draws: random.Random, roots: int, kinds: tuple[str, ...]) -> tuple[Operation, ...]:
        return tuple(
            Operation(draws.choice(kinds), draws.randrange(roots), draws.choice([0, 0, 0, 1, 2]))
            for _ in range(draws.randint(1, 5))
        )


def mix(*values: int) -> int:
    """A hash of numbers."""
    found = 0x811C9DC5
    for value in values:
        found = (found ^ value) * 0x01000193 & MASK
    return found


def first_state(spec: Spec, rank: int) -> State:
    """Of a rank before step 0."""
    return [mix(rank, index) for index in range(spec.words)]


def step(
    spec: Spec, number: int, rank: int, state: State, salt: int
) -> Generator[Request, Any, int]:
    """One step of the script: begins calls and waits for them; returns what changes the state.

    ``salt``: other at each try of all ranks, as if no step could be computed twice alike.
    """
    total, waited = mix(salt, number, *state), []
    for operation in spec.steps[number]:
        given = mix(total, rank, operation.root)
        call = yield "begin", operation.kind, operation.root, given
        waited.append([operation.lag, call])
        for one in list(waited):
            if one[0] == 0:
                total = mix(total, (yield "wait", one[1]))
                waited.remove(one)
            one[0] -= 1
    for _, call in waited:
        total = mix(total, (yield "wait", call))
    return total


def changed(word: int, index: int, total: int) -> int:
    """A word of the state after the step."""
    return mix(word, index, total)


def needs(kind: str, root: int, rank: int, workers: int) -> frozenset[int]:
    """Whose inputs a rank must have before the call is complete there."""
    everyone = frozenset(range(workers))
    if kind in FENCES:
        return everyone
    if kind in ("gather", "reduce"):
        return everyone if rank == root else frozenset()
    return frozenset({root})


def result(kind: str, root: int, rank: int, inputs: dict[int, int]) -> int:
    """What a call gives a rank."""
    if kind == "barrier" or (kind in ("gather", "reduce") and rank != root):
        return 0
    if kind == "broadcast":
        return inputs[root]
    if kind == "scatter":
        return mix(inputs[root], rank)
    if kind in ("allreduce", "reduce"):
        return sum(inputs.values()) & MASK
    whole = [inputs[one] for one in sorted(inputs)]
    return mix(*whole) if kind in ("_allgather_base", "gather") else mix(rank, *whole)


class Undisturbed:
    """``inputs``, ``results``: by call and rank; ``states``: by generation and rank; ``calls``.

    ``salts``: of each step.
    """

    def __init__(self, spec: Spec, salts: list[int]) -> None:
        self.salts = salts
        ranks = range(spec.workers)
        states = [first_state(spec, rank) for rank in ranks]
        self.inputs: list[list[int]] = []
        self.results: list[list[int]] = []
        self.states = [[list(state) for state in states]]
        self.calls = [0]
        for number in range(len(spec.steps)):
            totals = self._step(spec, number, states)
            for rank in ranks:
                words = enumerate(states[rank])
                states[rank] = [changed(word, index, totals[rank]) for index, word in words]
            self.states.append([list(state) for state in states])
            self.calls.append(len(self.inputs))

    def _step(self, spec: Spec, number: int, states: list[State]) -> list[int]:
        salt = self.salts[number]
        runs = [step(spec, number, rank, state, salt) for rank, state in enumerate(states)]
        requests = [next(run) for run in runs]
        while True:
            name = requests[0][0]
            answers: list[int] = []
            if name == "begin":
                _, kind, root, _ = requests[0]
                inputs = {rank: request[3] for rank, request in enumerate(requests)}
                answers = [len(self.inputs)] * spec.workers
                self.inputs.append(list(inputs.values()))
                self.results.append([result(kind, root, rank, inputs) for rank in inputs])
            else:
                answers = list(self.results[requests[0][1]])
            totals: list[int] = []
            for rank, run in enumerate(runs):
                try:
                    requests[rank] = run.send(answers[rank])
                except StopIteration as end:
                    totals.append(end.value)
            if totals:
                return totals
