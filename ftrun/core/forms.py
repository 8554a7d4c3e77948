"""The forms in which ftrun runs a script under ``--replicas``, and the way from one to another.

A script under ``--inject auto`` begins *open*: its world is that of all replicas, and what it makes
decides. Making torch's DistributedDataParallel takes it: it heals per step. Naming ftrun's own
classes makes it explicit, in the same process. Where that is too late, or the script cannot be
carried, the run ends all its workers and begins again in a fixed form. A script that begins again
as explicit is still *watched*: it must make a Manager. No other form asks for one more, so a run
begins again twice at most.

What cannot be followed only while a rank is away needs no other form. If a state of the job is held
outside its workers, or those that train can leave it, all replicas begin again from there, in the
form that they have (``TOGETHER``). If they come to the same before a step is committed, or if there
is no state, it is ``ONE_WORLD``.

Not here: what is observed (inject/zero_edit/attaching.py), what a form means for the settings
(config/forms.py).
"""

from __future__ import annotations

from enum import Enum

AUTO = "auto"
"""``--inject`` of an open script."""
WATCHED = "watched"
"""Of one that has begun again as explicit. Nobody can give it."""


MEMORY = "memory"
"""One replica group, whose workers are replaced from memory. Nobody can give it."""


UNFIT = "unfit"
"""Asked for in place of a form: the script cannot run in the one that the user has given."""


class Form(Enum):
    """``EXPLICIT``: the script makes its Manager itself. ``DDP``: it is unmodified, and heals.

    ``ONE_WORLD``: one group of all workers, as under torchrun, with memory snapshots if it may have
    them.
    ``TOGETHER``: as it was, all replicas together, from a state that is held. ``RESIZED``: as it
    was, on another number of nodes; no script asks for it.
    """

    EXPLICIT = "explicit"
    DDP = "ddp"
    ONE_WORLD = "world"
    TOGETHER = "together"
    RESIZED = "resized"


def parse(text: str) -> Form | None:
    """The form of this name; None: there is none."""
    forms = (form for form in Form if form is not Form.RESIZED)
    return next((form for form in forms if form.value == text), None)
