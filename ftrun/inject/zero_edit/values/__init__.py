"""The script's values outside its modules: what counts as one, how it is found, which copy wins.

**What a value is** (kinds.py). A plain value (a number, a text, a flag, or something that JSON can
represent), a container of plain values (``losses``), or a unit of tensors and arrays (``shadow``).
A value is identified by a function, from whose variables it is reached, and by a path, as in
``self.callbacks[0].best``. A name with ``rank`` or ``device`` in it is never taken from a peer.

**How it is found** (walk.py). One walk at each noted draw starts at the variables of the script's
frames and visits the nearest objects first, within limits.py. A batch is not a value: the next draw
yields a different object.

**When it has changed** (changes.py). A value that has not changed since the first step stays the
replica's own. For every other value, the step of its last change is kept. A container is compared
with a copy (histories.py). Tensors have version counters instead (units.py, tensors.py), and are
sent with the model's state because they are large.

**Which copy wins** (sources.py, by the table of ``core/worker/origins.py``). A newcomer takes each
value from the process that changed it last: its donor, at the place where the newcomer joins; its
predecessor in the slot, from the file that each worker leaves (legacy.py, journal.py); or the
newcomer itself.

**How it is set** (writing.py). In place if possible, because the script may hold the object under
other names; never through a setter of its class.

| file | what it is for |
|---|---|
| counters.py | begin here: reads the script, notes a place, sets a newcomer |
| kinds.py, limits.py, walk.py | what a value is; limits on reading; how it is found |
| changes.py, histories.py | the step of each value's last change; copies of containers |
| units.py, tensors.py | tensors and arrays; which of them heal |
| attributes.py, generators.py | attributes of modules outside ``state_dict``; random generators |
| travelling.py | which objects may be part of a state that is sent |
| sources.py, writing.py | which copy is taken; how it is set |
| legacy.py, journal.py | the values that a worker leaves to its successor, and their file |
| own.py | the tensors that it leaves, because its peers lack them or have other ones |
| frameworks.py | state of Hugging Face's Trainer and Lightning that no variable leads to |
| survey.py | ``ftrun check``: all plain values, also those that no rule finds |

Not here: the script's position (frames.py, place.py), modules and optimizers (carried.py).
"""
