"""The world that a script sees: its devices, and what is too large for it."""

from __future__ import annotations

import warnings
from datetime import timedelta

import pytest
import torch
from torch.distributed import distributed_c10d

from ftrun.inject.zero_edit.given import LastGiven
from ftrun.inject.zero_edit.refusals import Refused
from ftrun.inject.zero_edit.world import World, devices_of


def world(bytes_max: int, backend: str | None = "gloo") -> World:
    """Rank 1 of two, whose peer gives what it gives itself."""
    return World(
        1,
        2,
        bytes_max,
        timedelta(seconds=5),
        lambda site, what, body, timeout_s: {0: body, 1: body},
        lambda size: size,
        LastGiven(),
        devices_of(backend),
    )


@pytest.mark.parametrize(
    ("backend", "first"),
    [("gloo", "cpu"), ("cpu:gloo,cuda:nccl", "cpu"), ("nccl", "cuda"), ("cuda:nccl", "cuda")],
)
def test_the_first_device_is_the_wished_backends(backend: str, first: str) -> None:
    """torch asks for it where a model has no memory yet, for example in set_model_state_dict."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that it is deprecated and guesses
        found = distributed_c10d._get_pg_default_device(world(1 << 20, backend))
    assert found == torch.device(first)


def test_a_backend_that_torch_cannot_place_is_for_the_cpu() -> None:
    assert devices_of("a:b:c") == [torch.device("cpu")]


@pytest.mark.parametrize(
    ("operation", "remedy"),
    [
        ("broadcast", "let each rank load a checkpoint itself"),
        ("allreduce", "gradients go through"),
    ],
)
def test_what_is_too_large_is_refused_with_a_remedy(operation: str, remedy: str) -> None:
    small, large = torch.zeros(8), torch.zeros(9)
    with pytest.raises(Refused, match=rf"MiB at most across replicas; {remedy}"):
        getattr(world(32), operation)([large])
    getattr(world(32), operation)([small])
