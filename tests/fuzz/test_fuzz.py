"""Each reader of outside bytes, fed with damaged ones: it accepts, or refuses as declared.

A few hundred inputs each. ``scripts/fuzz.py`` feeds as many as wanted and measures memory.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import Target, targets
from tests.suite.properties import examples

TARGETS = targets()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name.replace(" ", "-"))
def test_damaged_bytes_are_accepted_or_refused_as_declared(target: Target) -> None:
    @settings(max_examples=examples(150))
    @given(st.randoms(use_true_random=True))
    def feed(rng: Random) -> None:
        target.feed(target.make(rng))

    feed()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name.replace(" ", "-"))
def test_noise_is_accepted_or_refused_as_declared(target: Target) -> None:
    @settings(max_examples=examples(100))
    @given(st.binary(max_size=300))
    def feed(data: bytes) -> None:
        target.feed(data)

    feed()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name.replace(" ", "-"))
def test_the_inputs_reach_what_they_are_for(target: Target) -> None:
    """If all were refused at the first byte, nothing would be tested."""
    rng = Random(7)
    accepted = sum(target.feed(target.make(rng)) for _ in range(300))
    assert 0 < accepted < 300
