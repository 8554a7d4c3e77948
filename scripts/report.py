#!/usr/bin/env python3
"""The report of a real job of four replicas with ten kill -9: checks its sums, draws its picture.

    scripts/report.py [-o report.html] [--picture docs/pictures/report.png]
    scripts/report.py --chaos       other troubles than kill -9 alone; prints the account as a table

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
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.jobs import Job  # noqa: E402
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


def chaos(directory: Path) -> Path:
    """Run a job with one trouble of each kind, one after the other; returns its log directory."""
    options = ("--replicas", str(REPLICAS), "--device", "cpu", "--hang-timeout", "3")
    with Job(directory, SCRIPT, *options) as job:
        job.expect(r"in quorum .* from step 0 on")
        _kill(job, 1)
        job.expect(r"^ftrun: Replica 1 healed")
        _kill(job, 2, 3)
        job.expect(r"^ftrun: Replica [23] healed", 2)
        os.kill(job.worker(0), signal.SIGSTOP)
        job.expect(r"^ftrun: Replica 0 healed")
        lighthouse = job.lighthouse()
        os.kill(lighthouse, signal.SIGKILL)
        job.expect(r"^ftrun: The lighthouse is back")
        _order(directory, "restart", "3")
        _order(directory, "kill", "2")
        job.expect(r"^ftrun: Replica 2 healed", 2)
        _order(directory, "drain", "1")
        time.sleep(2.0)  # three replicas train
        (directory / "over").touch()
        code = job.end()
    if code != 0:
        sys.exit(f"the job ended with {code}:\n{job.output}")
    (found,) = (directory / "logs").iterdir()
    return found


def _kill(job: Job, *replicas: int) -> None:
    time.sleep(2.0)  # training between the faults
    for replica in replicas:
        os.kill(job.worker(replica), signal.SIGKILL)


def _order(directory: Path, *words: str) -> None:
    beside = {"XDG_STATE_HOME": str(directory / "state"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "ftrun", *words]
    subprocess.run(
        command, cwd=directory, env={**os.environ, **beside}, check=True, stdout=subprocess.DEVNULL
    )


def table(page: str) -> str:
    """The account by use, as a table for docs/ACCOUNT.md."""
    account, incidents = _data(page)["account"], _data(page)["incidents"]
    lines = ["| use | replica-seconds |", "|---|---|"]
    lines += [f"| {use} | {spent:.3f} |" for use, spent in account["seconds"].items() if spent]
    total, wall_s = sum(account["seconds"].values()), account["wall_s"]
    lines.append(f"| all = {REPLICAS} x {wall_s:.3f} s | {total:.3f} |")
    lines += [
        "",
        "| incident | cost, replica-seconds | steps lost | back after |",
        "|---|---|---|---|",
    ]
    for incident in incidents:
        back, cost = incident["back_after_s"], incident["cost"]
        lines.append(
            f"| replica {incident['replica']} {incident['cause']} | {cost['replica_seconds']:.3f} "
            f"| {cost['steps']} | {'' if back is None else f'{back:.3f} s'} |"
        )
    return "\n".join(lines)


def _data(page: str) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def check(page: str, kills: int | None = KILLS) -> str:
    """The sums of the report; ends the program if they do not add up."""
    data = _data(page)
    account, incidents = data["account"], data["incidents"]
    total = sum(account["seconds"].values())
    bands = sum(sum(row) for row in account["bands"]["seconds"].values())
    expected = REPLICAS * account["wall_s"]
    for name, value in (("the uses", total), ("the bands", bands)):
        if abs(value - expected) > 1e-3:
            sys.exit(f"{name} sum to {value} s, and the replicas had {expected} s")
    backs = sorted(x["back_after_s"] for x in incidents if x["back_after_s"] is not None)
    if kills not in (None, len(incidents)):
        sys.exit(f"{kills} kills, and {len(incidents)} incidents")
    return (
        f"{len(incidents)} incidents; uses and bands sum to {total:.3f} s = "
        f"{REPLICAS} x {account['wall_s']:.3f} s; goodput {100 * account['goodput']:.1f} %; "
        f"back after {backs[len(backs) // 2]:.3f} s (half), {backs[-1]:.3f} s (longest)"
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--chaos", action="store_true", help="several kinds of trouble; a table")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        logs = (chaos if chosen.chaos else run)(Path(directory))
        words = ["report", logs.name, "--log-dir", str(logs.parent), "-o", str(chosen.output)]
        subprocess.run([sys.executable, "-m", "ftrun", *words], check=True)
    page = chosen.output.read_text(encoding="utf-8")
    print(check(page, None if chosen.chaos else KILLS))
    if chosen.chaos:
        print(table(page))
    if chosen.picture is not None:
        browser = shutil.which("chromium") or sys.exit("no chromium: no picture")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += ["--window-size=920,1700", f"--screenshot={chosen.picture.resolve()}"]
        subprocess.run([browser, *options, chosen.output.resolve().as_uri()], check=True)


if __name__ == "__main__":
    main()
