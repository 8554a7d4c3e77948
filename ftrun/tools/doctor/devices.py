"""GPUs: what the driver shows, and what torch can use.

Not here: the driver's library (agent/nvml.py), which GPUs a job takes (agent/devices.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from ftrun.agent.devices import cuda_devices
from ftrun.agent.nvml import GpuTable, NotReadable, open_gpus
from ftrun.base.own_process import CLEAN_PATH
from ftrun.core.agent.node_resources import Gpu
from ftrun.tools.doctor.findings import Finding, ok, problem, warning

TORCH_TIMEOUT_S = 90.0
USED_SHARE = 0.1
_PROGRAM = (
    "import json, torch; c = torch.cuda; "
    "print(json.dumps([torch.version.cuda or '', c.device_count() if c.is_available() else 0]))"
)


@dataclass(frozen=True, slots=True)
class TorchView:
    """``cuda``: the version that torch was built for, or "". ``count``: GPUs that it can use."""

    cuda: str
    count: int


def driver() -> list[Finding]:
    """The GPUs and their state, by NVML."""
    table = open_gpus()
    if isinstance(table, str):
        return [judge_no_table(table, len(cuda_devices(os.environ)))]
    try:
        return judge_gpus(table)
    finally:
        table.close()


def torch_view() -> list[Finding]:
    """The devices that torch can use. Runs a separate process, because the import takes seconds."""
    done = subprocess.run(
        [sys.executable, "-c", CLEAN_PATH + _PROGRAM],
        capture_output=True,
        text=True,
        timeout=TORCH_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return [
            problem(
                "torch's devices", f"torch cannot be used: {last}", "Install torch again, or its "
                "libraries; `python -c 'import torch'` shows the whole error."
            )
        ]  # fmt: skip
    cuda, count = json.loads(done.stdout.strip().splitlines()[-1])
    return [judge_torch_view(TorchView(cuda, count), len(cuda_devices(os.environ)))]


def judge_no_table(why: str, nodes: int) -> Finding:
    """The finding if NVML is not available. ``nodes``: GPUs whose device files are here."""
    if nodes == 0:
        return ok("GPUs", "none")
    return warning(
        "GPUs",
        f"{nodes}, whose state cannot be read: {why}",
        "Install nvidia-ml-py (pip install 'ftrun[gpu]'), or the driver's libnvidia-ml.",
    )


def judge_gpus(table: GpuTable) -> list[Finding]:
    """One finding for each GPU."""
    found = []
    for index in range(table.count()):
        try:
            found.append(judge_gpu(table.gpu(index)))
        except NotReadable as error:
            found.append(
                problem(
                    f"GPU {index}",
                    f"the driver cannot read it: {error}",
                    "Look at dmesg for Xid lines, drain the node and reset the GPU.",
                )
            )
    return found or [ok("GPUs", "none")]


def judge_gpu(gpu: Gpu) -> Finding:
    """Report a GPU that is in use by others, or whose memory has failed."""
    name = f"GPU {gpu.index}"
    text = f"{gpu.name}, {gpu.used_bytes >> 20} of {gpu.total_bytes >> 20} MiB in use"
    if gpu.ecc_errors:
        return problem(
            name,
            f"{text}, {gpu.ecc_errors} ECC errors that could not be corrected since the driver "
            "was loaded",
            "Drain the node and reset the GPU; replace it if they come again.",
        )
    if gpu.used_bytes > USED_SHARE * gpu.total_bytes:
        pids = ", ".join(str(pid) for pid in gpu.pids) or "processes that are not visible here"
        return warning(
            name, f"{text}, by {pids}", "End those processes, or leave the GPU out with "
            "CUDA_VISIBLE_DEVICES."
        )  # fmt: skip
    return ok(name, text)


def judge_torch_view(view: TorchView, nodes: int) -> Finding:
    """Whether torch can use the GPUs that are here."""
    name = "torch's devices"
    if view.count >= nodes:
        text = f"{view.count} GPUs (CUDA {view.cuda})" if view.count else "the CPU"
        return ok(name, text)
    if not view.cuda:
        return warning(
            name,
            f"this torch is built without CUDA, and {nodes} GPUs are here",
            "Install a torch with CUDA, or run with --device cpu.",
        )
    return problem(
        name,
        f"torch (CUDA {view.cuda}) can use {view.count} of {nodes} GPUs",
        "Install a driver that is new enough for this CUDA, or look at CUDA_VISIBLE_DEVICES.",
    )
