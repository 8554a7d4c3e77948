"""What the workers of two runs have read and computed, side by side. Pure.

Not here: what may differ (comparison.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.tools.check.runs import Reports

NEAR = 0.25
"""So much of its norm may be other in a running average that lacks an update."""
ROUNDING = 1e-4
"""So much of its norm may be other in a tensor that is computed from another order of sums."""
READS, LOSSES = "what each {kind} reads", "losses"
PARAMETERS, BUFFERS, OWN = "parameters", "buffers", "parameters of no model"
OUTSIDE = "tensors outside modules"
"""As in inject/zero_edit/digests.py, which imports torch."""
WHOSE = {"inputs": "what the models are given", "losses": "the losses"}


class Seen(NamedTuple):
    """One result of a worker or replica in two runs.

    Attributes:
        of: its number.
        place: what varies together, as one tensor of all batches. If it begins like the place of a
            result that two undisturbed runs have otherwise, it cannot be compared.
        where: its place, in words.
        ours, theirs: a digest, and of a computed tensor its norm and a weighted sum; "": none.
    """

    of: int
    place: tuple[str, ...]
    where: str
    ours: str
    theirs: str

    @property
    def is_equal(self) -> bool:
        """Whether it is the same to the last bit."""
        return self.ours == self.theirs

    @property
    def is_near(self) -> bool:
        """Whether it may be a running average that lacks an update or two."""
        return self._distance() <= NEAR

    @property
    def is_rounding(self) -> bool:
        """Whether it may be computed from another order of sums."""
        return self._distance(is_whole=True) <= ROUNDING

    def _distance(self, *, is_whole: bool = False) -> float:
        """By how much of the norm both differ: in the norm, or also in the weighted sum."""
        known = [[float(x) for x in one.split()[1:]] for one in (self.ours, self.theirs)]
        if not all(known):
            return 2.0
        norm = max(known[0][0], known[1][0])
        pairs = zip(*known, strict=True)
        apart = [abs(x - y) / norm if norm else 0.0 for x, y in pairs]
        return max(apart) if is_whole else apart[0]


def results(before: Reports, after: Reports) -> Iterator[tuple[str, list[Seen]]]:
    """The results of two runs, by kind."""
    known = [(index, report, after[index]) for index, report in before.items() if index in after]
    batches = (x for index, ours, theirs in known for x in _batches(index, ours, theirs))
    yield READS, [*_by_step(before, after, "inputs"), *batches]
    yield LOSSES, [*_by_step(before, after, "losses")]
    for kind in next(iter(before.values()))["kept"]:
        found = list[Seen]()
        for index, report, other in known:
            ours, theirs = report["kept"][kind], other["kept"][kind]
            # A newcomer may have variables that only its peer had.
            names = ours.keys() & theirs.keys() if kind == OUTSIDE else ours | theirs
            found += [Seen(index, (x,), x, ours.get(x, ""), theirs.get(x, "")) for x in names]
            if kind == PARAMETERS and all(x.is_equal for x in found):  # those that have no name
                found.append(Seen(index, (), "", report["parameters"], other["parameters"]))
        yield kind, found


def _by_step(before: Reports, after: Reports, what: str) -> Iterator[Seen]:
    """What a report has by step. A newcomer has no earlier ones. Of a turn of several steps whose
    passes are all in the first one, it may have some of its own in a later one, where it begins."""
    for index, report in before.items():
        theirs = after[index][what] if index in after else {}
        for at, (step, marks) in enumerate(sorted(theirs.items(), key=lambda x: int(x[0]))):
            ours, known = report[what].get(step), sorted(map(int, report[what]))
            if ours is None and at == 0 and known and known[0] < int(step) < known[-1]:
                continue
            yield from _marks(index, WHOSE[what], f"step {step}", ours, marks)


def _batches(index: int, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Seen]:
    """The batches of each loader, by number and epoch. A newcomer has those of the last epochs."""
    for loader, theirs in after["batches"].items():
        for number, each in theirs.items():
            ours = before["batches"].get(loader, {}).get(number, [])
            where = f"batch {number} of {loader}"
            for back, marks in enumerate(reversed(each), 1):
                own = ours[-back] if back <= len(ours) else None
                yield from _marks(index, loader, where, own, marks)


def _marks(
    of: int, whose: str, where: str, ours: Sequence[str] | None, theirs: Sequence[str]
) -> Iterator[Seen]:
    """The digests of each tensor of a batch."""
    if ours is None or len(ours) != len(theirs):
        yield Seen(of, (whose,), where, "", "other")
        return
    for number, (own, other) in enumerate(zip(ours, theirs, strict=True), 1):
        yield Seen(of, (whose, f"tensor {number} of"), where, own, other)
