"""A script for the schedules of world.py, and the result of an undisturbed run of it.

Each rank has some words of state. In a step it makes calls of several kinds, in several process
groups, waits for some of them only later, and then changes its state by their results.
``Undisturbed`` is the simple oracle: all ranks side by side, without decrees, logs and generations.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

FENCES = ("allreduce", "_allgather_base", "reduce_scatter", "alltoall", "barrier")
LOOSE = ("broadcast", "gather", "reduce", "scatter")
MASK = (1 << 32) - 1

SPLITS: dict[int, tuple[tuple[tuple[int, ...], ...], ...]] = {
    2: (((0, 1),),),
    3: (((0, 1),), ((1, 2),), ((0, 2),), ((0, 1, 2),)),
    4: (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)), ((0, 1, 2),), ((1, 3),)),
}
"""By the number of ranks: ways to split them into process groups, beside the group of all."""

Id: TypeAlias = tuple[int, int]
"""A call: its group, and its number there."""
State: TypeAlias = list[int]
Request: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Operation:
    """A call of the script. ``lag``: the number of further calls before it is waited for.

    ``split``: each rank makes it in its group of this split, if it is in one.
    """

    kind: str
    root: int
    lag: int
    split: int = 0


@dataclass(frozen=True)
class Spec:
    """A job. ``has_fences``: each step has a call of all ranks, like an all-reduce of gradients.

    ``splits``: splits of the ranks into groups. ``groups``: all of them; the first has all ranks.
    ``late``: the number of a step's operations that precede the copy of the state at its begin.
    ``shows``: these operations work in place, in tensors that stay, so the copy may contain their
    results.
    """

    workers: int
    words: int
    steps: tuple[tuple[Operation, ...], ...]
    has_fences: bool
    splits: tuple[tuple[tuple[int, ...], ...], ...]
    late: int
    shows: bool = True

    @property
    def groups(self) -> list[tuple[int, ...]]:
        return [group for split in self.splits for group in split]

    def own(self, rank: int) -> list[int]:
        """The groups that a rank is in."""
        return [number for number, group in enumerate(self.groups) if rank in group]

    def group_of(self, split: int, rank: int) -> int:
        """A rank's group of a split; -1: it is in none."""
        before = sum(map(len, self.splits[:split]))
        places = (before + at for at, group in enumerate(self.splits[split]) if rank in group)
        return next(places, -1)

    @classmethod
    def drawn(cls, draws: random.Random, others: random.Random | None) -> Spec:
        """The job of a seed. ``others``: draws the groups; None: there is one, and copies are
        early."""
        workers, kind = draws.choice([2, 2, 3, 3, 4]), draws.random()
        kinds = LOOSE if draws.random() < 0.4 else FENCES + LOOSE
        steps = [cls._step(draws, workers, kinds) for _ in range(draws.randint(2, 4))]
        if kind < 0.8:
            for number, one in enumerate(steps):
                if not {operation.kind for operation in one} & set(FENCES):
                    steps[number] = (*one, Operation("allreduce", 0, draws.choice([0, 0, 2])))
        elif kind < 0.9:  # one rank runs ahead of the inputs that others need from it
            steps = [(Operation("_allgather_base", 0, 0),), *steps[:1]]
            steps += [cls._step(draws, 1, ("broadcast", "scatter")) for _ in range(4)]
        words = draws.randint(1, 3)
        splits: list[tuple[tuple[int, ...], ...]] = [(tuple(range(workers)),)]
        if others is None:
            return cls(workers, words, tuple(steps), kind < 0.8, tuple(splits), 0)
        if others.random() < 0.5:
            splits += others.sample(SPLITS[workers], k=min(len(SPLITS[workers]), 2))
            steps = [cls._divided(others, step, len(splits)) for step in steps]
        late = others.choice([0, 0, 1, 2])
        return cls(workers, words, tuple(steps), kind < 0.8, tuple(splits), late)

    @staticmethod
    def _divided(
        draws: random.Random, step: tuple[Operation, ...], splits: int
    ) -> tuple[Operation, ...]:
        """The same step in groups; the last call that waits for all stays with all ranks."""
        fences = [at for at, one in enumerate(step) if one.kind in FENCES]
        return tuple(
            one if at in fences[-1:] else replace(one, split=draws.randrange(splits))
            for at, one in enumerate(step)
        )

    @staticmethod
    def _step(draws: random.Random, roots: int, kinds: tuple[str, ...]) -> tuple[Operation, ...]:
        return tuple(
            Operation(draws.choice(kinds), draws.randrange(roots), draws.choice([0, 0, 0, 1, 2]))
            for _ in range(draws.randint(1, 5))
        )


def nothing_shown(spec: Spec) -> State:
    """What the in-place calls of a rank have left before the first step."""
    return [0] * spec.late


def mix(*values: int) -> int:
    """A hash of numbers."""
    found = 0x811C9DC5
    for value in values:
        found = (found ^ value) * 0x01000193 & MASK
    return found


def first_state(spec: Spec, rank: int) -> State:
    """A rank's state before step 0."""
    return [mix(rank, index) for index in range(spec.words)]


def step(
    spec: Spec, number: int, rank: int, state: State, shown: State, salt: int
) -> Generator[Request, Any, int]:
    """One step of the script: begins calls and waits for them; returns what changes the state.

    "take": the state may be copied there. A call before it uses its place of ``shown``; if it is in
    place, it leaves its result there, perhaps before it is waited for. ``salt``: differs at each
    attempt of all ranks, as if what follows the copy could not be computed twice with the same
    result.
    """
    total, waited = mix(number, *state), []
    for at, operation in enumerate(spec.steps[number]):
        if at == spec.late:
            total = mix(total, salt)
            yield "take", None
        is_shown = spec.shows and at < spec.late
        group = spec.group_of(operation.split, rank)
        if group < 0:
            yield "pass", None
            continue
        members = spec.groups[group]
        root = members[operation.root % len(members)]
        given = mix(total, rank, operation.root, shown[at] if is_shown else 0)
        call = yield "begin", operation.kind, group, root, given, at if is_shown else -1
        waited.append([operation.lag, call, at if is_shown else -1])
        for one in list(waited):
            if one[0] == 0:
                total = mix(total, (yield from _awaited(one, shown)))
                waited.remove(one)
            one[0] -= 1
    for one in waited:
        total = mix(total, (yield from _awaited(one, shown)))
    if len(spec.steps[number]) <= spec.late:
        total = mix(total, salt)
        yield "take", None
    return total


def _awaited(one: list[Any], shown: State) -> Generator[Request, Any, int]:
    """The result of a call."""
    found: int = yield "wait", one[1]
    if one[2] >= 0:
        shown[one[2]] = found
    return found


def changed(word: int, index: int, total: int) -> int:
    """A word of the state after the step."""
    return mix(word, index, total)


def needs(kind: str, root: int, rank: int, members: tuple[int, ...]) -> frozenset[int]:
    """The ranks whose inputs a rank needs before the call is complete there."""
    everyone = frozenset(members)
    if kind in FENCES:
        return everyone
    if kind in ("gather", "reduce"):
        return everyone if rank == root else frozenset()
    return frozenset({root})


def result(kind: str, root: int, rank: int, inputs: dict[int, int]) -> int:
    """A call's result for a rank."""
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
    """``inputs``, ``results``: by call and rank; ``states``, ``calls``: by step and rank.

    ``salts``: by step.
    """

    def __init__(self, spec: Spec, salts: list[int]) -> None:
        self.salts = salts
        ranks = range(spec.workers)
        states = [first_state(spec, rank) for rank in ranks]
        self._shown = [nothing_shown(spec) for _ in ranks]
        self.inputs: dict[Id, dict[int, int]] = {}
        self.results: dict[Id, dict[int, int]] = {}
        self.states = [[list(state) for state in states]]
        made = [dict.fromkeys(spec.own(rank), 0) for rank in ranks]
        self.calls = [[dict(own) for own in made]]
        for number in range(len(spec.steps)):
            totals = self._step(spec, number, states, made)
            for rank in ranks:
                words = enumerate(states[rank])
                states[rank] = [changed(word, index, totals[rank]) for index, word in words]
            self.states.append([list(state) for state in states])
            self.calls.append([dict(own) for own in made])

    def _step(
        self, spec: Spec, number: int, states: list[State], made: list[dict[int, int]]
    ) -> list[int]:
        """Run each rank that can continue: a rank waits until all members of its call have reached
        it."""
        salt = self.salts[number]
        pairs = enumerate(zip(states, self._shown, strict=True))
        runs = [step(spec, number, rank, *both, salt) for rank, both in pairs]
        requests: dict[int, Request] = {rank: next(run) for rank, run in enumerate(runs)}
        totals: dict[int, int] = {}
        while requests:
            for rank, request in list(requests.items()):
                answer: Any = None
                if request[0] == "begin":
                    _, kind, group, root, given, _ = request
                    answer = group, made[rank][group]
                    made[rank][group] += 1
                    inputs = self.inputs.setdefault(answer, {})
                    inputs[rank] = given
                    if len(inputs) == len(spec.groups[group]):
                        found = {one: result(kind, root, one, inputs) for one in inputs}
                        self.results[answer] = found
                elif request[0] == "wait":
                    if request[1] not in self.results:
                        continue
                    answer = self.results[request[1]][rank]
                try:
                    requests[rank] = runs[rank].send(answer)
                except StopIteration as end:
                    totals[rank] = end.value
                    del requests[rank]
        return [totals[rank] for rank in range(spec.workers)]
