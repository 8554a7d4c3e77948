#!/usr/bin/env python3
"""Train one unmodified script in each way to deal samples, kill its replicas, and count.

    scripts/each_sample.py                 # the table: how often each sample was trained
    scripts/each_sample.py --write-docs    # and put it, with the loss curves, into docs/DATA.md

The script logs the indices and the loss of each batch whose step was committed, and dies between
the draw of a batch and its forward pass, or after that line: in between nobody could say from the
logs whether the last batch of a dead replica counted (tests/process/test_data.py can, from what the
others know). Exit code 1 if a sample was not trained exactly once where it has to be. The picture
needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS, PICTURE = ROOT / "docs" / "DATA.md", ROOT / "docs" / "pictures" / "each-sample.png"
BEGIN, END = "<!-- each sample: begin -->", "<!-- each sample: end -->"
REPLICAS, SAMPLES, EPOCHS, BATCH = 4, 4000, 4, 16
KILLS = "1@40:drawn,3@90:logged,0@130:drawn,2@170:drawn,1@210:logged"
TIMEOUT_S = 300.0

SCRIPT = """
import json, os, pathlib, signal, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SAMPLES, EPOCHS, BATCH, HERE = *map(int, sys.argv[1:4]), pathlib.Path(sys.argv[4])
KILLS = sys.argv[5].split(",") if len(sys.argv) > 5 else []


class Spirals(Dataset):
    def __init__(self):
        torch.manual_seed(5)
        self.label = torch.randint(2, (SAMPLES,))
        turn = torch.rand(SAMPLES) * 6 + 0.5
        angle = turn + self.label * torch.pi
        points = torch.stack([angle.cos(), angle.sin()], 1) * turn[:, None]
        self.points = points + 0.15 * torch.randn(SAMPLES, 2)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index, self.points[index], self.label[index]


def die(rank, step, moment):
    for kill in KILLS:
        who, when, place = kill.replace("@", ":").split(":")
        is_due = (int(who), place) == (rank, moment) and step >= int(when)
        if is_due and not (HERE / kill).exists():
            (HERE / kill).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    dist.init_process_group("gloo")
    rank, data = dist.get_rank(), Spirals()
    lines = open(HERE / f"{rank}-{os.getpid()}.jsonl", "w", buffering=1)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    net = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 2))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    step = 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for index, points, label in loader:
            time.sleep(0.015)
            die(rank, step, "drawn")
            before = net[0].weight.detach().clone()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(points.double()), label)
            loss.backward()
            optimizer.step()
            if not torch.equal(before, net[0].weight):
                print(json.dumps([step, epoch, index.tolist(), loss.item()]), file=lines)
                die(rank, step, "logged")
            step += 1
    with torch.no_grad():
        final = nn.functional.cross_entropy(net(data.points.double()), data.label).item()
    flat = torch.cat([p.detach().flatten() for p in net.parameters()]).tolist()
    (HERE / f"end-{rank}.json").write_text(json.dumps([final, flat]))


main()
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Way:
    """One way to run the script. ``is_exact``: each sample is to be trained once per epoch."""

    name: str
    options: tuple[str, ...] = ()
    kills: str = ""
    is_exact: bool = True


GLOBAL = ("--global-batch", str(REPLICAS * BATCH))
WAYS = (
    Way("as written, nobody dies"),
    Way("as written", kills=KILLS, is_exact=False),
    Way("`--data exactly-once`", ("--inject", "ddp", "--data", "exactly-once"), KILLS),
    Way(f"`--global-batch {GLOBAL[1]}`, nobody dies", GLOBAL),
    Way(f"`--global-batch {GLOBAL[1]}`", GLOBAL, KILLS),
)


@dataclass(frozen=True)
class Ran:
    """The result of a run.

    Attributes:
        counts: how often each sample of each epoch was trained.
        losses: pairs of a number of samples and the mean loss of the step after them.
        sizes: the samples of each step.
        deaths: kills that happened.
    """

    counts: dict[int, Counter[int]]
    losses: list[tuple[int, float]]
    sizes: list[int]
    deaths: int
    final: float
    parameters: list[float]

    def samples(self, times: int) -> int:
        """How many samples of all epochs were trained that often."""
        return sum(counted[x] == times for counted in self.counts.values() for x in range(SAMPLES))

    @property
    def is_exact(self) -> bool:
        """D1: each sample once in each epoch."""
        return self.samples(1) == SAMPLES * EPOCHS


def main() -> int:
    """Run all ways; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args()
    found: dict[Way, Ran] = {}
    for way in WAYS:
        with tempfile.TemporaryDirectory() as name:
            found[way] = _run(way, Path(name))
        print(_row(way, found), flush=True)
    wrong = [way.name for way, ran in found.items() if way.is_exact and not ran.is_exact]
    if options.write_docs:
        _draw(found)
        text = DOCS.read_text()
        table = "\n".join([*_HEAD, *(_row(way, found) for way in found)])
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        DOCS.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
    print("each sample once wherever it has to be" if not wrong else f"NOT once: {wrong}")
    return 1 if wrong else 0


def _run(way: Way, directory: Path) -> Ran:
    script = directory / "spirals.py"
    script.write_text(SCRIPT)
    arguments = [str(SAMPLES), str(EPOCHS), str(BATCH), str(directory), *filter(None, [way.kills])]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ftrun", "--replicas", str(REPLICAS), *way.options),
            *("--log-dir", str(directory / "logs"), str(script), *arguments),
        ],
        env={**os.environ, "XDG_STATE_HOME": str(directory / "state")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    output = done.stdout + done.stderr
    if done.returncode:
        raise SystemExit(f"{way.name}: exit code {done.returncode}\n{output}")
    return _read(directory, len(re.findall(r"died: SIGKILL", output)))


def _read(directory: Path, deaths: int) -> Ran:
    steps: dict[int, list[tuple[list[int], float]]] = defaultdict(list)
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for path in directory.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            step, epoch, indices, loss = json.loads(line)
            steps[step].append((indices, loss))
            counts[epoch].update(indices)
    trained, losses, sizes = 0, [], []
    for _, batches in sorted(steps.items()):
        size = sum(len(indices) for indices, _ in batches)
        trained += size
        sizes.append(size)
        losses.append((trained, sum(len(indices) * loss for indices, loss in batches) / size))
    ends = [json.loads(path.read_text()) for path in directory.glob("end-*.json")]
    if len(ends) != REPLICAS or any(end != ends[0] for end in ends):
        raise SystemExit(f"the replicas have not come to the same end: {[end[0] for end in ends]}")
    return Ran(dict(counts), losses, sizes, deaths, *ends[0])


_HEAD = (
    "| run | deaths | steps | samples of a step | trained once | never | more often "
    "| loss at the end | parameters differ from the run in which nobody dies by |",
    "|---|---|---|---|---|---|---|---|---|",
)


def _row(way: Way, found: dict[Way, Ran]) -> str:
    ran = found[way]
    calm = next((r for w, r in found.items() if w.options == way.options and not w.kills), None)
    differ = "" if calm is None or calm is ran else f"{_distance(calm, ran):.1e} at most"
    more = SAMPLES * EPOCHS - ran.samples(0) - ran.samples(1)
    return (
        f"| {way.name} | {ran.deaths} | {len(ran.sizes)} | {min(ran.sizes)} to {max(ran.sizes)} "
        f"| {ran.samples(1):,} | {ran.samples(0):,} | {more:,} | {ran.final:.4f} | {differ} |"
    )


def _distance(one: Ran, other: Ran) -> float:
    return max(abs(a - b) for a, b in zip(one.parameters, other.parameters, strict=True))


def _draw(found: dict[Way, Ran]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11.0, 4.2), sharey=True)
    for axis, stays in zip(axes, (False, True), strict=True):
        title = "a batch that stays" if stays else "a batch for each replica"
        for way, ran in found.items():
            if (way.options == GLOBAL) != stays:
                continue
            width, alpha = (1.2, 1.0) if way.kills else (5.0, 0.3)  # the undisturbed run is behind
            label = way.name.replace("`", "") + (f", {ran.deaths} deaths" if way.kills else "")
            points = zip(*_smooth(ran.losses), strict=True)
            axis.plot(*points, label=label, lw=width, alpha=alpha, color=_color(way))
        axis.set(title=f"loss, {title}", xlabel="samples trained")
        axis.legend(fontsize="small")
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})


def _color(way: Way) -> str:
    return {(): "C0", GLOBAL: "C2"}.get(way.options, "C1")


def _smooth(losses: Sequence[tuple[int, float]], steps: int = 8) -> list[tuple[int, float]]:
    """Means over some steps."""
    groups = [losses[at : at + steps] for at in range(0, len(losses) - steps + 1, steps)]
    return [(group[-1][0], sum(loss for _, loss in group) / steps) for group in groups]


if __name__ == "__main__":
    sys.exit(main())
