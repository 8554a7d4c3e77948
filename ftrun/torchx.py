"""A TorchX component: ``torchx run ftrun.train --replicas 2 --script train.py``.

TorchX finds it by the entry point in pyproject.toml. As soon as any package has such an entry
point, TorchX no longer offers its own components, so ftrun's entry points name those as well.

Several nodes need a lighthouse. Under Slurm they find each other by themselves. Where a scheduler
tells the first role's host to all others, the lighthouse can be a role of the job.

Not here: what ftrun's options mean (``ftrun run --help``), TorchX itself (an extra package).
"""

import secrets
import shlex
from pathlib import PurePath
from typing import Dict, List, Optional  # noqa: UP035  # TorchX knows these alone

import torchx
from torchx import specs

USAGE = "exactly one of --script and -m is needed"
ROLE = "role"
NO_TOKEN = "--lighthouse HOST:PORT needs --token_file FILE too, mounted where the nodes run"
ONE_NODE = "--lighthouse role is for a job of several nodes: one node has a lighthouse by itself"
HOST = "H=$${{{rank0}:-localhost}}; exec "
"""bash: of the first role's replica; ``$$`` is TorchX's way to write a dollar sign."""
ADDRESS = '"$${{H/#localhost/127.0.0.1}}:{port}"'
SERVE = (
    "exec ftrun lighthouse --once --insecure-plaintext --bind 0.0.0.0:{port} "
    '--state "$$(mktemp -d)"'
)


def train(
    *script_args: str,
    script: Optional[str] = None,  # noqa: UP045
    m: Optional[str] = None,  # noqa: UP045
    replicas: int = 2,
    workers_per_replica: int = 1,
    nodes: int = 1,
    lighthouse: str = "",
    lighthouse_port: int = 29510,
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
        lighthouse: of several nodes, but not under Slurm: HOST:PORT of one that runs, or "role"
        lighthouse_port: port of the lighthouse that is a role of the job
        token_file: the job's token, where the nodes run; a role's is in its environment if none
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
    if lighthouse == ROLE and nodes == 1:
        raise ValueError(ONE_NODE)
    if lighthouse not in ("", ROLE) and not token_file:
        raise ValueError(NO_TOKEN)
    role = PurePath(script).stem if script is not None else str(m).rpartition(".")[2]
    words = ["--replicas", str(replicas), "--workers-per-replica", str(workers_per_replica)]
    words += ["--lighthouse", lighthouse] if lighthouse not in ("", ROLE) else []
    words += ["--token-file", token_file] if token_file else []
    words += ["--nodes", str(nodes)] if nodes > 1 else []
    words += shlex.split(options)
    words += [script] if script is not None else ["-m", str(m)]
    words += script_args
    variables = {**({"FTRUN_EXIT_WITH": "job"} if nodes > 1 else {}), **(env or {})}
    if lighthouse == ROLE and not token_file:
        variables["FTRUN_TOKEN"] = secrets.token_hex(32)
    node = specs.Role(
        name=role,
        image=image,
        entrypoint="ftrun",
        args=words,
        env=variables,
        num_replicas=nodes,
        max_retries=max_retries,
        resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        mounts=specs.parse_mounts(mounts) if mounts else [],
    )
    roles = [node]
    if lighthouse == ROLE:
        found = HOST.format(rank0=specs.macros.rank0_env)
        address = ADDRESS.format(port=lighthouse_port)
        line = f"{found}ftrun --lighthouse {address} {shlex.join(words)}"
        node.entrypoint, node.args = "bash", ["-c", line]
        serve = SERVE.format(port=lighthouse_port)
        serve += f" --token-file {shlex.quote(token_file)}" if token_file else ""
        roles = [
            specs.Role(
                name="lighthouse",
                image=image,
                entrypoint="bash",
                args=["-c", serve],
                env=dict(variables),
                max_retries=max_retries,
                resource=specs.resource(cpu=1, gpu=0, memMB=512),
                mounts=node.mounts,
            ),
            node,
        ]
    return specs.AppDef(name=name or role, roles=roles)
