"""torchft.torchx: a component that starts torchrun for each replica group; ftrun needs none.

It can be imported without torchx. Its error names the command to run instead.
"""

from __future__ import annotations

from typing import NoReturn

from ftrun.base.errors import UserError

__all__ = ["hsdp"]


def hsdp(
    *script_args: str,
    replicas: int = 2,
    workers_per_replica: int = 1,
    max_restarts: int = 10,
    script: str = "train_ddp.py",
    env: dict[str, str] | None = None,
    image: str = "",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,
) -> NoReturn:
    """Refused: it would start ``replicas`` torchruns and needs a lighthouse beside them.

    Raises:
        UserError: always; it names ftrun's command.
    """
    raise UserError(
        "torchft.torchx.hsdp: ftrun starts all replica groups and their lighthouse by one command: "
        f"ftrun --replicas {replicas} --workers-per-replica {workers_per_replica} {script}"
    )
