"""Whether workers of a group that hold the same parameters still do: silent corruption. Pure.

Theory of operation. Some workers of a group hold the same parameters: all workers of a
DistributedDataParallel, or those at the same place of a mesh whose first dimension replicates
(HSDP). They are *mates*. Each writes a mark with each generation: a digest of these parameters, and
one of the optimizers' settings. All take generations of the same steps, so the marks of one step
can be compared.

If the parameters of mates were equal after some step and differ at a later one, while their
settings do not, the script did not cause it: memory or a device has altered bits. Until that is
settled no mate takes a further generation, so that the last one at which they were equal is still
there: a worker keeps three, and none begins the second step after a generation before all have
taken it.

| they differ, and                        | heal (the default)             | stop     | report   |
|-----------------------------------------|--------------------------------|----------|----------|
| were equal at a step before             | all resume from that step      | job ends | one line |
| ... and the same ones differ again      | a line                         | job ends | a line   |
| were not (at the script's begin at most)| a line                         | a line   | a line   |

After a line they are not compared any more. With three mates or more the odd one is named, if most
are alike. A resume makes all right whoever was altered, so two are enough for that. If other ones
are odd after it, memory was altered again.

Over several nodes the marks are compared by the lead (copying.py). There no mate waits for that,
but a step at which they differ is not pinned, so all can resume from the pinned step at least.

Not here: what is digested (inject/zero_edit/alike.py), the consequences (core/agent/replacing.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ftrun.core.replay.settling import Generation

NEVER = -1


@dataclass(frozen=True, slots=True)
class Unlike:
    """Mates that do not hold the same parameters any more.

    Attributes:
        step: the first step at which they differ.
        agreed: the newest step at which they were equal; ``NEVER``: none is known.
        odd: the minority; empty: it is unknown which are right.
        mates: all of them.
    """

    step: int
    agreed: int
    odd: tuple[int, ...]
    mates: tuple[int, ...]


def unlike(ranks: Sequence[Collection[Generation]]) -> Unlike | None:
    """The first mates that differ; None: all that can be compared are alike.

    Args:
        ranks: by rank, the whole generations in its memory.
    """
    of_mates: dict[int, list[int]] = {}
    for rank, known in enumerate(ranks):
        for mates in {x.mark.mates for x in known if x.mark is not None}:
            of_mates.setdefault(mates, []).append(rank)
    for mates, members in of_mates.items():
        marks = [
            {x.step: x.mark for x in ranks[rank] if x.mark is not None and x.mark.mates == mates}
            for rank in members
        ]
        agreed = NEVER
        for step in sorted(set.intersection(*map(set, marks))):
            settings = {own[step].settings for own in marks}
            holders: dict[int, list[int]] = {}
            for rank, own in zip(members, marks, strict=True):
                holders.setdefault(own[step].parameters, []).append(rank)
            if len(holders) == 1:
                agreed = step or NEVER  # before the first step they are what the script has set
            elif len(settings) == 1:
                most = max(holders.values(), key=len)
                is_known = 2 * len(most) > len(members)
                odd = [rank for rank in members if is_known and rank not in most]
                return Unlike(step, agreed, tuple(odd), tuple(members))
            else:
                agreed = NEVER  # the script trains them unlike
    return None
