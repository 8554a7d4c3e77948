#!/usr/bin/env python3
"""Run unmodified scripts under ``ftrun --replicas``, kill their replicas, and print what came out.

    scripts/zero_edit.py                 # the whole matrix: half an hour with --jobs 2
    scripts/zero_edit.py --write-docs    # and put its table into docs/ZERO_EDIT_REFERENCE.md
    scripts/zero_edit.py --only lit.py   # some of it; other rows of the docs' table stay

Scripts on transformers, accelerate and lightning are rows where these are installed.

Exit code 1 if a case fails. Not here: the cases and their scripts (tests/zero_edit/).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.zero_edit.matrix import CASES, FRAMEWORKS, Case, Outcome, has, run  # noqa: E402

Script = tuple[str, str, int]
"""The script's file, its arguments, and the workers per replica."""
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"


def main() -> int:
    """Run all cases; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--only", default="", help="cases whose words contain this")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    options = parser.parse_args()
    cases = [case for case in (*CASES, *FRAMEWORKS) if options.only in str(case)]
    for needs in sorted({case.needs for case in cases if not has(case.needs)}):
        print(f"{needs} is not installed: its cases are left out", flush=True)
    cases = [case for case in cases if has(case.needs)]
    undisturbed = {_shape(case): replace(case, kills="", late="") for case in cases}
    rows: dict[Script, list[tuple[Case, str, Outcome]]] = defaultdict(list)
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        calm = dict(zip(undisturbed, pool.map(_run, undisturbed.values()), strict=True))
        for case, outcome in zip(cases, pool.map(_run, cases), strict=True):
            why = _problem(outcome, calm[_shape(case)])
            failed += bool(why)
            rows[_shape(case)].append((case, why, outcome))
            print(f"{'FAILED' if why else 'ok':6} {case}{': ' if why else ''}{why}", flush=True)
            if why:
                print(outcome.output[-3000:], flush=True)
    table = _table(rows)
    print(table)
    if options.write_docs:
        path = ROOT / "docs" / "ZERO_EDIT_REFERENCE.md"
        text = path.read_text()
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        known = text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
        path.write_text(f"{before}{BEGIN}\n{_merged(known, table.splitlines())}\n{END}{after}")
    return 1 if failed else 0


def _shape(case: Case) -> Script:
    return case.script, case.args, case.workers


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
        "| script | replicas | cases | equal, counters as undisturbed | steps lost "
        "| kill to healed, median and most |",
        "|---|---|---|---|---|---|",
    ]
    for (script, args, workers), cases in rows.items():
        good = sum(not why for _, why, _ in cases)
        lost = max(outcome.lost for _, _, outcome in cases)
        back = [seconds for _, _, outcome in cases for seconds in outcome.back_after_s]
        each = f", {workers} workers each" if workers > 1 else ""
        lines.append(
            f"| `{f'{script} {args}'.strip()}`{each} | {cases[0][0].replicas} | {len(cases)} "
            f"| {good} | at most {lost} | {_span(back)} |"
        )
    return "\n".join(lines)


def _merged(known: list[str], found: list[str]) -> str:
    """The table with the new results; rows of scripts that were not run stay unchanged."""
    if known[:2] != found[:2]:
        return "\n".join(found)
    rows = {line.split("|")[1]: line for line in (*known, *found)}
    return "\n".join(["\n".join(found[:2]), *list(rows.values())[2:]])


def _span(seconds: list[float]) -> str:
    if not seconds:
        return ""
    return f"{statistics.median(seconds):.1f} s, {max(seconds):.1f} s"


if __name__ == "__main__":
    sys.exit(main())
