"""torch.compile runs ftrun's own functions as they are, and compiles the model that they call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ftrun.training import compiling
from tests.unit.inject.zero_edit.followed import run as followed

pytestmark = pytest.mark.filterwarnings("default:Guards may run slower")  # Python 3.13.0


class Backend:
    """Counts the graphs that torch.compile makes."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        """A backend of torch.compile."""
        self.graphs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch notes the DDP whose forward runs; replicas in threads of a test leave one there."""
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", None)
    torch._dynamo.reset()


def add_one(x: Tensor) -> Tensor:
    return x + 1


def compiled(function: Any) -> tuple[Any, Backend]:
    backend = Backend()
    return torch.compile(function, backend=backend), backend


def test_torch_has_the_private_names_that_it_relies_on() -> None:
    assert compiling._set_strategy is not None


@pytest.mark.parametrize("has_name", [True, False])
def test_only_what_is_inside_is_compiled(
    monkeypatch: pytest.MonkeyPatch, *, has_name: bool
) -> None:
    if not has_name:
        monkeypatch.setattr(compiling, "_set_strategy", None)

    @compiling.only_inside
    def outer(x: Tensor) -> Tensor:
        ran.append(bool(torch.compiler.is_compiling()))
        return add_one(x)

    ran: list[bool] = []
    run, backend = compiled(outer)
    assert torch.equal(run(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(run(torch.ones(2)), torch.full((2,), 2.0))
    if has_name:
        assert ran == [False, False]
    assert backend.graphs == 1


@pytest.mark.parametrize("has_name", [True, False])
def test_what_never_is_compiled_runs_each_time_as_written(
    monkeypatch: pytest.MonkeyPatch, *, has_name: bool
) -> None:
    if not has_name:
        monkeypatch.setattr(compiling, "_set_strategy", None)

    class Asks:
        def __init__(self) -> None:
            self.ran: list[bool] = []

        @compiling.never
        def peers(self, x: Tensor) -> Tensor:
            """Its own frames are as they are too."""
            self.ran.append(bool(torch.compiler.is_compiling()))
            return add_one(x)

    asks = Asks()

    def step(x: Tensor) -> Tensor:
        return asks.peers(x * 2) * 3

    run, backend = compiled(step)
    for _ in range(2):
        assert torch.equal(run(torch.ones(2)), torch.full((2,), 9.0))
    assert asks.ran == [False, False]
    assert backend.graphs == 2, "before it and after it"
    assert Asks.peers.__doc__ == "Its own frames are as they are too."


LAYERS = """
def forward(x, layers):
    for i in range(len(layers)):
        x = layers[i](x) + i
    for i, layer in enumerate(layers, start=1):
        x = layer(x) * i
    for layer, y in zip(layers, [z + 1 for z in x.unbind()], strict=True):
        x = x + layer(y)
    for name, y in {"a": x}.items():
        x = x + y.sum() + len(name)
    return x + sum(i for i in range(3))
"""


def test_a_followed_loop_is_pythons_own_when_it_is_compiled(tmp_path: Path) -> None:
    from ftrun.inject.zero_edit import counting

    counting.install()
    forward = followed(tmp_path / "layers.py", LAYERS)["forward"]
    layers = torch.nn.ModuleList([torch.nn.Identity() for _ in range(3)])
    run = torch.compile(forward, backend=Backend(), fullgraph=True)
    assert torch.equal(run(torch.ones(3), layers), forward(torch.ones(3), layers))
