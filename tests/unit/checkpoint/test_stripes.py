"""Stripes are handed out so that every chunk comes once, though streams fail or are slow."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest

from ftrun.checkpoint import stripes
from ftrun.checkpoint.stripes import STRIPE_CHUNKS, Stripe, Stripes

WAIT_S = 20


def nothing() -> None:
    """A stream that never needs to be cut."""


def draw(pool: Stripes, donor: str, rng: random.Random, came: list[int]) -> None:
    """A stream that loses its connection now and then."""
    while stripe := pool.claim(donor, nothing):
        while stripe.next < stripe.stop:
            if rng.random() < 0.1:
                break
            came.append(stripe.next)
            pool.arrived(stripe)
        pool.give_back(stripe)


@pytest.mark.parametrize("seed", range(20))
def test_every_chunk_comes_exactly_once_however_streams_fail(seed: int) -> None:
    rng = random.Random(seed)
    chunks = rng.randrange(1, 400)
    pool, came = Stripes(chunks), list[int]()
    threads = [
        threading.Thread(target=draw, args=(pool, f"d{i % 3}", random.Random(seed + i), came))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert pool.complete
    assert Counter(came) == Counter(range(chunks))


def test_what_has_arrived_is_counted() -> None:
    pool = Stripes(STRIPE_CHUNKS + 1)
    stripe = pool.claim("a", nothing)
    assert stripe is not None
    for arrived in range(1, STRIPE_CHUNKS + 1):
        pool.arrived(stripe)
        assert pool.arrived_chunks == arrived
    assert not pool.complete


def test_an_idle_stream_takes_half_of_the_longest_stripe() -> None:
    pool = Stripes(STRIPE_CHUNKS)
    first = pool.claim("a", nothing)
    second = pool.claim("b", nothing)
    assert first is not None
    assert second is not None
    assert (first.next, first.stop) == (0, STRIPE_CHUNKS // 2)
    assert (second.next, second.stop) == (STRIPE_CHUNKS // 2, STRIPE_CHUNKS)


def test_a_slow_stream_of_another_donor_is_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stripes, "SLOW_CHUNK_S", 0.05)
    pool, cuts = Stripes(1), list[str]()

    def cut() -> None:
        cuts.append("a")
        assert slow is not None
        pool.give_back(slow)

    slow = pool.claim("a", cut)
    assert slow is not None
    taken = pool.claim("b", nothing)
    assert taken is not None
    assert (taken.next, taken.donor) == (0, "b")
    assert cuts == ["a"]


def test_those_who_wait_are_woken_at_the_end() -> None:
    pool = Stripes(1)
    held = pool.claim("a", nothing)
    assert held is not None
    found: list[Stripe | None] = []
    waiting = threading.Thread(target=lambda: found.append(pool.claim("a", nothing)))
    waiting.start()
    pool.arrived(held)
    waiting.join(WAIT_S)
    assert found == [None]
    ended = Stripes(1)
    ended.end()
    assert ended.claim("a", nothing) is None
    assert not ended.complete


def test_what_is_lacking_is_known_at_any_time() -> None:
    pool, rng, held = Stripes(100), random.Random(5), list[Stripe]()
    came: set[int] = set()
    while not pool.complete:
        is_free = len(came) + sum(s.stop - s.next for s in held) < 100  # else ``claim`` would wait
        if is_free and rng.random() < 0.3:
            stripe = pool.claim(rng.choice("ab"), nothing)
            assert stripe is not None
            held.append(stripe)
        for stripe in held[:]:
            if stripe.next < stripe.stop and rng.random() < 0.7:
                came.add(stripe.next)
                pool.arrived(stripe)
            elif stripe.next == stripe.stop or rng.random() < 0.1:
                held.remove(stripe)
                pool.give_back(stripe)
        lacking = [chunk for first, stop in pool.lacking() for chunk in range(first, stop)]
        assert sorted(lacking) == sorted(set(range(100)) - came)
