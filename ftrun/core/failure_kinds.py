"""The words for failures and for what follows them, which agents and the lighthouse share.

Not here: how a failure is recognised (core/agent/failures.py), how failures become one incident
(core/books/incidents.py).
"""

from __future__ import annotations

EXCEPTION = "exception"
EXIT = "exit code"
SIGNAL = "signal"
MEMORY = "out of memory"
HANG = "hang"
ON_REQUEST = "on request"
"""People have killed it: `ftrun kill`."""
PEER = "peer lost"
"""An error of a worker whose peer has ended: a consequence, unless nothing else is known."""
NOT_STARTED = "not started"
UNHEALTHY = "unhealthy node"
CORRUPTION = "silent corruption"
"""Its parameters were its peers', and no longer are."""
NODE = "node lost"
GIVEN_UP = "given up"
"""The lighthouse had no answer in time; the agent's evidence tells more, if any comes."""

CONSEQUENCES = frozenset({PEER, GIVEN_UP})
"""Kinds that follow from another failure, if there is one at the same time."""

RESTARTED = "restarted"
WILL_NOT_HELP = "will not help"
CRASH_LOOP = "crash loop"
BUDGET_SPENT = "restarts spent"
SET_ASIDE = "set aside"
ENDED = "ended"
NOT_KNOWN = "not known"
"""The verdicts of an incident; ``ENDED``: the job ended before anything else could follow.

``NOT_KNOWN``: the lighthouse was away when something followed, and nobody is left to ask.
"""

ENDING_VERDICTS = frozenset({WILL_NOT_HELP, CRASH_LOOP, BUDGET_SPENT})
"""The verdicts by which an agent gives a replica up."""

BY_SCRIPT = "script"
"""The kind of an end whose exit code is the first cause's own, and none of ftrun's."""

ALL_LEFT = "all have left"
"""The kind of an end at which nobody has finished or failed: all nodes were asked to leave."""

DIVERGED = "has diverged"
"""The cause of a replica begins so whose state is not its peers': its loop does not stand still."""
CORRUPTED = "is corrupted"
"""So does the cause of one whose parameters were altered by something that is not the script."""
HEAL, STOP, REPORT = "heal", "stop", "report"
"""What follows then (``--on-corruption``)."""
TOGETHER = "begins again with"
"""That of a replica whose process groups were those of one that has ended before the first step."""
