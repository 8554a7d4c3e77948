"""Agents and a lighthouse of unlike versions of the protocol refuse each other, and say so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ftrun.base.errors import ExitCode
from ftrun.core.version import PROTOCOL_VERSION
from tests.jobs import Job, Lighthouse

NEWER = f"""
from ftrun.core import version
version.PROTOCOL_VERSION = {PROTOCOL_VERSION + 1}
from ftrun.cli import main
main()
"""
OLDER = """
from ftrun.core import version
version.PROTOCOL_VERSION = 0
version.unlike_version = lambda *_: ""  # from before it was checked
from ftrun.cli import main
main()
"""


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (
            NEWER,
            f"The lighthouse refuses this agent: this agent runs an older ftrun (protocol "
            f"{PROTOCOL_VERSION}, and {PROTOCOL_VERSION + 1} here)",
        ),
        (OLDER, "This agent refuses the lighthouse"),
    ],
    ids=["a newer lighthouse", "an older lighthouse"],
)
def test_another_version_is_refused_in_words(tmp_path: Path, program: str, text: str) -> None:
    with (
        Lighthouse(tmp_path, program=(sys.executable, "-c", program)) as house,
        Job(tmp_path, "print('never')", "--replicas", "1", *house.found_by) as job,
    ):
        job.expect(text.replace("(", r"\(").replace(")", r"\)"))
        job.expect("Install the same ftrun on all nodes")
        assert job.end() == ExitCode.REFUSED
        assert "never" not in job.output
