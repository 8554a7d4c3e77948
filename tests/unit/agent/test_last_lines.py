"""The last lines of a worker's output: its own, and of a crash those where the stacks begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.agent.last_lines import OWN_BEGIN, OWN_END, last_lines

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
