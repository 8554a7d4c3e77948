"""The last lines of a worker's output: its own, and of a crash those where the stacks begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.agent.last_lines import OWN_BEGIN, OWN_END, last_lines
from ftrun.logs.disk import LogFile
from ftrun.logs.index import OUT
from ftrun.logs.layout import index_path

OWN = f"{OWN_BEGIN}\nFile x, line 3\n{OWN_END}\n"


@pytest.mark.parametrize(
    "text",
    [
        f"first\n{OWN}last\n",
        f"first\nlast\n{OWN}",
        f"{OWN}first\n{OWN}last\n{OWN}",
        f"File x, line 3\n{OWN_END}\nfirst\nlast\n",
        f"first\nlast\n{OWN_BEGIN}\nFile x, line 3\n",
    ],
)
def test_stacks_that_ftrun_has_put_there_are_no_output(tmp_path: Path, text: str) -> None:
    path = tmp_path / "0.log"
    path.write_text(text)
    assert last_lines(path) == "first\nlast"


def test_lines_of_an_earlier_run_are_none_of_this_one(tmp_path: Path) -> None:
    path = tmp_path / "0.log"

    def run(text: bytes, time_s: float) -> None:
        file = LogFile(path, has_index=True)
        file.write(text, OUT, time_s)
        file.close()

    run(b"earlier\n", 100.0)
    assert last_lines(path, 50.0) == "earlier"
    assert last_lines(path, 150.0) == ""
    run(b"now\n", 200.0)
    assert last_lines(path, 150.0) == "now"
    index_path(path).write_text("cut")
    assert last_lines(path, 150.0) == "earlier\nnow"
