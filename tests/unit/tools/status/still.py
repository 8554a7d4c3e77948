"""A job that never changes: it stands in for the source of a screen."""

from __future__ import annotations

from pathlib import Path

from ftrun.tools.status.once import StatusQuery


class Still:
    """Notes the screen's requests. ``address``: the lighthouse for requests, with a token."""

    def __init__(self, address: str = "127.0.0.1:1", token_file: Path | None = None) -> None:
        self._query = StatusQuery(address, token_file=token_file)
        self.chosen: list[str | None] = []
        self.is_stopped = False

    def choose(self, job_id: str | None) -> None:
        """Change to another job."""
        self.chosen.append(job_id)

    def query(self) -> StatusQuery:
        """The lighthouse."""
        return self._query

    def stop(self) -> None:
        """The end."""
        self.is_stopped = True
