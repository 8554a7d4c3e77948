"""A parameter server and its clients: sessions that begin and end by themselves.

    python examples/parameter_server.py

The server holds the weights. Each client opens a session, which is a process group of two, and in
each round gets the weights and gives a gradient. This program starts two clients; more can join
from any machine with ``python examples/parameter_server.py ADDRESS``, while the server runs. A
client that dies ends its own session only. No launcher and no Manager is needed here.
"""

import subprocess
import sys
import threading

import torch

from ftrun import ProcessGroupGloo
from ftrun.torchft.parameter_server import ParameterServer

CLIENTS = 2
ROUNDS = 100
FEATURES = 4
LEARNING_RATE = 0.1
SERVER, CLIENT = 0, 1  # the ranks of each session
TRUTH = torch.arange(1.0, FEATURES + 1)  # what the clients' data teach


class Weights(ParameterServer):
    """Holds the weights; each session runs in a thread of its own."""

    def __init__(self) -> None:
        self.weights = torch.zeros(FEATURES)
        self.lock = threading.Lock()
        super().__init__(port=0)

    @classmethod
    def new_process_group(cls) -> ProcessGroupGloo:
        """A group that is not connected yet, for one side of a session."""
        return ProcessGroupGloo()

    def forward(self, session_id: str, pg: ProcessGroupGloo) -> None:
        """Serve one client."""
        rounds = torch.zeros(1, dtype=torch.int64)
        pg.broadcast_one(rounds, root=CLIENT).wait()
        for _ in range(int(rounds)):
            with self.lock:
                weights = self.weights.clone()
            pg.broadcast_one(weights, root=SERVER).wait()
            gradient = torch.zeros(FEATURES)
            pg.broadcast_one(gradient, root=CLIENT).wait()
            with self.lock:
                self.weights -= LEARNING_RATE * gradient


def train(address: str) -> None:
    """Be a client: for each round, the gradient of its own samples."""
    group = Weights.new_session(address)
    group.broadcast_one(torch.tensor([ROUNDS]), root=CLIENT).wait()
    weights = torch.zeros(FEATURES)
    for _ in range(ROUNDS):
        group.broadcast_one(weights, root=SERVER).wait()
        inputs = torch.randn(64, FEATURES)
        error = inputs @ (weights - TRUTH)
        group.broadcast_one(inputs.T @ error / len(inputs), root=CLIENT).wait()
    print(f"client: {ROUNDS} rounds, last loss {error.square().mean().item():.4f}", flush=True)
    group.shutdown()


def serve() -> None:
    """Be the server, until the clients that it has started are done."""
    server = Weights()
    print(f"serving at {server.address()}", flush=True)
    command = [sys.executable, __file__, server.address()]
    clients = [subprocess.Popen(command) for _ in range(CLIENTS)]
    ended = [client.wait() for client in clients]
    with server.lock:
        print(f"server: weights {[round(w, 2) for w in server.weights.tolist()]}", flush=True)
    sys.exit(max(ended))


if __name__ == "__main__":
    train(sys.argv[1]) if len(sys.argv) > 1 else serve()
