#!/usr/bin/env python
"""The checks of gpu_check.sh. Several ranks share one GPU: each gets an NCCL_HOSTID of its own.

Every check runs in fresh processes with a deadline; the exit code is the number that failed. With
names as arguments only these run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch.distributed import ReduceOp, TCPStore

from tests.undisturbed.test_undisturbed import Said, said_in
from tests.zero_edit import matrix
from tests.zero_edit.matrix import Case

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 60.0
JOB_DEADLINE_S = 120.0
RANKS = 2
WORLD = 3
"""The ranks of the programs that torchrun runs too."""
STEPS = r"step ([\d.]+) max ([\d.]+) ms"


def main() -> int:
    """Run all checks."""
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was checked")
        return 0
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    versions = f"torch {torch.__version__}, NCCL {nccl}, Python {sys.version.split()[0]}"
    print(f"{torch.cuda.get_device_name()}, {versions}", flush=True)
    os.environ["PYTHONHASHSEED"] = "1"  # jobs are started, not forked (tests/jobs/forks.py)
    wanted = set(sys.argv[1:])
    done = [_report(name, run) for name, run in _checks().items() if not wanted or name in wanted]
    print(f"{sum(done)} passed, {len(done) - sum(done)} failed")
    return len(done) - sum(done)


def reduce_and_rebuild(rank: int, store: str) -> str:
    """Three groups in sequence, each built while the one before is in use."""
    from ftrun.process_groups.nccl import ProcessGroupNCCL

    factory, took = ProcessGroupNCCL(timedelta(seconds=30)), []
    before = None
    for attempt in range(3):
        began = time.monotonic()
        group = factory.build(store, f"rebuild/{attempt}", rank, RANKS, "127.0.0.1", 60)
        tensor = torch.full((1 << 20,), float(rank + 1), device="cuda")
        group.allreduce([tensor]).get_future().wait()
        took.append(time.monotonic() - began)
        assert tensor[0].item() == 3.0, f"sum is {tensor[0].item()}"
        if before is not None:
            before.shutdown()
        before = group
    return f"build and first all-reduce {1000 * min(took):.0f} to {1000 * max(took):.0f} ms"


def abort_wakes(rank: int, store: str) -> str:
    """Rank 1 never joins the all-reduce; rank 0 aborts and must wake at once."""
    from ftrun.process_groups.nccl import ProcessGroupNCCL

    factory = ProcessGroupNCCL(timedelta(seconds=60))
    group = factory.build(store, "abort", rank, RANKS, "127.0.0.1", 60)
    if rank == 1:
        time.sleep(5)
        group.shutdown()
        return ""
    future = group.allreduce([torch.ones(1 << 20, device="cuda")]).get_future()
    time.sleep(1)
    began = time.monotonic()
    group.abort()
    try:
        future.wait()
    except RuntimeError:
        return f"woken {1000 * (time.monotonic() - began):.0f} ms after the abort"
    raise AssertionError("the all-reduce ended without an error")


def quantised(rank: int, store: str) -> str:
    """All-reduces in 8 bits: equal on both ranks, and within the bound of quantized.py."""
    from ftrun.process_groups.codec import CODECS
    from ftrun.process_groups.nccl import ProcessGroupNCCL

    group = ProcessGroupNCCL(timedelta(seconds=60)).build(store, "q", rank, RANKS, "127.0.0.1", 60)
    found = []
    for codec in CODECS.values():
        own = torch.randn(1 << 20, generator=torch.Generator().manual_seed(rank)).cuda()
        exact, result = own.clone(), torch.empty_like(own)
        group.allreduce([exact]).get_future().wait()
        work: Any = group.allreduce_quantized(own, 1.0, codec)
        work.get_future().wait()
        work.write(codec, result)
        highest, lowest = result.clone(), result.clone()
        group.allreduce([highest], ReduceOp.MAX).get_future().wait()
        group.allreduce([lowest], ReduceOp.MIN).get_future().wait()
        assert torch.equal(highest, lowest), f"{codec.name}: the ranks have unlike results"
        off = (result - exact).abs().max().item()
        limit = 2 * own.abs().max().item() * 1.2 / (126 if codec.name == "int8" else 7)
        assert off <= limit, f"{codec.name}: off by {off}, at most {limit}"
        found.append(f"{codec.name} off by {off:.4f}")
    group.shutdown()
    return ", ".join(found) if rank == 0 else ""


def heal_on_gpu(rank: int, store: str) -> str:
    """Rank 1 fetches 256 MiB from the GPU of rank 0."""
    from ftrun.checkpoint.heal import fetch
    from ftrun.checkpoint.serve import StateServer
    from ftrun.core.ids import Attempt, StateId, Tag

    host, port = store.split(":")
    client = TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=60))
    tag = Tag(Attempt(1, 1), 7)
    size = 256 << 18
    if rank == 0:
        server = StateServer("127.0.0.1", "token")
        server.offer(tag, StateId(7, "ab"), {"w": torch.arange(size, device="cuda") * 1.0}, 1)
        client.set("heal/address", server.address)
        client.wait(["heal/done"], timedelta(seconds=60))
        server.close()
        return ""
    address = client.get("heal/address").decode()
    mine = {"w": torch.zeros(size, device="cuda")}
    found = fetch([address], tag, "token", 60, mine=mine)
    client.set("heal/done", "1")
    assert torch.equal(found.tree["w"].cuda(), torch.arange(size, device="cuda") * 1.0)
    return f"{found.nbytes / found.duration_s / 1e9:.2f} GB/s, bitwise equal"


def explicit_job_with_a_kill() -> str:
    """ftrun trains two replicas on one GPU; one is killed, heals, and both end equal."""
    env = {**os.environ, "STEPS": "600", "CUDA_VISIBLE_DEVICES": "0,0"}
    command = [sys.executable, "-m", "ftrun", "--replicas", "2", "--device", "cuda"]
    command += ["examples/train_char_gpt.py"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines, killed = [], False
    deadline = time.monotonic() + JOB_DEADLINE_S
    for line in process.stdout:
        lines.append(line)
        found = re.search(r"\[1\.0\].*pid (\d+)", "".join(lines))
        if found and not killed and re.search(r"step [1-9]\d*", line):
            os.kill(int(found.group(1)), 9)
            killed = True
        if time.monotonic() > deadline:
            process.kill()
            break
    hashes = set(re.findall(r"parameters ([0-9a-f]{16})", "".join(lines)))
    assert process.wait() == 0 and killed and len(hashes) == 1, "".join(lines[-30:])
    healed = [line.strip() for line in lines if "healed" in line]
    return f"equal parameters {hashes.pop()}; {healed[-1] if healed else 'no heal seen'}"


def collectives_as_under_torchrun() -> str:
    """Each program of tests/undisturbed/programs/collectives.py prints the same as under
    torchrun."""
    program = str(ROOT / "tests/undisturbed/programs/collectives.py")
    own_host = f"NCCL_HOSTID=$RANK LOCAL_RANK=0 exec {sys.executable} {program}"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD)]
    plain = _said([*torchrun, "--no-python", "bash", "-c", own_host])
    mine = _said(["-m", "ftrun", "--replicas", str(WORLD), program])
    unlike = sorted({name for name, rank in plain if plain[name, rank] != mine.get((name, rank))})
    for name in unlike:
        print(f"      {name}: {plain[name, '0'][0][:150]}")
        print(f"      {' ' * len(name)}  {mine.get((name, '0'), ['nothing'])[0][:150]}")
    count = len({name for name, _ in plain})
    assert count > 50 and ("end", "0") in plain, f"torchrun said {count} programs"
    assert not unlike, f"{len(unlike)} of {count} programs differ"
    return f"{count} programs the same"


def _said(words: list[str]) -> Said:
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=directory,
            env={**_environment(WORLD), "FTRUN_TEST_DEVICE": "cuda", "XDG_STATE_HOME": directory},
            capture_output=True,
            text=True,
            timeout=JOB_DEADLINE_S,
            check=False,
        )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-3000:]
    return said_in(output)


def _environment(devices: int) -> dict[str, str]:
    return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(["0"] * devices)}


def script(args: str, kills: str, replicas: int = RANKS, workers: int = 1) -> str:
    """An unmodified script is killed: all ranks end equal, and as in an undisturbed run."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(["0"] * replicas * workers)
    words, counters = [], None
    for given in ("", kills):
        case = Case("gpu.py", args, given, replicas=replicas, workers=workers, step_s="0.01")
        directory = Path(tempfile.mkdtemp(prefix="gpu-check-"))  # it stays if the check fails
        ended = matrix.run(case, directory, timeout_s=JOB_DEADLINE_S)
        counters = counters or ended.counters
        assert ended.exit_code == 0 and ended.is_equal, f"{ended.ends} {ended.output[-5000:]}"
        assert not ended.differences and ended.counters == counters, ended.output[-5000:]
        assert ended.joins or not given, ended.output[-5000:]
        told = f"joined at {', '.join(ended.joins)}, {ended.lost} steps lost" if given else "alone"
        steps = " ".join(f"{x}/{y}" for x, y in re.findall(STEPS, ended.output))
        words.append(f"{told} (steps of {steps} ms)")
        shutil.rmtree(directory)
    return "; ".join(words)


def settled(rank: int, store: str) -> str:
    """Works end on the host when the GPU has finished, also for calls without a Work of torch; an
    abort wakes a waiter, and then nothing writes."""
    from ftrun.process_groups.built import AbortSignal
    from ftrun.process_groups.nccl import ProcessGroupNCCL
    from ftrun.process_groups.settled import SettledGroup

    factory, signal, size = ProcessGroupNCCL(timedelta(seconds=60)), AbortSignal(), 64 << 20
    built: Any = factory.build(store, "settled", rank, RANKS, "127.0.0.1", 60, signal)
    group = SettledGroup(built, None, signal)
    options = torch.distributed.AllreduceOptions()
    options.asyncOp = False
    other, took = torch.cuda.Stream(), []  # type: ignore[no-untyped-call]
    for number in range(20):
        tensor = torch.full((size,), float(rank + number), device="cuda")
        began = time.monotonic()
        group.native.allreduce([tensor], options).wait()
        took.append(time.monotonic() - began)
        with torch.cuda.stream(other):  # which waits for nothing
            found = torch.stack([tensor.min(), tensor.max()]).tolist()
        assert found == [1.0 + 2 * number] * 2, f"sum is {found}"
    whole = torch.zeros(2 * RANKS, device="cuda")
    group.native._allgather_base(whole, torch.full((2,), float(rank), device="cuda")).wait()
    part = torch.zeros(2, device="cuda")
    group.native._reduce_scatter_base(part, whole).wait()
    group.native.barrier().wait()
    assert whole.tolist() == [0.0, 0.0, 1.0, 1.0] and part.tolist() == [RANKS * rank] * 2
    if rank == 1:
        time.sleep(5)
        group.shutdown()
        return ""
    work: Any = group.native.allreduce([torch.ones(size, device="cuda")], options)
    time.sleep(1)
    began = time.monotonic()
    assert not group.is_idle and not work.is_completed()
    group.abort()
    try:
        work.wait(timedelta(seconds=30))
    except RuntimeError:
        assert group.is_idle, "it ended within 30 s only"
        woken = f"woken {1000 * (time.monotonic() - began):.0f} ms after the abort"
        return f"256 MiB in {1000 * sorted(took)[10]:.1f} ms; {woken}"
    raise AssertionError("the all-reduce ended without an error")


def pinned_copies(rank: int, store: str) -> str:
    """A copy of 512 MiB through pinned memory, in a separate stream, beside kernels."""
    import ctypes

    from ftrun.snapshots.pinned import Pinned

    del store
    if rank:
        return ""
    data = torch.randint(0, 256, (512 << 20,), dtype=torch.uint8, device="cuda")
    into, made = torch.empty(data.numel(), dtype=torch.uint8), Pinned()
    work = torch.ones(4096, 4096, device="cuda")
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    took = []
    for _ in range(3):
        for _ in range(20):
            work = (work @ work).clamp(0, 1)
        began = time.monotonic()
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            torch.cuda.current_stream().wait_event(event)
            made.write(data, into.data_ptr())
        took.append(time.monotonic() - began)
        assert torch.equal(into, data.cpu()), "the copy is not as the tensor"
        ctypes.memset(into.data_ptr(), 0, into.numel())
    values = [torch.randn(3, 4, device="cuda").t(), torch.tensor(2.5, device="cuda")]
    found = made.copies(values)
    assert all(torch.equal(x.cpu(), y) for x, y in zip(values, found, strict=True))
    return f"{data.numel() / min(took[1:]) / 1e9:.1f} GB/s"


def memory_snapshots(
    args: str, kills: str, replicas: int = 1, *, device: str = "cuda", script: str = "gpu.py"
) -> str:
    """Workers on one GPU, two of each replica, are killed: they are replaced in their group, no
    step is lost, and all end as in an undisturbed run, bit by bit."""
    size, ends, words = RANKS * replicas, [], []
    sizes = ["--workers-per-replica", str(RANKS)]
    # In one world of replicas each worker sees the one GPU, and has its number as LOCAL_RANK.
    sizes += ["--virtual-local-rank"] if replicas == 1 else ["--replicas", str(replicas)]
    for memory, given in (("off", ""), ("auto", kills)):
        directory = Path(tempfile.mkdtemp(prefix="gpu-check-"))  # it stays if the check fails
        done = subprocess.run(
            [
                *(sys.executable, "-m", "ftrun", *sizes, "--device", device),
                *("--memory-snapshots", memory),
                *("--log-dir", str(directory / "logs")),
                *(str(ROOT / "tests/zero_edit/scripts" / script), *args.split()),
            ],
            cwd=directory,
            env={
                **(_environment(size) if device == "cuda" else os.environ),
                "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
                "FTRUN_TEST_DIR": str(directory),
                "FTRUN_TEST_KILLS": given,
                "FTRUN_TEST_STEP_S": "0.01",
                "XDG_STATE_HOME": str(directory),
            },
            capture_output=True,
            text=True,
            timeout=JOB_DEADLINE_S,
            check=False,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, output[-5000:]
        ends.append([(directory / f"end-{rank}.json").read_text() for rank in range(size)])
        told = re.findall(r"All continued after \S+ s, and no step was lost", output)
        assert len(told) == len(kills.split(",")) * bool(given), output[-5000:]
        steps = " ".join(f"{x}/{y}" for x, y in re.findall(STEPS, output))
        words.append(f"{'; '.join(told) or 'alone'} (steps of {steps} ms)")
        shutil.rmtree(directory)
    assert ends[0] == ends[1], f"unlike the undisturbed run: {ends}"
    return "; ".join(words)


CHECKS = (
    *(reduce_and_rebuild, abort_wakes, quantised, heal_on_gpu),
    *(settled, pinned_copies),
)


def _checks() -> dict[str, Callable[[], str]]:
    return {
        **{check.__name__: lambda c=check: _ranks(c) for check in CHECKS},  # type: ignore[misc]
        "explicit_job_with_a_kill": explicit_job_with_a_kill,
        "collectives_as_under_torchrun": collectives_as_under_torchrun,
        "script_ddp": lambda: script("", "1@train 1 3,0@train 2 5"),
        "script_ddp_compiled": lambda: script("--compile", "1@train 1 3"),
        "script_fsdp_2x2": lambda: script("--fsdp", "3@train 1 3", workers=2),
        "script_ddp_2x2": lambda: script("", "3@train 1 3", workers=2),
        "memory_snapshots_ddp": lambda: memory_snapshots("", "1@train 1 3"),
        "memory_snapshots_2x2": lambda: memory_snapshots("", "3@train 1 3", 2),
        "memory_snapshots_fsdp": lambda: memory_snapshots("--fsdp", "0@train 1 3,1@train 2 5"),
    }


def _ranks(check: Callable[[int, str], str]) -> str:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = mp.get_context("spawn")
    results: mp.SimpleQueue[str] = context.SimpleQueue()
    ranks = [
        context.Process(target=_one, args=(check, rank, f"127.0.0.1:{store.port}", results))
        for rank in range(RANKS)
    ]
    for process in ranks:
        process.start()
    deadline = time.monotonic() + DEADLINE_S
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
    stuck = [process for process in ranks if process.is_alive()]
    for process in stuck:
        process.kill()
    assert not stuck, f"{len(stuck)} ranks hung"
    assert all(process.exitcode == 0 for process in ranks), "a rank failed"
    return "; ".join(text for text in (results.get() for _ in ranks) if text)


def _one(
    check: Callable[[int, str], str], rank: int, store: str, results: mp.SimpleQueue[str]
) -> None:
    os.environ["NCCL_HOSTID"] = f"check-{rank}"
    torch.cuda.set_device(0)
    results.put(check(rank, store))


def _report(name: str, run: Callable[[], str]) -> bool:
    try:
        print(f"ok    {name}: {run()}", flush=True)
    except (AssertionError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"FAIL  {name}: {error}", flush=True)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
