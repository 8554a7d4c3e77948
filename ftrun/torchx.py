"""A TorchX component: ``torchx run ftrun.train --replicas 2 --script train.py``.

TorchX finds it by the entry point in pyproject.toml. As soon as any package has such an entry
point, TorchX no longer offers its own components, so ftrun's entry points name those as well.

Not here: what ftrun's options mean (``ftrun run --help``), TorchX itself (an extra package).
"""

import shlex
from pathlib import PurePath
from typing import Dict, List, Optional  # noqa: UP035  # TorchX knows these alone

import torchx
from torchx import specs

USAGE = "exactly one of --script and -m is needed"
NODES = (
    "a job of {nodes} nodes needs --lighthouse HOST:PORT and --token_file FILE: start one with "
    "`ftrun lighthouse --bind HOST:PORT --token-file FILE`, and mount the file where the nodes run"
)


def train(
    *script_args: str,
    script: Optional[str] = None,  # noqa: UP045
    m: Optional[str] = None,  # noqa: UP045
    replicas: int = 2,
    workers_per_replica: int = 1,
    nodes: int = 1,
    lighthouse: str = "",
    token_file: str = "",
    options: str = "",
    image: str = torchx.IMAGE,
    name: str = "",
    h: Optional[str] = None,  # noqa: UP045
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,  # as in TorchX's own components
    env: Optional[Dict[str, str]] = None,  # noqa: UP006, UP045
    max_retries: int = 0,
    mounts: Optional[List[str]] = None,  # noqa: UP006, UP045
) -> specs.AppDef:
    """Replica groups of a PyTorch script under ftrun: one that dies heals, and no other restarts.

    Args:
        script_args: arguments of the script
        script: the script, within the image
        m: the module to run instead of a script
        replicas: replica groups of the whole job
        workers_per_replica: workers of one replica group
        nodes: nodes of the job; each runs one ftrun
        lighthouse: HOST:PORT of a running lighthouse; one node starts its own
        token_file: the file with the job's token, where the nodes run
        options: further options of ftrun, as in a shell: "--min-replicas 1 --tls-ca ca.pem"
        image: the image, or the directory of a local scheduler
        name: name of the job; the script's by default
        h: a registered named resource, which stands before cpu, gpu and memMB
        cpu: processors of a node
        gpu: GPUs of a node
        memMB: memory of a node in MB
        env: environment variables of the nodes
        max_retries: how often the scheduler starts a node again
        mounts: mounts of the nodes, as in TorchX's dist.ddp
    """
    if (script is None) == (m is None):
        raise ValueError(USAGE)
    if nodes > 1 and not (lighthouse and token_file):
        raise ValueError(NODES.format(nodes=nodes))
    role = PurePath(script).stem if script is not None else str(m).rpartition(".")[2]
    words = ["--replicas", str(replicas), "--workers-per-replica", str(workers_per_replica)]
    for option, value in (("--lighthouse", lighthouse), ("--token-file", token_file)):
        words += [option, value] if value else []
    words += ["--nodes", str(nodes)] if nodes > 1 else []
    words += shlex.split(options)
    words += [script] if script is not None else ["-m", str(m)]
    node = specs.Role(
        name=role,
        image=image,
        entrypoint="ftrun",
        args=[*words, *script_args],
        env=dict(env or {}),
        num_replicas=nodes,
        max_retries=max_retries,
        resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        mounts=specs.parse_mounts(mounts) if mounts else [],
    )
    return specs.AppDef(name=name or role, roles=[node])
