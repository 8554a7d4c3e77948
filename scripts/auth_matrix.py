#!/usr/bin/env python3
"""Print the answer of every way into a job to each kind of token. Exit code 1 if one lets it in.

The ways come from the service's descriptor and the route tables; the servers are real processes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.security.ways import all_ways, wrong_tokens


def main() -> int:
    """Send all requests, print the answers, return the exit code."""
    table = Table("way in", "to each wrong token", "to the job's own")
    let_in = 0
    with (
        tempfile.TemporaryDirectory(prefix="ftrun-") as directory,
        all_ways(Path(directory)) as ways,
    ):
        for way in ways:
            answers = [way.ask(token) for token in wrong_tokens(way.token).values()]
            own = way.ask(way.token)
            expected = way.welcome if way.is_open else way.refusal
            let_in += sum(answer != expected for answer in answers) + (own != way.welcome)
            # All refusals of one route must be alike.
            told = answers[0] if len(set(answers)) == 1 else ", ".join(answers)
            table.add_row(way.name + (" (open)" if way.is_open else ""), told, own)
    Console(width=110).print(table)
    kinds = ", ".join(wrong_tokens(""))
    print(f"{table.row_count} ways in; tokens: {kinds}. Answers that are wrong: {let_in}")
    return 1 if let_in else 0


if __name__ == "__main__":
    sys.exit(main())
