"""A module of a script's that is not on the stack, and keeps values in many ways. For tests."""

import contextvars
import functools
import threading
import weakref
from collections import Counter, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from types import SimpleNamespace
from typing import NamedTuple

import numpy
import torch
from torch import nn

steps, mean, sums, table = 0, 0.0, torch.zeros(3), numpy.zeros(3)
losses, last_three, seen, by_kind = [], deque(maxlen=3), set(), defaultdict(list)
counts, draws = Counter(), numpy.random.default_rng(3)
flags = bytearray(9)
Point = namedtuple("Point", "x y")


class Phase(Enum):
    WARM = 1
    HOT = 2


class Best(NamedTuple):
    loss: float
    step: int


class Slotted:
    __slots__ = ("__count", "__weakref__", "mean", "recent")

    def __init__(self):
        self.__count, self.mean, self.recent = 0, torch.zeros(2), []

    def add(self, loss):
        self.__count += 1
        self.mean = 0.9 * self.mean + loss
        self.recent.append(loss)

    def all(self):
        return self.__count, self.mean.tolist(), self.recent


@dataclass(slots=True)
class Record:
    step: int = 0
    best: Best | None = None


class Meters(dict):
    """Items, and attributes."""

    def __init__(self):
        super().__init__(mean=0.0)
        self.count = 0

    def __setitem__(self, name, value):
        self.count += 1
        super().__setitem__(name, value)


class Last(list):
    def extend(self, values):
        raise NotImplementedError


class OfAll:
    total, sums, names = 0, torch.zeros(2), []

    def add(self, loss):
        OfAll.total += 1
        OfAll.sums = OfAll.sums + loss
        OfAll.names.append(f"{OfAll.total}")


class Model(nn.Module):
    """Its meter is an object of the script's inside of torch's."""

    made = 0

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(1, 1)])
        self.layers[0].meter = Slotted()

    def forward(self, loss):
        Model.made += 1
        self.layers[0].meter.add(loss)


def counted(function):
    calls = 0

    @functools.wraps(function)
    def call(*args):
        nonlocal calls
        calls += 1
        call.last = args[-1]
        return function(*args), calls, call.last

    return call


@counted
def doubled(number, known=[]):  # noqa: B006
    known.append(number)
    return sum(known)


def added(holder, by):
    holder.total = getattr(holder, "total", 0.0) + by


phase, point, best, third = Phase.WARM, Point(0, 0.0), Best(1e9, -1), Fraction(0)
slotted, record, of_all, space = Slotted(), Record(), OfAll(), SimpleNamespace(steps=0, losses=[])
local, held, box = threading.local(), Slotted(), UserDict()
meters, last_losses = Meters(), Last()
local.steps = 0
context = contextvars.ContextVar("context", default=0)
weak, add = weakref.ref(held), functools.partial(added, SimpleNamespace())
callback, model = held.add, Model()
modules = {"of one": model}
del held.recent[:]


def note(loss):
    """A step."""
    global steps, mean, sums, table, phase, point, best, third
    steps, mean, sums = steps + 1, 0.9 * mean + 0.1 * loss, sums + loss
    table = table * 0.5 + loss
    losses.append(loss)
    last_three.append(loss)
    seen.add(steps % 7)
    by_kind[steps % 2].append(steps)
    counts["even" if steps % 2 else "odd"] += 1
    phase, point = Phase.HOT if steps > 6 else Phase.WARM, Point(steps, loss)
    best, third = min(best, Best(loss, steps)), third + Fraction(1, 3)
    record.step, record.best = steps, best
    flags[steps % 9] += steps
    meters["mean"] = 0.5 * meters["mean"] + loss
    last_losses.append(loss)
    slotted.add(loss)
    of_all.add(loss)
    space.steps += 1
    space.losses.append(loss)
    local.steps += 1
    context.set(context.get() + 1)
    box["loss"], box["draw"] = loss, draws.random()
    callback(loss)
    add(loss)
    doubled(steps)
    modules["of one"](loss)


def values():
    """All that it keeps."""
    return repr(
        (
            (steps, mean, sums.tolist(), table.tolist(), losses, last_three, sorted(seen)),
            (dict(by_kind), counts, phase, point, type(point), best, third),
            (slotted.all(), record, OfAll.total, OfAll.sums.tolist(), OfAll.names, space),
            (local.steps, context.get(), dict(box), weak().all(), add.args, doubled(1)),
            (Model.made, model.layers[0].meter.all()),
            (bytes(flags), dict(meters), meters.count, list(last_losses)),
        )
    )
