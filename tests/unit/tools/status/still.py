"""A job that is only a picture: it stands in for the source of a screen."""

from __future__ import annotations

from ftrun.protocol.tls import PLAINTEXT, TlsFiles


class Still:
    """Notes what the screen asks for. ``address``: of a lighthouse for requests."""

    def __init__(self, address: str = "127.0.0.1:1", token: str = "") -> None:
        self.address = address
        self.token = token
        self.chosen: list[str | None] = []
        self.is_stopped = False

    def choose(self, job_id: str | None) -> None:
        """Another job."""
        self.chosen.append(job_id)

    def target(self) -> tuple[str, str, TlsFiles]:
        """The lighthouse."""
        return self.address, self.token, PLAINTEXT

    def stop(self) -> None:
        """The end."""
        self.is_stopped = True
