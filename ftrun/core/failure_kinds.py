"""The words for failures and for their consequences, which agents and the lighthouse share.

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
"""Its parameters were equal to its peers', and are not any more."""
NODE = "node lost"
GIVEN_UP = "given up"
"""The lighthouse had no answer in time. The agent's evidence has more, if it arrives."""

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

``NOT_KNOWN``: the lighthouse was away when something followed, and no agent is left to ask.
"""

ENDING_VERDICTS = frozenset({WILL_NOT_HELP, CRASH_LOOP, BUDGET_SPENT})
"""The verdicts by which an agent gives a replica up."""

BY_SCRIPT = "script"
"""The kind of an end whose exit code is the first cause's own, not one of ftrun's."""

ALL_LEFT = "all have left"
"""The kind of an end at which no replica has finished or failed: all nodes were asked to leave."""

DIVERGED = "has diverged"
"""The begin of the cause of a replica whose state is not its peers': its loop does not stand
still.
"""
CORRUPTED = "is corrupted"
"""The begin of the cause of a replica whose parameters were altered, but not by the script."""
HEAL, STOP, REPORT = "heal", "stop", "report"
"""The reactions to that (``--on-corruption``)."""
TOGETHER = "restarts with"
"""The begin of the cause of a replica that shared process groups with one that has ended before the
first step.
"""
