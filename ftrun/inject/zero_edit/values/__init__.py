"""The values of a script outside its modules: what they are, how they are found, who wins.

**What a value is** (kinds.py). A plain value (a number, a text, a flag, or what JSON can have in
their place), a container of these (``losses``), or a unit of tensors and arrays (``shadow``). All
are known by the function whose variables lead to them and by a path, as ``self.callbacks[0].best``.
Names that say ``rank`` or ``device`` belong to each replica.

**How it is found** (walk.py). One walk from the variables of the script's frames, at each noted
draw, the nearest first, within limits.py. A batch is no value: the next draw gives another object.

**When it has changed** (changes.py). A value that has never changed since the first step belongs to
its replica, which has made it itself. For each of the others the step of its last change is kept;
of a container its copy counts (histories.py). Tensors have versions instead (units.py, tensors.py),
and travel with the state that heals, because they are large.

**Who wins** (sources.py, by the table of ``core/worker/origins.py``). A newcomer takes each value
from whoever has changed it last: its donor, from the place at which it joins; its predecessor in
the slot, from the file that each worker leaves (legacy.py, journal.py); or itself.

**How it is set** (writing.py). In place where that is possible, because the script may hold the
object under other names; never through a class's own setters.

| file | what it is for |
|---|---|
| counters.py | begin here: reads the script, notes a place, sets a newcomer |
| kinds.py, limits.py, walk.py | what a value is; how much of it is read; how it is found |
| changes.py, histories.py | when each value has changed; copies of containers |
| units.py, tensors.py | tensors and arrays; those that heal |
| attributes.py, generators.py | what modules keep beside their state; random generators |
| travelling.py | what a state may hold on its way to peers |
| sources.py, writing.py | whose value is taken; how it is set |
| legacy.py, journal.py | the values that a worker leaves to its successor, and their file |
| own.py | the tensors that it leaves, because its peers lack them or have others |
| frameworks.py | state of Hugging Face's Trainer and Lightning, which no variable leads to |
| survey.py | ``ftrun check``: all plain values, also those that no rule finds |

Not here: where the script stands (frames.py, place.py), modules and optimizers (carried.py).
"""
