"""The forms in which ftrun runs a script under ``--replicas``, and the way from one to another.

A script under ``--inject auto`` begins *open*: its world has all replicas, and its first choice
decides. If it makes torch's DistributedDataParallel, it heals per step. If it uses ftrun's own
classes, it becomes explicit, in the same process. If that is too late, or ftrun cannot follow the
script, the run ends all its workers and begins again in a fixed form. A script that begins again as
explicit is still *watched*: it must make a Manager. No other form can lead to a further one, so a
run begins again twice at most.

If ftrun cannot follow the script only while a rank is away, no other form is needed. If a state of
the job is held outside its workers, all replicas resume from there, in their form (``TOGETHER``).
If the same happens before a step is committed, or if no state is held, the form is ``ONE_WORLD``.

Not here: what is observed (inject/zero_edit/attaching.py), the effect of a form on the settings
(config/forms.py).
"""

from __future__ import annotations

from enum import Enum

AUTO = "auto"
"""The ``--inject`` of an open script."""
WATCHED = "watched"
"""The form of a script that has begun again as explicit. Users cannot choose it."""


MEMORY = "memory"
"""One replica group, whose workers are replaced from memory. Users cannot choose it."""


UNFIT = "unfit"
"""Reported in place of a form: the script cannot run in the form that the user has chosen."""


class Form(Enum):
    """The form in which the workers of a run train.

    ``EXPLICIT``: the script makes its Manager itself. ``DDP``: the script is unmodified, and heals.
    ``ONE_WORLD``: one group of all workers, which restarts as a whole, as under torchrun.
    ``TOGETHER``: the same form, all replicas together, from a state that is held. ``RESIZED``: the
    same form on another number of nodes; no script asks for it.
    """

    EXPLICIT = "explicit"
    DDP = "ddp"
    ONE_WORLD = "world"
    TOGETHER = "together"
    RESIZED = "resized"


def parse(text: str) -> Form | None:
    """The form with this name; None: there is none."""
    forms = (form for form in Form if form is not Form.RESIZED)
    return next((form for form in forms if form.value == text), None)
