#!/usr/bin/env python3
"""Run torchft's own train_diloco.py under ftrun, kill workers meanwhile, and compare the ends.

    scripts/torchft_diloco.py train_diloco.py    # plain and streaming, five kills each

The file is of torchft's repository; it needs torchdata and tensorboard. Two of its lines are
changed, because it is written for a larger machine and ends soon: the size of a parameter that it
does not use, and its last step. Exit code 1 if the replicas' global weights differ at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.process.job import Job  # noqa: E402

SIZE, LAST = "target_size = 500 * (1 << 20)", "manager.current_step() >= 15"
SMALL = "target_size = 1 << 20"
STEPS = {"plain": 250, "streaming": 500}
END_S = 900.0


def main() -> int:
    """Run both forms; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("script", type=Path)
    parser.add_argument("--form", choices=list(STEPS), action="append", help="default: both")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    source = options.script.read_text()
    for line in (SIZE, LAST):
        if line not in source:
            print(f"{options.script} has no {line!r}", file=sys.stderr)
            return 2
    failed = False
    for form in options.form or STEPS:
        steps = STEPS[form]
        text = source.replace(SIZE, SMALL).replace(LAST, f"manager.current_step() >= {steps}")
        os.environ["USE_STREAMING"] = str(form == "streaming")
        with tempfile.TemporaryDirectory() as directory:
            failed |= _run(Path(directory), form, text, options.kills, options.seed)
    return 1 if failed else 0


def _run(directory: Path, form: str, text: str, kills: int, seed: int) -> bool:
    """One job with kills, one line about it; True if it is not as it should be."""
    numbers = random.Random(f"{seed} {form}")
    options = ["--replicas", "2", "--device", "cpu", "--preload", "tests.local.digest_at_end"]
    with Job(directory, text, *options) as job:
        job.expect("Replicas 0 and 1 in quorum")
        for kill in range(kills):
            threading.Event().wait(numbers.uniform(1.0, 3.0))  # a random moment
            os.kill(job.worker(str(numbers.randrange(2))), signal.SIGKILL)
            job.expect(r"Replica \d healed from", count=kill + 1)
        exit_code = job.end(END_S)
        output = job.output
    ends = re.findall(r"END (.*)", output)
    healed = output.count(" healed from ")
    right = exit_code == 0 and len(ends) == 2 and len(set(ends)) == 1 and healed == kills
    account = "".join(re.findall(r"The account: .*", output))
    print(f"train_diloco.py, {form}: {kills} kills, {healed} heals; ends: {', '.join(ends)}")
    print(f"  {account}", flush=True)
    if not right:
        print(output)
    return not right


if __name__ == "__main__":
    sys.exit(main())
