#!/usr/bin/env python3
"""Kill everything of a job that takes snapshots, again and again, and print what each kill cost.

    scripts/snapshots.py                 # ten kills of each kind of script, some minutes
    scripts/snapshots.py --write-docs    # and put the table into docs/SNAPSHOT_REFERENCE.md
    scripts/snapshots.py --kinds explicit_fsdp --kills 3

Exit code 1 if a kill has lost more than the interval and a margin, or if the job does not end with
the parameters of one that nobody disturbs. Not here: the scripts (tests/snapshots/scripts/).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.snapshots.jobs import EVERY_S, KINDS, Kill, Runs, kill_often  # noqa: E402

BEGIN, END = "<!-- kills: begin -->", "<!-- kills: end -->"
MARGIN_S = 10.0
"""Beyond the interval: the start of the writer's process, which loads torch, and a write."""
LONGEST_S = 20.0


def main() -> int:
    """Run all; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.write_docs and len(options.kinds) < len(KINDS):
        parser.error("--write-docs writes the whole table: leave --kinds out")
    lines = [
        "| script | kill | after, s | last step | goes on from | lost, s |",
        "|---|---|---|---|---|---|",
    ]
    failed = False
    for kind in options.kinds:
        kills, ends = _run(kind, options.kills, options.replicas, options.seed)
        failed |= len(set(ends)) != 1 or any(k.lost_s > EVERY_S + MARGIN_S for k in kills)
        lines += _rows(kind, kills)
        same = "equal to" if len(set(ends)) == 1 else f"**unlike** {ends[1]} of"
        lines.append(f"| `{kind}.py` | the end | | {ends[0]} | {same} a run undisturbed | |")
        print("\n".join(lines[2:]), flush=True)
    table = "\n".join(lines)
    print(table)
    if options.write_docs:
        path = ROOT / "docs" / "SNAPSHOT_REFERENCE.md"
        text = path.read_text()
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
    return 1 if failed else 0


def _run(kind: str, kills: int, replicas: int, seed: int) -> tuple[list[Kill], tuple[str, str]]:
    """The kills, and the results of the job and of an undisturbed one."""
    with tempfile.TemporaryDirectory() as directory:
        runs = Runs(Path(directory), kind)
        found, last = kill_often(runs, replicas, kills, seed, LONGEST_S)
        calm = runs.finish(replicas, snapshot=False)
        if last.exit_code or calm.exit_code:
            print(last.output[-3000:], calm.output[-3000:], flush=True)
        return found, (_words(last.ends), _words(calm.ends))


def _words(ends: tuple[str, ...]) -> str:
    return " / ".join(sorted(set(ends))) or "did not end"


def _rows(kind: str, kills: list[Kill]) -> list[str]:
    return [
        f"| `{kind}.py` | {number} | {kill.after_s:.1f} | {kill.step} | {kill.resumed_at} | "
        f"{kill.lost_s:.2f} |"
        for number, kill in enumerate(kills, 1)
    ]


if __name__ == "__main__":
    sys.exit(main())
