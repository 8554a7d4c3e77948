"""The former place of the driver, for tests that are not moved to tests/jobs yet."""

from __future__ import annotations

from tests.jobs import END_S, START_S, Job, command_of

__all__ = ["END_S", "START_S", "Job", "command_of"]
