#!/usr/bin/env python3
"""Kill workers of jobs that train locally, at random moments, and print what the kills cost.

    scripts/local_training.py                 # ten kills in each form, some minutes
    scripts/local_training.py --write-docs    # and put the table into docs/LOCAL_TRAINING.md

Exit code 1 if replicas had unlike weights after an outer step, or at the end. Not here: the script
that trains (tests/local/scripts/).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.local.jobs import FORMS, Outcome, run  # noqa: E402

BEGIN, END = "<!-- kills: begin -->", "<!-- kills: end -->"


def main() -> int:
    """Run all; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("forms", nargs="*", metavar="FORM", help=f"default: {', '.join(FORMS)}")
    parser.add_argument("--write-docs", action="store_true")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lines = [
        "| form | kills | of them within an outer step | outer steps | of them not committed "
        "| compared | unlike | at the end |",
        "|---|---|---|---|---|---|---|---|",
    ]
    failed = False
    for form in options.forms or FORMS:
        with tempfile.TemporaryDirectory() as directory:
            outcome = run(Path(directory), form, options.kills, options.seed, options.replicas)
        lines.append(_row(form, outcome))
        print(lines[-1], flush=True)
        if not outcome.is_right or outcome.kills != options.kills:
            failed = True
            print(outcome.output)
    table = "\n".join(lines)
    print(table)
    if options.write_docs:
        path = ROOT / "docs" / "LOCAL_TRAINING.md"
        text = path.read_text()
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
    return 1 if failed else 0


def _row(form: str, outcome: Outcome) -> str:
    ends = len(outcome.ends)
    end = f"{ends} replicas equal" if len(set(outcome.ends)) == 1 else f"**{ends} unlike**"
    texts = (
        form, outcome.kills, outcome.within, outcome.steps, outcome.lost, outcome.compared,
        len(outcome.unlike), end,
    )  # fmt: skip
    return "| " + " | ".join(str(text) for text in texts) + " |"


if __name__ == "__main__":
    sys.exit(main())
