#!/usr/bin/env python3
"""The report of a real job of four replicas with ten kill -9: checks its sums, draws its picture.

    scripts/report.py [-o report.html] [--picture docs/pictures/report.png]

The picture needs Chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.process.job import Job  # noqa: E402
from tests.process.test_events import SCRIPT  # noqa: E402

KILLS = 10
REPLICAS = 4


def run(directory: Path) -> Path:
    """Run the job; returns its log directory."""
    draw = random.Random(3)
    with Job(directory, SCRIPT, "--replicas", str(REPLICAS), "--device", "cpu") as job:
        job.expect(r"in quorum .* from step 0 on")
        for number in range(1, KILLS + 1):
            time.sleep(draw.uniform(2.0, 3.5))  # training between the kills
            os.kill(job.worker(draw.randrange(REPLICAS)), signal.SIGKILL)
            job.expect(r"^ftrun: Replica \d healed", number)
        (directory / "over").touch()
        code = job.end()
    if code != 0:
        sys.exit(f"the job ended with {code}:\n{job.output}")
    (found,) = (directory / "logs").iterdir()
    return found


def check(page: str) -> str:
    """The sums of the report; ends the program if they do not add up."""
    found = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    account, incidents = data["account"], data["incidents"]
    total = sum(account["seconds"].values())
    bands = sum(sum(row) for row in account["bands"]["seconds"].values())
    expected = REPLICAS * account["wall_s"]
    for name, value in (("the uses", total), ("the bands", bands)):
        if abs(value - expected) > 1e-3:
            sys.exit(f"{name} sum to {value} s, and the replicas had {expected} s")
    backs = sorted(x["back_after_s"] for x in incidents)
    if len(incidents) != KILLS:
        sys.exit(f"{KILLS} kills, and {len(incidents)} incidents")
    return (
        f"{KILLS} kills, {len(incidents)} incidents; uses and bands sum to {total:.3f} s = "
        f"{REPLICAS} x {account['wall_s']:.3f} s; goodput {100 * account['goodput']:.1f} %; "
        f"back after {backs[len(backs) // 2]:.3f} s (half), {backs[-1]:.3f} s (longest)"
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    parser.add_argument("--picture", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        logs = run(Path(directory))
        words = ["report", logs.name, "--log-dir", str(logs.parent), "-o", str(chosen.output)]
        subprocess.run([sys.executable, "-m", "ftrun", *words], check=True)
    print(check(chosen.output.read_text(encoding="utf-8")))
    if chosen.picture is not None:
        browser = shutil.which("chromium") or sys.exit("no chromium: no picture")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += ["--window-size=920,1700", f"--screenshot={chosen.picture.resolve()}"]
        subprocess.run([browser, *options, chosen.output.resolve().as_uri()], check=True)


if __name__ == "__main__":
    main()
