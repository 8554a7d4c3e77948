"""Lets a script meet at a port of its choice, by ``tcp://`` or a MASTER_PORT that it sets.

TORCHELASTIC_USE_AGENT_STORE makes all ranks clients, because ftrun serves the group's store at the
port in MASTER_PORT. At any other port no process would serve, and every rank would wait for half an
hour. So there rank 0 serves, as it does without a launcher.

Not here: the group's store (agent/tcp_stores.py).
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import Any


def serve_elsewhere(master_port: int) -> None:
    """Let rank 0 serve every store whose port is not ``master_port``.

    Does nothing without torch, or if torch's internals differ.
    """
    module: Any = sys.modules.get("torch.distributed.rendezvous")
    create = getattr(module, "_create_c10d_store", None)
    is_served = getattr(module, "_torchelastic_use_agent_store", None)
    if create is None or is_served is None:
        return
    elsewhere: ContextVar[bool] = ContextVar("elsewhere", default=False)

    def create_store(hostname: str, port: int, *args: Any, **kwargs: Any) -> Any:
        token = elsewhere.set(port != master_port)
        try:
            return create(hostname, port, *args, **kwargs)
        finally:
            elsewhere.reset(token)

    module._create_c10d_store = create_store
    module._torchelastic_use_agent_store = lambda: not elsewhere.get() and is_served()
