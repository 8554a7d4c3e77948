"""Unmodified scripts, killed at named moments: the outcome of each.

A case passes if the job ends with 0, all replicas hold equal parameters and counters, and the
counters equal those of an undisturbed run. Not here: the scripts (scripts/), the command that
prints the table (scripts/zero_edit.py at the root).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import jobs

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
REPLICAS = 3
TIMEOUT_S = 240.0
STEP_S = "0.03"
ALL = ("0", "1", "2")


@dataclass(frozen=True, slots=True)
class Case:
    """One script, its arguments, and the kills (``RANK@MOMENT``).

    ``needs``: the package that the script imports beside torch. ``late``: the rank of a replica
    that restarts late. ``workers``: the number per replica. ``step_s``: the least duration of a
    step. ``is_kept``: with memory snapshots, so that workers are replaced in place.
    """

    script: str
    args: str = ""
    kills: str = ""
    needs: str = ""
    replicas: int = REPLICAS
    late: str = ""
    workers: int = 1
    step_s: str = STEP_S
    is_kept: bool = False

    def __str__(self) -> str:
        several = f" ({self.workers} workers per replica)" if self.workers > 1 else ""
        several += " (memory snapshots)" if self.is_kept else ""
        several += "" if self.step_s == STEP_S else " (short steps)"
        late = f", {self.late} back late" if self.late else ""
        kills = f": {self.kills}{late}" if self.kills else ""
        return f"{self.script} {self.args}".strip() + several + kills


@dataclass(frozen=True, slots=True)
class Outcome:
    """``ends``: what each worker has written at its end, by rank; ``world``: the number of workers.

    ``back_after_s``: the seconds from each death until its replacement had healed.
    """

    exit_code: int
    ends: dict[str, dict[str, object]]
    output: str
    world: int = REPLICAS
    back_after_s: tuple[float, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether all workers have ended with the same result."""
        found = list(self.ends.values())
        return len(found) == self.world and all(end == found[0] for end in found)

    @property
    def counters(self) -> dict[str, object]:
        """The script's counters, without its parameters."""
        end = self.ends.get("0", {})
        return {name: value for name, value in end.items() if name != "digests"}

    @property
    def differences(self) -> list[str]:
        """The differences found between replicas while they trained."""
        return re.findall(r"[Rr]eplica \d+ .*(?:has diverged|batches differ).*", self.output)

    @property
    def joins(self) -> list[str]:
        """The steps at which newcomers joined, as text."""
        return re.findall(r"replica \d+ joined at ([^;\n]*)", self.output)

    @property
    def lost(self) -> int:
        """The steps that were not committed."""
        return max(
            (int(n) for n in re.findall(r"(\d+) of \d+ steps were not", self.output)), default=0
        )


def run(
    case: Case, directory: Path, *, python: str = sys.executable, timeout_s: float = TIMEOUT_S
) -> Outcome:
    """Run one case in ``directory``, which must be empty.

    Raises:
        subprocess.TimeoutExpired: the case did not end in time.
    """
    script, *args = case.script, *case.args.split()
    finished = jobs.run(
        [
            *(python, "-m", "ftrun", "--replicas", str(case.replicas), "--prefix"),
            *("--workers-per-replica", str(case.workers)),
            *(() if case.is_kept else ("--memory-snapshots", "off")),
            *("--log-dir", str(directory / "logs"), str(SCRIPTS / script), *args),
        ],
        cwd=directory,
        env={
            **os.environ,
            **jobs.THIS_TREE,
            "XDG_STATE_HOME": str(directory / "state"),
            "TMPDIR": str(directory),
            "FTRUN_TEST_DIR": str(directory),
            "FTRUN_TEST_KILLS": case.kills,
            "FTRUN_TEST_LATE": case.late,
            "FTRUN_TEST_STEP_S": case.step_s,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    ends = {
        rank: json.loads(path.read_text())
        for rank in map(str, range(case.replicas * case.workers))
        if (path := directory / f"end-{rank}.json").exists()
    }
    back = tuple(_back_after(directory / "logs"))
    output = finished.stdout + finished.stderr
    return Outcome(finished.returncode, ends, output, case.replicas * case.workers, back)


def _back_after(logs: Path) -> Iterator[float]:
    """From the job's events: how long each replica that died was away."""
    for path in logs.glob("*/events.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "incident" and not event["is_open"] and event["back_after_s"]:
                yield event["back_after_s"]


def _at(script: str, args: str, *moments: str) -> list[Case]:
    """Slot 0, slot 1, two at once and all at once, at each of the moments."""
    who = (("0",), ("1",), ("0", "2"), ALL)
    return [
        Case(script, args, ",".join(f"{rank}@{moment}" for rank in ranks))
        for moment in moments
        for ranks in who
    ]


def _in_pairs(script: str, args: str, *moments: str) -> list[Case]:
    """Replicas of two workers: one of slot 0, one of slot 1, of two at once and of all at once."""
    who = (("0",), ("3",), ("1", "4"), ("0", "3", "4"))
    return [
        Case(script, args, ",".join(f"{rank}@{moment}" for rank in ranks), workers=2)
        for moment in moments
        for ranks in who
    ]


def _in_place(script: str, args: str, *moments: str) -> list[Case]:
    """Two replicas of two workers: one of slot 0, one of slot 1 and both at once are replaced."""
    who = (("0",), ("3",), ("1", "2"))
    return [
        Case(script, args, kills, replicas=2, workers=2, is_kept=True)
        for moment in moments
        for kills in (",".join(f"{rank}@{moment}" for rank in ranks) for ranks in who)
    ]


def _at_the_end(script: str, args: str, moment: str, *, workers: int = 1) -> list[Case]:
    """Steps are so short that few are noted, and a replica is back after the others have finished:
    it repeats several steps."""
    return [
        Case(script, args, f"{rank}@{moment}", late=rank, workers=workers, step_s="0")
        for rank in ("0", str(workers))
    ]


FULL = ("train 0 1", "train 1 7", "evaluation 1", "save 1", "set-up", "the end")
QUICK = (
    Case("full.py", "--ema --accum 2", "1@evaluation 1"),
    Case("full.py", "--ema --accum 2", "1@evaluation 1", late="1", step_s="0"),
    Case("kept.py", "", "1@train 2 2,0@train 3 5"),
    Case("held.py", "", "1@train 2 1,0@train 3 4"),
    Case("phases.py", "stages", "0@train middle 1 3"),
    Case("phases.py", "rounds", "1@train round 1 1 3"),
    Case("phases.py", "fresh", "0@train model 2 1 3"),
    Case("phases.py", "numbered", "1@train numbered 1 13"),
    Case("phases.py", "generated", "0@train generated 1 3"),
    Case("beside.py", "", "1@train 1 3,0@the end"),
    Case("compiled.py", "step", "1@train 1 3", replicas=2),
    Case("loops.py", "again", "1@train 20"),
    Case("loops.py", "stream", "0@train 14"),
    Case("loops.py", "two", "0@the end,2@the end", late="2"),
    Case("loops.py", "fast", "1@fast 451", replicas=2),
    Case("full.py", "", "3@train 1 2", workers=2),
    Case("sharded.py", "--prefetch", "0@train 1 3", replicas=2, workers=2),
)
"""The part of the matrix that each change runs."""
CASES: tuple[Case, ...] = (
    *_at("full.py", "", *FULL),
    *_at("full.py", "--accum 2 --workers 2", "train 0 2", "train 1 7", "evaluation 1"),
    *_at("full.py", "--amp", "train 1 3", "evaluation 1"),
    *_at("full.py", "--ema", "train 1 3", "the end"),
    *_at("full.py", "--stop --epochs 6", "train 2 3", "evaluation 2"),
    *_at("kept.py", "", "train 2 4", "train 4 3", "the end"),
    Case("kept.py", "", "1@train 2 2,0@train 3 5"),
    *_in_pairs("kept.py", "", "train 2 4", "the end"),
    *_at("held.py", "", "train 1 1", "train 2 4", "train 3 0", "the end"),
    *_in_pairs("held.py", "", "train 2 1", "the end"),
    *_at("phases.py", "two", "train warm 1 5", "train main 0 0", "train main 1 2", "the end"),
    *_at("phases.py", "twice", "train first 1 3", "train second 0 4", "train second 2 9"),
    *_at("phases.py", "alternate", "train one 1 2", "train other 1 3", "the end"),
    *_at("phases.py", "stages", "train low 0 5", "train middle 1 3", "train high 1 9"),
    *_at("phases.py", "rounds", "train round 0 1 3", "train round 2 0 9", "the end"),
    *_at("phases.py", "fresh", "train model 1 0 0", "train model 2 1 3", "the end"),
    *_at("phases.py", "numbered", "train numbered 0 4", "train numbered 2 29", "the end"),
    *_at("phases.py", "generated", "train generated 0 4", "train generated 2 9", "the end"),
    *_at("phases.py", "average", "train two 0 3", "train average 1 4", "the end"),
    *_at("phases.py", "counted", "train warm 8", "train main 1 3"),
    *_in_pairs("phases.py", "two", "train main 1 2"),
    *_in_pairs("phases.py", "sharded", "train second 1 2"),
    *_at("beside.py", "", "train 1 3", "evaluation 1", "train 3 9", "the end"),
    *_in_pairs("beside.py", "", "train 1 3", "the end"),
    *_at("compiled.py", "model", "train 1 3", "the end"),
    *_at("compiled.py", "ddp", "train 1 3", "the end"),
    *_at("compiled.py", "step", "train 1 3"),
    *_at("loops.py", "while", "train 2", "train 20", "the end"),
    *_at("loops.py", "range", "train 2", "train 20", "the end"),
    *_at("loops.py", "fast", "fast 90", "fast 451", "fast 807", "the end"),
    *_at("loops.py", "two", "train 2", "train 20", "the end"),
    Case("loops.py", "two", "0@the end,2@the end", late="2"),
    *_at("loops.py", "resume", "train 0 1", "train 2 2", "train 3 3", "the end"),
    *_at("loops.py", "ahead", "train 2", "train 20", "the end"),
    *_at("loops.py", "last", "train 20"),
    *_at("loops.py", "prefetch", "train 2", "train 20"),
    *_at("loops.py", "early", "train 2", "train 20"),
    *_at("loops.py", "again", "train 2", "train 20", "the end"),
    *_at("loops.py", "pairs", "train 2", "train 8", "the end"),
    *_at("loops.py", "stream", "train 2", "train 20", "the end"),
    *_in_pairs("full.py", "", "train 0 1", "train 1 3", "evaluation 1", "the end"),
    *_in_pairs("sharded.py", "", "train 0 1", "train 1 7", "evaluation 1", "set-up", "the end"),
    *_in_pairs("sharded.py", "--hsdp --accum 2", "train 1 3", "evaluation 1"),
    *_in_pairs("sharded.py", "--compile", "train 1 3"),
    *_in_pairs("sharded.py", "--prefetch", "train 0 1", "train 1 7", "evaluation 1"),
    *_at_the_end("full.py", "", "train 1 7"),
    *_at_the_end("full.py", "--ema --accum 2", "evaluation 1"),
    *_at_the_end("full.py", "--amp", "train 1 3"),
    *_at_the_end("full.py", "--stop --epochs 6", "train 2 3"),
    *_at_the_end("full.py", "", "train 1 3", workers=2),
    *_at_the_end("kept.py", "", "train 2 4"),
    *_at_the_end("held.py", "", "train 2 4"),
    *_at_the_end("phases.py", "two", "train main 1 2"),
    *_at_the_end("phases.py", "alternate", "train one 2 2"),
    *_at_the_end("phases.py", "stages", "train middle 1 3"),
    *_at_the_end("beside.py", "", "train 1 3"),
    *_at_the_end("compiled.py", "step", "train 1 3"),
    *_at_the_end("loops.py", "while", "train 20"),
    *_at_the_end("loops.py", "range", "train 20"),
    *_at_the_end("loops.py", "fast", "fast 451"),
    *_at_the_end("loops.py", "two", "train 20"),
    *_at_the_end("loops.py", "resume", "train 2 2"),
    *_at_the_end("loops.py", "ahead", "train 20"),
    *_at_the_end("loops.py", "prefetch", "train 20"),
    *_at_the_end("loops.py", "early", "train 20"),
    *_at_the_end("loops.py", "again", "train 20"),
    *_at_the_end("loops.py", "pairs", "train 8"),
    *_at_the_end("loops.py", "stream", "train 20"),
    *_at_the_end("sharded.py", "", "train 1 7", workers=2),
)


def _framework(needs: str, script: str, args: str, early: int, late: int) -> list[Case]:
    """Kills of each slot, both in turn, both at once, one at its end, and one that is back late."""
    kills = (f"1@train {early}", f"0@train {early}", f"0@train {early},1@train {late}")
    more = (f"0@train {late},1@train {late}", "0@the end", "1@the end")
    back_late = Case(script, args, f"1@train {early}", needs, 2, late="1", step_s="0")
    return [*(Case(script, args, kill, needs, 2) for kill in (*kills, *more)), back_late]


KEPT = (
    *_in_place("full.py", "", "train 1 3", "evaluation 1", "the end"),
    *_in_place("full.py", "--accum 2 --workers 2 --ema", "train 1 5", "evaluation 1"),
    *_in_place("full.py", "--amp", "train 1 3"),
    *_in_place("sharded.py", "", "train 1 7", "evaluation 1", "the end"),
    *_in_place("sharded.py", "--hsdp --accum 2", "train 1 3", "evaluation 1"),
    *_in_place("kept.py", "", "train 2 4"),
    *_in_place("held.py", "", "train 2 1"),
    *_in_place("phases.py", "two", "train main 1 2"),
    *_in_place("phases.py", "sharded", "train second 1 2"),
    *_in_place("beside.py", "", "train 1 3"),
    *_in_place("loops.py", "prefetch", "train 20"),
    *_in_place("loops.py", "stream", "train 20"),
)
"""With workers replaced in place, the job ends as if no worker had died."""

FRAMEWORKS: tuple[Case, ...] = (
    *_framework("transformers", "trainer.py", "", 20, 120),
    *_framework("transformers", "trainer.py", "--accum 5", 4, 38),
    *_framework("accelerate", "accelerated.py", "", 40, 220),
    *_framework("lightning", "lit.py", "", 20, 150),
    *_framework("lightning", "lit.py", "--accum 5", 20, 38),
    Case("lit.py", "", "0@evaluation 2", "lightning", 2),
)
"""Cases for environments that have the packages."""


def has(needs: str) -> bool:
    """Whether a case's package is installed."""
    return not needs or importlib.util.find_spec(needs) is not None
