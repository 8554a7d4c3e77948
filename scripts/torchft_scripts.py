#!/usr/bin/env python3
"""Run torchft's own train_ddp.py and train_diloco.py under ftrun and under torchft, with kills.

    scripts/torchft_scripts.py DIRECTORY               # of torchft's repository, with both files
    scripts/torchft_scripts.py DIRECTORY --write-docs  # and put it into docs/TORCHFT_REFERENCE.md

The files are unchanged but for the lines of ``FORMS`` below: they are written for a larger machine,
and end soon. torchvision would download its pictures, so one of that name stands in
(tests/torchft/stand_ins). Needs torchft-nightly, torchdata and tensorboard. Five workers are killed
at random moments in each form, under ftrun and torchft in turn.

Exit code 1 if the replicas' states under ftrun differ at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "scripts"))

from benchmarks.jobs import run_job  # noqa: E402
from benchmarks.recovery import PEERS, Kill, kill_one  # noqa: E402

BEGIN, END = "<!-- scripts begin -->", "<!-- scripts end -->"
LAST = "manager.current_step() >= 1_000_000"
OBSERVER = "tests.torchft.observed"


@dataclass(frozen=True)
class Form:
    """A script, its changed lines, its environment, and its steps between kills."""

    name: str
    script: str
    changes: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...] = ()
    between: int = 40


SMALL = ("target_size = 500 * (1 << 20)", "target_size = 1 << 20")
OF_DILOCO = (SMALL, ("manager.current_step() >= 15", LAST))
FORMS = (
    Form(
        "train_ddp.py",
        "train_ddp.py",
        (
            ("target_size = 1_000_000_000", "target_size = 1_000_000"),
            ("manager.current_step() >= 10000", LAST),
        ),
    ),
    Form("train_diloco.py", "train_diloco.py", OF_DILOCO, (("USE_STREAMING", "False"),), 10),
    Form(
        "train_diloco.py, streaming",
        "train_diloco.py",
        OF_DILOCO,
        (("USE_STREAMING", "True"),),
        20,
    ),
)


def main() -> int:
    """Run all forms; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", default="", help="forms whose name contains this")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = f"{ROOT / 'tests' / 'torchft' / 'stand_ins'}:{ROOT}"
    forms = [form for form in FORMS if options.only in form.name]
    texts = []
    for form in forms:
        try:
            texts.append(_changed(options.directory, form))
        except (OSError, ValueError) as error:
            print(f"{error}. Nothing was started.", file=sys.stderr)
            return 2
    rows, is_right = [], True
    for form, text in zip(forms, texts, strict=True):
        for peer in PEERS:
            kills, ends = _run(form, text, peer, options.kills, options.seed)
            is_equal = len(ends) == 2 and len(set(ends.values())) == 1
            is_right &= is_equal or peer != "ftrun"
            rows.append(_row(form, peer, kills, is_equal))
            print(
                rows[-1], f"ends: {' '.join(sorted(ends.values()))}".replace("\n", ";"), flush=True
            )
    table = "\n".join([*_HEAD, *rows])
    print(table)
    if options.write_docs:
        path = ROOT / "docs" / "TORCHFT_REFERENCE.md"
        found = path.read_text()
        before, after = found.partition(BEGIN)[0], found.partition(END)[2]
        path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
    return 0 if is_right else 1


def _changed(directory: Path, form: Form) -> str:
    text = (directory / form.script).read_text()
    for old, new in form.changes:
        if old not in text:
            raise ValueError(f"{directory / form.script} has no {old!r}")
        text = text.replace(old, new)
    return text


def _run(
    form: Form, text: str, peer: str, kills: int, seed: int
) -> tuple[list[Kill], dict[int, str]]:
    rng = random.Random(f"{seed} {form.name}")
    os.environ.update(dict(form.settings))
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / form.script
        script.write_text(text)
        with run_job(peer, 2, form.between, script=script, preload=OBSERVER) as job:
            found = [kill_one(job, rng, {}, form.between) for _ in range(kills)]
            job.stop()
            return found, job.ends()


_HEAD = (
    "| script | under | kills | state at the end | steps lost | longest stall of the other, median "
    "| kill to the newcomer's first commit, median | a step |",
    "|---|---|---|---|---|---|---|---|",
)


def _row(form: Form, peer: str, kills: list[Kill], is_equal: bool) -> str:
    def middle(name: str) -> float:
        return statistics.median(getattr(kill, name) for kill in kills) * 1000

    return (
        f"| `{form.name}` | {peer} | {len(kills)} | {'equal' if is_equal else 'differs'} "
        f"| {sum(kill.lost_steps for kill in kills)} | {middle('stall_s'):,.0f} ms "
        f"| {middle('rejoin_s'):,.0f} ms | {middle('step_s'):,.0f} ms |"
    )


if __name__ == "__main__":
    sys.exit(main())
