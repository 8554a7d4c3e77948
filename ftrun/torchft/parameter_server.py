"""torchft.parameter_server: sessions of a server with one client each, over process groups.

A client requests a session by HTTP and receives the place in a store at which both build a group of
two. If either side dies, its session ends; the server and the other sessions continue.
"""

from __future__ import annotations

import json
import logging
import threading
import urllib.request
import uuid
from abc import ABC, abstractmethod
from http.server import BaseHTTPRequestHandler
from typing import Any

from torch._C._distributed_c10d import TCPStore

from ftrun.base.addresses import join_address, own_host
from ftrun.torchft.http import _IPv6HTTPServer
from ftrun.torchft.process_group import ProcessGroup, reconfigure_with_store

log = logging.getLogger(__name__)

PATH = "/new_session"
ASK_TIMEOUT_S = 60.0
ANSWER_BYTES_MAX = 1 << 16
SERVER, CLIENT = 0, 1
"""The ranks of a session's group."""


class ParameterServer(ABC):
    """Serves sessions in threads, one client each.

    Any process that reaches the port may open a session, as with torchft: bind it where only the
    job's machines reach it.

    Args:
        port: of the HTTP server; 0 lets the kernel choose.
        store_port: of the store in which a session's two sides meet.
    """

    def __init__(self, port: int, store_port: int = 0) -> None:
        self._host = own_host()
        self.store = TCPStore(self._host, store_port, is_master=True, wait_for_workers=False)
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = ASK_TIMEOUT_S

            def do_GET(self) -> None:
                if self.path != PATH:
                    self.send_error(404, f"there is {PATH} here, and no {self.path}")
                    return
                session_id, store_addr = server._new_place()
                body = json.dumps({"session_id": session_id, "store_addr": store_addr}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                server._begin(session_id, store_addr)

            def log_message(self, format: str, *args: Any) -> None:
                log.debug(format, *args)

        self._server = _IPv6HTTPServer(("", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="ftrun-parameters", daemon=True
        )
        self._thread.start()

    def address(self) -> str:
        """``http://host:port/new_session``."""
        return f"http://{join_address(self._host, self._server.server_address[1])}{PATH}"

    @classmethod
    @abstractmethod
    def new_process_group(cls) -> ProcessGroup:
        """A group that is not connected yet, for one side of a session."""

    @classmethod
    def new_session(cls, address: str) -> ProcessGroup:
        """Open a session with the server at ``address``; the client is rank 1, the server rank 0.

        Raises:
            OSError: the server does not answer.
            RuntimeError: the session's group was not connected in time.
        """
        with urllib.request.urlopen(address, timeout=ASK_TIMEOUT_S) as answer:
            place = json.loads(answer.read(ANSWER_BYTES_MAX))
        group = cls.new_process_group()
        reconfigure_with_store(group, place["store_addr"], CLIENT, 2)
        return group

    @abstractmethod
    def forward(self, session_id: str, pg: ProcessGroup) -> None:
        """Serve one session in a separate thread. The session ends when this returns.

        Args:
            session_id: unique.
            pg: the group: the server is rank 0, the client rank 1.
        """

    def _new_place(self) -> tuple[str, str]:
        session_id = str(uuid.uuid4())
        store = join_address(self._host, self.store.port)
        return session_id, f"{store}/session/{session_id}"

    def _begin(self, session_id: str, store_addr: str) -> None:
        threading.Thread(
            target=self._serve, args=(session_id, store_addr), name="ftrun-session", daemon=True
        ).start()

    def _serve(self, session_id: str, store_addr: str) -> None:
        group = self.new_process_group()
        try:
            reconfigure_with_store(group, store_addr, SERVER, 2)
            self.forward(session_id, group)
        except Exception:  # ends this session only: its client died, or the script raised
            log.exception("session %s has ended with an error; the others continue", session_id)
        finally:
            group.shutdown()
