"""Takes rows through all their runs, and writes the table.

What a run has shown is kept in the cache, so that ``--steps killed`` needs no second run under
torchrun. Not here: a run (running.py), the words (verdicts.py).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.real_scripts.rows import Row, rows
from tests.real_scripts.running import ChildFailed, Place
from tests.real_scripts.sources import ROOT, Missing, fetch
from tests.real_scripts.verdicts import (
    HANGS,
    HEAD,
    NOT_RUN,
    ONE_WORLD,
    SAME,
    Result,
    Run,
    as_json,
    difference,
    line_of,
    totals,
    verdict,
)

DOCS = ROOT / "docs" / "REAL_SCRIPTS.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
BAD_ROW = "not a row"


def run_rows(options: argparse.Namespace, steps: Sequence[str]) -> int:
    """Run the rows that the options name; the exit code."""
    wanted = rows(options.only)
    cache = options.cache.resolve()
    place = Place(Path(sys.prefix) / "bin", cache, options.timeout)
    lines, is_well = [], True
    for row in wanted:
        result = _run_row(row, place, options.mirror, steps)
        lines.append(line_of(result, row.repository, row.commit, row.script, row.family))
        print(lines[-1], f"({result.seconds:.0f} s)", flush=True)
        is_well &= {result.undisturbed, result.killed} <= {SAME, ""}
    table = "\n".join([*HEAD, *lines, "", totals(lines)])
    print(f"\n{table}")
    if options.write_docs:
        _write_docs(lines)
    return 0 if is_well else 1


def _run_row(row: Row, place: Place, mirror: Path | None, steps: Sequence[str]) -> Result:
    try:
        source = fetch(row, place.cache, mirror)
        return _Trial(row, place, source).run(steps)
    except (Missing, ValueError, ChildFailed) as error:
        return Result(row.name, undisturbed=f"{BAD_ROW} ({' '.join(str(error).split())[:200]})")


class _Trial:
    """One row's runs; what they have shown is read from the cache and put there."""

    def __init__(self, row: Row, place: Place, source: Path) -> None:
        self.row, self.place, self.source = row, place, source
        self.kept = place.cache / "results" / f"{row.name}-{row.mark}.json"
        self.known: dict[str, Any] = {}
        if self.kept.exists():
            self.known = json.loads(self.kept.read_text())
        self.result = Result(**self.known.get("result", {"name": row.name}))

    def run(self, steps: Sequence[str]) -> Result:
        """Make the runs that ``steps`` names, and those that they need.

        Raises:
            Missing: the script does not run under torchrun here.
        """
        if not steps and "torchrun" not in self.known:
            raise Missing("it was not run yet")
        if "torchrun" in steps or "torchrun" not in self.known:
            run = self._torchrun("torchrun")
            self.known["torchrun"] = as_json(run)
            self._note(seconds=run.seconds)
        plain = Run(**self.known["torchrun"])
        if "undisturbed" in steps:
            run = self.place.ftrun(self.row, self._directory("undisturbed"))
            self.known["undisturbed"] = as_json(run)
            self._note(is_seeded=self._is_seeded(run, plain))
            if not difference(plain.end, run.end, None):
                run.unequal = []  # torchrun's replicas are as unequal
            self._note(undisturbed=self._verdict(run, plain))
        if "killed" in steps:
            self._killed(plain)
        if "check" in steps:
            self._note(check=self.place.check(self.row, self._directory("check")))
        return self.result

    def _torchrun(self, label: str) -> Run:
        run = self.place.torchrun(self.row, self._directory(label))
        if run.exit_code:
            why = [x for x in run.output.splitlines() if re.search(r"Error\b.*: ", x)][:1]
            raise Missing(f"torchrun ended with {run.exit_code}: {why}")
        if not all(run.end["output"]):
            raise Missing(f"lines without a match: {self.row.lines} {run.end['output']}")
        if len(run.end) == 1 > len(self.row.lines):
            raise Missing("nothing to compare at the end")
        return run

    def _is_seeded(self, run: Run, plain: Run) -> bool:
        """Whether two runs are the same to the last bit.

        If ftrun's is as torchrun's, they are those two; else torchrun's is made once more.
        """
        if not difference(plain.end, run.end, None):
            return True
        again = self._torchrun("torchrun-again")
        if wide := difference(plain.end, again.end, self.row.tolerance):
            raise Missing(f"two runs under torchrun differ in their form: {wide}")
        return not difference(plain.end, again.end, None)

    def _killed(self, plain: Run) -> None:
        calm = self.known.get("undisturbed", as_json(Run(0)))
        if self.result.undisturbed.startswith((ONE_WORLD, HANGS)):
            self._note(killed=self.result.undisturbed.partition(" (")[0])
            return
        moments = [
            str(max(1, calm["steps"] * int(moment[:-1]) // 100)) if moment[-1] == "%" else moment
            for moment in self.row.kills
        ]
        run = self.place.ftrun(self.row, self._directory("killed"), moments)
        if calm["unequal"]:
            run.unequal = []  # they are so without a death
        self._note(killed=self._verdict(run, plain))

    def _directory(self, label: str) -> Path:
        return self.place.prepare(self.row, self.source, label)

    def _verdict(self, run: Run, plain: Run) -> str:
        is_exact = self.result.is_seeded and self.row.is_exact
        tolerance = None if is_exact and self.row.is_mended else self.row.tolerance
        return verdict(run, plain, is_exact, tolerance)

    def _note(self, **verdicts: Any) -> None:
        for name, value in verdicts.items():
            setattr(self.result, name, value)
        self.known["result"] = asdict(self.result)
        self.kept.parent.mkdir(exist_ok=True)
        self.kept.write_text(json.dumps(self.known))


def _write_docs(lines: list[str]) -> None:
    """Put the rows into the document's table; rows that were not run stay, if they are rows yet."""
    text = DOCS.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    old = text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    new = [
        line
        for line in lines
        if f"| {BAD_ROW}" not in line and f"| {NOT_RUN} | {NOT_RUN} | {NOT_RUN} |" not in line
    ]
    known = {_name(line): line for line in (*old[2:], *new) if line.startswith("| ")}
    order = [row.name for row in rows() if row.name in known]
    table = [known[name] for name in order]
    body = "\n".join([*HEAD, *table, "", totals(table)])
    DOCS.write_text(f"{before}{BEGIN}\n{body}\n{END}{after}")


def _name(line: str) -> str:
    return line.removeprefix("| ").partition(": ")[0]
