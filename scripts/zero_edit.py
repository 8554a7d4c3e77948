#!/usr/bin/env python3
"""Run unmodified scripts under ``--inject ddp``, kill their replicas, and print what came out.

    scripts/zero_edit.py                 # the whole matrix, some minutes
    scripts/zero_edit.py --only sharded  # the scripts whose names contain this
    scripts/zero_edit.py --write-docs    # and put the table into docs/ZERO_EDIT.md

Exit code 1 if a case fails. Not here: the cases and their scripts (tests/zero_edit/).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.zero_edit.matrix import CASES, REPLICAS, Case, Outcome, run  # noqa: E402

Script = tuple[str, str, int]
"""Its file, its arguments, and the workers of each replica."""
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"


def main() -> int:
    """Run all cases; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--only", default="", help="a part of a case's name")
    options = parser.parse_args()
    if options.only and options.write_docs:
        parser.error("the table in the docs is of the whole matrix: give no --only")
    calm: dict[Script, Outcome] = {}
    rows: dict[Script, list[tuple[Case, str, Outcome]]] = defaultdict(list)
    failed = 0
    for case in (case for case in CASES if options.only in str(case)):
        key = (case.script, case.args, case.workers)
        if key not in calm:
            calm[key] = _run(Case(case.script, case.args, workers=case.workers))
        outcome = _run(case)
        why = _problem(outcome, calm[key])
        failed += bool(why)
        rows[key].append((case, why, outcome))
        print(f"{'FAILED' if why else 'ok':6} {case}{': ' if why else ''}{why}", flush=True)
        if why:
            print(outcome.output[-3000:], flush=True)
    table = _table(rows)
    print(table)
    if options.write_docs:
        path = ROOT / "docs" / "ZERO_EDIT.md"
        text = path.read_text()
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
    return 1 if failed else 0


def _run(case: Case) -> Outcome:
    with tempfile.TemporaryDirectory() as directory:
        try:
            return run(case, Path(directory))
        except subprocess.TimeoutExpired as error:
            raw = error.stdout or b""
            return Outcome(124, {}, raw.decode() if isinstance(raw, bytes) else raw)


def _problem(outcome: Outcome, calm: Outcome) -> str:
    if outcome.exit_code:
        return f"exit code {outcome.exit_code}"
    if not outcome.is_equal:
        return f"the replicas differ: {outcome.ends}"
    if outcome.differences:
        return outcome.differences[0]
    if outcome.counters != calm.counters:
        return f"counted {outcome.counters}, undisturbed {calm.counters}"
    return ""


def _table(rows: dict[Script, list[tuple[Case, str, Outcome]]]) -> str:
    lines = [
        f"| script ({REPLICAS} replicas) | cases | equal, counters as undisturbed | steps lost |",
        "|---|---|---|---|",
    ]
    for (script, args, workers), cases in rows.items():
        good = sum(not why for _, why, _ in cases)
        lost = max(outcome.lost for _, _, outcome in cases)
        each = f", {workers} workers each" if workers > 1 else ""
        lines.append(f"| `{script} {args}`{each} | {len(cases)} | {good} | at most {lost} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
