"""Sessions of a parameter server: the example, and a client that dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ftrun.process_groups import ProcessGroupGloo
from ftrun.torchft.parameter_server import ParameterServer

EXAMPLE = Path(__file__).parents[3] / "examples" / "parameter_server.py"


class _Adds(ParameterServer):
    """Gives each client its value plus 23."""

    @classmethod
    def new_process_group(cls) -> ProcessGroupGloo:
        return ProcessGroupGloo()

    def forward(self, session_id: str, pg: ProcessGroupGloo) -> None:  # type: ignore[override]
        value = torch.zeros(1)
        pg.broadcast_one(value, root=1).wait()
        pg.broadcast_one(value + 23, root=0).wait()


def test_a_session_that_breaks_leaves_the_others() -> None:
    server = _Adds(port=0)
    broken, whole = (_Adds.new_session(server.address()) for _ in range(2))
    broken.abort()
    value = torch.ones(1)
    whole.broadcast_one(value, root=1).wait()
    whole.broadcast_one(value, root=0).wait()
    assert value.item() == 24
    whole.shutdown()


@pytest.mark.timeout(300)
def test_the_example_teaches_the_weights_by_two_clients() -> None:
    command = [sys.executable, str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("client: 100 rounds") == 2
    assert "server: weights [1.0, 2.0, 3.0, 4.0]" in done.stdout
