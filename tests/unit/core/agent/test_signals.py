"""What a signal to the agent means.

What an agent does on one, and on a person's request: tests/transcripts/supervisor.
"""

from __future__ import annotations

import signal

import pytest

from ftrun.base.errors import UserError
from ftrun.core.agent.events import SIGTERM
from ftrun.core.agent.signals import Reaction, SignalRules, signal_number, signal_rules

HUP, INT, QUIT = int(signal.SIGHUP), int(signal.SIGINT), int(signal.SIGQUIT)
USR1, USR2 = int(signal.SIGUSR1), int(signal.SIGUSR2)
OWN = SignalRules()


@pytest.mark.parametrize(
    ("rules", "number", "reaction", "code"),
    [
        (OWN, SIGTERM, Reaction.LEAVE, 75),
        (OWN, HUP, Reaction.LEAVE, 75),
        (OWN, INT, Reaction.LEAVE, 130),
        (OWN, QUIT, Reaction.SHOW_STACKS, 131),
        (OWN, USR1, Reaction.PASS_ON, 138),
        (SignalRules(None, USR1), USR1, Reaction.LEAVE, 75),
        (SignalRules(frozenset({INT, USR2})), SIGTERM, Reaction.STOP, 143),
        (SignalRules(frozenset({INT, USR2})), USR2, Reaction.LEAVE, 140),
        (signal_rules(None, None, as_torchrun=True), QUIT, Reaction.LEAVE, 131),
        (signal_rules("term, SIGINT", "usr2", as_torchrun=False), USR2, Reaction.LEAVE, 75),
    ],
)
def test_what_a_signal_means(
    rules: SignalRules, number: int, reaction: Reaction, code: int
) -> None:
    assert (rules.reaction(number), rules.exit_code(number)) == (reaction, code)
    assert number in rules.caught()


@pytest.mark.parametrize("name", ["SIGNOPE", "KILL", "9", "SIG_DFL"])
def test_a_name_that_cannot_be_handled_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="Nothing was started"):
        signal_number(name, "--preempt-signal")
